// SPDX-License-Identifier: GPL-2.0

//! Portals.

use std::fs::File;
use std::io::Write;
use std::ops::Deref;
use std::sync::Arc;

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::Interest;
use rustix::io::Errno;

use super::Channel;
use crate::error::{Error, Result};
use crate::portal::Bind;
use crate::publish::{self, LogState, LogTerms};
use crate::sys;
use crate::wire::NONBLOCK;
use crate::words::Doing;

/// A name at which this program accepts channels, until it is dropped.
#[derive(Debug)]
pub struct Portal {
    file: AsyncFd<Arc<File>>,
}

/// A program asks for a channel.
#[derive(Debug)]
pub struct Offer<'a>(crate::Offer<'a>);

impl Portal {
    /// Binds a name, with the default terms.
    ///
    /// # Errors
    ///
    /// As [`Bind::open`].
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio.
    pub fn bind(name: &str) -> Result<Self> {
        Self::open(Bind::new(name))
    }

    /// Binds a portal.
    ///
    /// # Errors
    ///
    /// As [`Bind::open`].
    ///
    /// # Panics
    ///
    /// As [`Portal::bind`].
    pub fn open(bind: Bind<'_>) -> Result<Self> {
        let file = sys::watch(
            Arc::new(bind.file(NONBLOCK)?),
            Interest::READABLE | Interest::WRITABLE,
        );
        let file = file.map_err(|e| Error::system(Doing::Bind, e))?;
        Ok(Self { file })
    }

    /// Waits until a program asks for a channel.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub async fn offer(&self) -> Result<Offer<'_>> {
        loop {
            let ready = self.file.readable().await;
            let mut ready = ready.map_err(|e| Error::system(Doing::Read, e))?;
            match ready.try_io(|file| crate::Offer::read(file.get_ref())) {
                Ok(offer) => return Ok(Offer(offer.map_err(|e| Error::system(Doing::Read, e))??)),
                Err(_) => continue,
            }
        }
    }

    /// As [`crate::Portal::publish`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn publish(&self, tag: u64, body: &[u8]) -> Result<()> {
        let data = publish::entry(tag, body)?;
        loop {
            let ready = self.file.writable().await;
            let mut ready = ready.map_err(|e| Error::system(Doing::Write, e))?;
            // One write is one entry.
            match ready.try_io(|file| (&**file.get_ref()).write(&data)) {
                Ok(done) => return done.map(drop).map_err(|e| Error::system(Doing::Write, e)),
                Err(_) => continue,
            }
        }
    }

    /// As [`crate::Portal::set_log`]. Does not wait.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_log(&self, tag: Option<u64>, terms: &LogTerms) -> Result<()> {
        publish::set_log(self.file.get_ref(), tag, terms)
    }

    /// As [`crate::Portal::log`]. Does not wait.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn log(&self, tag: u64) -> Result<LogState> {
        publish::log_state(self.file.get_ref(), tag)
    }

    /// Waits until a program asks for a channel, and accepts it.
    ///
    /// # Errors
    ///
    /// Those of `read`; those of limits.
    pub async fn accept(&self) -> Result<Channel> {
        loop {
            match self.offer().await?.accept(&[]) {
                // The program does not wait any more.
                Err(error) if error.errno() == Some(Errno::NOENT.raw_os_error()) => {}
                result => return result,
            }
        }
    }
}

impl<'a> Deref for Offer<'a> {
    type Target = crate::Offer<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Offer<'_> {
    /// Accepts, with private data of at most [`MAX_DATA`](crate::wire::MAX_DATA) bytes. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`crate::Offer::accept`].
    pub fn accept(self, data: &[u8]) -> Result<Channel> {
        Channel::of(self.0.file(NONBLOCK, data)?)
    }

    /// Refuses, with an errno and private data of at most [`MAX_DATA`](crate::wire::MAX_DATA) bytes. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`crate::Offer::reject`].
    pub fn reject(self, reason: i32, data: &[u8]) -> Result<()> {
        self.0.reject(reason, data)
    }
}
