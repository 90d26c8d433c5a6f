// SPDX-License-Identifier: GPL-2.0

//! Path state machines of both sides (protocol 5.1, 5.2).
//!
//! Each is one total function `step(state, event)`. It tells the next state, what the caller
//! has to do, and whether the event was taken. Every state has a row for every event; an event
//! that means nothing there is ignored or refused by name, never by falling through.
//!
//! # Context
//!
//! Steps of one path are taken one after the other, on its ordered work queue or under its
//! lock. Actions are carried out in the order in which [`client_path::Actions`] and
//! [`server_path::Actions`] list them.

pub mod client_path;
pub mod server_path;

use crate::errno::Errno;

/// What became of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was taken.
    Accepted,
    /// It came too late or does not matter; nobody waits for an answer.
    Ignored,
    /// It was refused; whoever asked gets the errno.
    Refused(Errno),
}

impl Verdict {
    /// Whether the event was taken.
    pub const fn accepted(&self) -> bool {
        matches!(self, Self::Accepted)
    }

    /// The answer to whoever asked.
    ///
    /// # Errors
    ///
    /// The errno of a refusal.
    pub const fn result(&self) -> Result<(), Errno> {
        match self {
            Self::Accepted | Self::Ignored => Ok(()),
            Self::Refused(e) => Err(*e),
        }
    }
}

/// Defines a set of actions with named members and a name for each.
macro_rules! actions {
    ($(#[$meta:meta])* $set:ident { $($(#[$doc:meta])* $name:ident = $bit:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $set(u16);

        impl $set {
            /// Nothing to do.
            pub const NONE: Self = Self(0);
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            /// All members, in the order in which they are carried out.
            pub const ALL: &'static [(Self, &'static str)] =
                &[$((Self::$name, stringify!($name)),)*];

            /// Both sets together.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Whether all members of `other` are in the set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether there is nothing to do.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The members, in the order in which they are carried out.
            pub fn iter(self) -> impl Iterator<Item = Self> {
                Self::ALL
                    .iter()
                    .map(|(member, _)| *member)
                    .filter(move |member| self.contains(*member))
            }
        }

        impl core::fmt::Debug for $set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let members = Self::ALL.iter().filter(|(m, _)| self.contains(*m));
                f.debug_set().entries(members.map(|(_, name)| name)).finish()
            }
        }
    };
}
pub(crate) use actions;
