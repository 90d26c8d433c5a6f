// SPDX-License-Identifier: GPL-2.0

//! Portals.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};

use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::sys;
use crate::wire::{Fields, Header, Kind, Terms, HEADER_LEN, MAX_DATA, MAX_NAME};
use crate::words::Doing;
use crate::DEVICE;

pub(crate) fn device() -> Result<File> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    device.map_err(|e| Error::system(Doing::Open, e))
}

/// A name at which this program accepts channels, until it is dropped.
#[derive(Debug)]
pub struct Portal {
    file: File,
}

/// A program asks for a channel.
#[derive(Debug)]
pub struct Offer<'a> {
    portal: &'a Portal,
    id: u64,
    /// The session by which it asks.
    pub session: String,
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
    /// `EADDRINUSE` if it is bound; those of limits.
    pub fn bind(name: &str) -> Result<Self> {
        Self::bind_with(name, &Terms::default())
    }

    /// Binds a name, with these terms of the channels that it accepts.
    ///
    /// # Errors
    ///
    /// As [`Portal::bind`], and `EINVAL` for terms that are impossible.
    pub fn bind_with(name: &str, terms: &Terms) -> Result<Self> {
        if name.len() > MAX_NAME {
            return Err(Error::system(Doing::Bind, Errno::INVAL));
        }
        let mut bind = Fields::new()
            .u32(0)
            .u32(0)
            .u32(0)
            .terms(terms)
            .bytes(name.as_bytes(), MAX_NAME)
            .finish();
        let file = sys::open(device()?, sys::BIND, &mut bind);
        let file = file.map_err(|e| Error::system(Doing::Bind, e))?;
        Ok(Self { file: file.into() })
    }

    /// Waits until a program asks for a channel.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn offer(&self) -> Result<Offer<'_>> {
        let mut buffer = [0; HEADER_LEN + 1024];
        // Just room for one, however long later versions make it.
        let len = loop {
            match (&self.file).read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(|e| Error::system(Doing::Read, e))?,
            }
        };
        let (header, body) =
            Header::take(&mut buffer.get(..len).unwrap_or(&[])).ok_or(Error::Format)?;
        let head = body.first_chunk().copied().map(u16::from_ne_bytes);
        let max_message = body.get(4..8).and_then(|bytes| bytes.first_chunk());
        let session = body.get(8..8 + MAX_NAME);
        let (Some(head), Some(max_message), Some(session)) = (head, max_message, session) else {
            return Err(Error::Format);
        };
        if header.kind != Kind::Offer {
            return Err(Error::Format);
        }
        let data = body.get(usize::from(head)..).ok_or(Error::Format)?;
        let name = session.split(|byte| *byte == 0).next().unwrap_or(&[]);
        Ok(Offer {
            portal: self,
            id: header.id,
            session: String::from_utf8_lossy(name).into_owned(),
            max_message: u32::from_ne_bytes(*max_message),
            data: data.to_vec(),
        })
    }
}

impl Offer<'_> {
    fn answer(&self, reason: i32, data: &[u8]) -> Vec<u8> {
        let is_refusal = reason != 0;
        Fields::new()
            .u32(if is_refusal { 2 } else { 0 })
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
        let mut answer = self.answer(0, data);
        let file = sys::open(&self.portal.file, sys::ACCEPT, &mut answer);
        let file = file.map_err(|e| Error::system(Doing::Accept, e))?;
        Ok(Channel::of(file.into()))
    }

    /// Refuses, with an errno and private data of at most [`MAX_DATA`] bytes.
    ///
    /// # Errors
    ///
    /// As [`Offer::accept`].
    pub fn reject(self, reason: i32, data: &[u8]) -> Result<()> {
        let mut answer = self.answer(reason, data);
        let done = sys::ioctl(&self.portal.file, sys::ACCEPT, &mut answer);
        done.map_err(|e| Error::system(Doing::Accept, e)).map(drop)
    }
}
