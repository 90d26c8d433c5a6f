// SPDX-License-Identifier: GPL-2.0

//! Progress of a connection attempt, and waiting for it.

use crate::path::attempt::{
    auth::map_peer_errno,
    Attempt, //
};
use ibtrs_core::{
    convert,
    message::Message, //
};
use ibtrs_proto::{
    auth::{
        AuthError,
        AUTH2_LEN, //
    },
    consts::{
        CONNECT_TIMEOUT_MS,
        CONN_RSP_LEN, //
    },
    errno::Errno,
    handshake::{
        reject_decode,
        ConnRsp,
        HandshakeError, //
    },
    refused, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::{
        Arc,
        CondVarTimeoutResult, //
    },
    time::msecs_to_jiffies, //
};
use kx::sync::atomic::Relaxed;
use rdma::{
    cm::{
        CmEvent,
        CmHandler,
        REJECTED_AS_STALE, //
    },
    device::RemovalHandler, //
};

/// Setup stage of a connection, in order of progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The address was not resolved in time; the query may be repeated.
    Unanswered,
    Started,
    AddrResolved,
    RouteResolved,
    Established,
    /// The connection manager has ended the connection, or failed to establish it.
    Ended,
}

/// Progress of the connections of an attempt, and its early end.
pub(crate) struct Setup {
    stages: KVec<Stage>,
    /// The error of the first connection that failed.
    failed: Option<Error>,
    /// The parameters with which the server accepted the service connection, decoded and as
    /// received.
    pub(super) rsp: Option<(ConnRsp, [u8; CONN_RSP_LEN])>,
    /// The private data of all acceptances by connection number if the path is authenticated;
    /// otherwise empty.
    pub(super) acceptances: KVVec<[u8; CONN_RSP_LEN]>,
    /// The server's AUTH2.
    auth2: Option<Message<AUTH2_LEN>>,
    /// The client's proof was sent, and its answer has not arrived.
    proving: bool,
    /// Buffer for the session information; empty until the exchange begins.
    pub(super) info: KVVec<u8>,
    pub(super) info_len: usize,
    /// The error with which to end the attempt early.
    pub(crate) abort: Option<Error>,
    /// The highest epoch up to which the server has fenced abandoned requests; 0 for none.
    pub(crate) fenced: u32,
    /// The worker of the attempt has not returned.
    pub(crate) connecting: bool,
}

impl Setup {
    pub(crate) fn new(cons: usize) -> Result<Self> {
        Ok(Self {
            stages: KVec::from_elem(Stage::Started, cons, GFP_KERNEL)?,
            failed: None,
            rsp: None,
            acceptances: KVVec::new(),
            auth2: None,
            proving: false,
            info: KVVec::new(),
            info_len: 0,
            abort: None,
            fenced: 0,
            connecting: true,
        })
    }

    /// Stores the session information that [`super::exchange_info`] waits for.
    pub(crate) fn set_info(&mut self, bytes: &[u8]) {
        if let Some(place) = self.info.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            self.info_len = bytes.len();
        }
    }

    /// Stores AUTH2, the server's answer to the client's proof.
    pub(crate) fn set_auth2(&mut self, bytes: &[u8]) {
        self.auth2 = Some(Message::new(bytes));
        self.proving = false;
    }

    /// Records that the client's proof was sent.
    pub(crate) fn set_proving(&mut self) {
        self.proving = true;
    }

    /// Returns whether the first `cons` connections, all of which were established, have ended.
    pub(crate) fn all_ended(&self, cons: usize) -> bool {
        let ended = |stage: &Stage| matches!(stage, Stage::Ended);
        self.stages.iter().take(cons).all(ended)
    }

    /// Returns the stage of connection `cid`.
    ///
    /// # Errors
    ///
    /// Why the attempt has failed or is to end.
    pub(super) fn stage(&self, cid: usize) -> Result<Stage> {
        // Report the first failure, not the abort that it caused.
        match self.failed.or(self.abort) {
            Some(error) => Err(error),
            None => self.stages.get(cid).copied().ok_or(EINVAL),
        }
    }
}

/// Handles the connection manager's events of one connection.
pub(super) struct Events {
    pub(super) attempt: Arc<Attempt>,
    pub(super) cid: u16,
}

impl Events {
    fn set(&self, stage: Stage) {
        let mut setup = self.attempt.setup.lock();
        if let Some(place) = setup.stages.get_mut(usize::from(self.cid)) {
            *place = stage;
        }
        drop(setup);
        self.attempt.progress.notify_all();
    }

    /// Fails the attempt. The error is stored before the attempt ends, because ending it causes
    /// further errors, which must not be mistaken for the reason.
    fn fail(&self, error: Error, what: fmt::Arguments<'_>) {
        let mut setup = self.attempt.setup.lock();
        setup.failed = setup.failed.or(Some(error));
        drop(setup);
        self.attempt.error(what);
        self.set(Stage::Ended);
    }

    fn established(&self, private_data: &[u8]) {
        let bytes = private_data.first_chunk();
        if self.cid == 0 {
            let rsp = ConnRsp::decode(private_data)
                .and_then(|rsp| Ok((rsp, *bytes.ok_or(HandshakeError::Short)?)));
            match rsp {
                Ok(rsp) => self.attempt.setup.lock().rsp = Some(rsp),
                Err(error) => {
                    return self.fail(
                        convert::error(error.errno()),
                        fmt!("the server's acceptance is invalid: {}", error.as_str()),
                    )
                }
            }
        }
        let mut setup = self.attempt.setup.lock();
        let place = setup.acceptances.get_mut(usize::from(self.cid));
        if let (Some(place), Some(bytes)) = (place, bytes) {
            *place = *bytes;
        }
        drop(setup);
        self.set(Stage::Established);
    }

    /// Fails the attempt: the connection manager has ended the connection, or never established it.
    fn ended(&self, error: Error, event: &CmEvent<'_>) {
        self.fail(error, fmt!("connection {}: {}", self.cid, event.as_str()));
    }

    fn disconnected(&self, event: &CmEvent<'_>) {
        if !self.attempt.setup.lock().proving {
            return self.ended(ECONNRESET, event);
        }
        // A server that rejects the proof disconnects without giving a reason.
        let what = AuthError::Proof.as_str();
        self.fail(
            EKEYREJECTED,
            fmt!(
                "the server ended the authentication: {}; or the server was stopped",
                what
            ),
        );
    }

    fn rejected(&self, reason: i32, private_data: &[u8]) {
        if reason == REJECTED_AS_STALE {
            // After a reboot, queue pairs get the same numbers again, and the server's connection
            // manager still knows the earlier ones. The next queue pairs have other numbers.
            return self.fail(
                EAGAIN,
                fmt!(
                    "connection {} was refused: the server still has an earlier one of its number",
                    self.cid
                ),
            );
        }
        // A refusal without data comes from the connection manager, usually because nothing listens
        // on the port.
        let (errno, words) = match private_data {
            [] => (Errno::ECONNREFUSED, None),
            data => {
                let errno = reject_decode(data);
                (errno, refused::words(errno))
            }
        };
        let more = words.map_or("", |_| "; ");
        self.fail(
            map_peer_errno(errno),
            fmt!(
                "connection {} was refused: reason {}, {}{}{}",
                self.cid,
                reason,
                errno.as_str(),
                more,
                words.unwrap_or("")
            ),
        );
    }
}

impl CmHandler for Events {
    fn event(&self, event: &CmEvent<'_>) {
        match *event {
            CmEvent::AddrResolved => self.set(Stage::AddrResolved),
            CmEvent::AddrUnanswered => self.set(Stage::Unanswered),
            CmEvent::RouteResolved => self.set(Stage::RouteResolved),
            CmEvent::Established(data) => self.established(data),
            CmEvent::Rejected(reason, data) => self.rejected(reason, data),
            CmEvent::Failed(error, _) => self.ended(error, event),
            CmEvent::Disconnected => self.disconnected(event),
            CmEvent::DeviceRemoval => self.ended(ENODEV, event),
        }
    }
}

/// Fails an attempt when its device is removed.
pub(super) struct Removal(pub(super) Arc<Attempt>);

impl RemovalHandler for Removal {
    fn device_removed(&self) {
        // ORDERING: `Path::kept` is locked both where the flag is read and by the work item queued
        // below.
        self.0.disposable.store(true, Relaxed);
        self.0.error(fmt!("the RDMA device is being removed"));
        // The attempt may have ended, with its resources kept.
        self.0.path.release_soon();
    }
}

impl Attempt {
    /// Resets the stage of connection `cid` for another address query.
    pub(super) fn asks_again(&self, cid: usize) {
        if let Some(place) = self.setup.lock().stages.get_mut(cid) {
            *place = Stage::Started;
        }
    }

    /// Waits for AUTH2, the server's answer to the client's proof.
    ///
    /// # Errors
    ///
    /// Errors of [`Attempt::wait`].
    pub(crate) fn wait_auth2(&self) -> Result<Message<AUTH2_LEN>> {
        self.wait(|setup| match setup.auth2 {
            Some(answer) => Ok(Some(answer)),
            None => setup.stage(0).map(|_| None),
        })
    }

    /// Waits until `ready` returns a value for the progress.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; errors of `ready`.
    pub(super) fn wait<T>(&self, ready: impl Fn(&Setup) -> Result<Option<T>>) -> Result<T> {
        let mut left = msecs_to_jiffies(CONNECT_TIMEOUT_MS);
        let mut setup = self.setup.lock();
        loop {
            if let Some(value) = ready(&setup)? {
                return Ok(value);
            }
            match self.progress.wait_interruptible_timeout(&mut setup, left) {
                // Workers get no signals.
                CondVarTimeoutResult::Signal { .. } | CondVarTimeoutResult::Timeout => {
                    return Err(ETIMEDOUT)
                }
                CondVarTimeoutResult::Woken { jiffies } => left = jiffies,
            }
        }
    }

    /// Waits for `ms` milliseconds, or less if there is progress.
    ///
    /// # Errors
    ///
    /// The error of the attempt, if it has failed.
    pub(super) fn pause(&self, ms: u32) -> Result {
        let mut setup = self.setup.lock();
        setup.stage(0)?;
        let _ = self
            .progress
            .wait_interruptible_timeout(&mut setup, msecs_to_jiffies(ms));
        setup.stage(0).map(drop)
    }

    /// Waits until the address of connection `cid` is resolved; returns false if the query was not
    /// answered in time.
    pub(super) fn wait_addr(&self, cid: usize) -> Result<bool> {
        self.wait(|setup| {
            Ok(match setup.stage(cid)? {
                Stage::Started => None,
                stage => Some(stage >= Stage::AddrResolved),
            })
        })
    }

    pub(super) fn wait_stage(&self, cid: usize, stage: Stage) -> Result {
        self.wait(|setup| Ok((setup.stage(cid)? >= stage).then_some(())))
    }
}
