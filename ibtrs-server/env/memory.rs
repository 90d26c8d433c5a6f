// SPDX-License-Identifier: GPL-2.0

//! Memory charges of paths and clients; [`ibtrs_proto::quota`] has the rules.

use crate::env::Env;
use ibtrs_proto::{
    origin::Origin,
    quota::{
        self,
        Needs,
        Quota,
        QuotaRefusal,
        Standing,
        Taken, //
    },
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
    }, //
};
use kx::sync::atomic::{
    Atomic,
    AtomicFlag,
    Relaxed, //
};

/// Maximum number of remembered origins without a path.
const MAX_REMEMBERED: usize = 1024;

/// The server's resources that the clients of an origin use.
struct Account {
    origin: Origin,
    /// Number of paths, in any state.
    paths: u32,
    /// Number of paths that are not complete.
    attempts: u32,
    /// Bytes of the paths that are not complete.
    begun: u64,
    /// Number of paths that are or were connected and still exist.
    connected: u32,
    /// The last time that an incomplete path ended.
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
    fn find(&mut self, origin: Origin) -> Option<&mut Account> {
        self.list
            .iter_mut()
            .find(|account| account.origin == origin)
    }

    fn standing(&self, origin: Origin, known: bool) -> Standing {
        match self.list.iter().find(|account| account.origin == origin) {
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

    /// Removes accounts that need not be remembered.
    fn forget(&mut self) {
        self.list
            .retain(|account| account.has_paths() || account.is_known());
        let idle = self.list.iter().filter(|account| !account.has_paths());
        if idle.clone().count() > MAX_REMEMBERED {
            let oldest = idle.max_by_key(|account| account.left.map(|left| left.elapsed()));
            if let Some(origin) = oldest.map(|account| account.origin) {
                self.list.retain(|account| account.origin != origin);
            }
        }
    }
}

/// The memory that all paths have taken, with an account for each origin.
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

    /// Returns whether clients at `origin` are known.
    pub(crate) fn knows(&self, origin: Origin) -> bool {
        self.accounts.lock().standing(origin, false).known
    }

    /// Returns the number of bytes that all paths have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.accounts.lock().taken.all
    }
}

/// The memory charge of a path, released when this is dropped.
pub(crate) struct Charge {
    env: Arc<Env>,
    origin: Origin,
    /// The client is known.
    known: AtomicFlag,
    // The rest changes under the lock of the ledger.
    bytes: Atomic<u64>,
    chunks: Atomic<u64>,
    complete: AtomicFlag,
    connected: AtomicFlag,
}

impl Charge {
    /// Begins the charge of a path whose client is at `origin` and which will need `needs`; `known`
    /// says whether its session has a connected path.
    ///
    /// # Context
    ///
    /// May sleep, like all functions here that charge memory.
    ///
    /// # Errors
    ///
    /// Errors of [`Quota::begin`]; `None` if the account cannot be allocated.
    pub(crate) fn begin(
        env: &Arc<Env>,
        origin: Origin,
        known: bool,
        needs: &Needs,
    ) -> Result<Self, Option<QuotaRefusal>> {
        let mut accounts = env.ledger.accounts.lock();
        Self::quota(env).begin(&accounts.standing(origin, known), needs)?;
        match accounts.find(origin) {
            Some(account) => {
                account.paths += 1;
                account.attempts += 1;
            }
            None => {
                let account = Account {
                    origin,
                    paths: 1,
                    attempts: 1,
                    begun: 0,
                    connected: 0,
                    left: None,
                };
                accounts
                    .list
                    .push(account, GFP_KERNEL)
                    .map_err(|_| None::<QuotaRefusal>)?;
            }
        }
        Ok(Self {
            env: env.clone(),
            origin,
            known: AtomicFlag::new(known),
            bytes: Atomic::new(0),
            chunks: Atomic::new(0),
            complete: AtomicFlag::new(false),
            connected: AtomicFlag::new(false),
        })
    }

    fn quota(env: &Env) -> Quota {
        Quota {
            bytes: env.config.for_paths(),
            attempts: env.config.max_attempts,
        }
    }

    /// Returns the origin of the path's first connection.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Records that the client has proved itself.
    pub(crate) fn set_known(&self) {
        self.known.store(true, Relaxed);
    }

    /// Returns whether the path is or was connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Returns whether no connection was charged yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(Relaxed) == 0
    }

    /// Charges `bytes` for a connection of a path that takes `total` bytes when it is complete.
    ///
    /// # Errors
    ///
    /// Errors of [`Quota::connect`].
    pub(crate) fn connect(&self, bytes: u64, total: u64) -> Result<(), QuotaRefusal> {
        let mut accounts = self.env.ledger.accounts.lock();
        let later = total
            .saturating_sub(self.bytes.load(Relaxed))
            .saturating_sub(bytes);
        let standing = accounts.standing(self.origin, self.known.load(Relaxed));
        Self::quota(&self.env).connect(&accounts.taken, &standing, bytes, later)?;
        self.bytes.add(bytes, Relaxed);
        accounts.taken.all += bytes;
        if !self.complete.load(Relaxed) {
            accounts.taken.begun += bytes;
            if let Some(account) = accounts.find(self.origin) {
                account.begun += bytes;
            }
        }
        drop(accounts);
        self.env.leave_to_pool();
        Ok(())
    }

    /// Charges `bytes` for the chunks, when the client completes the path.
    ///
    /// # Errors
    ///
    /// Errors of [`Quota::complete`].
    pub(crate) fn complete(&self, bytes: u64) -> Result<(), QuotaRefusal> {
        let mut accounts = self.env.ledger.accounts.lock();
        let standing = accounts.standing(self.origin, self.known.load(Relaxed));
        Self::quota(&self.env).complete(&accounts.taken, &standing, bytes)?;
        self.chunks.add(bytes, Relaxed);
        accounts.taken.all += bytes;
        self.leave_attempts(&mut accounts);
        Ok(())
    }

    /// Stops counting the path as incomplete.
    fn leave_attempts(&self, accounts: &mut Accounts) {
        if self.complete.xchg(true, Relaxed) {
            return;
        }
        let bytes = self.bytes.load(Relaxed);
        accounts.taken.begun = accounts.taken.begun.saturating_sub(bytes);
        if let Some(account) = accounts.find(self.origin) {
            account.attempts = account.attempts.saturating_sub(1);
            account.begun = account.begun.saturating_sub(bytes);
        }
    }

    /// Records that the path is connected, which makes its origin known.
    pub(crate) fn connected(&self) {
        let mut accounts = self.env.ledger.accounts.lock();
        if self.connected.xchg(true, Relaxed) {
            return;
        }
        if let Some(account) = accounts.find(self.origin) {
            account.connected += 1;
        }
    }

    /// Releases the charge of the chunks.
    pub(crate) fn chunks_back(&self) {
        let mut accounts = self.env.ledger.accounts.lock();
        let bytes = self.chunks.xchg(0, Relaxed);
        accounts.taken.all = accounts.taken.all.saturating_sub(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = self.env.ledger.accounts.lock();
        self.leave_attempts(&mut accounts);
        let bytes = self.bytes.load(Relaxed) + self.chunks.load(Relaxed);
        accounts.taken.all = accounts.taken.all.saturating_sub(bytes);
        if let Some(account) = accounts.find(self.origin) {
            account.paths = account.paths.saturating_sub(1);
            if self.connected.load(Relaxed) {
                account.connected = account.connected.saturating_sub(1);
                account.left = Some(Instant::now());
            }
        }
        accounts.forget();
        drop(accounts);
        self.env.leave_to_pool();
    }
}
