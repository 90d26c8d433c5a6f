// SPDX-License-Identifier: GPL-2.0

//! Authentication of clients (Documentation/protocol.md, "Authentication").
//!
//! The path of a client that authenticates is a candidate until the server has checked AUTH1: it
//! has only its service connection, and does not affect any other state of the server. Its session
//! may not be in any list yet.

use crate::{
    path::Path,
    refusal::Refusal, //
};
use ibtrs_core::{
    auth::{
        self,
        Crypto, //
    },
    convert,
    message::Message, //
};
use ibtrs_proto::{
    auth::{
        Auth1,
        AuthError,
        Key,
        KeyId,
        Source,
        Suite,
        AUTH1_LEN, //
    },
    consts::CONN_REQ_LEN,
    fsm::server_path::Event,
    name::SessionName, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};
use rdma::{
    dma::DmaBuf,
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
};

/// AUTH1, until it is handled.
pub(crate) type Proof = Message<AUTH1_LEN>;

impl Path {
    /// Checks AUTH1, which arrived at `came`. If the proof is right, adds the path to its session,
    /// or refuses it for another reason, and answers the client. If the proof is wrong, closes the
    /// path, with a line in the log.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn authenticate(self: &Arc<Self>, message: &Proof, came: Instant<Monotonic>) {
        if !self.check_auth1(message) {
            self.event(Event::Error);
            return;
        }
        // Before the answer, as the client's next connection may follow at once.
        let entered = self.parent.clone().enter(self, came);
        if let Err(refusal) = &entered {
            if self.may_log() {
                pr_warn!("{}: refused: {}\n", **self, refusal);
            }
        }
        // The client closes a refused path; otherwise the limit for incomplete paths does.
        if let Err(error) = self.send_auth2(entered.err()) {
            self.failed("cannot answer the authentication", error);
        }
    }

    /// Checks the client's proof, and counts the outcome; returns whether the proof is right.
    fn check_auth1(&self, message: &Proof) -> bool {
        let mut missing = None;
        let find = |id: &KeyId, name: SessionName<'_>| {
            let key = auth::find_key(id, name);
            key.inspect_err(|error| missing = Some(*error)).ok()
        };
        let nonce = kx::random::secret();
        let result = self
            .auth
            .lock()
            .auth1(&Crypto, message.bytes(), find, nonce);
        match result {
            Ok(()) => {
                self.charge.set_known();
                self.set_authenticated();
                true
            }
            Err(error) => {
                self.io.session.env.failures.failed(&self.failure_source());
                if self.may_log() {
                    self.log_failure(message, error, missing);
                }
                false
            }
        }
    }

    /// Returns the source for which a failure of this path counts.
    fn failure_source(&self) -> Source {
        Source {
            origin: self.charge.origin(),
            session: self.parent.is_listed().then_some(self.io.session.uuid),
        }
    }

    /// Logs the reason for a failed proof; `missing` is the error of the look-up of the key, if it
    /// failed.
    fn log_failure(&self, message: &Proof, error: AuthError, missing: Option<Error>) {
        let ends = self.io.ends;
        let claim = Auth1::decode(message.bytes());
        let (Ok(claim), AuthError::Proof) = (claim, error) else {
            pr_warn!("{}: authentication failed: {}\n", ends, error.as_str());
            return;
        };
        let (name, id) = (claim.name.as_str(), claim.key_id);
        match missing {
            Some(missing) => pr_warn!(
                "{}: {}: authentication failed: no usable key {} of this session is loaded ({}): load it, or correct the client's key_id\n",
                name,
                ends,
                id.as_str(),
                convert::errno(missing).as_str()
            ),
            None => pr_warn!(
                "{}: {}: authentication failed: the client's key {} differs from the one loaded here: load the same key on both sides\n",
                name,
                ends,
                id.as_str()
            ),
        }
    }

    /// Restarts the setup timer for the client's next connection. The path was added to its session,
    /// after the client had proved itself with a message that arrived at `came`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn has_entered(self: &Arc<Self>, came: Instant<Monotonic>) {
        self.wait_for_client(&mut self.io.cons.lock(), came);
        let auth = self.auth.lock();
        if let (Some(name), Some(id), true) = (auth.name(), auth.key_id(), self.may_log()) {
            let (name, ends) = (name.as_str(), self.io.ends);
            pr_info!(
                "{}: {}: authenticated with key {}, suite {}\n",
                name,
                ends,
                id.as_str(),
                auth.suite().map_or("", Suite::as_str)
            );
        }
    }

    fn send_auth2(&self, refusal: Option<Refusal>) -> Result {
        let errno = refusal.map(|refusal| refusal.errno());
        let answer = self.auth.lock().auth2(&Crypto, errno);
        let answer = answer.map_err(|error| convert::error(error.errno()))?;
        let message = DmaBuf::with(&self.io.pd, &answer)?;
        let sge = message.sge(0, answer.len())?;
        let mut cons = self.io.cons.lock();
        let service = match cons.qps.first() {
            Some(Some(service)) => service.get(),
            _ => return Err(ENOTCONN),
        };
        // The device may read the message until the connection is closed.
        cons.auth2 = Some(message);
        drop(cons);
        service.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
            chain.send([sge], Signal::Control)
        })
    }

    /// Returns the id of the key with which the client has proved itself.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        self.auth.lock().key_id()
    }

    /// Returns the suite by which the client has proved itself.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.auth.lock().suite()
    }

    /// Returns whether the key with which the client has proved itself is still loaded, and closes
    /// the path if the key was removed or replaced or has expired. Returns `true` for a path
    /// without authentication.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn keeps_its_key(self: &Arc<Self>) -> bool {
        let auth = self.auth.lock();
        let (Some(id), Some(name)) = (auth.key_id(), auth.name()) else {
            return true;
        };
        let is_same = |key: &Key| auth.has_proved(&Crypto, key);
        let Some(error) = auth::key_vanished(&id, name, is_same) else {
            return true;
        };
        drop(auth);
        self.parent.key_revoked(error);
        self.error(fmt!(
            "its key {} is no longer loaded ({}); the path is closed: load a key if the client may come back",
            id.as_str(),
            convert::errno(error).as_str()
        ));
        false
    }

    /// Returns whether a connection request belongs to the path, by its proof or by its UUID.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn owns(&self, request: &[u8; CONN_REQ_LEN]) -> bool {
        self.auth.lock().owns(&Crypto, request)
    }
}
