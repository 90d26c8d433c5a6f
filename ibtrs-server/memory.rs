// SPDX-License-Identifier: GPL-2.0

//! Memory charges of paths and clients; [`ibtrs_proto::quota`] has the rules.

use crate::server::Server;
use ibtrs_proto::{
    addr::Addr,
    quota::{
        self,
        Needs,
        Quota,
        Refusal,
        Standing,
        Taken, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

/// Addresses without a path that are remembered, at most.
const MAX_REMEMBERED: usize = 1024;

/// The use that an address makes of the server.
struct Account {
    addr: Addr,
    /// Its paths, in any state.
    paths: u32,
    /// Paths that are not complete.
    attempts: u32,
    /// Their bytes.
    begun: u64,
    /// Paths that are connected, or were and are not gone yet.
    connected: u32,
    /// When the last of these was gone.
    left: Option<Instant<Monotonic>>,
}

impl Account {
    fn is_known(&self) -> bool {
        let lately = |left: Instant<Monotonic>| {
            u64::try_from(left.elapsed().as_millis()).is_ok_and(quota::is_known)
        };
        self.connected > 0 || self.left.is_some_and(lately)
    }

    fn has_paths(&self) -> bool {
        self.paths > 0
    }
}

struct Accounts {
    taken: Taken,
    list: KVec<Account>,
}

impl Accounts {
    fn find(&mut self, addr: Addr) -> Option<&mut Account> {
        self.list.iter_mut().find(|account| account.addr == addr)
    }

    fn standing(&self, addr: Addr, known: bool) -> Standing {
        match self.list.iter().find(|account| account.addr == addr) {
            Some(account) => Standing {
                attempts: account.attempts,
                begun: account.begun,
                known: known || account.is_known(),
            },
            None => Standing {
                known,
                ..Standing::default()
            },
        }
    }

    /// Forgets addresses that need not be remembered.
    fn forget(&mut self) {
        self.list
            .retain(|account| account.has_paths() || account.is_known());
        let idle = self.list.iter().filter(|account| !account.has_paths());
        if idle.clone().count() > MAX_REMEMBERED {
            let oldest = idle.max_by_key(|account| account.left.map(|left| left.elapsed()));
            if let Some(addr) = oldest.map(|account| account.addr) {
                self.list.retain(|account| account.addr != addr);
            }
        }
    }
}

/// The memory that all paths have taken.
#[pin_data]
pub(crate) struct Ledger {
    #[pin]
    accounts: Mutex<Accounts>,
}

impl Ledger {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            accounts <- new_mutex!(
                Accounts { taken: Taken::default(), list: KVec::new() },
                "Ledger::accounts"
            ),
        })
    }

    /// Returns whether clients of that address are known.
    pub(crate) fn knows(&self, addr: Addr) -> bool {
        self.accounts.lock().standing(addr, false).known
    }

    /// Returns how many bytes paths have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.accounts.lock().taken.all
    }
}

/// The memory that a path has taken, given back when this is dropped.
pub(crate) struct Charge {
    server: Arc<Server>,
    addr: Addr,
    /// The client is known.
    known: AtomicFlag,
    // The rest changes under the lock of the ledger.
    bytes: Atomic<u64>,
    chunks: Atomic<u64>,
    complete: AtomicFlag,
    connected: AtomicFlag,
}

impl Charge {
    /// Begins the charge of a path whose client comes from `addr`, and which will take what
    /// `needs` says; `known` says that its session has a connected path.
    ///
    /// # Context
    ///
    /// May sleep, as everything here.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::begin`]; `None` without memory for it.
    pub(crate) fn begin(
        server: &Arc<Server>,
        addr: Addr,
        known: bool,
        needs: &Needs,
    ) -> Result<Self, Option<Refusal>> {
        let mut accounts = server.ledger.accounts.lock();
        Self::quota(server).begin(&accounts.standing(addr, known), needs)?;
        match accounts.find(addr) {
            Some(account) => {
                account.paths += 1;
                account.attempts += 1;
            }
            None => {
                let account = Account {
                    addr,
                    paths: 1,
                    attempts: 1,
                    begun: 0,
                    connected: 0,
                    left: None,
                };
                accounts
                    .list
                    .push(account, GFP_KERNEL)
                    .map_err(|_| None::<Refusal>)?;
            }
        }
        Ok(Self {
            server: server.clone(),
            addr,
            known: AtomicFlag::new(known),
            bytes: Atomic::new(0),
            chunks: Atomic::new(0),
            complete: AtomicFlag::new(false),
            connected: AtomicFlag::new(false),
        })
    }

    fn quota(server: &Server) -> Quota {
        Quota {
            bytes: server.config.max_memory,
            attempts: server.config.max_attempts,
        }
    }

    /// The client has proved who it is.
    pub(crate) fn set_known(&self) {
        self.known.store(true, Relaxed);
    }

    /// Returns whether the path is connected, or was.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Returns whether nothing was taken yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(Relaxed) == 0
    }

    /// Takes `bytes` for a connection of a path that has `total` when it is complete.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::connect`].
    pub(crate) fn connect(&self, bytes: u64, total: u64) -> Result<(), Refusal> {
        let mut accounts = self.server.ledger.accounts.lock();
        let later = total
            .saturating_sub(self.bytes.load(Relaxed))
            .saturating_sub(bytes);
        let standing = accounts.standing(self.addr, self.known.load(Relaxed));
        Self::quota(&self.server).connect(&accounts.taken, &standing, bytes, later)?;
        self.bytes.add(bytes, Relaxed);
        accounts.taken.all += bytes;
        if !self.complete.load(Relaxed) {
            accounts.taken.begun += bytes;
            if let Some(account) = accounts.find(self.addr) {
                account.begun += bytes;
            }
        }
        let taken = accounts.taken.all;
        drop(accounts);
        self.server.leave_to_pool(taken);
        Ok(())
    }

    /// Takes `bytes` for the chunks: the client completes the path.
    ///
    /// # Errors
    ///
    /// Those of [`Quota::complete`].
    pub(crate) fn complete(&self, bytes: u64) -> Result<(), Refusal> {
        let mut accounts = self.server.ledger.accounts.lock();
        let standing = accounts.standing(self.addr, self.known.load(Relaxed));
        Self::quota(&self.server).complete(&accounts.taken, &standing, bytes)?;
        self.chunks.add(bytes, Relaxed);
        accounts.taken.all += bytes;
        self.leave_attempts(&mut accounts);
        Ok(())
    }

    /// The path is none that is not complete, any more.
    fn leave_attempts(&self, accounts: &mut Accounts) {
        if self.complete.xchg(true, Relaxed) {
            return;
        }
        let bytes = self.bytes.load(Relaxed);
        accounts.taken.begun = accounts.taken.begun.saturating_sub(bytes);
        if let Some(account) = accounts.find(self.addr) {
            account.attempts = account.attempts.saturating_sub(1);
            account.begun = account.begun.saturating_sub(bytes);
        }
    }

    /// The path is connected, so that its address is known.
    pub(crate) fn connected(&self) {
        let mut accounts = self.server.ledger.accounts.lock();
        if self.connected.xchg(true, Relaxed) {
            return;
        }
        if let Some(account) = accounts.find(self.addr) {
            account.connected += 1;
        }
    }

    /// Gives the part of the chunks back; returns how many bytes are taken by all paths then.
    pub(crate) fn chunks_back(&self) -> u64 {
        let mut accounts = self.server.ledger.accounts.lock();
        let bytes = self.chunks.xchg(0, Relaxed);
        accounts.taken.all = accounts.taken.all.saturating_sub(bytes);
        accounts.taken.all
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = self.server.ledger.accounts.lock();
        self.leave_attempts(&mut accounts);
        let bytes = self.bytes.load(Relaxed) + self.chunks.load(Relaxed);
        accounts.taken.all = accounts.taken.all.saturating_sub(bytes);
        if let Some(account) = accounts.find(self.addr) {
            account.paths = account.paths.saturating_sub(1);
            if self.connected.load(Relaxed) {
                account.connected = account.connected.saturating_sub(1);
                account.left = Some(Instant::now());
            }
        }
        accounts.forget();
    }
}
