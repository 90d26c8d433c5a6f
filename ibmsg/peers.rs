// SPDX-License-Identifier: GPL-2.0

//! Sessions with other machines.
//!
//! IBTRS makes and ends them. A client's session ends with the IBTRS session. A server's IBTRS session ends
//! when it has lost its last path, and its client, which may only have lost a switch, begins another one
//! under the same UUID: so the server's side waits for it, for `reconnect_s`, if it has accepted channels.

use core::mem::take;
use ibmsg_proto::access;
use ibtrs_core::messages::{
    self,
    Arrived,
    Conn,
    Connection,
    Peer,
    Role,
    Upper, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::{
    module::ModuleRef,
    work::{
        DelayedWork,
        WorkItem, //
    }, //
};

use crate::{
    history::{
        self,
        OfChannels, //
    },
    session::{
        Shared,
        Side, //
    },
    types::{
        now,
        Name, //
    }, //
};

/// The most sessions that wait for clients without a path.
const MAX_WAITING: usize = 256;
/// The most sessions that have ended and whose events are kept.
const MAX_ENDED: usize = 8;

/// A session.
struct Entry {
    role: Role,
    side: Side,
    uuid: [u8; 16],
    /// How many IBTRS sessions it serves: the latest one, and one that is not quite gone.
    attached: u32,
    /// When the last of them ended.
    left_at: u64,
}

impl Entry {
    fn is_of(&self, role: Role, name: &Name) -> bool {
        self.role == role && self.side.name() == *name
    }
}

/// The events of a session that has ended. The session itself is freed: it owns tables and work items.
struct Ended {
    of: history::Of,
    is_authenticated: bool,
    events: OfChannels,
}

/// All sessions with other machines.
#[pin_data]
pub(crate) struct Peers {
    shared: Shared,
    /// The name that no session may have.
    taken: Name,
    #[pin]
    list: SpinLockIrq<KVec<Entry>>,
    /// Sessions that have ended, the latest last. There is room for [`MAX_ENDED`].
    #[pin]
    ended: SpinLockIrq<KVec<Ended>>,
    #[pin]
    reaper: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Peers { self.reaper }
}

/// Returns how long the server's side waits for a client to come back, in microseconds.
fn reconnect_us() -> u64 {
    u64::from(crate::param::reconnect_s.get()) * 1_000_000
}

/// Returns how long closing a session waits for what programs have written, in milliseconds.
fn stop_ms() -> u32 {
    crate::param::stop_timeout_s.get().saturating_mul(1000)
}

/// Ends sessions whose clients have not come back.
impl WorkItem for Peers {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let wait_us = reconnect_us();
        let now = now();
        let is_late =
            |entry: &Entry| entry.attached == 0 && now.saturating_sub(entry.left_at) >= wait_us;
        while let Some(late) = this.remove(is_late) {
            pr_info!("{}: its client has not come back\n", late.side.name());
            this.end(late.side);
        }
        let list = this.list.lock();
        let left = list.iter().filter(|entry| entry.attached == 0);
        let next = left.map(|entry| entry.left_at).min();
        drop(list);
        if let Some(left_at) = next {
            this.look_in((left_at + wait_us).saturating_sub(now));
        }
    }
}

impl Peers {
    /// Creates the list; no session may have the name `taken`.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(shared: Shared, taken: Name) -> Result<Arc<Self>> {
        let queue = shared.queue.clone();
        let ended = KVec::with_capacity(MAX_ENDED, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                shared,
                taken,
                list <- new_spinlock_irq!(KVec::new(), "Peers::list"),
                ended <- new_spinlock_irq!(ended, "Peers::ended"),
                reaper <- kx::new_delayed_work!(queue, "Peers::reaper"),
            }),
            GFP_KERNEL,
        )
    }

    /// The list as IBTRS knows it.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn as_service(this: &Arc<Self>) -> Result<KBox<Arc<dyn messages::Service>>> {
        let service: Arc<dyn messages::Service> = Arc::new(Service(this.clone()), GFP_KERNEL)?;
        Ok(KBox::new(service, GFP_KERNEL)?)
    }

    /// The side of a session of this machine, as a client, that opens channels.
    pub(crate) fn client(&self, name: &Name) -> Option<Side> {
        let list = self.list.lock();
        let found = list.iter().find(|entry| entry.is_of(Role::Client, name));
        found.map(|entry| entry.side.clone())
    }

    /// The sides of some sessions.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    fn sides(&self, is_wanted: impl Fn(&Entry) -> bool) -> Result<KVVec<Side>> {
        let mut sides = KVVec::new();
        loop {
            let list = self.list.lock();
            let wanted = list.iter().filter(|entry| is_wanted(entry));
            let places = wanted.clone().count();
            if places <= sides.capacity() {
                for entry in wanted {
                    sides.push_within_capacity(entry.side.clone())?;
                }
                return Ok(sides);
            }
            drop(list);
            sides.reserve(places, GFP_KERNEL)?;
        }
    }

    /// The sides of all sessions with other machines.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn all(&self) -> Result<KVVec<Side>> {
        self.sides(|_| true)
    }

    /// The events of the last sessions that have ended.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn ended_events(&self) -> Result<KVVec<(history::Of, history::Entry)>> {
        let mut events = KVVec::with_capacity(MAX_ENDED * OfChannels::MAX, GFP_KERNEL)?;
        for ended in self.ended.lock().iter() {
            for entry in ended.events.all() {
                events.push_within_capacity((ended.of, *entry))?;
            }
        }
        Ok(events)
    }

    /// Ends a session, which is not in the list any more. Its events are kept for a while.
    ///
    /// # Context
    ///
    /// *may sleep*
    fn end(&self, side: Side) {
        side.close();
        let end = Ended {
            of: (side.word(), side.name()),
            is_authenticated: side.is_authenticated(),
            events: side.take_events(),
        };
        if end.events.is_empty() {
            return;
        }
        let mut ended = self.ended.lock();
        let first = match ended.len() < MAX_ENDED {
            true => None,
            false => Self::least_wanted(&ended, &end).and_then(|at| ended.remove(at).ok()),
        };
        let not_kept = match ended.len() < MAX_ENDED {
            true => ended.push_within_capacity(end).err().map(|error| error.0),
            false => Some(end),
        };
        // Not under the lock.
        drop(ended);
        drop((first, not_kept));
    }

    /// Which ended session gives way to another one: the oldest whose client had no key; or else the oldest of all, unless
    /// the other one had no key either.
    fn least_wanted(ended: &[Ended], by: &Ended) -> Option<usize> {
        let without_key = ended.iter().position(|end| !end.is_authenticated);
        without_key.or_else(|| by.is_authenticated.then_some(0))
    }

    /// Ends channels of clients to a portal that they may not use any more.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]: nothing was done.
    pub(crate) fn recheck(&self, portal: &Name) -> Result {
        for side in self.sides(|entry| entry.role == Role::Server)? {
            side.recheck(portal);
        }
        Ok(())
    }

    /// Ends all sessions. IBTRS has none of them any more.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn close(&self) {
        self.reaper.disable_sync();
        // Not under the lock, as closing a side waits for its work items.
        let all = take(&mut *self.list.lock());
        for entry in all {
            entry.side.close();
        }
        let ended = take(&mut *self.ended.lock());
        drop(ended);
    }

    /// Takes a session out of the list.
    fn remove(&self, is_it: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let mut list = self.list.lock();
        let at = list.iter().position(is_it)?;
        list.remove(at).ok()
    }

    fn look_in(self: &Arc<Self>, us: u64) {
        let ms = u32::try_from(us.div_ceil(1000)).unwrap_or(u32::MAX);
        // If it is to run earlier, it looks for the next time itself.
        self.reaper.enqueue_in(self.clone(), ms.max(1));
    }

    /// The side of a session that IBTRS has made.
    fn attach(&self, peer: &Peer<'_>) -> Result<Side> {
        let name = Name::new(peer.name.to_bytes())?;
        if name == self.taken {
            return Err(EEXIST);
        }
        let role = peer.role;
        // Whoever takes the place of a session must have proved as much.
        let is_same = |entry: &Entry| {
            entry.is_of(role, &name)
                && role == Role::Server
                && entry.uuid == peer.uuid
                && entry.side.is_authenticated() == peer.is_authenticated
        };
        let mut list = self.list.lock();
        if let Some(entry) = list.iter_mut().find(|entry| is_same(entry)) {
            entry.attached += 1;
            return Ok(entry.side.clone());
        }
        drop(list);
        // IBTRS has no other session of this name: that was of another client, or of an earlier life of
        // this one. A client that has proved the name comes back to its own, whoever takes it meanwhile.
        let gives_way = |entry: &Entry| {
            let is_proved = entry.role == Role::Server && entry.side.is_authenticated();
            entry.is_of(role, &name) && (peer.is_authenticated || !is_proved)
        };
        while let Some(former) = self.remove(gives_way) {
            self.end(former.side);
        }
        let proved = match peer.is_authenticated {
            true => access::Peer::Authenticated,
            false => access::Peer::Unauthenticated,
        };
        let side = Side::new(role, name, proved, &self.shared)?;
        let entry = Entry {
            role,
            side: side.clone(),
            uuid: peer.uuid,
            attached: 1,
            left_at: 0,
        };
        self.list.lock().push(entry, GFP_ATOMIC | __GFP_NOWARN)?;
        Ok(side)
    }

    /// Ends sessions that wait for their clients until there are few enough: first those whose clients have
    /// proved nothing, and the oldest.
    fn bound_waiting(&self) {
        loop {
            let mut list = self.list.lock();
            let waiting = list
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.attached == 0);
            if waiting.clone().count() <= MAX_WAITING {
                return;
            }
            let first =
                waiting.min_by_key(|(_, entry)| (entry.side.is_authenticated(), entry.left_at));
            let first = first.map(|(at, _)| at);
            let entry = first.and_then(|at| list.remove(at).ok());
            drop(list);
            if let Some(entry) = entry {
                pr_info!(
                    "{}: too many clients have lost all paths\n",
                    entry.side.name()
                );
                self.end(entry.side);
            }
        }
    }

    /// An IBTRS session is over.
    fn over(self: &Arc<Self>, side: &Side) {
        let mut list = self.list.lock();
        let Some(entry) = list.iter_mut().find(|entry| entry.side == *side) else {
            return;
        };
        entry.attached = entry.attached.saturating_sub(1);
        if entry.attached > 0 {
            return;
        }
        entry.left_at = now();
        let waits = entry.role == Role::Server && side.is_used();
        drop(list);
        if waits {
            self.bound_waiting();
            return self.look_in(reconnect_us());
        }
        // Not if the client is back already.
        if let Some(entry) = self.remove(|entry| entry.side == *side && entry.attached == 0) {
            self.end(entry.side);
        }
    }
}

struct Service(Arc<Peers>);

impl messages::Service for Service {
    fn keep(&self) -> Option<ModuleRef> {
        ModuleRef::get::<crate::LocalModule>()
    }

    fn attach(&self, peer: &Peer<'_>) -> Result<Arc<dyn Upper>> {
        let side = self.0.attach(peer)?;
        let end = End {
            peers: self.0.clone(),
            side: side.clone(),
        };
        match Arc::new(end, GFP_KERNEL) {
            Ok(upper) => Ok(upper),
            Err(_) => {
                self.0.over(&side);
                Err(ENOMEM)
            }
        }
    }
}

/// The end of an IBTRS session.
struct End {
    peers: Arc<Peers>,
    side: Side,
}

impl Upper for End {
    fn begins(&self, id: Conn) {
        self.side.begins(id);
    }

    fn unsupported(&self, id: Conn) {
        self.side.unsupported(id);
    }

    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result {
        self.side.connected(id, connection, receives)
    }

    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        self.side.arrived(id, frame, done)
    }

    fn completed(&self, id: Conn, cookie: u64) {
        self.side.completed(id, cookie);
    }

    fn lost(&self, id: Conn) {
        self.side.lost(id);
    }

    fn finish(&self) {
        self.side.finish(stop_ms());
    }

    fn draining(&self, seconds: u32) {
        self.side.draining(seconds);
    }

    fn key_revoked(&self, why: Error) {
        self.side.key_revoked(why);
    }

    fn drain(&self, limit_ms: u32) {
        self.side.drain(limit_ms.min(stop_ms()));
    }

    fn over(&self) {
        self.peers.over(&self.side);
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_peers)]
mod tests {
    use super::*;
    use crate::{
        access::Access,
        limits::Limits,
        portal::Portals,
        session::LogLimits, //
    };
    use kx::work::{
        Options,
        Queue, //
    };

    fn peers() -> Result<Arc<Peers>> {
        let shared = Shared {
            portals: Portals::new()?,
            access: Access::new()?,
            log_limits: LogLimits::new()?,
            limits: Limits::new(1 << 30, 1 << 30)?,
            queue: Queue::new(Options::unbound(), fmt!("ibmsg-test"))?,
        };
        Peers::new(shared, Name::new(b"local")?)
    }

    fn peer(role: Role, uuid: u8, is_authenticated: bool) -> Peer<'static> {
        Peer {
            role,
            name: c"web1",
            uuid: [uuid; 16],
            is_authenticated,
        }
    }

    #[test]
    fn a_client_is_known_by_all_that_it_shows() -> Result {
        let peers = peers()?;
        let server = |uuid, is_proved| peers.attach(&peer(Role::Server, uuid, is_proved));
        let proved = server(1, true)?;
        assert!(server(1, true)? == proved);
        // A copied UUID is not enough, nor is the name; and nobody without a key ends its session.
        let copied = server(1, false)?;
        assert!(copied != proved && !copied.is_authenticated());
        assert!(server(1, true)? == proved);
        let other = server(2, false)?;
        assert!(other != proved && other != copied && server(1, true)? == proved);
        // Another life of the client that has the key takes the place of all of them.
        let next = server(3, true)?;
        assert!(next != proved && server(3, true)? == next);
        assert_eq!(peers.list.lock().len(), 1);
        // As a client, this machine may have a session of the same name.
        let client = peers.attach(&peer(Role::Client, 0, true))?;
        let name = Name::new(b"web1")?;
        assert!(peers.client(&name).is_some_and(|found| found == client));
        peers.over(&client);
        assert!(peers.client(&name).is_none());
        peers.close();
        Ok(())
    }

    #[test]
    fn events_outlive_their_session_for_a_while() -> Result {
        let peers = peers()?;
        let stranger = peer(Role::Server, 0, false);
        let peer = peer(Role::Client, 0, true);
        for _ in 0..3 * MAX_ENDED {
            let side = peers.attach(&peer)?;
            side.seems_used();
            peers.over(&side);
            // The events are all that is left of it.
            assert!(side.into_last());
            peers.over(&peers.attach(&peer)?);
        }
        let of = ("client", Name::new(b"web1")?);
        let is_kept = || -> Result<bool> {
            let events = peers.ended_events()?;
            Ok(events.len() == MAX_ENDED && events.iter().all(|(kept, _)| *kept == of))
        };
        assert!(is_kept()? && peers.all()?.is_empty());
        // A client without a key takes the place of none that had one.
        let other = peers.attach(&stranger)?;
        other.seems_used();
        peers.over(&other);
        assert!(is_kept()?);
        let side = peers.attach(&peer)?;
        assert_eq!(peers.all()?.len(), 1);
        peers.over(&side);
        peers.close();
        assert!(peers.ended_events()?.is_empty());
        Ok(())
    }

    #[test]
    fn names_that_are_not_for_programs() -> Result {
        let peers = peers()?;
        for (name, error) in [(c"local", EEXIST), (c"a/b", EINVAL), (c"", EINVAL)] {
            let peer = Peer {
                name,
                ..peer(Role::Client, 0, true)
            };
            assert!(peers.attach(&peer).is_err_and(|found| found == error));
        }
        assert_eq!(peers.list.lock().len(), 0);
        Ok(())
    }

    #[test]
    fn a_session_without_programs_does_not_wait() -> Result {
        let peers = peers()?;
        let peer = peer(Role::Server, 1, false);
        let first = peers.attach(&peer)?;
        // Two sessions of IBTRS, of which the former is not quite gone.
        assert!(peers.attach(&peer)? == first);
        peers.over(&first);
        assert!(peers.attach(&peer)? == first);
        peers.over(&first);
        peers.over(&first);
        assert_eq!(peers.list.lock().len(), 0);
        assert!(peers.attach(&peer)? != first);
        peers.close();
        Ok(())
    }
}
