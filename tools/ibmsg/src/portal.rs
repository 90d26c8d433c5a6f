// SPDX-License-Identifier: GPL-2.0

//! Portals.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};

use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::publish::{self, LogState, LogTerms};
use crate::sys;
use crate::wire::{
    Fields, Header, Kind, Terms, F_AUTHENTICATED, HEADER_LEN, MAX_DATA, MAX_NAME, REJECT,
    UNAUTHENTICATED,
};
use crate::words::Doing;
use crate::DEVICE;

pub(crate) fn device() -> Result<File> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    device.map_err(|e| Error::system(Doing::Open, e))
}

/// A portal to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    name: &'a str,
    terms: Terms,
    backlog: u32,
    flags: u32,
}

impl<'a> Bind<'a> {
    /// A portal of this name, for programs of this machine and of machines that have proved a key.
    pub fn new(name: &'a str) -> Self {
        Self {
            name,
            terms: Terms::default(),
            backlog: 0,
            flags: 0,
        }
    }

    /// The terms of the channels that it accepts.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// How many offers may wait. 0 is the default.
    #[must_use]
    pub fn backlog(self, backlog: u32) -> Self {
        Self { backlog, ..self }
    }

    /// For programs of machines that have not proved a key, too.
    #[must_use]
    pub fn unauthenticated(self) -> Self {
        let flags = self.flags | UNAUTHENTICATED;
        Self { flags, ..self }
    }

    /// Binds the portal.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if the name is bound; `EINVAL` for a name or terms that are impossible; those of limits.
    pub fn open(self) -> Result<Portal> {
        let file = self.file(0)?;
        Ok(Portal { file })
    }

    /// Opens the file of the portal, with further flags of `struct ibmsg_bind`.
    pub(crate) fn file(self, flags: u32) -> Result<File> {
        if self.name.len() > MAX_NAME {
            return Err(Error::system(Doing::Bind, Errno::INVAL));
        }
        let mut bind = Fields::new()
            .u32(self.flags | flags)
            .u32(self.backlog)
            .u32(0)
            .terms(&self.terms)
            .bytes(self.name.as_bytes(), MAX_NAME)
            .finish();
        let file = sys::open(device()?, sys::BIND, &mut bind);
        Ok(file.map_err(|e| Error::system(Doing::Bind, e))?.into())
    }
}

/// A name at which this program accepts channels, until it is dropped.
#[derive(Debug)]
pub struct Portal {
    file: File,
}

/// A program asks for a channel.
#[derive(Debug)]
pub struct Offer<'a> {
    portal: &'a File,
    id: u64,
    /// The session by which it asks.
    pub session: String,
    /// The machine at the other end of the session has proved a key, or is this one.
    pub is_authenticated: bool,
    /// The longest message that it takes.
    pub max_message: u32,
    /// Its private data.
    pub data: Vec<u8>,
}

impl Portal {
    /// Binds a name, with the default terms.
    ///
    /// # Errors
    ///
    /// As [`Bind::open`].
    pub fn bind(name: &str) -> Result<Self> {
        Bind::new(name).open()
    }

    /// Binds a name, with these terms of the channels that it accepts.
    ///
    /// # Errors
    ///
    /// As [`Bind::open`].
    pub fn bind_with(name: &str, terms: &Terms) -> Result<Self> {
        Bind::new(name).terms(*terms).open()
    }

    /// Waits until a program asks for a channel.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn offer(&self) -> Result<Offer<'_>> {
        loop {
            match Offer::read(&self.file) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|e| Error::system(Doing::Read, e))?,
            }
        }
    }
}

impl Portal {
    /// Publishes an entry under a tag. Waits if a subscriber is slow, and the log is to wait for it.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if it is longer than the log may be, `ENOSPC` if there are too many logs, those of limits.
    pub fn publish(&self, tag: u64, body: &[u8]) -> Result<()> {
        publish::publish(&self.file, tag, body)
    }

    /// Sets the terms of the log of a tag; without a tag, those of logs that are made later.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are out of range, `ENOSPC` if there are too many logs, those of limits.
    pub fn set_log(&self, tag: Option<u64>, terms: &LogTerms) -> Result<()> {
        publish::set_log(&self.file, tag, terms)
    }

    /// What there is to know about the log of a tag.
    ///
    /// # Errors
    ///
    /// `ENOENT` if nothing was published under it, and nobody has subscribed to it.
    pub fn log(&self, tag: u64) -> Result<LogState> {
        publish::log_state(&self.file, tag)
    }
}

impl<'a> Offer<'a> {
    /// Reads an offer from the file of a portal.
    pub(crate) fn read(mut portal: &'a File) -> io::Result<Result<Self>> {
        let mut buffer = [0; HEADER_LEN + 1024];
        // Just room for one, however long later versions make it.
        let len = portal.read(&mut buffer)?;
        let offer = Self::of(portal, buffer.get(..len).unwrap_or(&[]));
        Ok(offer.ok_or(Error::Format))
    }

    fn of(portal: &'a File, mut bytes: &[u8]) -> Option<Self> {
        let (header, body) = Header::take(&mut bytes)?;
        let head = u16::from_ne_bytes(*body.first_chunk()?);
        let max_message = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
        let session = body.get(8..8 + MAX_NAME)?;
        let name = session.split(|byte| *byte == 0).next().unwrap_or(&[]);
        (header.kind == Kind::Offer).then_some(())?;
        Some(Offer {
            portal,
            id: header.id,
            session: String::from_utf8_lossy(name).into_owned(),
            is_authenticated: header.flags & F_AUTHENTICATED != 0,
            max_message,
            data: body.get(usize::from(head)..)?.to_vec(),
        })
    }
}

impl Offer<'_> {
    fn answer(&self, flags: u32, reason: i32, data: &[u8]) -> Vec<u8> {
        Fields::new()
            .u32(flags)
            .u64(self.id)
            .u32(reason.unsigned_abs())
            .u32(data.len() as u32)
            .bytes(data, MAX_DATA)
            .finish()
    }

    /// Accepts, with private data of at most [`MAX_DATA`] bytes.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the program does not wait any more.
    pub fn accept(self, data: &[u8]) -> Result<Channel> {
        Ok(Channel::of(self.file(0, data)?))
    }

    /// Accepts, with flags of `struct ibmsg_accept`, and returns the channel's file.
    pub(crate) fn file(self, flags: u32, data: &[u8]) -> Result<File> {
        let mut answer = self.answer(flags, 0, data);
        let file = sys::open(self.portal, sys::ACCEPT, &mut answer);
        Ok(file.map_err(|e| Error::system(Doing::Accept, e))?.into())
    }

    /// Refuses, with an errno and private data of at most [`MAX_DATA`] bytes.
    ///
    /// # Errors
    ///
    /// As [`Offer::accept`].
    pub fn reject(self, reason: i32, data: &[u8]) -> Result<()> {
        let mut answer = self.answer(REJECT, reason, data);
        let done = sys::ioctl(self.portal, sys::ACCEPT, &mut answer);
        done.map_err(|e| Error::system(Doing::Accept, e)).map(drop)
    }
}
