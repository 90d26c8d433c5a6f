// SPDX-License-Identifier: GPL-2.0

//! Channels of modules.

mod deliver;
pub(super) mod receiver;

use ibtrs_core::convert;
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::{
        atomic::{
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Completion,
        TakeCell, //
    },
    work::{
        Queue,
        Work, //
    }, //
};
use receiver::Receiver;

use super::options::{
    ConnectOptions,
    HandlerContext,
    SendOptions, //
};
use crate::{
    channel::Ticket,
    hub::{
        self,
        Hub, //
    },
    limits::KERNEL,
    session::End,
    types::{
        copy,
        Body,
        Header,
        Kind,
        Name,
        F_MORE,
        F_RECEIPT,
        MAX_DATA, //
    }, //
};

/// A message that was not sent, with its content.
pub struct Unsent {
    /// Why not.
    pub error: Error,
    /// The content.
    pub body: Body,
}

impl From<Unsent> for Error {
    fn from(unsent: Unsent) -> Self {
        unsent.error
    }
}

/// Is notified of the end of a channel, after its receiver.
pub(super) trait Owner: Send + Sync {
    /// A channel has ended.
    ///
    /// # Context
    ///
    /// *any*
    fn ended(&self);
}

/// Whose handlers are called. The holder of the channel's ticket has it during a handler.
struct Callee {
    receiver: Arc<dyn Receiver>,
    owner: Option<Arc<dyn Owner>>,
}

/// A channel.
#[pin_data]
struct ChannelInner {
    end: End,
    context: HandlerContext,
    /// Empty during a handler, and after [`Held::leave`].
    callee: TakeCell<Callee>,
    /// The ticket, while the work item has it.
    waiting: TakeCell<KBox<Ticket>>,
    /// The owner has gone: the work item gets no ticket any more.
    is_left: AtomicFlag,
    #[pin]
    work: Work<Self>,
    /// The ticket was dropped: no handler runs any more.
    #[pin]
    is_silent: Completion,
    /// [`Receiver::closed`] was called.
    has_ended: AtomicFlag,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for ChannelInner { self.work }
}

/// A channel, to other modules: they contain no code for [`ChannelInner`], not even to drop it.
trait Held: Send + Sync {
    fn end(&self) -> &End;

    /// Closes the channel, waits for the handler that runs, and drops the receiver.
    fn leave(&self);

    /// [`Receiver::closed`] was called.
    fn has_ended(&self) -> bool;
}

impl Held for ChannelInner {
    fn end(&self) -> &End {
        &self.end
    }

    fn leave(&self) {
        self.end.release();
        // ORDERING: Pairs with `ChannelInner::later`: either this takes the ticket, or that sees the flag.
        self.is_left.xchg(true, Full);
        // A work item that waits for a worker is not waited for, as other handlers may have all of them.
        drop(self.waiting.take());
        self.is_silent.wait();
        // The receiver may have a reference to the channel.
        drop(self.callee.take());
    }

    fn has_ended(&self) -> bool {
        // ORDERING: The work item that looks at it was queued after it was set.
        self.has_ended.load(Relaxed)
    }
}

/// A reference to a channel, which sends. It does not keep the channel open.
///
/// # Context
///
/// Everything here: *any*. No handler is called from within.
#[derive(Clone)]
pub struct ChannelRef(Arc<dyn Held>);

impl ChannelRef {
    /// Sends a message without an answer. It is queued when this returns, and delivered even if the channel is closed
    /// afterwards.
    ///
    /// # Errors
    ///
    /// The message comes back, with:
    ///
    /// - [`EAGAIN`]: no room; [`Receiver::room`] is called when there is some,
    /// - [`EMSGSIZE`]: the other end takes no messages of that length,
    /// - [`EPIPE`]: the channel is closed,
    /// - [`ENOMEM`]: no memory that can be had at once, as no function here sleeps; [`Receiver::room`] is called when
    ///   there is some, usually within a few tens of milliseconds. The message should be kept until then.
    pub fn send(&self, body: Body, options: SendOptions) -> Result<(), Unsent> {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let header = Header {
            flags: flag(options.wants_outcome, F_RECEIPT) | flag(options.more, F_MORE),
            tag: options.tag,
            timeout_ms: options.timeout_ms,
            ..Header::new(Kind::Msg)
        };
        self.post(header, body)
    }

    /// Sends a request. [`Receiver::reply`] is called with `tag` and the answer, or with the reason why there is none,
    /// unless this module drops the channel first. `timeout_ms`: how long the call may take; 0: the channel's time
    /// limit.
    ///
    /// # Errors
    ///
    /// As [`Self::send`]. [`EAGAIN`] also if the other end answers no more at a time; [`EOPNOTSUPP`] if it answers
    /// none.
    pub fn call(&self, body: Body, tag: u64, timeout_ms: u32) -> Result<(), Unsent> {
        let header = Header {
            tag,
            timeout_ms,
            ..Header::new(Kind::Request)
        };
        self.post(header, body)
    }

    /// Answers a request, once: with success or an errno, and content.
    ///
    /// # Errors
    ///
    /// As [`Self::send`]; [`ENOENT`]: there is no such request, or it has an answer. [`ENOMEM`] is rare, as the channel
    /// keeps memory for one more reply; this may then be called again with the content that has come back.
    pub fn reply(&self, request: u64, status: Result, body: Body) -> Result<(), Unsent> {
        let header = Header {
            id: request,
            status: status.map_or_else(number, |()| 0),
            ..Header::new(Kind::Reply)
        };
        self.post(header, body)
    }

    /// Sends the messages that wait for others, see [`SendOptions::more`].
    pub fn flush(&self) {
        self.0.end().flush();
    }

    #[cfg(IBTRS_KUNIT)]
    pub(super) fn end(&self) -> &End {
        self.0.end()
    }

    fn post(&self, mut header: Header, body: Body) -> Result<(), Unsent> {
        header.len = body.len();
        let posted = self.0.end().post(&header, body);
        posted.map_err(|(error, body)| Unsent { error, body })
    }

    /// Closes this end. What was sent is still delivered; what has arrived and was not passed to a handler is dropped.
    /// [`Receiver::closed`] follows when the other kernel has everything.
    pub fn close(&self) {
        self.0.end().shut_down();
    }
}

/// The errno of an error, as a message has it.
fn number(error: Error) -> u16 {
    u16::try_from(convert::errno(error).get()).unwrap_or(0)
}

/// The error of an errno in a message, which the peer may have chosen: [`EIO`] for what no system call returns.
fn error(number: u16) -> Result {
    match number {
        0 => Ok(()),
        number => Err(convert::error(Errno::from_peer(number))),
    }
}

/// A channel that this module has, with all functions of [`ChannelRef`]. Dropping it closes the channel, as
/// [`ChannelRef::close`] does, and waits for the handler that runs; no handler is called afterwards, and the receiver
/// is dropped.
///
/// # Context
///
/// Dropping it *may sleep*, and must not be done by a handler of the channel, nor by one that a handler of the channel
/// waits for. The receiver must not own it: neither would ever be dropped.
pub struct Channel {
    channel: ChannelRef,
    data: KVec<u8>,
}

impl core::ops::Deref for Channel {
    type Target = ChannelRef;

    fn deref(&self) -> &ChannelRef {
        &self.channel
    }
}

impl Channel {
    /// Opens a channel to a portal, over a session of this machine as a client; `local` is the session with this machine
    /// itself. Waits until the portal has accepted it.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// The reason for which the portal has refused the channel, such as [`ENOENT`] if nobody has bound the name (the
    /// table in Documentation/messages.md, "Connecting"); or
    ///
    /// - [`EINVAL`]: the options or a name are wrong,
    /// - [`ENODEV`]: there is no such session, or it has ended,
    /// - [`EOPNOTSUPP`]: the other machine takes no message connections,
    /// - [`ETIMEDOUT`]: there was no answer in time,
    /// - [`EINTR`]: a signal came first,
    /// - [`EDQUOT`], [`ENOBUFS`]: a limit,
    /// - [`ENOMEM`].
    pub fn connect(
        session: &[u8],
        portal: &[u8],
        options: &ConnectOptions<'_>,
        receiver: Arc<dyn Receiver>,
    ) -> Result<Self> {
        Self::connect_at(&*hub::get()?, session, portal, options, receiver)
    }

    pub(super) fn connect_at(
        hub: &Hub,
        session: &[u8],
        portal: &[u8],
        options: &ConnectOptions<'_>,
        receiver: Arc<dyn Receiver>,
    ) -> Result<Self> {
        let (session, portal) = (Name::new(session)?, Name::new(portal)?);
        let terms = options.channel.terms()?;
        if options.data.len() > MAX_DATA {
            return Err(EINVAL);
        }
        let data = copy(options.data, GFP_KERNEL)?;
        let side = hub.client(&session)?;
        let accounts = hub.shared.access.accounts_over(&session);
        let (id, wake) = side.open(KERNEL, &accounts, portal, terms, data, false)?;
        let end = End { side, id, wake };
        let context = options.channel.context;
        let queue = hub.handlers.connected();
        let opened = Opened::new(queue, end.clone(), context, receiver, None);
        // From now on, dropping it closes the channel.
        let mut opened = opened.inspect_err(|_| end.release())?;
        opened.channel.data = opened.channel.answer(options.timeout_ms)?;
        // The portal's terms are known now. Calls are made where nothing that large can be allocated.
        end.stock(end.new_stock()?);
        Ok(opened.listen())
    }

    /// Waits for the portal. Returns its private data.
    fn answer(&self, timeout_ms: u32) -> Result<KVec<u8>> {
        let End { side, id, wake } = self.0.end();
        let limit = (timeout_ms != 0).then_some(timeout_ms);
        let answer = wake.wait(limit, || side.answer(*id));
        let answer = answer.map_err(|error| if error == ERESTARTSYS { EINTR } else { error })?;
        error(answer.refused.unwrap_or(0))?;
        side.forget_answer(*id);
        copy(answer.data.get(..answer.len).unwrap_or(&[]), GFP_KERNEL)
    }

    /// The private data with which the portal has accepted the channel, at most 256 bytes. None for a channel that a
    /// portal of this module has accepted.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether [`Receiver::closed`] was called.
    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.channel.0.leave();
    }
}

/// A channel whose handlers are not called yet.
pub(super) struct Opened {
    // In this order: dropping the channel waits until its ticket is gone.
    ticket: KBox<Ticket>,
    channel: Channel,
}

impl Opened {
    /// For this end of a channel, with handlers on `queue`. If that is not the caller's yet, dropping this changes
    /// nothing.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(super) fn new(
        queue: Arc<Queue>,
        end: End,
        context: HandlerContext,
        receiver: Arc<dyn Receiver>,
        owner: Option<Arc<dyn Owner>>,
    ) -> Result<Self> {
        let callee = Callee { receiver, owner };
        let inner = Arc::pin_init(
            pin_init!(ChannelInner {
                end,
                context,
                callee: TakeCell::new(callee),
                waiting: TakeCell::empty(),
                is_left: AtomicFlag::new(false),
                work <- kx::new_work!(queue, "Channel::work"),
                is_silent <- Completion::new(),
                has_ended: AtomicFlag::new(false),
            }),
            GFP_KERNEL,
        )?;
        let ticket = Ticket::new(deliver::listener(&inner)?)?;
        let channel = ChannelRef(inner);
        let data = KVec::new();
        Ok(Self {
            ticket,
            channel: Channel { channel, data },
        })
    }

    /// Handlers are called from now on.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(super) fn listen(self) -> Channel {
        let Self { ticket, channel } = self;
        // The first messages need no memory for lists then; later ones are not refused if there is none now.
        let _ = channel.0.end().grow(GFP_KERNEL_ACCOUNT);
        channel.0.end().listen(ticket);
        channel
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_status)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_choose_an_errno_of_the_kernel() {
        assert_eq!(error(0), Ok(()));
        for known in [EPERM, ENOTTY, ECANCELED, ECONNABORTED] {
            assert_eq!(error(number(known)), Err(known));
        }
        for unknown in [512, 4095, 4096, u16::MAX] {
            assert_eq!(error(unknown), Err(EIO));
        }
    }
}
