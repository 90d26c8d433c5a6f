// SPDX-License-Identifier: GPL-2.0

//! Messages with a body: a large message leaves its body in the memory of the program that sends it, and the other
//! program gets the parts of it that it needs.
//!
//! The sender:
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! use ibmsg::{Memory, Message, Outgoing};
//!
//! let mut channel = ibmsg::Connect::new("storage1", "images").open()?;
//! let image = Memory::new(64 << 20);
//! image.write(0, b"pixels");
//! let lent = channel.send_with_body(&Outgoing::new(b"image.tiff").tag(7), image)?;
//! // Until the receipt, the memory must not change.
//! while let Some(message) = channel.next()? {
//!     if let Message::BodyReceipt { tag: 7, status } = message {
//!         println!("released, status {status}");
//!         break;
//!     }
//! }
//! let image = lent.take_back()?;
//! image.write(0, b"others");
//! # Ok(())
//! # }
//! ```
//!
//! The receiver, which [says](crate::Terms::bodies) that it takes such messages:
//!
//! ```no_run
//! # fn main() -> ibmsg::Result<()> {
//! use ibmsg::{Bind, Message, Terms};
//!
//! let terms = Terms { bodies: true, ..Terms::default() };
//! let mut channel = Bind::new("images").terms(terms).open()?.offer()?.accept(&[])?;
//! while let Some(message) = channel.next()? {
//!     if let Message::Msg { body: name, remote: Some(image), .. } = message {
//!         let header = channel.get_body(&image, 0, 8, None)?;
//!         println!("{}: {header:?} of {} bytes", String::from_utf8_lossy(&name), image.size());
//!         channel.release(image)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::{Channel, Outgoing};
use crate::error::{Error, Result};
use crate::memory::{self, Memory, Published, Remote};
use crate::publish;
use crate::sys;
use crate::wire::{Fields, Header, F_BODY};
use crate::words::Doing;

/// Bytes of `struct ibmsg_body`, with which the content of such a message begins.
const BODY_LEN: usize = 24;

/// The body of a message that has arrived. It stays in the memory of the other program until it is
/// [released](Channel::release), or the channel ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBody {
    handle: u64,
    offset: u64,
    size: u64,
}

impl RemoteBody {
    /// Takes it from the beginning of a message. Returns the content as well.
    pub(crate) fn take(message: &[u8]) -> Option<(Self, &[u8])> {
        let (place, content) = message.split_first_chunk::<BODY_LEN>()?;
        let field = |at: usize| {
            let bytes = place.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let body = Self {
            handle: field(0),
            offset: field(8),
            size: field(16),
        };
        Some((body, content))
    }

    fn bytes(&self) -> Vec<u8> {
        let fields = [self.handle, self.offset, self.size];
        fields.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// For [`Channel::get`], and for GETs by a ring.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// The offset of its first byte, for the same.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the byte at `at` is. The kernel refuses a place that is outside of the body.
    pub(crate) fn at(&self, at: u64) -> Remote {
        Remote {
            handle: self.handle,
            offset: self.offset.saturating_add(at),
        }
    }
}

/// Memory that is the body of a message of this program, and must not change until [`Message::BodyReceipt`]. If this is
/// dropped before that, the body is taken back, which waits for the other machine.
///
/// [`Message::BodyReceipt`]: crate::Message::BodyReceipt
#[derive(Debug)]
pub struct Lent(Published);

impl Lent {
    /// Copies bytes from `at` on out of the memory.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.0.read(at, to);
    }

    /// The memory. Before its receipt, this takes the body back from the other program, and the receipt says `ESTALE`.
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal came first. The memory is never freed then.
    pub fn take_back(self) -> Result<Memory> {
        self.0.take_back()
    }
}

/// Publishes memory as the body of a message.
pub(crate) fn lend(file: Arc<File>, memory: Memory) -> Result<Lent> {
    memory::publish_body(file, memory).map(Lent)
}

/// The header and the content of a message that has this body.
pub(crate) fn with_body(message: &Outgoing<'_>, lent: &Lent) -> (Header, Vec<u8>) {
    let place = RemoteBody {
        handle: lent.0.handle(),
        offset: 0,
        size: lent.0.len() as u64,
    };
    let header = Header {
        flags: message.header.flags | F_BODY,
        ..message.header
    };
    (header, [&place.bytes()[..], message.body].concat())
}

/// `IBMSG_IOC_RELEASE`.
pub(crate) fn release(file: &File, body: &RemoteBody) -> io::Result<()> {
    let mut release = Fields::new().u32(0).u64(body.handle).finish();
    sys::ioctl(file, sys::RELEASE, &mut release).map(drop)
}

impl Channel {
    /// Sends a message whose body is `memory`: the other program gets it from there. [`Message::BodyReceipt`] tells when
    /// the memory is out of its reach. The content of the message may have up to 65512 bytes.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the other program takes no messages with a body, `ENOBUFS` if it has 64 bodies of this channel;
    /// otherwise as [`Channel::publish`] and [`Channel::send`].
    ///
    /// [`Message::BodyReceipt`]: crate::Message::BodyReceipt
    pub fn send_with_body(&self, message: &Outgoing<'_>, memory: Memory) -> Result<Lent> {
        let lent = lend(self.file(), memory)?;
        let (header, content) = with_body(message, &lent);
        self.write(header, &content)?;
        Ok(lent)
    }

    /// Copies bytes of the body of a message, from `at` on.
    ///
    /// # Errors
    ///
    /// `ESTALE` if the other program has taken the body back, `ERANGE` if it is shorter; otherwise as [`Channel::get`].
    pub fn get_body(
        &self,
        body: &RemoteBody,
        at: u64,
        len: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let done = memory::get(&self.file(), body.at(at), len, timeout);
        done.map_err(|e| Error::system(Doing::Copy, e))
    }

    /// Releases the body of a message, so that the other program may use the memory again. Each body must be released:
    /// one that is not takes one of the 64 places of the channel until that ends.
    ///
    /// # Errors
    ///
    /// `ESTALE` if it was released before, `EPIPE` if the channel is closed, and with it all bodies.
    pub fn release(&self, body: RemoteBody) -> Result<()> {
        publish::ask(|| release(&self.file(), &body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_follows_the_body() {
        let body = RemoteBody {
            handle: 1 << 40,
            offset: 3,
            size: 9,
        };
        let message = [&body.bytes()[..], &b"more"[..]].concat();
        assert_eq!(RemoteBody::take(&message), Some((body, &b"more"[..])));
        for len in 0..BODY_LEN {
            assert_eq!(RemoteBody::take(&message[..len]), None);
        }
        assert_eq!(
            RemoteBody::take(&message[..BODY_LEN]),
            Some((body, &[][..]))
        );
    }

    #[test]
    fn no_place_is_before_the_body() {
        let body = RemoteBody {
            handle: 7,
            offset: u64::MAX - 5,
            size: 6,
        };
        assert_eq!(body.at(2).offset, u64::MAX - 3);
        assert_eq!(body.at(100).offset, u64::MAX);
    }
}
