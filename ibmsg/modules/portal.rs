// SPDX-License-Identifier: GPL-2.0

//! Portals of modules.

use kernel::{
    new_mutex,
    prelude::*,
    str::BStr,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    sync::atomic::{
        AtomicFlag,
        Full,
        Release, //
    },
    work::{
        Queue,
        Work,
        WorkItem, //
    }, //
};

use super::{
    channel::{
        receiver::Receiver,
        Channel,
        Opened,
        Owner, //
    },
    options::{
        ChannelOptions,
        PortalOptions, //
    },
};
use crate::{
    channel::Calls,
    hub::{
        self,
        Hub, //
    },
    limits::KERNEL,
    portal,
    session::Side,
    types::{
        Name,
        MAX_DATA, //
    }, //
};

/// Offers that are answered before other work items get their turn.
const BATCH: u32 = 32;

/// An offer: the other end of a channel that a portal may accept.
pub struct Offer<'a> {
    session: Name,
    is_authenticated: bool,
    max_message: u32,
    data: &'a [u8],
}

impl Offer<'_> {
    /// The name of the session; `local` for this machine.
    pub fn session(&self) -> &BStr {
        BStr::from_bytes(self.session.as_bytes())
    }

    /// Whether the other machine has proved that it has a key of that name, or is this one. Otherwise the name may be
    /// false.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// The longest message that the other end takes, in bytes.
    pub fn max_message(&self) -> u32 {
        self.max_message
    }

    /// Its private data, at most 256 bytes.
    pub fn data(&self) -> &[u8] {
        self.data
    }
}

/// The answer to an offer.
pub enum Answer {
    /// The channel is accepted.
    Accept {
        /// Its handlers.
        receiver: Arc<dyn Receiver>,
        /// Private data for the other end, at most 256 bytes.
        data: KVec<u8>,
    },
    /// It is refused.
    Reject {
        /// What the other end is told.
        reason: Error,
        /// Private data for the other end, at most 256 bytes.
        data: KVec<u8>,
    },
}

impl Answer {
    /// Accepts the channel, without private data.
    pub fn accept(receiver: Arc<dyn Receiver>) -> Self {
        let data = KVec::new();
        Self::Accept { receiver, data }
    }

    /// Refuses it, without private data.
    pub fn reject(reason: Error) -> Self {
        let data = KVec::new();
        Self::Reject { reason, data }
    }
}

/// What a module has at a portal. It must not own the [`Portal`]: neither would ever be dropped.
pub trait Service: Send + Sync {
    /// Another end offers a channel. The portal has the channel that is accepted, until it ends.
    ///
    /// # Context
    ///
    /// *may sleep*. The next offer waits, so this should not wait for others. It must not drop the portal.
    ///
    /// # Errors
    ///
    /// The offer is rejected with that error.
    fn offered(&self, offer: &Offer<'_>) -> Result<Answer>;
}

/// A portal that this module has bound. It has the channels that it has accepted. Dropping it gives up the name, rejects
/// offers without an answer with [`ENOENT`], closes the channels, and waits for the handlers that run; none is
/// called afterwards, and the service and all receivers are dropped.
///
/// # Context
///
/// Dropping it *may sleep*, and must not be done by its service, by a handler of one of its channels, or by one that
/// such a handler waits for.
pub struct Portal(Arc<dyn Bound>);

/// A portal, to other modules: they contain no code for [`Host`], not even to drop it.
trait Bound: Send + Sync {
    /// See [`Portal`].
    fn close(&self);
}

/// What works for a portal.
#[pin_data]
struct Host {
    hub: Arc<Hub>,
    portal: Arc<portal::Portal<Side>>,
    channels: ChannelOptions,
    service: Arc<dyn Service>,
    /// For the handlers of its channels, and for `work`.
    queue: Arc<Queue>,
    /// Channels that were accepted.
    #[pin]
    open: Mutex<KVVec<Channel>>,
    /// One of them has ended.
    has_ended: AtomicFlag,
    /// Answers offers, and drops channels that have ended.
    #[pin]
    work: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Host { self.work }
}

impl Portal {
    /// Binds a name: 1 to 64 letters, digits and `-_:@+.`, of which the first is neither `-` nor `.`.
    ///
    /// The operator's rule for the portal, a directory in configfs, says which hosts may use it. Without a rule, this
    /// machine may, and every machine that has proved a key. Other machines are refused before the service is asked,
    /// unless [`PortalOptions::takes_unauthenticated`].
    ///
    /// # Context
    ///
    /// *may sleep*. The service may be asked before this returns.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`]: the name or the options are wrong,
    /// - [`EADDRINUSE`]: the name is bound,
    /// - [`EDQUOT`], [`ENOBUFS`]: a limit,
    /// - [`ENOMEM`].
    pub fn bind(name: &[u8], options: &PortalOptions, service: Arc<dyn Service>) -> Result<Self> {
        Self::bind_at(hub::get()?, name, options, service)
    }

    pub(super) fn bind_at(
        hub: Arc<Hub>,
        name: &[u8],
        options: &PortalOptions,
        service: Arc<dyn Service>,
    ) -> Result<Self> {
        let name = Name::new(name)?;
        let terms = options.channels.terms()?;
        let backlog = portal::Portal::<Side>::backlog(options.backlog)?;
        let memory = portal::memory(backlog);
        let charge = hub.shared.limits.charge_portal(KERNEL, memory)?;
        let owner = portal::Owner {
            uid: KERNEL,
            takes_unauthenticated: options.takes_unauthenticated,
            max_channels: options.most_channels(),
        };
        let portals = hub.shared.portals.clone();
        let portal = portals.bind(name, terms, &owner, backlog, charge)?;
        // Until the portal has a listener, only this function has offers to reject.
        let give_up = |_: &Error| close(&portals, &portal);
        let queue = hub.handlers.of_portal().inspect_err(give_up)?;
        let (own, handlers) = (portal.clone(), hub.handlers.clone());
        let (for_host, for_work) = (queue.clone(), queue.clone());
        let host = Arc::pin_init(
            pin_init!(Host {
                hub,
                portal: own,
                channels: options.channels,
                service,
                queue: for_host,
                open <- new_mutex!(KVVec::new(), "Host::open"),
                has_ended: AtomicFlag::new(false),
                work <- kx::new_work!(for_work, "Host::work"),
            }),
            GFP_KERNEL,
        );
        let host = host.inspect_err(|error| {
            give_up(error);
            handlers.put_back(queue);
        })?;
        let this = Self(host.clone());
        let listener = Arc::new(HostListener(host), GFP_KERNEL)?;
        portal.listen(listener);
        Ok(this)
    }
}

/// Gives up the name of a portal, and rejects what nobody has answered.
fn close(portals: &portal::Portals<Side>, portal: &portal::Portal<Side>) {
    portals.unbind(portal);
    while let Some(offer) = portal.remove_any() {
        offer.end().unbound();
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Bound for Host {
    fn close(&self) {
        close(&self.hub.shared.portals, &self.portal);
        self.work.disable_sync();
        let open = core::mem::replace(&mut *self.open.lock(), KVVec::new());
        // First all of them, so that this waits for the slowest handler only.
        for channel in &open {
            channel.close();
        }
        // Each refers to the host. When they are gone, the portal has the last reference.
        drop(open);
        self.hub.handlers.put_back(self.queue.clone());
    }
}

/// Is notified of offers, and of channels that have ended.
struct HostListener(Arc<Host>);

impl portal::Listener for HostListener {
    fn offered(&self) {
        self.0.work.enqueue(self.0.clone());
    }
}

impl Owner for HostListener {
    fn ended(&self) {
        // ORDERING: Pairs with the work item, which looks at the channels afterwards.
        self.0.has_ended.store(true, Release);
        self.0.work.enqueue(self.0.clone());
    }
}

impl WorkItem for Host {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for _ in 0..BATCH {
            this.drop_ended();
            let Some(offer) = this.portal.remove_any() else {
                return;
            };
            let answer = this.ask(&offer).unwrap_or_else(Answer::reject);
            this.answer(&offer, answer);
        }
        this.work.enqueue(this.clone());
    }
}

impl Host {
    /// Drops channels that have ended: their last handlers have returned, or are about to.
    fn drop_ended(&self) {
        if !self.has_ended.xchg(false, Full) {
            return;
        }
        // Dropping one waits for its handler, and drops the module's receiver: not under the lock. Only the work item
        // changes the list, until it is disabled.
        let mut open = core::mem::replace(&mut *self.open.lock(), KVVec::new());
        open.retain(|channel| !channel.has_ended());
        *self.open.lock() = open;
    }

    fn ask(&self, offer: &portal::Offer<Side>) -> Result<Answer> {
        self.service.offered(&Offer {
            session: offer.from.name(),
            is_authenticated: offer.from.is_authenticated(),
            max_message: offer.max_message,
            data: &offer.data,
        })
    }

    fn answer(self: &Arc<Self>, offer: &portal::Offer<Side>, answer: Answer) {
        let (reason, data) = match answer {
            Answer::Accept { receiver, data } if data.len() <= MAX_DATA => {
                match self.accept(offer, receiver, data) {
                    Ok(()) => return,
                    Err(error) => (error, KVec::new()),
                }
            }
            Answer::Reject { reason, data } if data.len() <= MAX_DATA => (reason, data),
            _ => (EINVAL, KVec::new()),
        };
        // The other end may have withdrawn it.
        let _ = offer.end().reject(reason, data);
    }

    fn accept(
        self: &Arc<Self>,
        offer: &portal::Offer<Side>,
        receiver: Arc<dyn Receiver>,
        data: KVec<u8>,
    ) -> Result {
        // What may fail comes first.
        self.open.lock().reserve(1, GFP_KERNEL)?;
        let slots = Calls::slots(self.portal.terms.window.calls())?;
        let end = offer.end();
        let stock = end.new_stock()?;
        let owner = Arc::new(HostListener(self.clone()), GFP_KERNEL)?;
        let context = self.channels.context;
        let queue = self.queue.clone();
        let opened = Opened::new(queue, end.clone(), context, receiver, Some(owner))?;
        if !end.accept(data, slots, Some(stock)) {
            return Err(ENOENT);
        }
        // If it ends at once, the work item runs again. There is room.
        let channel = opened.listen();
        let _ = self.open.lock().push_within_capacity(channel);
        Ok(())
    }
}
