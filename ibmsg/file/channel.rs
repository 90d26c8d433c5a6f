// SPDX-License-Identifier: GPL-2.0

//! The file of a channel.

use core::mem::MaybeUninit;
use ibmsg_proto::gather;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};
use kx::{
    file::{
        uring::{
            Command,
            Issue,
            Issued,
            UringOps,
            Words, //
        },
        File,
        FileOps,
        Io,
        IovIterDest,
        IovIterSource,
        Ready,
        SeqFile,
        WaitQueue, //
    },
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    }, //
};

use super::{
    is_too_small,
    with_room,
    written, //
    InfoWriter,
    Reading,
    CALL,
    FILE_CHANNEL,
    FLUSH,
    GET,
    INFO,
    MAP,
    PUT,
    RELEASE,
    SHUTDOWN,
    SUBSCRIBE,
    TUNE,
    TUNE_LEN,
    UNMAP,
    UNSUBSCRIBE,
};
use crate::{
    channel::{
        Caller,
        Reserved,
        Sent,
        Take, //
    },
    session::Side,
    types::{
        Arg,
        Body,
        Header,
        F_NOWAIT,
        HEADER_LEN, //
    }, //
};

/// A place for a message, its content, and memory for both.
pub(super) type Prepared = (Reserved, Body, KBox<MaybeUninit<Sent>>);

/// The longest time for which a task polls.
const MAX_BUSY_POLL_US: u32 = 1_000_000;

/// The channel of a file.
pub(super) struct Its {
    pub(super) side: Side,
    pub(super) channel: u32,
    /// The channel is this file's, which closes it.
    is_ours: Atomic<bool>,
}

impl Drop for Its {
    fn drop(&mut self) {
        if self.is_ours.load(Relaxed) {
            self.side.release(self.channel);
        }
    }
}

/// Numbers of files: processes that show the same one share a channel.
static FILES: Atomic<u64> = Atomic::new(0);

/// A channel that a program has.
#[pin_data]
pub(super) struct ChannelFile {
    pub(super) its: Its,
    number: u64,
    wake: Arc<WaitQueue>,
    /// Held by the task that copies messages, so that one that cannot be copied is put back in its place.
    #[pin]
    reading: Mutex<()>,
    /// A task has found `reading` locked.
    is_missed: Atomic<bool>,
    /// For how long tasks poll before they sleep, in microseconds.
    pub(super) busy_poll_us: Atomic<u32>,
}

impl ChannelFile {
    /// The file of a channel that is being opened.
    pub(super) fn new(side: Side, channel: u32, wake: Arc<WaitQueue>) -> Result<Arc<Self>> {
        Self::make(side, channel, wake, true)
    }

    /// The file of a channel that is offered. It does nothing with that before
    /// [`ChannelFile::has_channel`].
    pub(super) fn offered(side: Side, channel: u32, wake: Arc<WaitQueue>) -> Result<Arc<Self>> {
        Self::make(side, channel, wake, false)
    }

    fn make(side: Side, channel: u32, wake: Arc<WaitQueue>, is_ours: bool) -> Result<Arc<Self>> {
        let its = Its {
            side,
            channel,
            is_ours: Atomic::new(is_ours),
        };
        // If there is no memory, dropping it closes the channel.
        Arc::pin_init(
            pin_init!(Self {
                its,
                number: FILES.fetch_add(1, Relaxed) + 1,
                wake,
                reading <- new_mutex!((), "ChannelFile::reading"),
                is_missed: Atomic::new(false),
                busy_poll_us: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The channel was accepted.
    pub(super) fn has_channel(&self) {
        self.its.is_ours.store(true, Relaxed);
    }

    /// Locks `reading`, unless the call must not wait.
    ///
    /// # Errors
    ///
    /// [`EAGAIN`]; [`ERESTARTSYS`] if a signal came first.
    fn lock(&self, may_wait: bool) -> Result<MutexGuard<'_, ()>> {
        match may_wait {
            // The task that has it may wait for its memory for as long as it takes.
            true => self.wake.wait(None, || self.try_lock()),
            false => self.try_lock().ok_or(EAGAIN),
        }
    }

    /// Wakes the tasks that could not lock, after this one has unlocked.
    fn unlocked(&self) {
        // ORDERING: Pairs with `try_lock`: either that sees the lock free, or this sees the flag.
        if self.is_missed.xchg(false, Full) {
            self.wake.wake(self.poll());
        }
    }

    /// Locks `reading` if that is possible at once. Otherwise the task that has it wakes all others.
    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        if let Some(guard) = self.reading.try_lock() {
            return Some(guard);
        }
        self.is_missed.xchg(true, Full);
        self.reading.try_lock()
    }

    /// Waits until `ready` returns a value, and polls before if the program wants that.
    ///
    /// # Errors
    ///
    /// [`ERESTARTSYS`] if a signal came first.
    pub(super) fn wait_on<R>(
        &self,
        waiters: &WaitQueue,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let us = self.busy_poll_us.load(Relaxed);
        let polled = match us {
            0 => None,
            us => waiters.spin(us, &mut ready),
        };
        match polled {
            Some(value) => Ok(value),
            None => waiters.wait(None, ready),
        }
    }

    /// Copies what there is. None if there is nothing.
    fn copy(&self, to: &mut IovIterDest<'_>) -> Option<Result<usize>> {
        let mut reading = Reading { done: 0 };
        let (side, id) = (&self.its.side, self.its.channel);
        let mut former = None;
        loop {
            // A writer may be as fast as this reader.
            if let Some(former) = former.take_if(|_| current!().signal_pending()) {
                side.took(id, former);
                return Some(Ok(reading.done));
            }
            match side.take(id, former.take(), reading.room(to)) {
                Take::Item(taken) => {
                    let copied = reading.copy(to, &taken.header(), &[], taken.body());
                    if let Err(e) = copied {
                        side.put_back(id, taken);
                        return Some(reading.or(e));
                    }
                    former = Some(taken);
                }
                Take::TooLong => return Some(reading.or(EMSGSIZE)),
                Take::Nothing if reading.done == 0 => return None,
                Take::Nothing | Take::End => return Some(Ok(reading.done)),
            }
        }
    }

    /// Reserves a place for a message, which comes first: what is copied is bounded by the limits of the channel.
    ///
    /// # Errors
    ///
    /// As [`Side::reserve_message`]; [`ERESTARTSYS`] if a signal came first.
    pub(super) fn reserve(
        &self,
        header: &Header,
        may_wait: bool,
        caller: impl Fn() -> Caller,
    ) -> Result<Reserved> {
        let its = &self.its;
        let reserve = || its.side.reserve_message(its.channel, header, caller());
        loop {
            let reserved = with_room(&self.wake, may_wait, reserve);
            match reserved {
                // Lists grow when no lock is held. Others may use up what was allocated.
                Err(ENOMEM) => its.side.grow(its.channel)?,
                reserved => return reserved,
            }
        }
    }

    /// Sends a message in its place, or gives that up.
    ///
    /// # Errors
    ///
    /// That of `body`; as [`Side::send`].
    pub(super) fn send(&self, reserved: Reserved, body: Result<Body>) -> Result {
        let (reserved, body, place) = self.prepare(reserved, body)?;
        self.its.side.send(self.its.channel, reserved, body, place)
    }

    /// Allocates what else a message needs, or gives its place up.
    ///
    /// # Errors
    ///
    /// That of `body`; [`ENOMEM`].
    pub(super) fn prepare(&self, reserved: Reserved, body: Result<Body>) -> Result<Prepared> {
        match body.and_then(|body| Ok((body, KBox::new_uninit(GFP_KERNEL_ACCOUNT)?))) {
            Ok((body, place)) => Ok((reserved, body, place)),
            Err(e) => {
                self.its.side.cancel(self.its.channel, reserved);
                Err(e)
            }
        }
    }

    /// Takes `struct ibmsg_tune`.
    fn tune(&self, address: usize) -> Result<usize> {
        let arg = Arg::<TUNE_LEN>::read(address)?;
        let mut fields = arg.fields();
        let or = |said, default| if said == 0 { default } else { said };
        let watermark = or(fields.u32()?, gather::WATERMARK);
        let wait_us = or(fields.u32()?, gather::WAIT_US);
        let busy_poll_us = fields.u32()?;
        fields.reserved()?;
        fields.reserved()?;
        if busy_poll_us > MAX_BUSY_POLL_US {
            return Err(EINVAL);
        }
        let its = &self.its;
        its.side.tune(its.channel, watermark, wait_us)?;
        self.busy_poll_us.store(busy_poll_us, Relaxed);
        Ok(0)
    }

    fn info(&self, address: usize) -> Result<usize> {
        let its = self.its.side.info(self.its.channel).ok_or(EPIPE)?;
        let mut info = InfoWriter::new(FILE_CHANNEL);
        info.u32(its.state);
        info.u32(self.its.channel);
        info.terms(Some(&its.terms));
        info.u32(its.peer_max_message);
        info.u32(its.peer_messages);
        info.len(its.next_len);
        info.len(its.waiting);
        info.len(its.unacknowledged);
        info.u32(its.moves);
        for count in [
            its.sent,
            its.sent_bytes,
            its.queued,
            its.taken,
            its.received,
            its.received_bytes,
        ] {
            info.u64(count);
        }
        info.names(Some(&self.its.side.name()), Some(&its.portal));
        info.write(address)
    }
}

impl UringOps for ChannelFile {
    fn uring_cmd<'a>(&self, issue: Issue<'a, Self>) -> Issued<'a> {
        match issue.op() {
            CALL => self.issue_call(issue),
            PUT | GET => self.issue_copy(issue),
            _ => issue.fail(ENOTTY),
        }
    }

    fn uring_complete(&self, words: Words, is_dying: bool) -> Result<usize> {
        let copied = self.complete_copy(words);
        copied.unwrap_or_else(|| self.complete_call(words, is_dying))
    }

    fn uring_cancel(&self, words: Words) -> Option<(Command, Error)> {
        let copied = self.cancel_copy(words);
        copied.unwrap_or_else(|| self.cancel_call(words))
    }
}

impl FileOps for ChannelFile {
    type Module = crate::LocalModule;

    fn waiters(&self) -> &WaitQueue {
        &self.wake
    }

    fn poll(&self) -> Ready {
        self.its.side.poll(self.its.channel)
    }

    fn read(&self, io: Io, to: &mut IovIterDest<'_>) -> Result<usize> {
        if is_too_small(to) {
            return Err(EMSGSIZE);
        }
        loop {
            let guard = self.lock(io.may_wait())?;
            let copied = self.copy(to);
            drop(guard);
            self.unlocked();
            if let Some(result) = copied {
                return result;
            }
            if !io.may_wait() {
                return Err(EAGAIN);
            }
            self.wait_on(&self.wake, || self.poll().has(Ready::IN).then_some(()))?;
        }
    }

    fn write(&self, io: Io, from: &mut IovIterSource<'_>) -> Result<usize> {
        let (header, len) = written(from)?;
        let may_wait = io.may_wait() && header.flags & F_NOWAIT == 0;
        let reserved = self.reserve(&header, may_wait, || Caller::Reader)?;
        self.send(reserved, Body::written(from, len))?;
        Ok(HEADER_LEN + len)
    }

    fn ioctl(&self, file: &File, cmd: u32, arg: usize) -> Result<usize> {
        match cmd {
            CALL => self.call(file, arg),
            TUNE => self.tune(arg),
            SUBSCRIBE => self.subscribe(arg, may_wait(file)),
            UNSUBSCRIBE => self.unsubscribe(arg, may_wait(file)),
            // It has no argument, nor has `SHUTDOWN`: a call with two has anything in the place of the third.
            FLUSH => {
                self.its.side.flush(self.its.channel);
                Ok(0)
            }
            MAP => self.map(arg),
            UNMAP => self.unmap(arg),
            RELEASE => self.release(arg, may_wait(file)),
            PUT | GET => self.copy_memory(file, cmd, arg),
            INFO => self.info(arg),
            SHUTDOWN => {
                // A message that is being copied counts as read, or not, before the peer is told.
                let guard = self.lock(true)?;
                self.its.side.shut_down(self.its.channel);
                drop(guard);
                self.unlocked();
                Ok(0)
            }
            _ => Err(ENOTTY),
        }
    }

    fn show_fdinfo(&self, to: &SeqFile) {
        let Some(its) = self.its.side.info(self.its.channel) else {
            return;
        };
        kernel::seq_print!(
            to,
            "file:\t{}\nsession:\t{}\nside:\t{}\nportal:\t{}\nchannel:\t{}\nstate:\t{}\n\
             connected:\t{}\n",
            self.number,
            self.its.side.name(),
            match self.its.side.is_client() {
                true => "client",
                false => "server",
            },
            its.portal,
            self.its.channel,
            its.state,
            u8::from(its.is_connected)
        );
        kernel::seq_print!(
            to,
            "sent:\t{}\nqueued:\t{}\ntaken:\t{}\nreceived:\t{}\n",
            its.sent,
            its.queued,
            its.taken,
            its.received
        );
        kernel::seq_print!(
            to,
            "sent_bytes:\t{}\nreceived_bytes:\t{}\n",
            its.sent_bytes,
            its.received_bytes
        );
        kernel::seq_print!(
            to,
            "waiting:\t{}\nunacknowledged:\t{}\nmoves:\t{}\n",
            its.waiting,
            its.unacknowledged,
            its.moves
        );
        kernel::seq_print!(
            to,
            "calls:\t{}\ncall_us:\t{}\nserved:\t{}\nserved_us:\t{}\n",
            its.answered.count,
            its.answered.us,
            its.served.count,
            its.served.us
        );
    }
}

/// Whether calls for a file may wait.
pub(super) fn may_wait(file: &File) -> bool {
    file.flags() & kernel::bindings::O_NONBLOCK == 0
}
