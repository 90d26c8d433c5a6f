// SPDX-License-Identifier: GPL-2.0

//! The properties of a client that the rules for exports use.

use ibtrs_proto::addr::Addr;
use ibtrs_server::Sources;
use kernel::{
    new_mutex,
    prelude::*,
    str::{
        CStr,
        CString, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// The client of a session.
#[pin_data]
pub(crate) struct Peer {
    name: CString,
    authenticated: bool,
    /// Source addresses of the session's paths; `None` once the session has ended.
    #[pin]
    sources: Mutex<Option<Sources>>,
}

impl Peer {
    /// Describes the client of a session that begins.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(name: &CStr, authenticated: bool, sources: Sources) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from(name)?,
                authenticated,
                sources <- new_mutex!(Some(sources), "Peer::sources"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name of the session.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns whether the client has proved that it has a key for the session's name.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns whether `func` holds for the source addresses of all paths of the session; `false`
    /// once the session has ended.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn all_sources(&self, func: impl FnMut(&Addr) -> bool) -> bool {
        let sources = self.sources.lock();
        sources.as_ref().is_some_and(|sources| sources.all(func))
    }

    /// Returns whether the session has a path that is not being closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn has_source(&self) -> bool {
        let sources = self.sources.lock();
        sources.as_ref().is_some_and(Sources::any)
    }

    /// Records that the session has ended.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn gone(&self) {
        let sources = self.sources.lock().take();
        drop(sources);
    }
}
