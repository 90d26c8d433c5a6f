// SPDX-License-Identifier: GPL-2.0

//! How much memory the channels and portals of a user, and of all users, may take, and the channels of a
//! portal, session or host.
//!
//! A channel is charged for everything that may ever wait in it when it is made: what it promises to the
//! other side must be there. The memory itself is allocated when messages come.

use ibmsg_proto::refused::Reason;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

/// What a channel, or a portal, costs besides its messages.
const OBJECT: u64 = 4096;

/// The other modules of the kernel, as a user: the id that no user has.
pub(crate) const KERNEL: u32 = u32::MAX;

/// Why a channel or portal is not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    /// The user, or all users together, have as much as the module's parameters allow.
    User,
    All,
    /// The portal, session or host has as much as its directory in configfs allows.
    Portal,
    Session,
    Host,
    /// The portal has as many as the module allows that has bound it.
    Owner,
    NoMemory,
}

impl Denied {
    /// One line for the log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::User => "limit user_mib of the portal's user",
            Self::All => "limit total_mib of all users",
            Self::Portal => "limit of the portal",
            Self::Session => "limit of the session",
            Self::Host => "limit of the host",
            Self::Owner => "limit max_channels of the module that has bound it",
            Self::NoMemory => "out of memory",
        }
    }

    /// The reason for the other end, and what a channel counts as that it does not allow.
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::All | Self::NoMemory => Reason::Memory,
            _ => Reason::Limit,
        }
    }
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::User | Denied::Portal | Denied::Session | Denied::Host | Denied::Owner => {
                EDQUOT
            }
            Denied::All => ENOBUFS,
            Denied::NoMemory => ENOMEM,
        }
    }
}

/// The channels of a portal, session or host, with their limits.
#[pin_data]
pub(crate) struct Account {
    #[pin]
    used: SpinLockIrq<ibmsg_proto::access::Account>,
}

impl Account {
    /// An account without limits.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new() -> Result<Arc<Self>> {
        Self::with_limit(0)
    }

    /// An account of at most that many channels; 0: any number.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn with_limit(max_channels: u32) -> Result<Arc<Self>> {
        let account = ibmsg_proto::access::Account::new(max_channels, 0);
        Arc::pin_init(
            pin_init!(Self {
                used <- new_spinlock_irq!(account, "Account::used"),
            }),
            GFP_KERNEL,
        )
    }

    /// What is used, and the limits.
    pub(crate) fn get(&self) -> ibmsg_proto::access::Account {
        *self.used.lock()
    }

    /// Changes the limits. Channels that exist stay.
    pub(crate) fn change(&self, f: impl FnOnce(&mut ibmsg_proto::access::Account)) {
        f(&mut self.used.lock());
    }

    /// A channel was refused.
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn refuse(&self, reason: Reason) {
        if let Some(counter) = reason.counter() {
            self.used.lock().refuse(counter);
        }
    }
}

/// Accounts that a channel counts for, and why it is denied if one of them is full.
pub(crate) type Accounts = [Option<(Arc<Account>, Denied)>; 3];

/// A channel was refused that would have counted for `accounts`.
pub(crate) fn refuse(accounts: &Accounts, reason: Reason) {
    for (account, _) in accounts.iter().flatten() {
        account.refuse(reason);
    }
}

/// No accounts.
pub(crate) const NONE: Accounts = [None, None, None];

/// A channel in an account, until this is dropped.
struct Counted {
    account: Arc<Account>,
    bytes: u64,
}

impl Counted {
    fn new(account: &Arc<Account>, bytes: u64) -> Option<Self> {
        let fits = account.used.lock().add(bytes);
        let account = account.clone();
        fits.then(|| Self { account, bytes })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.account.used.lock().remove(self.bytes);
    }
}

/// Memory that is published, in the accounts of its channel, until this is dropped.
pub(crate) struct Published {
    accounts: [Option<Arc<Account>>; 3],
    bytes: u64,
}

impl Drop for Published {
    fn drop(&mut self) {
        for account in self.accounts.iter().flatten() {
            account.used.lock().unpublish(self.bytes);
        }
    }
}

/// What is charged.
#[pin_data]
pub(crate) struct Limits {
    /// The most for a user, and for all.
    user: u64,
    all: u64,
    #[pin]
    used: SpinLockIrq<Used>,
}

struct Used {
    all: u64,
    users: RBTree<u32, u64>,
}

impl Limits {
    /// Limits in bytes, with nothing charged.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(user: u64, all: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                user,
                all,
                used <- new_spinlock_irq!(Used { all: 0, users: RBTree::new() }, "Limits::used"),
            }),
            GFP_KERNEL,
        )
    }

    /// Charges a user, and accounts, for a channel with this many bytes of messages.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// The first limit that does not allow it.
    pub(crate) fn charge(
        self: &Arc<Self>,
        uid: u32,
        memory: u64,
        accounts: &Accounts,
    ) -> Result<Charge, Denied> {
        let bytes = memory + OBJECT;
        let mut counted = [None, None, None];
        for (place, account) in counted.iter_mut().zip(accounts) {
            if let Some((account, denied)) = account {
                *place = Some(Counted::new(account, bytes).ok_or(*denied)?);
            }
        }
        let mut used = self.used.lock();
        let has = used.users.get(&uid).copied().unwrap_or(0);
        if has + bytes > self.user {
            return Err(Denied::User);
        }
        if used.all + bytes > self.all {
            return Err(Denied::All);
        }
        match used.users.get_mut(&uid) {
            Some(has) => *has += bytes,
            None => {
                let flags = GFP_ATOMIC | __GFP_NOWARN;
                let added = used.users.try_create_and_insert(uid, bytes, flags);
                added.map_err(|_| Denied::NoMemory)?;
            }
        }
        used.all += bytes;
        drop(used);
        Ok(Charge {
            limits: self.clone(),
            uid,
            bytes,
            counted,
        })
    }

    /// Charges a user for a portal with this many bytes of offers.
    ///
    /// # Errors
    ///
    /// As [`Limits::charge`].
    pub(crate) fn charge_portal(self: &Arc<Self>, uid: u32, memory: u64) -> Result<Charge, Denied> {
        self.charge(uid, memory, &NONE)
    }
}

/// What a user and accounts were charged for, until this is dropped.
pub(crate) struct Charge {
    limits: Arc<Limits>,
    uid: u32,
    bytes: u64,
    counted: [Option<Counted>; 3],
}

impl Charge {
    /// The channel was refused.
    ///
    /// # Context
    ///
    /// *any*
    pub(crate) fn refuse(&self, reason: Reason) {
        for counted in self.counted.iter().flatten() {
            counted.account.refuse(reason);
        }
    }

    /// Counts memory that a program publishes on the channel, in the accounts that the channel has counted for since it was
    /// opened, with the limits that these have now.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EDQUOT`]: an account is full.
    pub(crate) fn publish(&self, bytes: u64) -> Result<Published> {
        let mut published = Published {
            accounts: [None, None, None],
            bytes,
        };
        for (place, counted) in published.accounts.iter_mut().zip(&self.counted) {
            if let Some(Counted { account, .. }) = counted {
                if !account.used.lock().publish(bytes) {
                    return Err(EDQUOT);
                }
                *place = Some(account.clone());
            }
        }
        Ok(published)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut used = self.limits.used.lock();
        used.all = used.all.saturating_sub(self.bytes);
        let left = match used.users.get_mut(&self.uid) {
            Some(has) => {
                *has = has.saturating_sub(self.bytes);
                *has
            }
            None => return,
        };
        if left == 0 {
            let _ = used.users.remove(&self.uid);
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_limits)]
mod tests {
    use super::*;

    fn portal_and_host() -> Result<(Arc<Account>, Arc<Account>, Accounts)> {
        let (portal, host) = (Account::new()?, Account::new()?);
        let both = [
            Some((portal.clone(), Denied::Portal)),
            Some((host.clone(), Denied::Host)),
            None,
        ];
        Ok((portal, host, both))
    }

    /// A channel that a limit does not allow counts for the same reason at both ends.
    #[test]
    fn the_other_end_learns_the_reason() {
        use Denied::*;
        for denied in [User, All, Portal, Session, Host, Owner, NoMemory] {
            let errno = match Error::from(denied) {
                // The other end's program may ask again; nothing waits for memory.
                ENOMEM => ENOBUFS,
                errno => errno,
            };
            let told = Reason::told(ibtrs_core::convert::errno(errno));
            assert_eq!(told, denied.reason());
        }
    }

    #[test]
    fn users_and_all() -> Result {
        let limits = Limits::new(10 * OBJECT, 15 * OBJECT)?;
        let charge = |uid, objects| limits.charge_portal(uid, objects * OBJECT);
        let first = charge(0, 9)?;
        assert_eq!(charge(0, 0).err(), Some(Denied::User));
        assert_eq!(charge(7, 5).err(), Some(Denied::All));
        let second = charge(7, 4)?;
        drop(first);
        let third = charge(0, 9);
        assert!(third.is_ok());
        drop((second, third));
        let used = limits.used.lock();
        assert!(used.all == 0 && used.users.is_empty());
        Ok(())
    }

    #[test]
    fn accounts() -> Result {
        let limits = Limits::new(10 * OBJECT, 10 * OBJECT)?;
        let (portal, host, both) = portal_and_host()?;
        portal.change(|account| account.max_channels = 2);
        host.change(|account| account.max_bytes = 4 * OBJECT);
        let first = limits.charge(0, OBJECT, &both)?;
        // What is refused by the second is not counted by the first.
        let refused = limits.charge(0, 2 * OBJECT, &both);
        assert_eq!(refused.err(), Some(Denied::Host));
        assert_eq!(portal.get().used(), (1, 2 * OBJECT));
        let second = limits.charge(0, OBJECT, &both)?;
        let refused = limits.charge(0, 0, &both);
        assert_eq!(refused.err(), Some(Denied::Portal));
        // A user's limit leaves nothing in the accounts, either.
        portal.change(|account| account.max_channels = 0);
        host.change(|account| account.max_bytes = 0);
        let refused = limits.charge(0, 9 * OBJECT, &both);
        assert_eq!(refused.err(), Some(Denied::User));
        drop((first, second));
        assert_eq!((portal.get().used(), host.get().used()), ((0, 0), (0, 0)));
        Ok(())
    }

    #[test]
    fn published_memory() -> Result {
        let limits = Limits::new(10 * OBJECT, 10 * OBJECT)?;
        let (portal, host, both) = portal_and_host()?;
        let charge = limits.charge(0, 0, &both)?;
        portal.change(|account| account.max_published = 100);
        host.change(|account| account.max_published = 60);
        let first = charge.publish(50)?;
        // What is refused by the second is not counted by the first.
        assert_eq!(charge.publish(11).err(), Some(EDQUOT));
        assert_eq!((portal.get().published(), host.get().published()), (50, 50));
        let second = charge.publish(10)?;
        // A limit that is changed is for what comes next.
        host.change(|account| account.max_published = 61);
        drop(charge.publish(1)?);
        host.change(|account| account.max_published = 1);
        assert_eq!(charge.publish(1).err(), Some(EDQUOT));
        assert_eq!((portal.get().published(), host.get().published()), (60, 60));
        // It counts as long as it is pinned, also without its channel.
        drop((charge, first));
        assert_eq!((portal.get().published(), host.get().published()), (10, 10));
        drop(second);
        assert_eq!((portal.get().published(), host.get().published()), (0, 0));
        Ok(())
    }
}
