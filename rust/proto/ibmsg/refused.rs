// SPDX-License-Identifier: GPL-2.0

//! Why channels are refused or closed, as both ends tell it, and how many were refused.

pub use ibtrs_proto::stats::counter::message_refusals as reasons;
use ibtrs_proto::Errno;

/// How many were refused for each of [`reasons`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refused([u64; reasons::ALL.len()]);

impl Refused {
    /// None was.
    pub const fn new() -> Self {
        Self([0; reasons::ALL.len()])
    }

    /// One was, for one of [`reasons`].
    pub fn add(&mut self, reason: usize) {
        if let Some(count) = self.0.get_mut(reason) {
            *count = count.saturating_add(1);
        }
    }

    /// How many were refused for one of [`reasons`].
    pub fn get(&self, reason: usize) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }
}

macro_rules! declare {
    ($($name:ident = $errno:ident, $counter:expr, $words:literal, $meaning:literal;)+) => {
        /// Why a channel is refused. The end that refuses sends the errno, which stands for the reason at the other one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $(#[doc = concat!("Channels are refused because of this: ", $meaning, ".")] $name,)+
            /// The portal's program has chosen the errno.
            Program,
        }

        impl Reason {
            /// All of them; the last one is that of programs.
            pub const ALL: &[Self] = &[$(Self::$name,)+ Self::Program];

            /// The reason for which the other end refuses, as far as its errno tells: a program may choose any.
            pub const fn told(errno: Errno) -> Self {
                match errno {
                    $(Errno::$errno => Self::$name,)+
                    _ => Self::Program,
                }
            }

            /// The errno for the other end; none if the program chooses it.
            pub const fn errno(self) -> Option<Errno> {
                match self {
                    $(Self::$name => Some(Errno::$errno),)+
                    Self::Program => None,
                }
            }

            /// Which of [`reasons`] counts it, if any.
            pub const fn counter(self) -> Option<usize> {
                match self {
                    $(Self::$name => $counter,)+
                    Self::Program => Some(reasons::PROGRAM),
                }
            }

            /// The words for events and for the log.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)+
                    Self::Program => "by the portal's program",
                }
            }

            /// The words for programmers.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)+
                    Self::Program => "the portal's program has rejected the offer",
                }
            }
        }
    };
}

// `make generated` writes the rows of the documentation.
declare! {
    Unbound = ENOENT, Some(reasons::UNBOUND), "no program has bound it",
        "no program has bound the name, or the portal was closed";
    Backlog = EAGAIN, Some(reasons::BACKLOG), "its backlog is full",
        "the portal's backlog is full";
    Rule = EACCES, Some(reasons::RULE), "the client is not allowed",
        "the machine has not proved a key, or the portal's rule does not allow its session";
    Limit = EDQUOT, Some(reasons::LIMIT), "a limit is reached",
        "limit of the portal, of its user or of the host";
    Memory = ENOBUFS, Some(reasons::MEMORY), "no room for another channel",
        "limit of the portal's machine, or no memory";
    Number = EADDRNOTAVAIL, Some(reasons::MEMORY), "an old channel still has its number",
        "all numbers of channels were used, and the portal's machine has not closed the next one: try again";
    Closing = ESHUTDOWN, None, "its session is being closed",
        "the session was closed while the program waited";
}

/// Why a channel is closed in the place of a program, in words. The other end learns the errno only.
pub const fn closed(errno: Errno) -> &'static str {
    match errno {
        Errno::ESHUTDOWN => Reason::Closing.as_str(),
        Errno::EACCES => "the operator does not admit its session any more",
        _ => "by the other machine",
    }
}
