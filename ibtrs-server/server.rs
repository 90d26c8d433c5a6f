// SPDX-License-Identifier: GPL-2.0

//! The server of some services, and the listener.

use crate::{
    env::Env,
    server::{
        clients::Clients,
        drain::{
            Drain,
            Draining, //
        },
        ports::Ports, //
    },
    session::{
        service::Services,
        sessions::Sessions, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::work::Work;

mod accept;
pub(crate) mod clients;
pub(crate) mod drain;
pub(crate) mod ports;

/// A server, which accepts sessions.
#[pin_data]
pub(crate) struct Server {
    pub(crate) env: Arc<Env>,
    pub(crate) sessions: Arc<Sessions>,
    #[pin]
    pub(crate) draining: Draining,
    #[pin]
    pub(crate) accept: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Server { self.accept }
}

impl Server {
    fn new(services: Services) -> Result<Arc<Self>> {
        let env = Env::new()?;
        let queue = env.queue.clone();
        Arc::pin_init(
            try_pin_init!(Self {
                sessions: Sessions::new(env.clone(), services)?,
                env,
                draining <- Draining::new(),
                accept <- kx::new_work!(queue, "Server::accept"),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// Accepts sessions until it is dropped.
///
/// Dropping it closes all sessions and waits for their requests: may sleep.
pub struct Listener {
    ports: Arc<Ports>,
    server: Arc<Server>,
}

impl Listener {
    /// Returns a handle that drains the server.
    pub fn drain(&self) -> Drain {
        Drain::new(self.server.clone())
    }

    /// Returns a handle that closes paths of authenticated clients.
    pub fn clients(&self) -> Clients {
        Clients::new(self.server.sessions.clone())
    }

    /// Returns where the server listens.
    pub fn ports(&self) -> Arc<Ports> {
        self.ports.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ports.close();
        // Wait for connection requests that arrived earlier.
        self.server.env.queue.flush();
        self.server.sessions.close();
        self.server.env.close();
    }
}

/// Accepts sessions of `services` in the caller's network namespace, which the listener keeps. It
/// listens on all local addresses at `port_nr` until there are [ports](Ports); with 0, on ports
/// only.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EADDRINUSE`: the port is in use; `EINVAL`: module parameters contradict each other; `ENOMEM`.
pub fn listen(services: Services, port_nr: u16) -> Result<Listener> {
    let server = Server::new(services)?;
    // If this fails, dropping the listener closes the connections that clients have begun since.
    let listener = Listener {
        ports: Ports::new(server.clone(), port_nr)?,
        server,
    };
    listener.ports.open()?;
    Ok(listener)
}
