// SPDX-License-Identifier: GPL-2.0

//! Channels.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::body::RemoteBody;
use crate::error::{Error, Result};
use crate::portal::device;
use crate::publish::{self, Begin, Place};
use crate::sys;
use crate::wire::{
    Fields, Header, Kind, Terms, EV_CLOSED, EV_LOST, EV_SUBSCRIBED, EV_UNSUBSCRIBED, F_BODY,
    F_KERNEL, F_MORE, F_RECEIPT, HEADER_LEN, MAX_DATA, MAX_MESSAGE, MAX_NAME,
};
use crate::words::Doing;

#[cfg(feature = "tokio")]
use crate::wire::NONBLOCK;

/// Where `status`, `data_len` and `data` are in `struct ibmsg_connect`.
const STATUS: usize = 12;
const DATA_LEN: usize = 16;
const DATA: usize = 184;

/// A channel to be opened.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    session: &'a str,
    portal: &'a str,
    timeout: Option<Duration>,
    terms: Terms,
    data: &'a [u8],
}

/// Whole milliseconds, rounded up: 0 means no limit.
pub(crate) fn milliseconds(time: Option<Duration>) -> u32 {
    time.map_or(0, |time| {
        let ms = time.as_nanos().div_ceil(1_000_000).max(1);
        u32::try_from(ms).unwrap_or(u32::MAX)
    })
}

impl<'a> Connect<'a> {
    /// A channel to a portal of the machine at the other end of a session; `local` is this machine.
    pub fn new(session: &'a str, portal: &'a str) -> Self {
        Self {
            session,
            portal,
            timeout: None,
            terms: Terms::default(),
            data: &[],
        }
    }

    /// Waits no longer than that for the portal.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// The terms of this end.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Private data for the portal's program, at most [`MAX_DATA`] bytes.
    #[must_use]
    pub fn data(self, data: &'a [u8]) -> Self {
        Self { data, ..self }
    }

    /// Opens the channel.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the portal refuses; `ENODEV` if there is no such session, `ETIMEDOUT`, those of limits.
    pub fn open(self) -> Result<Channel> {
        Ok(Channel::of(self.file(0)?))
    }

    /// Opens the file of a channel, with flags of `struct ibmsg_connect`.
    fn file(self, flags: u32) -> Result<File> {
        let is_long = self.session.len().max(self.portal.len()) > MAX_NAME;
        if is_long || self.data.len() > MAX_DATA {
            return Err(Error::system(Doing::Connect, Errno::INVAL));
        }
        let mut connect = Fields::new()
            .u32(flags)
            .u32(milliseconds(self.timeout))
            .u32(0)
            .u32(self.data.len() as u32)
            .u32(0)
            .terms(&self.terms)
            .bytes(self.session.as_bytes(), MAX_NAME)
            .bytes(self.portal.as_bytes(), MAX_NAME)
            .bytes(self.data, MAX_DATA)
            .finish();
        let field = |connect: &[u8], at: usize| {
            let bytes = connect.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        match sys::open(device()?, sys::CONNECT, &mut connect) {
            Ok(file) => Ok(file.into()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                let end = DATA + field(&connect, DATA_LEN) as usize;
                Err(Error::Refused {
                    reason: field(&connect, STATUS) as i32,
                    data: connect.get(DATA..end).unwrap_or(&[]).to_vec(),
                })
            }
            Err(e) => Err(Error::system(Doing::Connect, e)),
        }
    }

    /// Asks for the channel, and does not wait: the answer is its first message.
    #[cfg(feature = "tokio")]
    pub(crate) fn ask(self) -> Result<(File, Option<Duration>)> {
        let timeout = self.timeout;
        Ok((self.file(NONBLOCK)?, timeout))
    }
}

/// A message of the other program, or what the kernel has to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A message without an answer.
    Msg {
        /// The other program's number.
        tag: u64,
        /// The content.
        body: Vec<u8>,
        /// A body that is not part of the content: it must be [released](Channel::release). Only if
        /// [`Terms::bodies`] says that this program takes any.
        remote: Option<RemoteBody>,
    },
    /// A request, which [`Channel::reply`] answers.
    Request {
        /// Names the call.
        id: u64,
        /// The other program's number.
        tag: u64,
        /// The content.
        body: Vec<u8>,
        /// As of [`Message::Msg`].
        remote: Option<RemoteBody>,
    },
    /// The answer to a request.
    Reply {
        /// The number of the request.
        tag: u64,
        /// From the kernel: there is no answer, and `status` is why.
        is_kernel: bool,
        /// An errno, or 0.
        status: i32,
        /// The content.
        body: Vec<u8>,
    },
    /// The outcome of a message of this program.
    Receipt {
        /// Its number.
        tag: u64,
        /// 0: delivered. Otherwise an errno.
        status: i32,
    },
    /// The memory of a [body](Channel::send_with_body) is out of reach of the other program.
    BodyReceipt {
        /// The number of its message.
        tag: u64,
        /// 0: the other program has released it. `ESTALE`: this program has taken it back. `ECONNRESET`: the channel has
        /// ended before. Otherwise the outcome of the message.
        status: i32,
    },
    /// An entry of a log to which this program has [subscribed](Channel::subscribe).
    Published {
        /// The log's tag.
        tag: u64,
        /// Its position in the log.
        position: u64,
        /// The content.
        body: Vec<u8>,
    },
    /// A subscription begins.
    Subscribed {
        /// The log's tag.
        tag: u64,
        /// The entry that comes first. If its log is not the one that was asked for, that is no more.
        place: Place,
    },
    /// Entries of a log are lost.
    Lost {
        /// The log's tag.
        tag: u64,
        /// The position of the first one.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// The log's tag.
        tag: u64,
        /// The position of the entry that would have been next.
        position: u64,
        /// 0: as this program wanted. Otherwise an errno.
        status: i32,
    },
    /// The end; nothing follows.
    Closed {
        /// 0: a program has closed the channel. Otherwise an errno.
        status: i32,
        /// How many messages of this program were queued for the other one.
        queued: u64,
        /// How many it has read.
        taken: u64,
    },
}

impl Message {
    pub(crate) fn of(header: &Header, body: &[u8]) -> Option<Self> {
        let (tag, status) = (header.tag, header.status);
        let has_body = header.flags & F_BODY != 0;
        let (remote, body) = match header.kind {
            Kind::Msg | Kind::Request if has_body => {
                let (remote, body) = RemoteBody::take(body)?;
                (Some(remote), body)
            }
            _ => (None, body),
        };
        let body = body.to_vec();
        Some(match header.kind {
            Kind::Msg => Self::Msg { tag, body, remote },
            Kind::Request => Self::Request {
                id: header.id,
                tag,
                body,
                remote,
            },
            Kind::Reply => Self::Reply {
                tag,
                is_kernel: header.flags & F_KERNEL != 0,
                status,
                body,
            },
            Kind::Receipt if has_body => Self::BodyReceipt { tag, status },
            Kind::Receipt => Self::Receipt { tag, status },
            Kind::Event if header.event == EV_CLOSED => Self::Closed {
                status,
                queued: header.id,
                taken: header.tag,
            },
            Kind::Published => Self::Published {
                tag,
                position: header.id,
                body,
            },
            Kind::Event if header.event == EV_SUBSCRIBED => Self::Subscribed {
                tag,
                place: Place {
                    log: u64::from_le_bytes(*body.first_chunk()?),
                    position: header.id,
                },
            },
            Kind::Event if header.event == EV_LOST => Self::Lost {
                tag,
                first: header.id,
                count: u64::from_le_bytes(*body.first_chunk()?),
            },
            Kind::Event if header.event == EV_UNSUBSCRIBED => Self::Unsubscribed {
                tag,
                position: header.id,
                status,
            },
            // Nothing asks for others.
            Kind::Event | Kind::Offer => return None,
        })
    }
}

/// How messages with [`Outgoing::more`] wait for others, and how tasks wait for messages. `None` is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    /// For how many bytes of messages: 256 to 65536, each message with 64 bytes and padding to 8; as many as travel
    /// together by default, 8184.
    pub more_bytes: Option<u32>,
    /// For how long: 100 us to 1 s; 1 ms by default.
    pub more_for: Option<Duration>,
    /// For how long reads and calls poll before the task sleeps: up to 1 s; they do not by default.
    pub busy_poll: Option<Duration>,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
}

impl<'a> Outgoing<'a> {
    /// A message without an answer.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            header: Header::new(Kind::Msg),
            body,
        }
    }

    /// A number for the other program, and for the receipt.
    #[must_use]
    pub fn tag(mut self, tag: u64) -> Self {
        self.header.tag = tag;
        self
    }

    /// [`Message::Receipt`] tells the outcome.
    #[must_use]
    pub fn receipt(mut self, wanted: bool) -> Self {
        self.set(F_RECEIPT, wanted);
        self
    }

    /// More messages follow: it may wait for them, to travel with them, until one without this is sent. See [`Tuning`]
    /// and [`Channel::flush`].
    #[must_use]
    pub fn more(mut self, follow: bool) -> Self {
        self.set(F_MORE, follow);
        self
    }

    fn set(&mut self, flag: u8, wanted: bool) {
        self.header.flags = match wanted {
            true => self.header.flags | flag,
            false => self.header.flags & !flag,
        };
    }

    /// It may take that long. If it takes longer, a receipt tells.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.header.timeout_ms = milliseconds(timeout);
        self
    }
}

/// A message as it is written.
///
/// # Errors
///
/// `EMSGSIZE`
pub(crate) fn whole(header: Header, body: &[u8]) -> Result<Vec<u8>> {
    if body.len() > MAX_MESSAGE {
        return Err(Error::system(Doing::Write, Errno::MSGSIZE));
    }
    let len = body.len() as u32;
    let mut data = Vec::with_capacity(HEADER_LEN + body.len());
    data.extend(Header { len, ..header }.bytes());
    data.extend(body);
    Ok(data)
}

/// What has become of a call: status and length of the reply, or the error of the kernel.
pub(crate) fn answer(done: io::Result<(i32, usize)>, mut reply: Vec<u8>) -> Result<Vec<u8>> {
    match done {
        Ok((status, len)) => {
            reply.truncate(len);
            match status {
                0 => Ok(reply),
                errno => Err(Error::Answered(errno, reply)),
            }
        }
        Err(e) => Err(match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(
                errno @ (Errno::CANCELED
                | Errno::TIMEDOUT
                | Errno::CONNRESET
                | Errno::CONNABORTED
                | Errno::INTR),
            ) => Error::Unanswered(errno.raw_os_error()),
            _ => Error::system(Doing::Write, e),
        }),
    }
}

/// One end of a channel. It is closed when it is dropped.
#[derive(Debug)]
pub struct Channel {
    file: Arc<File>,
    buffer: Vec<u8>,
    /// What was read while waiting for something else.
    waiting: VecDeque<Message>,
    is_over: bool,
}

impl Channel {
    pub(crate) fn of(file: File) -> Self {
        Self {
            file: Arc::new(file),
            buffer: Vec::new(),
            waiting: VecDeque::new(),
            is_over: false,
        }
    }

    /// The file, and messages that were read.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> (Arc<File>, VecDeque<Message>) {
        (self.file, self.waiting)
    }

    /// The file, for as long as the kernel needs its descriptor.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Another handle of the same channel, for another thread. What is read by one is not read by the other.
    ///
    /// # Errors
    ///
    /// Those of `dup`.
    pub fn share(&self) -> Result<Self> {
        let file = self.file.try_clone();
        Ok(Self::of(file.map_err(|e| Error::system(Doing::Read, e))?))
    }

    pub(crate) fn write(&self, header: Header, body: &[u8]) -> Result<()> {
        let data = whole(header, body)?;
        loop {
            // One write is one message.
            match (&*self.file).write(&data) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop).map_err(|e| Error::system(Doing::Write, e)),
            }
        }
    }

    /// Sends a message. When this returns, the kernel has it.
    ///
    /// # Errors
    ///
    /// `EPIPE` if the channel is closed, `EMSGSIZE` if the other program does not take messages of that length.
    pub fn send(&self, body: &[u8]) -> Result<()> {
        self.send_with(&Outgoing::new(body))
    }

    /// The same, with a number, a time, or a receipt.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn send_with(&self, message: &Outgoing<'_>) -> Result<()> {
        self.write(message.header, message.body)
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`]; `ENOENT` if it was answered before.
    pub fn reply(&self, id: u64, body: &[u8]) -> Result<()> {
        self.reply_error(id, 0, body)
    }

    /// Answers a request with an errno, and perhaps more.
    ///
    /// # Errors
    ///
    /// As [`Channel::reply`].
    pub fn reply_error(&self, id: u64, errno: i32, body: &[u8]) -> Result<()> {
        self.write(Header::reply(id, errno), body)
    }

    /// Sends a request and waits for the answer, of up to 64 KiB. Any number of threads may do so, with one handle or
    /// with [shared](Channel::share) ones. Somebody must read the other messages that arrive.
    ///
    /// # Errors
    ///
    /// [`Error::Answered`] if the other program answers with an errno; [`Error::Unanswered`] if there is no answer, with
    /// `ECANCELED` if the request was not delivered, `ETIMEDOUT` if the time is over, `ECONNRESET` if the channel was
    /// closed before the answer, `ECONNABORTED` or `EINTR` if nobody knows; `EPIPE` and `EMSGSIZE` as [`Channel::send`].
    pub fn call(&self, body: &[u8], timeout: Option<Duration>) -> Result<Vec<u8>> {
        let mut reply = vec![0; MAX_MESSAGE];
        let done = sys::call(&*self.file, body, &mut reply, milliseconds(timeout));
        answer(done, reply)
    }

    /// Subscribes to what the program at the portal publishes under a tag. [`Message::Subscribed`] follows, or
    /// [`Message::Unsubscribed`] with the reason. `exact`: not at all, if it cannot begin there.
    ///
    /// # Errors
    ///
    /// `EEXIST` if there is such a subscription, `ENOSPC` if there are too many, `EOPNOTSUPP` if nothing can be published
    /// there, `EPIPE` if the channel is closed.
    pub fn subscribe(&self, tag: u64, begin: Begin, exact: bool) -> Result<()> {
        publish::ask(|| publish::subscribe(&self.file, tag, begin, exact))
    }

    /// Wants no more of a tag: [`Message::Unsubscribed`] is the last of it.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such subscription, `EALREADY` if it is ending, `EPIPE` if the channel is closed.
    pub fn unsubscribe(&self, tag: u64) -> Result<()> {
        publish::ask(|| publish::unsubscribe(&self.file, tag))
    }

    /// The next message; `None` after the end.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(Some(message));
            }
            if self.is_over {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    /// Reads what there is, at least one message.
    fn fill(&mut self) -> Result<()> {
        self.buffer.resize(HEADER_LEN + MAX_MESSAGE, 0);
        let len = match (&*self.file).read(&mut self.buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result.map_err(|e| Error::system(Doing::Read, e))?,
        };
        let mut bytes = self.buffer.get(..len).unwrap_or(&[]);
        self.is_over = bytes.is_empty();
        while !bytes.is_empty() {
            let (header, body) = Header::take(&mut bytes).ok_or(Error::Format)?;
            self.waiting.extend(Message::of(&header, body));
        }
        Ok(())
    }

    /// All messages until the end, which is [`Message::Closed`].
    pub fn messages(&mut self) -> impl Iterator<Item = Result<Message>> + '_ {
        std::iter::from_fn(move || self.next().transpose())
    }

    /// Closes this end, but not the file: [`Message::Closed`] tells when the other kernel has all messages.
    ///
    /// # Errors
    ///
    /// `EINTR`
    pub fn shut_down(&self) -> Result<()> {
        shut_down(&self.file)
    }

    /// Sends the messages that wait for others: those with [`Outgoing::more`].
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the kernel module is too old.
    pub fn flush(&self) -> Result<()> {
        flush(&self.file)
    }

    /// Sets how messages wait for others, and how tasks wait for messages.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a value is out of its range, `EOPNOTSUPP` if the kernel module is too old.
    pub fn tune(&self, tuning: &Tuning) -> Result<()> {
        tune(&self.file, tuning)
    }

    /// The number of the channel in its session.
    ///
    /// # Errors
    ///
    /// `EPIPE` if the channel is closed.
    pub fn number(&self) -> Result<u32> {
        number(&self.file)
    }
}

pub(crate) fn shut_down(file: &File) -> Result<()> {
    sys::shutdown(file).map_err(|e| Error::system(Doing::Write, e))
}

pub(crate) fn flush(file: &File) -> Result<()> {
    sys::flush(file).map_err(old_module)
}

pub(crate) fn tune(file: &File, tuning: &Tuning) -> Result<()> {
    let micros = |time: Option<Duration>| match time {
        // Too long a time is refused by the kernel; 0 would stand for the default.
        Some(time) => u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1),
        None => 0,
    };
    let mut fields = Fields::new()
        .u32(tuning.more_bytes.unwrap_or(0))
        .u32(micros(tuning.more_for))
        .u32(micros(tuning.busy_poll))
        .u32(0)
        .u32(0)
        .finish();
    sys::ioctl(file, sys::TUNE, &mut fields)
        .map(drop)
        .map_err(old_module)
}

/// An ioctl has failed that older modules do not know.
fn old_module(e: io::Error) -> Error {
    let e = match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTTY) => Errno::OPNOTSUPP.into(),
        _ => e,
    };
    Error::system(Doing::Write, e)
}

/// The number of a channel in its session.
pub(crate) fn number(file: &File) -> Result<u32> {
    let mut info = Fields::new().bytes(&[], 244).finish();
    sys::ioctl(file, sys::INFO, &mut info).map_err(|e| Error::system(Doing::Read, e))?;
    let number = info.get(12..16).and_then(|bytes| bytes.first_chunk());
    number.map_or(Err(Error::Format), |number| Ok(u32::from_ne_bytes(*number)))
}

/// A channel that another process has opened, and has passed on, as a descriptor. If the file is no channel, the calls
/// fail.
impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self::of(fd.into())
    }
}

/// For `poll` and the like. Messages that [`Channel::next`] has read together with others do not make the file ready.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let ms = |nanos| milliseconds(Some(Duration::from_nanos(nanos)));
        assert_eq!((milliseconds(None), ms(0), ms(1)), (0, 1, 1));
        assert_eq!(
            (ms(1_000_000), ms(1_000_001), ms(u64::MAX)),
            (1, 2, u32::MAX)
        );
    }

    #[test]
    fn messages_from_headers() {
        let kernel = Header {
            flags: F_KERNEL,
            tag: 5,
            status: 110,
            ..Header::new(Kind::Reply)
        };
        let reply = Message::of(&kernel, b"");
        assert!(matches!(
            reply,
            Some(Message::Reply {
                tag: 5,
                is_kernel: true,
                status: 110,
                ..
            })
        ));
        let closed = Header {
            event: EV_CLOSED,
            id: 3,
            tag: 2,
            ..Header::new(Kind::Event)
        };
        let expected = Message::Closed {
            status: 0,
            queued: 3,
            taken: 2,
        };
        assert_eq!(Message::of(&closed, b""), Some(expected));
        let receipt = |flags| {
            Message::of(
                &Header {
                    flags,
                    tag: 5,
                    ..Header::new(Kind::Receipt)
                },
                b"",
            )
        };
        let (tag, status) = (5, 0);
        assert_eq!(receipt(F_BODY), Some(Message::BodyReceipt { tag, status }));
        assert_eq!(receipt(0), Some(Message::Receipt { tag, status }));
        let short = Header {
            flags: F_BODY,
            ..Header::new(Kind::Msg)
        };
        assert_eq!(Message::of(&short, &[0; 23]), None);
        assert_eq!(Message::of(&Header { event: 3, ..closed }, b""), None);
        assert_eq!(Message::of(&Header::new(Kind::Offer), b""), None);
    }
}
