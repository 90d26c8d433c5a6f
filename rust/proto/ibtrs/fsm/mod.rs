// SPDX-License-Identifier: GPL-2.0

//! Path state machines of both sides.
//!
//! Each is one total function `step(state, event)`, which returns the next state, the actions of
//! the caller, and whether the event was accepted. Every state has a row for every event; an event
//! without meaning there is ignored or refused by name, never by falling through.
//!
//! # Context
//!
//! Steps of one path are taken one after the other, on its ordered work queue or under its
//! lock. Actions are carried out in the order in which [`client_path::Action`] and
//! [`server_path::Action`] list them. The kernel modules and the simulator both match on them
//! exhaustively.

pub mod client_path;
pub mod server_path;

use crate::errno::Errno;

/// Whether an event was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The event was accepted.
    Accepted,
    /// The event came too late or does not matter; no task waits for an answer.
    Ignored,
    /// The event was refused; its sender gets the errno.
    Refused(Errno),
}

impl Reply {
    /// Whether the event was accepted.
    pub const fn accepted(&self) -> bool {
        matches!(self, Self::Accepted)
    }

    /// The answer to the task that sent the event.
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

/// Outcome of an event of a state machine with states `S` and sets of actions `A`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step<S, A> {
    /// The state from now on.
    pub next: S,
    /// The actions of the caller.
    pub actions: A,
    /// Whether the event was accepted.
    pub reply: Reply,
}

impl<S: Copy, A: ActionSet> Step<S, A> {
    const fn to(next: S, actions: A) -> Self {
        Self {
            next,
            actions,
            reply: Reply::Accepted,
        }
    }

    const fn ignore(state: S) -> Self {
        Self {
            next: state,
            actions: A::NONE,
            reply: Reply::Ignored,
        }
    }

    const fn refuse(state: S, errno: Errno) -> Self {
        Self {
            next: state,
            actions: A::NONE,
            reply: Reply::Refused(errno),
        }
    }
}

/// A set of actions.
pub trait ActionSet: Copy {
    /// No action.
    const NONE: Self;
}

/// Defines the actions of a state machine, and sets of them.
///
/// Callers match on the actions without a wildcard arm, so a new action does not compile until
/// each caller carries it out.
macro_rules! actions {
    (
        $(#[$meta:meta])* $action:ident, $(#[$set_meta:meta])* $set:ident {
            $($(#[$doc:meta])* $name:ident,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $action {
            $($(#[$doc])* $name,)*
        }

        impl $action {
            /// All actions, in the order in which they are carried out.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            const fn bit(self) -> u16 {
                // No overflow: 16 actions at most, as asserted below.
                1u16.wrapping_shl(self as u32)
            }
        }

        const _: () = assert!($action::ALL.len() <= 16);

        $(#[$set_meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $set(u16);

        impl $crate::fsm::ActionSet for $set {
            const NONE: Self = Self(0);
        }

        impl $set {
            /// The set of one action.
            pub const fn of(action: $action) -> Self {
                Self(action.bit())
            }

            /// This set and `action`.
            #[must_use]
            pub const fn with(self, action: $action) -> Self {
                Self(self.0 | action.bit())
            }

            /// The union of both sets.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Whether an action is in the set.
            pub const fn contains(self, action: $action) -> bool {
                self.0 & action.bit() != 0
            }

            /// Whether the set is empty.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The members, in the order in which they are carried out.
            pub fn iter(self) -> impl Iterator<Item = $action> {
                let all = $action::ALL.iter().copied();
                all.filter(move |action| self.contains(*action))
            }
        }

        impl core::fmt::Debug for $set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }
    };
}
pub(crate) use actions;
