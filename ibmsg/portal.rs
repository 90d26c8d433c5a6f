// SPDX-License-Identifier: GPL-2.0

//! Message portals: names at which programs accept channels.

use ibmsg_proto::{
    history::What,
    wire::Open, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    },
    task::Pid, //
};
use kx::{
    deque::Deque,
    file::{
        Ready,
        WaitQueue, //
    }, //
};

use crate::{
    history::{
        Entry,
        OfPortals, //
    },
    limits::{
        Account,
        Charge, //
    },
    publish::Logs,
    types::{
        copy,
        Name,
        Terms, //
    }, //
};

/// The most offers that may wait at a portal.
const MAX_BACKLOG: u32 = 4096;

/// Bytes that a portal is charged for: each offer costs a part of a page.
pub(crate) fn memory(backlog: usize) -> u64 {
    // CAST: At most `MAX_BACKLOG`.
    backlog as u64 * 512
}

/// All portals. `S` is the end of a session that offers channels.
#[pin_data]
pub(crate) struct Portals<S> {
    #[pin]
    bound: SpinLockIrq<RBTree<Name, Arc<Portal<S>>>>,
    #[pin]
    history: SpinLockIrq<OfPortals>,
}

/// A portal, as long as its file is open.
#[pin_data]
pub(crate) struct Portal<S> {
    pub(crate) name: Name,
    /// Of the channels that it accepts.
    pub(crate) terms: Terms,
    /// The user who has bound it.
    pub(crate) uid: u32,
    /// It takes programs of machines that have not proved that they have a key.
    pub(crate) takes_unauthenticated: bool,
    /// Its channels, which its owner may limit, and those that were refused.
    pub(crate) account: Arc<Account>,
    /// The most offers that may wait.
    pub(crate) backlog: usize,
    pub(crate) waiters: Arc<WaitQueue>,
    /// What its program publishes.
    pub(crate) logs: Arc<Logs>,
    #[pin]
    offers: SpinLockIrq<Offers<S>>,
    _charge: Charge,
}

/// Who binds a portal, and for whom.
pub(crate) struct Owner {
    pub(crate) uid: u32,
    /// See [`Portal::takes_unauthenticated`].
    pub(crate) takes_unauthenticated: bool,
    /// The most channels; 0: any number.
    pub(crate) max_channels: u32,
}

/// Is notified of offers at a portal that another module has bound.
pub(crate) trait Listener: Send + Sync {
    /// There is an offer.
    ///
    /// # Context
    ///
    /// *any*. The caller holds locks.
    fn offered(&self);
}

struct Offers<S> {
    list: Deque<Offer<S>>,
    listener: Option<Arc<dyn Listener>>,
    /// Of the next offer.
    id: u64,
    is_closed: bool,
}

/// A program asks for a channel.
pub(crate) struct Offer<S> {
    pub(crate) id: u64,
    /// Where it comes from.
    pub(crate) from: S,
    pub(crate) channel: u32,
    /// Of this channel only: the client may withdraw it, and give its number to another one.
    pub(crate) wake: Arc<WaitQueue>,
    pub(crate) max_message: u32,
    pub(crate) data: KVec<u8>,
    /// The process that has read it, or is about to.
    reader: Option<Reader>,
}

/// A process that reads offers, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reader(Pid);

impl Reader {
    /// The current process.
    pub(crate) fn current() -> Self {
        Self(current!().group_leader().pid())
    }
}

/// An offer as it is read.
pub(crate) struct Seen<S> {
    pub(crate) id: u64,
    pub(crate) max_message: u32,
    /// Where it comes from.
    pub(crate) from: S,
    pub(crate) data: [u8; crate::types::MAX_DATA],
    pub(crate) len: usize,
}

impl<S: Clone + PartialEq> Portals<S> {
    /// No portals.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new() -> Result<Arc<Self>> {
        let history = OfPortals::new()?;
        Arc::pin_init(
            pin_init!(Self {
                bound <- new_spinlock_irq!(RBTree::new(), "Portals::bound"),
                history <- new_spinlock_irq!(history, "Portals::history"),
            }),
            GFP_KERNEL,
        )
    }

    /// Binds a name.
    ///
    /// # Errors
    ///
    /// [`EADDRINUSE`] if it is bound, [`ENOMEM`].
    pub(crate) fn bind(
        &self,
        name: Name,
        terms: Terms,
        owner: &Owner,
        backlog: usize,
        charge: Charge,
    ) -> Result<Arc<Portal<S>>> {
        let account = Account::with_limit(owner.max_channels)?;
        let waiters = Arc::pin_init(kx::new_wait_queue!("Portal::waiters"), GFP_KERNEL)?;
        let logs = Logs::new(waiters.clone())?;
        let portal = Arc::pin_init(
            pin_init!(Portal {
                name,
                terms,
                uid: owner.uid,
                takes_unauthenticated: owner.takes_unauthenticated,
                account,
                backlog,
                waiters,
                logs,
                offers <- new_spinlock_irq!(
                    Offers { list: Deque::new(), listener: None, id: 1, is_closed: false },
                    "Portal::offers"
                ),
                _charge: charge,
            }),
            GFP_KERNEL,
        )?;
        let node = RBTreeNode::new(name, portal.clone(), GFP_KERNEL)?;
        let mut bound = self.bound.lock();
        if bound.get(&name).is_some() {
            drop(bound);
            drop(node);
            return Err(EADDRINUSE);
        }
        let former = bound.insert(node);
        // Nobody else binds or gives up the name meanwhile.
        self.history.lock().record(What::Bound, name, owner.uid);
        drop(bound);
        drop(former);
        Ok(portal)
    }

    /// Copies what has happened to portals, as far as there is room.
    pub(crate) fn events(&self, to: &mut KVVec<Entry>) {
        self.history.lock().copy(to);
    }

    /// The portal of a name.
    pub(crate) fn find(&self, name: &Name) -> Option<Arc<Portal<S>>> {
        self.bound.lock().get(name).cloned()
    }

    /// Gives up a portal's name. It gets no more offers.
    pub(crate) fn unbind(&self, portal: &Portal<S>) {
        let mut bound = self.bound.lock();
        let node = bound.remove_node(&portal.name);
        let mut history = self.history.lock();
        history.record(What::Unbound, portal.name, portal.uid);
        drop(history);
        drop(bound);
        let mut offers = portal.offers.lock();
        offers.is_closed = true;
        let listener = offers.listener.take();
        drop(offers);
        drop((node, listener));
        portal.logs.close();
    }
}

impl<S: Clone + PartialEq> Portal<S> {
    /// The most offers that may wait.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]
    pub(crate) fn backlog(said: u32) -> Result<usize> {
        // CAST: Lossless.
        match said {
            0 => Ok(128),
            1..=MAX_BACKLOG => Ok(said as usize),
            _ => Err(EINVAL),
        }
    }

    /// A program asks for a channel, whose tasks wait in `wake`. Returns why not: [`EAGAIN`] if too many ask,
    /// [`ENOENT`] if the portal is being closed, or [`ENOMEM`].
    pub(crate) fn offer(&self, from: &S, open: &Open<'_>, wake: Arc<WaitQueue>) -> Result {
        let data = copy(open.data, GFP_ATOMIC | __GFP_NOWARN)?;
        let mut offers = self.offers.lock();
        if offers.is_closed {
            return Err(ENOENT);
        }
        if offers.list.len() >= self.backlog {
            return Err(EAGAIN);
        }
        offers.list.reserve(1, GFP_ATOMIC | __GFP_NOWARN)?;
        let id = offers.id;
        offers.id += 1;
        let _ = offers.list.push_back(Offer {
            id,
            from: from.clone(),
            channel: open.channel,
            wake,
            max_message: open.window.max_message(),
            data,
            reader: None,
        });
        if let Some(listener) = &offers.listener {
            listener.offered();
        }
        drop(offers);
        self.waiters.wake(Ready::IN);
        Ok(())
    }

    /// Notifies a listener of all offers that come, and of those that there are, until the portal is unbound.
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>) {
        let mut offers = self.offers.lock();
        if !offers.list.is_empty() {
            listener.offered();
        }
        offers.listener = Some(listener);
    }

    /// The program that has asked no longer wants a channel.
    pub(crate) fn withdraw(&self, from: &S, channel: u32) {
        let mut offers = self.offers.lock();
        let mut its = offers.list.iter();
        let at = its.position(|offer| offer.channel == channel && offer.from == *from);
        drop(its);
        let offer = at.and_then(|at| offers.list.remove(at));
        drop(offers);
        drop(offer);
    }

    /// Where an offer comes from, the number of its channel, and its queue of tasks.
    pub(crate) fn find(&self, id: u64) -> Option<(S, u32, Arc<WaitQueue>)> {
        let offers = self.offers.lock();
        let mut all = offers.list.iter();
        let found = all.find(|offer| offer.id == id);
        found.map(|offer| (offer.from.clone(), offer.channel, offer.wake.clone()))
    }

    /// Takes an offer out of the list, to be answered.
    pub(crate) fn remove(&self, id: u64) -> Option<Offer<S>> {
        let mut offers = self.offers.lock();
        let mut all = offers.list.iter();
        let at = all.position(|offer| offer.id == id)?;
        drop(all);
        offers.list.remove(at)
    }

    /// Takes the first offer out of the list: of a portal that is closed, or that has a listener.
    pub(crate) fn remove_any(&self) -> Option<Offer<S>> {
        self.offers.lock().list.pop_front()
    }

    /// Offers that nobody has answered.
    pub(crate) fn len(&self) -> usize {
        self.offers.lock().list.len()
    }

    /// Bytes of private data of the next offer that nobody has read.
    pub(crate) fn next_data(&self) -> Option<usize> {
        let offers = self.offers.lock();
        let mut all = offers.list.iter();
        let len = all
            .find(|offer| offer.reader.is_none())
            .map(|offer| offer.data.len());
        drop(all);
        len
    }

    /// Reads the next offer, if its data has room in `room` bytes. [`EMSGSIZE`] if it has not; none if
    /// there is no offer.
    pub(crate) fn read(&self, room: usize, reader: Reader) -> Option<Result<Seen<S>>> {
        let mut offers = self.offers.lock();
        let mut all = offers.list.iter();
        let at = all.position(|offer| offer.reader.is_none());
        drop(all);
        let offer = offers.list.get_mut(at?)?;
        let len = offer.data.len();
        if len > room {
            return Some(Err(EMSGSIZE));
        }
        let mut seen = Seen {
            id: offer.id,
            max_message: offer.max_message,
            from: offer.from.clone(),
            data: [0; crate::types::MAX_DATA],
            len,
        };
        seen.data.get_mut(..len)?.copy_from_slice(&offer.data);
        offer.reader = Some(reader);
        Some(Ok(seen))
    }

    /// A process closes the portal, or dies: others read the offers that it has not answered.
    pub(crate) fn give_back(&self, reader: Reader) {
        let mut offers = self.offers.lock();
        let mut has_any = false;
        for at in 0..offers.list.len() {
            let offer = offers.list.get_mut(at);
            if let Some(offer) = offer.filter(|offer| offer.reader == Some(reader)) {
                offer.reader = None;
                has_any = true;
            }
        }
        drop(offers);
        if has_any {
            self.waiters.wake(Ready::IN);
        }
    }

    /// The program could not take an offer: it reads it again.
    pub(crate) fn put_back(&self, id: u64) {
        let mut offers = self.offers.lock();
        let mut all = offers.list.iter();
        let at = all.position(|offer| offer.id == id);
        drop(all);
        if let Some(offer) = at.and_then(|at| offers.list.get_mut(at)) {
            offer.reader = None;
        }
        drop(offers);
        self.waiters.wake(Ready::IN);
    }
}
