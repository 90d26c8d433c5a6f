// SPDX-License-Identifier: GPL-2.0

//! The file of a channel, and what was read from it and is still to be received. Of the tasks that wait, one reads for
//! all.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::future::pending;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::Interest;
use ::tokio::select;
use ::tokio::sync::{oneshot, Notify, Semaphore};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::channel::{whole, Message};
use crate::error::{Error, Result};
use crate::sys;
use crate::wire::{Header, Kind, EV_CLOSED, EV_CONNECTED, F_KERNEL, HEADER_LEN, MAX_MESSAGE};
use crate::words::Doing;

/// Bytes of messages that calls may take out of the channel.
pub(super) const FULL: usize = 128 << 10;

/// GETs and PUTs of a channel that may be under way: as many as the kernel allows.
const COPIES: usize = 64;

thread_local! {
    /// Room for the longest message. It is only used between two points at which a task waits.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; HEADER_LEN + MAX_MESSAGE]);
}

/// The answer to a request.
pub(super) struct Reply {
    pub(super) is_kernel: bool,
    pub(super) status: i32,
    pub(super) body: Vec<u8>,
}

/// What was read.
#[derive(Default)]
struct State {
    /// Each message, and the bytes that it had.
    inbox: VecDeque<(Message, usize)>,
    bytes: usize,
    /// Calls without a reply, by the tags of their requests.
    calls: HashMap<u64, oneshot::Sender<Reply>>,
    last_call: u64,
    is_over: bool,
}

impl State {
    fn is_full(&self) -> bool {
        self.bytes >= FULL
    }
}

/// A call. If it is dropped, so is its reply.
pub(super) struct Call<'a> {
    reader: &'a Reader,
    pub(super) tag: u64,
    pub(super) reply: oneshot::Receiver<Reply>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.reader.state().calls.remove(&self.tag);
    }
}

/// The file of a channel.
pub(super) struct Reader {
    file: AsyncFd<Arc<File>>,
    state: Mutex<State>,
    /// Held by the task that reads.
    reading: ::tokio::sync::Mutex<()>,
    /// Has a permit for each message of the inbox; closed at the end.
    arrived: Semaphore,
    /// The inbox is not full any more.
    room: Notify,
    /// Has a permit for each GET and PUT that may be under way.
    pub(super) copies: Arc<Semaphore>,
}

impl Reader {
    /// The file does not block.
    pub(super) fn new(file: Arc<File>, inbox: VecDeque<Message>) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        let permits = inbox.len();
        let state = State {
            inbox: inbox.into_iter().map(|message| (message, 0)).collect(),
            ..State::default()
        };
        Ok(Self {
            file: sys::watch(file, interest)?,
            state: Mutex::new(state),
            reading: ::tokio::sync::Mutex::new(()),
            arrived: Semaphore::new(permits),
            room: Notify::new(),
            copies: Arc::new(Semaphore::new(COPIES)),
        })
    }

    pub(super) fn file(&self) -> &File {
        self.file.get_ref()
    }

    pub(super) fn shared_file(&self) -> Arc<File> {
        self.file.get_ref().clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message, and reads others while there is no room for it: the kernel's own messages, if they are not
    /// read, use up the room.
    pub(super) async fn write(&self, header: Header, body: &[u8]) -> Result<()> {
        let data = whole(header, body)?;
        // One write is one message.
        let write = |file: &Arc<File>| (&**file).write(&data).map(drop);
        select! {
            biased;
            done = self.file.async_io(Interest::WRITABLE, write) => {
                done.map_err(|e| Error::system(Doing::Write, e))
            }
            error = self.read() => Err(error),
        }
    }

    /// Asks the kernel for something that needs the room of a message.
    pub(super) async fn ask(&self, mut ask: impl FnMut(&File) -> io::Result<()>) -> Result<()> {
        select! {
            biased;
            done = self.file.async_io(Interest::WRITABLE, |file: &Arc<File>| ask(file)) => {
                done.map_err(|e| Error::system(Doing::Write, e))
            }
            error = self.read() => Err(error),
        }
    }

    /// Begins a call.
    pub(super) fn call(&self) -> Call<'_> {
        let (sender, reply) = oneshot::channel();
        let mut state = self.state();
        state.last_call += 1;
        let tag = state.last_call;
        state.calls.insert(tag, sender);
        Call {
            reader: self,
            tag,
            reply,
        }
    }

    /// Waits for the reply to a call; `None` if the channel ends without one.
    pub(super) async fn reply(&self, call: &mut Call<'_>) -> Result<Option<Reply>> {
        select! {
            biased;
            reply = &mut call.reply => Ok(reply.ok()),
            error = self.read() => Err(error),
        }
    }

    /// The next message; `None` after the end.
    pub(super) async fn next(&self) -> Result<Option<Message>> {
        select! {
            biased;
            permit = self.arrived.acquire() => {
                // After the end there are no permits, and perhaps messages.
                permit.into_iter().for_each(|permit| permit.forget());
                Ok(self.pop())
            }
            error = self.read() => Err(error),
        }
    }

    fn pop(&self) -> Option<Message> {
        let mut state = self.state();
        let was_full = state.is_full();
        let (message, bytes) = state.inbox.pop_front()?;
        state.bytes -= bytes;
        if was_full && !state.is_full() {
            self.room.notify_one();
        }
        Some(message)
    }

    /// Reads for all tasks, as soon as no other task does. Returns only if that fails.
    async fn read(&self) -> Error {
        let reading = self.reading.lock().await;
        while !self.state().is_over {
            if let Err(error) = self.fill().await {
                return failure(Doing::Read, error);
            }
        }
        drop(reading);
        pending().await
    }

    /// Reads at least one message, or finds that there is none.
    async fn fill(&self) -> io::Result<()> {
        if !self.state().is_full() {
            let read = |file: &Arc<File>| self.read_now(file, HEADER_LEN + MAX_MESSAGE);
            return self.file.async_io(Interest::READABLE, read).await;
        }
        // What has become of calls is told even if nobody receives other messages.
        let is_notice = select! {
            () = self.room.notified() => return Ok(()),
            is_notice = self.file.async_io(Interest::PRIORITY, |file| self.read_notice(file)) => is_notice?,
        };
        // The channel has ended.
        if !is_notice {
            self.room.notified().await;
        }
        Ok(())
    }

    fn read_now(&self, mut file: &File, len: usize) -> io::Result<()> {
        BUFFER.with_borrow_mut(|buffer| {
            let room = buffer.get_mut(..len).unwrap_or_default();
            let len = file.read(room)?;
            self.arrive(buffer.get(..len).unwrap_or(&[]))
        })
    }

    /// Reads what the kernel itself has to say, if it has. Returns `false` at the end of the channel.
    fn read_notice(&self, file: &File) -> io::Result<bool> {
        let mut ready = [PollFd::new(file, PollFlags::PRI)];
        poll(&mut ready, Some(&Timespec::default()))?;
        let found = ready[0].revents();
        if !found.contains(PollFlags::PRI) {
            return match found.contains(PollFlags::HUP) {
                true => Ok(false),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        match self.read_now(file, HEADER_LEN) {
            Err(e) if e.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            result => result.map(|()| true),
        }
    }

    fn arrive(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if bytes.is_empty() {
            state.is_over = true;
            // Those that still wait get nothing.
            state.calls.clear();
            self.arrived.close();
        }
        while !bytes.is_empty() {
            let before = bytes.len();
            let (header, body) = Header::take(&mut bytes).ok_or(io::ErrorKind::InvalidData)?;
            if header.kind == Kind::Reply {
                // Or its future was dropped.
                if let Some(call) = state.calls.remove(&header.tag) {
                    let _ = call.send(Reply {
                        is_kernel: header.flags & F_KERNEL != 0,
                        status: header.status,
                        body: body.to_vec(),
                    });
                }
            } else if let Some(message) = Message::of(&header, body) {
                let bytes = before - bytes.len();
                state.inbox.push_back((message, bytes));
                state.bytes += bytes;
                self.arrived.add_permits(1);
            }
        }
        Ok(())
    }

    /// The answer of a portal, the first message of a channel that was asked for.
    pub(super) async fn answer(&self) -> Result<()> {
        let read = |file: &Arc<File>| {
            let mut buffer = [0; HEADER_LEN + 1024];
            let len = (&**file).read(&mut buffer)?;
            let mut bytes = buffer.get(..len).unwrap_or(&[]);
            let first = Header::take(&mut bytes).map(|(header, body)| (header, body.to_vec()));
            // Messages may be as early.
            if !bytes.is_empty() {
                self.arrive(bytes)?;
            }
            first.ok_or(io::ErrorKind::InvalidData.into())
        };
        let first = self.file.async_io(Interest::READABLE, read).await;
        let (header, data) = first.map_err(|e| failure(Doing::Connect, e))?;
        match (header.kind, header.event) {
            (Kind::Event, EV_CONNECTED) => Ok(()),
            (Kind::Event, EV_CLOSED) => Err(Error::Refused {
                reason: header.status,
                data,
            }),
            _ => Err(Error::Format),
        }
    }
}

fn failure(doing: Doing, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => Error::Format,
        _ => Error::system(doing, error),
    }
}
