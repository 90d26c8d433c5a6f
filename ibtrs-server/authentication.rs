// SPDX-License-Identifier: GPL-2.0

//! Authentication of clients (Documentation/protocol.md, "Authentication").
//!
//! The path of a client that authenticates is a candidate until AUTH1 is checked: it has its
//! service connection, and nothing else on the server changes because of it. Its session may be
//! one that no list has yet.

use core::net::Ipv4Addr;

use crate::{
    accept::{
        self,
        Place,
        Refusal, //
    },
    path::Path, //
};
use ibtrs_core::{
    auth::{
        self,
        Mac, //
    },
    convert, //
};
use ibtrs_proto::{
    addr::Addr,
    auth::{
        Auth1,
        AuthError,
        Failures,
        KeyId,
        Policy,
        Session as Kind,
        Source,
        AUTH1_LEN, //
    },
    consts::CONN_REQ_LEN,
    fsm::server_path::Event,
    name::SessionName, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    pr_err_ratelimited,
    pr_info_ratelimited, //
};
use rdma::{
    dma::{
        Direction,
        DmaBuf, //
    },
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
};

/// Source addresses whose failures are remembered.
const SOURCES: usize = 64;

/// The clients that have failed to authenticate.
#[pin_data]
pub(crate) struct FailureTable {
    #[pin]
    failures: Mutex<KBox<Failures<SOURCES>>>,
    since: Instant<Monotonic>,
}

impl FailureTable {
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let failures = KBox::new(Failures::new(), GFP_KERNEL)?;
        Ok(pin_init!(Self {
            failures <- new_mutex!(failures, "FailureTable::failures"),
            since: Instant::now(),
        }))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns whether the client has to wait before it may try again.
    pub(crate) fn must_wait(&self, addr: Addr) -> bool {
        self.failures.lock().wait_ms(&source(addr), self.now_ms()) > 0
    }

    /// Counts a failure; returns whether it is worth a line in the log.
    fn failed(&self, addr: Addr) -> bool {
        self.failures.lock().failed(&source(addr), self.now_ms())
    }

    fn succeeded(&self, addr: Addr) {
        self.failures.lock().succeeded(&source(addr));
    }
}

/// The address that failures are counted for, see [`Source`].
fn source(addr: Addr) -> Source {
    match addr {
        Addr::V4(v4) => Ipv4Addr::from(v4).to_ipv6_mapped().octets(),
        Addr::V6(bytes, _) | Addr::Gid(bytes) => bytes,
    }
}

/// Returns the policy for a path of a session of that kind, and whether there are keys.
///
/// Once there was a key, the policy is that of a server with keys: one whose last key was removed,
/// or has expired, does not let strangers in.
pub(crate) fn policy(kind: Kind) -> (Policy, bool) {
    let had_keys = auth::had_keys();
    (crate::auth.get().policy(kind, had_keys), auth::has_keys())
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        let why = match error {
            AuthError::Required => {
                "its client does not authenticate, which is required: load a key there"
            }
            error => error.as_str(),
        };
        Self::new(convert::error(error.errno()), why)
    }
}

/// AUTH1, until it is handled.
pub(crate) type Message = auth::Message<AUTH1_LEN>;

impl Path {
    /// Checks AUTH1, which came at `came`. The path then belongs to its session, or is refused for another reason, and
    /// the client is told. The path of a client that is not believed is closed, with a line in the
    /// log.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn authenticate(self: &Arc<Self>, message: &Message, came: Instant<Monotonic>) {
        if !self.check_auth1(message) {
            self.event(Event::Error);
            return;
        }
        // Before the answer: the client's next connection may follow it at once.
        let admitted = self.admit(came);
        if let Err(refusal) = &admitted {
            pr_err_ratelimited!("{}: refused: {}\n", **self, refusal);
        }
        // The client ends a path that is refused; as one that is incomplete, it does not stay.
        if let Err(error) = self.send_auth2(admitted.err()) {
            self.error(fmt!(
                "cannot answer the authentication ({})",
                convert::errno(error).as_str()
            ));
        }
    }

    /// Returns whether the client has proved itself.
    fn check_auth1(&self, message: &Message) -> bool {
        let mut missing = None;
        let find = |id: &KeyId, name: SessionName<'_>| {
            let key = auth::find_key(id, name);
            key.inspect_err(|error| missing = Some(*error)).ok()
        };
        let nonce = kx::random::secret();
        let result = self.auth.lock().auth1(&Mac, message.bytes(), find, nonce);
        let (table, addr) = (&self.session.server.failures, self.ends.src);
        match result {
            Ok(()) => {
                table.succeeded(addr);
                self.charge.set_known();
                true
            }
            Err(error) => {
                if table.failed(addr) {
                    self.log_failure(message, error, missing);
                }
                false
            }
        }
    }

    /// Says why a client was not believed; `missing` is what was wrong with its key.
    fn log_failure(&self, message: &Message, error: AuthError, missing: Option<Error>) {
        let ends = self.ends;
        let claim = Auth1::decode(message.bytes());
        let (Ok(claim), AuthError::Proof) = (claim, error) else {
            pr_err_ratelimited!("{}: authentication failed: {}\n", ends, error.as_str());
            return;
        };
        let (name, id) = (claim.name.as_str(), claim.key_id);
        match missing {
            Some(missing) => pr_err_ratelimited!(
                "{}: {}: authentication failed: no usable key {} of this session is loaded ({}): load it, or correct the client's key_id\n",
                name,
                ends,
                id.as_str(),
                convert::errno(missing).as_str()
            ),
            None => pr_err_ratelimited!(
                "{}: {}: authentication failed: the client has another key {}: load the same one on both sides\n",
                name,
                ends,
                id.as_str()
            ),
        }
    }

    /// Puts a path whose client has proved itself into its session, and that into the list.
    fn admit(self: &Arc<Self>, came: Instant<Monotonic>) -> Result<(), Refusal> {
        let session = &self.session;
        let _joining = session.server.joining.lock();
        // Before anything of the session changes: the key may be that of another one.
        let auth = self.auth.lock();
        session.belongs_to(auth.name().ok_or(EINVAL)?)?;
        drop(auth);
        session.enlist(true)?;
        let joined = self.join(came);
        if joined.is_err() {
            session.forget_if_unused();
        }
        joined
    }

    fn join(self: &Arc<Self>, came: Instant<Monotonic>) -> Result<(), Refusal> {
        let place = Place {
            ends: self.ends,
            attempt: self.attempt(),
            cid: 0,
        };
        // The service connection of a path that is found would be a second one.
        if accept::find(&self.session, &place, |path| path.uuid == self.uuid)?.is_some() {
            return Err(Refusal::new(ECONNRESET, "the path exists"));
        }
        // A tag is that of a path for as long as it is in the session's list, so only now it counts.
        if self.session.path(self.tag).is_some() {
            return Err(Refusal::new(ECONNRESET, "another path has its tag"));
        }
        self.session.add_path(self.clone())?;
        self.client_has_answered(came);
        let auth = self.auth.lock();
        if let (Some(name), Some(id)) = (auth.name(), auth.key_id()) {
            let (name, ends) = (name.as_str(), self.ends);
            pr_info_ratelimited!(
                "{}: {}: authenticated with key {}\n",
                name,
                ends,
                id.as_str()
            );
        }
        Ok(())
    }

    fn send_auth2(&self, refusal: Option<Refusal>) -> Result {
        let errno = refusal.map(|refusal| refusal.errno());
        let answer = self.auth.lock().auth2(&Mac, errno);
        let answer = answer.map_err(|error| convert::error(error.errno()))?;
        let mut message = DmaBuf::new(&self.pd, answer.len(), Direction::ToDevice)?;
        message.bytes_mut().copy_from_slice(&answer);
        let sge = message.sge(0, answer.len())?;
        let mut cons = self.cons.lock();
        let service = match cons.qps.first() {
            Some(Some(service)) => service.get(),
            _ => return Err(ENOTCONN),
        };
        // The device may read it until the connection is closed.
        cons.auth2 = Some(message);
        drop(cons);
        service.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
            chain.send([sge], Signal::Control)
        })
    }

    /// Returns the id of the key that the client has proved to have.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        self.auth.lock().key_id()
    }

    /// Returns whether a connection request belongs to the path, by its proof or by its UUID.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn owns(&self, request: &[u8; CONN_REQ_LEN]) -> bool {
        self.auth.lock().owns(&Mac, request)
    }
}
