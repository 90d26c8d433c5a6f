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
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
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
    history::OfSession,
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

/// The events of a session.
struct History {
    of: Arc<OfSession>,
    has_ended: bool,
}

/// All sessions with other machines.
#[pin_data]
pub(crate) struct Peers {
    shared: Shared,
    /// The name that no session may have.
    taken: Name,
    #[pin]
    list: SpinLockIrq<KVec<Entry>>,
    /// Of all sessions, and of the last ones that have ended, in the order in which they did.
    #[pin]
    histories: Mutex<KVec<History>>,
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
        Arc::pin_init(
            pin_init!(Self {
                shared,
                taken,
                list <- new_spinlock_irq!(KVec::new(), "Peers::list"),
                histories <- new_mutex!(KVec::new(), "Peers::histories"),
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

    /// The events of all sessions with other machines, and of the last ones that have ended.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn histories(&self) -> Result<KVVec<Arc<OfSession>>> {
        let mut found = KVVec::new();
        loop {
            let histories = self.histories.lock();
            if histories.len() <= found.capacity() {
                for history in histories.iter() {
                    found.push_within_capacity(history.of.clone())?;
                }
                return Ok(found);
            }
            let places = histories.len();
            drop(histories);
            found.reserve(places, GFP_KERNEL)?;
        }
    }

    /// Ends a session, which is not in the list any more. Its events are kept for a while.
    ///
    /// # Context
    ///
    /// *may sleep*
    fn end(&self, side: Side) {
        side.close();
        let is_empty = side.history().is_empty();
        let mut histories = self.histories.lock();
        let is_it = |history: &History| Arc::ptr_eq(&history.of, side.history());
        let own = histories.iter().position(is_it);
        let mut not_kept = own.and_then(|at| histories.remove(at).ok());
        if let Some(own) = not_kept.take_if(|_| !is_empty) {
            // The place that it had is free.
            let ended = History {
                has_ended: true,
                ..own
            };
            let pushed = histories.push_within_capacity(ended);
            not_kept = match pushed {
                Ok(()) => Self::least_wanted(&histories).and_then(|at| histories.remove(at).ok()),
                Err(error) => Some(error.0),
            };
        }
        // Not under the lock.
        drop(histories);
        drop(not_kept);
    }

    /// Of too many sessions that have ended, whose events are not kept: the first one whose client had no key; or else the
    /// first of all.
    fn least_wanted(histories: &[History]) -> Option<usize> {
        let all = histories.iter().enumerate();
        let ended = all.filter(|(_, history)| history.has_ended);
        if ended.clone().count() <= MAX_ENDED {
            return None;
        }
        let without_key = ended
            .clone()
            .find(|(_, history)| !history.of.is_authenticated());
        without_key
            .or_else(|| ended.clone().next())
            .map(|(at, _)| at)
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
        let histories = take(&mut *self.histories.lock());
        drop(histories);
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
        let history = History {
            of: side.history().clone(),
            has_ended: false,
        };
        let entry = Entry {
            role,
            side: side.clone(),
            uuid: peer.uuid,
            attached: 1,
            left_at: 0,
        };
        self.histories.lock().push(history, GFP_KERNEL)?;
        let pushed = self.list.lock().push(entry, GFP_ATOMIC | __GFP_NOWARN);
        if let Err(error) = pushed {
            self.end(side);
            return Err(error.into());
        }
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
        history::OfChannels,
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
            let kept = peers.histories()?;
            Ok(kept.len() == MAX_ENDED
                && kept.iter().all(|kept| *kept.of() == of && !kept.is_empty()))
        };
        assert!(is_kept()? && peers.list.lock().is_empty());
        // A client without a key takes the place of none that had one.
        let other = peers.attach(&stranger)?;
        other.seems_used();
        peers.over(&other);
        assert!(is_kept()?);
        let side = peers.attach(&peer)?;
        assert_eq!(peers.list.lock().len(), 1);
        peers.over(&side);
        peers.close();
        assert!(peers.histories()?.is_empty());
        Ok(())
    }

    #[test]
    fn a_session_that_ends_during_a_reading_is_read_once() -> Result {
        let peers = peers()?;
        let peer = peer(Role::Client, 0, true);
        let entries = |of: &OfSession| -> Result<usize> {
            let mut entries = KVVec::with_capacity(OfChannels::MAX, GFP_KERNEL)?;
            of.copy(&mut entries);
            Ok(entries.len())
        };
        let side = peers.attach(&peer)?;
        side.seems_used();
        // A reading begins, the session ends, and the reading goes on; and one that begins now.
        let before = peers.histories()?;
        peers.over(&side);
        let after = peers.histories()?;
        for histories in [&before, &after] {
            assert_eq!(histories.len(), 1);
            assert_eq!(entries(&histories[0])?, 1);
        }
        peers.close();
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
