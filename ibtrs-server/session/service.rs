// SPDX-License-Identifier: GPL-2.0

//! The interface for the services above, each of which serves one [`Purpose`] of connections.

use crate::{
    data::con::upper::{
        ServiceSession,
        Uppers, //
    },
    env::audit::ClientLog,
    refusal::Refusal,
    session::{
        notices::Notices,
        sources::Sources, //
    },
    types::{
        Purpose,
        Table, //
    }, //
};
use ibtrs_proto::{
    addr::Addr,
    name::SessionName, //
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::Arc, //
};

/// A path that is about to join its session; its client has proved that it has the session's key.
pub struct Joining<'a> {
    /// The session's name.
    pub name: SessionName<'a>,
    /// The client's address.
    pub source: Addr,
    /// Number of paths of all sessions with this name, including this path.
    pub paths: u32,
    /// Number of connections that these paths have when they are complete.
    pub connections: u32,
    /// Bytes of the server's memory that these paths may take.
    pub memory: u64,
    /// Bytes that other paths of these sessions keep while they are being closed.
    pub closing: u64,
}

/// A service that serves the requests of sessions.
pub trait Service: Send + Sync + 'static {
    /// A client's session has come up with its first path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for refusing the session.
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>, Refusal>;

    /// A client is about to get `name` for its session; `authenticated` says whether it has proved
    /// that it has a key of that name.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for refusing the session, which has neither the name nor memory yet.
    fn check_name(&self, name: SessionName<'_>, authenticated: bool) -> Result<(), Refusal>;

    /// A client that has proved that it has a session's key is about to add a path to the session.
    /// [`Clients::recheck`] repeats the check.
    ///
    /// # Context
    ///
    /// May sleep, but all other connecting clients wait for it, so it must not wait for a disk or a
    /// client.
    ///
    /// # Errors
    ///
    /// The reason for refusing the path, whose errno is sent to the client.
    fn authorize(&self, joining: &Joining<'_>) -> Result<(), Refusal>;
}

/// The description of a new session for the service.
pub struct SessionInfo<'a> {
    /// The name that the client gave.
    pub name: &'a CStr,
    /// Whether all of its clients prove that they have a key of that name.
    pub authenticated: bool,
    /// The source addresses of its paths.
    pub sources: Sources,
    /// The number of chunks; [`Request::tag`] is below it.
    pub queue_depth: u16,
    /// Whether the client knows the extensions of the protocol.
    pub extensions: bool,
    /// Bytes of a chunk, headers included.
    pub chunk_bytes: u32,
    /// Limits for the lines of the log that the client causes.
    pub log: ClientLog,
    /// Sends notices; `None` if the client does not support them.
    pub notices: Option<Notices>,
}

/// The services of a server, at most one for each purpose.
pub struct Services(Table<dyn Service>);

impl Services {
    /// Creates the table with one service.
    pub fn new(purpose: Purpose, service: Arc<dyn Service>) -> Self {
        Self(Table::new()).with(purpose, service)
    }

    /// Adds a service.
    pub fn with(mut self, purpose: Purpose, service: Arc<dyn Service>) -> Self {
        self.0.set(purpose, service);
        self
    }

    /// As [`Service::check_name`], of all services.
    pub(crate) fn check_name(
        &self,
        name: SessionName<'_>,
        authenticated: bool,
    ) -> Result<(), Refusal> {
        let mut all = self.0.iter();
        all.try_for_each(|(_, service)| service.check_name(name, authenticated))
    }

    /// As [`Service::authorize`], of all services.
    pub(crate) fn authorize(&self, joining: &Joining<'_>) -> Result<(), Refusal> {
        let mut all = self.0.iter();
        all.try_for_each(|(_, service)| service.authorize(joining))
    }

    /// As [`Service::session_up`], of all services. If one refuses the session, the others end it.
    pub(crate) fn session_up<'a>(
        &self,
        info: impl Fn() -> SessionInfo<'a>,
    ) -> Result<Uppers, Refusal> {
        let mut uppers = Uppers::new();
        for (purpose, service) in self.0.iter() {
            let upper = service.session_up(info());
            uppers.set(purpose, upper.inspect_err(|_| uppers.down())?);
        }
        Ok(uppers)
    }
}
