// SPDX-License-Identifier: GPL-2.0

//! Authentication of a path (Documentation/protocol.md, "Authentication").
//!
//! The exchange runs on the service connection, before the others are set up. It allocates little
//! memory, because it also runs while reclaim waits for the path.

use crate::{
    data::con::{
        Con,
        RECV_AUTH, //
    },
    env::Env,
    path::attempt::Attempt,
    types::Proved, //
};
use ibtrs_core::{
    auth::{
        find_key,
        Crypto, //
    },
    convert, //
};
use ibtrs_proto::{
    auth::{
        chosen,
        AuthError,
        ClientAuth,
        Identity,
        Next,
        Policy,
        Session as Kind,
        Setting,
        AUTH2_LEN, //
    },
    consts::{
        CONN_REQ_LEN,
        CONN_RSP_LEN, //
    },
    errno::Errno, //
};
use kernel::prelude::*;
use rdma::{
    dma::DmaBuf,
    qp::QueuePair,
    recv::RecvClass,
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
};

/// Fails the attempt because of `error`; returns the corresponding error code.
pub(crate) fn refused(attempt: &Attempt, error: AuthError) -> Error {
    attempt.error(fmt!("{} ({})", error.as_str(), error.errno().as_str()));
    map_peer_errno(error.errno())
}

/// As [`refused`], for the server's answer to the client's proof. If another client uses the
/// session's UUID, the session gets a new one.
fn auth_rejected(attempt: &Attempt, error: AuthError) -> Error {
    let renewed = match error.is_lost_session() {
        true => attempt.path.parent.take_new_uuid(attempt),
        false => None,
    };
    let Some(outcome) = renewed else {
        return refused(attempt, error);
    };
    attempt.error(fmt!(
        "another client has begun a session under the UUID of this one: going on with a new UUID"
    ));
    outcome
}

/// Returns the error for a refusal that a peer has sent. A peer's `EAGAIN` becomes `EBUSY`, because
/// the client's own `EAGAIN` starts the next attempt without delay.
pub(crate) fn map_peer_errno(errno: Errno) -> Error {
    match errno {
        Errno::EAGAIN => EBUSY,
        errno => convert::error(errno),
    }
}

impl Env {
    /// Returns whether the session has a key, or `false` if the policy does not depend on it.
    fn has_key(&self, setting: Setting, kind: Kind) -> Result<bool> {
        if setting.policy(kind, true) == Policy::None {
            return Ok(false);
        }
        match find_key(&self.key_id(), self.session_name()?) {
            Err(error) if error == ENOKEY => Ok(false),
            Err(error) if error == ENOMEM => Err(error),
            // An expired key must not lead to a connection without authentication.
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// Returns the error with which authentication would fail now for lack of a usable key.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn lacks_key(&self) -> Option<Error> {
        let name = self.session_name();
        name.and_then(|name| find_key(&self.key_id(), name)).err()
    }
}

/// Puts the offer to authenticate into the request of the service connection.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `ENOKEY`, `EKEYREJECTED`: the settings forbid the connection; `ENOMEM`.
pub(crate) fn begin(
    attempt: &Attempt,
    request: &mut [u8; CONN_REQ_LEN],
) -> Result<KBox<ClientAuth>> {
    let (setting, kind) = (crate::param::auth.get(), attempt.path.parent.kind());
    let has_key = attempt.path.env.has_key(setting, kind)?;
    let policy = setting.policy(kind, has_key);
    let allowed = crate::param::auth_suites.usable();
    let auth = ClientAuth::request(policy, kind, allowed, has_key, request);
    Ok(KBox::new(
        auth.map_err(|error| refused(attempt, error))?,
        GFP_KERNEL,
    )?)
}

/// Authenticates the path if the server has chosen a suite in its acceptance of the service
/// connection.
///
/// # Context
///
/// May sleep, up to the time-out of a connection.
///
/// # Errors
///
/// `EAGAIN`: the session has a new UUID; `EKEYREJECTED`: the keys of the sides differ, or the
/// server must authenticate but does not; `ENOKEY`: the key is no longer loaded; `EPROTO`: the
/// server violates the protocol; `ETIMEDOUT`; `ENOMEM`; the error of the attempt, if it has failed.
pub(crate) fn exchange(
    attempt: &Attempt,
    auth: &mut ClientAuth,
    acceptance: &[u8; CONN_RSP_LEN],
) -> Result {
    let key_id = attempt.path.env.key_id();
    let name = attempt.path.env.session_name()?;
    let key = match chosen(acceptance) {
        0 => Err(ENOKEY),
        _ => find_key(&key_id, name),
    };
    let identity = match key {
        Ok(key) => Some(Identity { name, key_id, key }),
        Err(error) if error == ENOMEM => return Err(error),
        Err(_) => None,
    };
    let next = auth.accepted(&Crypto, acceptance, identity, kx::random::secret());
    let auth1 = match next.map_err(|error| refused(attempt, error))? {
        Next::Plain => return Ok(()),
        Next::Send(auth1) => auth1,
    };
    let cons = attempt.cons.lock();
    let service = cons.qps.first().ok_or(ENOTCONN)?.get();
    drop(cons);
    send_auth1(attempt, &service, &auth1)?;
    let answer = attempt.wait_auth2()?;
    auth.auth2(&Crypto, answer.bytes())
        .map_err(|error| auth_rejected(attempt, error))?;
    if let Some(suite) = auth.suite() {
        attempt.proved.populate(Proved { key_id, suite });
    }
    attempt
        .path
        .parent
        .set_authenticated()
        .map_err(|error| refused(attempt, error))
}

fn send_auth1(attempt: &Attempt, service: &QueuePair<Con>, auth1: &[u8]) -> Result {
    let answer = RecvClass {
        count: 1,
        // CAST: AUTH2 has some hundred bytes.
        bytes: AUTH2_LEN as u32,
        payload: 0,
    };
    service.add_recvs(RECV_AUTH, answer)?;
    let message = DmaBuf::with(service.pd(), auth1)?;
    let sge = message.sge(0, auth1.len())?;
    // The device may read the message until the connection is closed.
    attempt.cons.lock().auth1 = Some(message);
    attempt.setup.lock().set_proving();
    service.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
        chain.send([sge], Signal::Control)
    })
}
