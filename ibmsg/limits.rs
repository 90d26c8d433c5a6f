// SPDX-License-Identifier: GPL-2.0

//! How much memory the channels and portals of a user, and of all users, may take.
//!
//! A channel is charged for everything that may ever wait in it when it is made: what it promises to the
//! other side must be there. The memory itself is allocated when messages come.

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

    /// Charges a user for a channel or a portal with this many bytes of messages.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`EDQUOT`] if the user has too much, [`ENOBUFS`] if all users together have; [`ENOMEM`].
    pub(crate) fn charge(self: &Arc<Self>, uid: u32, memory: u64) -> Result<Charge> {
        let bytes = memory + OBJECT;
        let mut used = self.used.lock();
        let has = used.users.get(&uid).copied().unwrap_or(0);
        if has + bytes > self.user {
            return Err(EDQUOT);
        }
        if used.all + bytes > self.all {
            return Err(ENOBUFS);
        }
        match used.users.get_mut(&uid) {
            Some(has) => *has += bytes,
            None => {
                used.users
                    .try_create_and_insert(uid, bytes, GFP_ATOMIC | __GFP_NOWARN)?;
            }
        }
        used.all += bytes;
        drop(used);
        Ok(Charge {
            limits: self.clone(),
            uid,
            bytes,
        })
    }
}

/// What a user was charged for, until this is dropped.
pub(crate) struct Charge {
    limits: Arc<Limits>,
    uid: u32,
    bytes: u64,
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

    #[test]
    fn users_and_all() -> Result {
        let limits = Limits::new(10 * OBJECT, 15 * OBJECT)?;
        let first = limits.charge(0, 9 * OBJECT)?;
        assert_eq!(limits.charge(0, 0).err(), Some(EDQUOT));
        assert_eq!(limits.charge(7, 5 * OBJECT).err(), Some(ENOBUFS));
        let second = limits.charge(7, 4 * OBJECT)?;
        drop(first);
        let third = limits.charge(0, 9 * OBJECT);
        assert!(third.is_ok());
        drop((second, third));
        let used = limits.used.lock();
        assert!(used.all == 0 && used.users.is_empty());
        Ok(())
    }
}
