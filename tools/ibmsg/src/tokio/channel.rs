// SPDX-License-Identifier: GPL-2.0

//! Channels.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use ::tokio::time::timeout;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;

use super::copy;
use super::reader::Reader;
use crate::body::{self, Lent, RemoteBody};
use crate::channel::{self, milliseconds, Connect, Message, Outgoing, Tuning};
use crate::error::{Error, Result};
use crate::memory::{self, Memory, Published, Remote, Rights};
use crate::publish::{self, Begin};
use crate::wire::{Header, Kind};
use crate::words::Doing;

/// One end of a channel. It is closed when all its clones are dropped.
#[derive(Clone)]
pub struct Channel {
    reader: Arc<Reader>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(self.reader.file()).finish()
    }
}

impl Channel {
    pub(super) fn of(file: File) -> Result<Self> {
        Self::with(Arc::new(file), VecDeque::new())
    }

    fn with(file: Arc<File>, inbox: VecDeque<Message>) -> Result<Self> {
        let reader = Reader::new(file, inbox).map_err(|e| Error::system(Doing::Read, e))?;
        Ok(Self {
            reader: Arc::new(reader),
        })
    }

    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// As [`Connect::open`].
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio, or of one without time if the channel has a [timeout](Connect::timeout).
    pub async fn connect(connect: Connect<'_>) -> Result<Self> {
        let (file, limit) = connect.ask()?;
        let channel = Self::of(file)?;
        let answer = channel.reader.answer();
        match limit {
            None => answer.await,
            Some(limit) => match timeout(limit, answer).await {
                Ok(answer) => answer,
                Err(_) => Err(Error::system(Doing::Connect, Errno::TIMEDOUT)),
            },
        }?;
        Ok(channel)
    }

    /// Sends a message. When this returns, the kernel has it.
    ///
    /// # Errors
    ///
    /// As [`crate::Channel::send`].
    pub async fn send(&self, body: &[u8]) -> Result<()> {
        self.send_with(&Outgoing::new(body)).await
    }

    /// The same, with a number, a time, or a receipt.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub async fn send_with(&self, message: &Outgoing<'_>) -> Result<()> {
        self.reader.write(message.header, message.body).await
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// As [`crate::Channel::reply`].
    pub async fn reply(&self, id: u64, body: &[u8]) -> Result<()> {
        self.reply_error(id, 0, body).await
    }

    /// Answers a request with an errno, and perhaps more.
    ///
    /// # Errors
    ///
    /// As [`Channel::reply`].
    pub async fn reply_error(&self, id: u64, errno: i32, body: &[u8]) -> Result<()> {
        self.reader.write(Header::reply(id, errno), body).await
    }

    /// Sends a request and waits for the answer. Any number of tasks may do so. If other messages arrive, some task must
    /// [receive](Channel::receive) them.
    ///
    /// # Errors
    ///
    /// As [`crate::Channel::call`].
    pub async fn call(&self, body: &[u8], timeout: Option<Duration>) -> Result<Vec<u8>> {
        let mut call = self.reader.call();
        let header = Header {
            tag: call.tag,
            timeout_ms: milliseconds(timeout),
            ..Header::new(Kind::Request)
        };
        self.reader.write(header, body).await?;
        match self.reader.reply(&mut call).await? {
            Some(reply) if reply.is_kernel => Err(Error::Unanswered(reply.status)),
            Some(reply) if reply.status != 0 => Err(Error::Answered(reply.status, reply.body)),
            Some(reply) => Ok(reply.body),
            None => Err(Error::Unanswered(Errno::CONNABORTED.raw_os_error())),
        }
    }

    /// As [`crate::Channel::subscribe`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn subscribe(&self, tag: u64, begin: Begin, exact: bool) -> Result<()> {
        let asks = |file: &File| publish::subscribe(file, tag, begin, exact);
        self.reader.ask(asks).await
    }

    /// As [`crate::Channel::unsubscribe`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn unsubscribe(&self, tag: u64) -> Result<()> {
        let asks = |file: &File| publish::unsubscribe(file, tag);
        self.reader.ask(asks).await
    }

    /// As [`crate::Channel::publish`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn publish(&self, memory: Memory, rights: Rights) -> Result<Published> {
        memory::publish(self.reader.shared_file(), memory, rights)
    }

    /// Takes published memory back, as [`Published::take_back`]. To drop [`Published`] does so as well, but blocks the
    /// thread meanwhile.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn take_back(&self, published: Published) -> Result<Memory> {
        copy::in_thread(move || published.take_back()).await
    }

    /// Copies bytes to memory that the other program has published, as [`crate::Channel::put`]. Returns them, to be used
    /// again. If the future is dropped, the bytes are copied nevertheless, or not if it has not begun; the channel stays
    /// open until that is done. It needs the room of a message: some task must [receive](Channel::receive) what arrives.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn put(
        &self,
        handle: u64,
        offset: u64,
        bytes: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let place = Remote { handle, offset };
        copy::put(&self.reader, place, bytes, timeout).await
    }

    /// Copies bytes of memory that the other program has published, as [`crate::Channel::get`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn get(
        &self,
        handle: u64,
        offset: u64,
        len: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let place = Remote { handle, offset };
        copy::get(&self.reader, place, len, timeout).await
    }

    /// Sends a message whose body is `memory`, as [`crate::Channel::send_with_body`]. If the future is dropped, the message
    /// was not sent.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send_with_body(&self, message: &Outgoing<'_>, memory: Memory) -> Result<Lent> {
        let lent = body::lend(self.reader.shared_file(), memory)?;
        let (header, content) = body::with_body(message, &lent);
        self.reader.write(header, &content).await?;
        Ok(lent)
    }

    /// The memory of a body, as [`Lent::take_back`]. To drop [`Lent`] takes the body back as well, but blocks the thread
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn take_body_back(&self, lent: Lent) -> Result<Memory> {
        copy::in_thread(move || lent.take_back()).await
    }

    /// Copies bytes of the body of a message, as [`crate::Channel::get_body`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn get_body(
        &self,
        body: &RemoteBody,
        at: u64,
        len: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>> {
        copy::get(&self.reader, body.at(at), len, timeout).await
    }

    /// Releases the body of a message, as [`crate::Channel::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn release(&self, body: RemoteBody) -> Result<()> {
        self.reader
            .ask(move |file| body::release(file, &body))
            .await
    }

    /// The next message; `None` after the end. Replies to calls are not among them. If several tasks receive, each
    /// message goes to one of them.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub async fn receive(&self) -> Result<Option<Message>> {
        self.reader.next().await
    }

    /// Closes this end, but not the file: [`Message::Closed`] tells when the other kernel has all messages. Does not
    /// wait for that.
    ///
    /// # Errors
    ///
    /// `EINTR`
    pub fn shut_down(&self) -> Result<()> {
        channel::shut_down(self.reader.file())
    }

    /// As [`crate::Channel::flush`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn flush(&self) -> Result<()> {
        channel::flush(self.reader.file())
    }

    /// As [`crate::Channel::tune`]. Tasks of tokio do not poll: [`Tuning::busy_poll`] is of no use here.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tune(&self, tuning: &Tuning) -> Result<()> {
        channel::tune(self.reader.file(), tuning)
    }

    /// The number of the channel in its session.
    ///
    /// # Errors
    ///
    /// As [`crate::Channel::number`].
    pub fn number(&self) -> Result<u32> {
        channel::number(self.reader.file())
    }
}

/// Takes over a channel whose calls block. Its other [handles](crate::Channel::share) must not be used any more: all
/// have `O_NONBLOCK` from now on.
impl TryFrom<crate::Channel> for Channel {
    type Error = Error;

    fn try_from(channel: crate::Channel) -> Result<Self> {
        let (file, inbox) = channel.into_parts();
        let nonblock = |file: &File| fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK);
        nonblock(&file).map_err(|e| Error::system(Doing::Read, e))?;
        Self::with(file, inbox)
    }
}
