// SPDX-License-Identifier: GPL-2.0

//! Limits the lines that each source address may add to the server's log.
//!
//! The server logs each refusal and each grant. Without a limit, a stranger could fill the log;
//! with one limit for all, a stranger could use it up, and hide the lines of honest clients. So
//! each source has a debt, in milliseconds, as for failures of authentication
//! ([`crate::auth::Failures`]): each line adds to it, and time pays it off. All sources together
//! have one, too, because a stranger may have many addresses.
//!
//! The address of a connection request can be forged, that of an established connection less
//! easily, and an authenticated client is known. So each level of [`Trust`] has a table and a limit
//! of its own: whatever strangers do, and whatever addresses they forge, they cannot suppress the
//! lines of authenticated clients.
//!
//! The lines that are left out are counted. Their number precedes the next line of the same source,
//! or a line of another source if the first source stays silent.
//!
//! A table has a fixed size. If it is full, the source that was silent for the longest time is
//! evicted; its lines that were left out still count.

use core::ops::DerefMut;

use crate::addr::Addr;

/// Entries of each table.
pub const SOURCES: usize = 64;

/// The degree to which the address of a source can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// The source asks for a connection, and may have forged its address.
    Stranger,
    /// The source has a connection, so answers reach its address.
    Connected,
    /// The source has proved that it has a key.
    Authenticated,
}

impl Trust {
    /// The limit of one source.
    pub const fn of_one(self) -> Rate {
        match self {
            Self::Stranger => Rate::new(10, 500),
            Self::Connected => Rate::new(100, 200),
            Self::Authenticated => Rate::new(100, 100),
        }
    }

    /// The limit of all sources.
    pub const fn of_all(self) -> Rate {
        match self {
            Self::Stranger => Rate::new(50, 100),
            Self::Connected => Rate::new(200, 50),
            Self::Authenticated => Rate::new(500, 20),
        }
    }
}

/// How many lines may be printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Lines at once.
    pub at_once: u32,
    /// Milliseconds after which one more line is allowed.
    pub line_ms: u32,
}

impl Rate {
    const fn new(at_once: u32, line_ms: u32) -> Self {
        Self { at_once, line_ms }
    }
}

/// The debt of a source, or of all sources together, for their lines.
#[derive(Clone, Copy, Debug)]
struct Debt {
    /// Time at which it is paid off.
    paid_ms: u64,
}

impl Debt {
    /// The debt after one more line; `None` if the limit does not allow the line.
    fn after_line(self, rate: Rate, now_ms: u64) -> Option<Self> {
        let line_ms = u64::from(rate.line_ms);
        let most = line_ms.saturating_mul(rate.at_once.into());
        let paid_ms = self.paid_ms.max(now_ms).saturating_add(line_ms);
        (paid_ms <= now_ms.saturating_add(most)).then_some(Self { paid_ms })
    }
}

/// Limits the lines of one source that its owner keeps apart from all others, such as a session.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    rate: Rate,
    debt: Debt,
    left_out: u32,
}

impl Single {
    /// Creates a limiter without lines.
    pub const fn new(trust: Trust) -> Self {
        Self {
            rate: trust.of_one(),
            debt: Entry::FREE.debt,
            left_out: 0,
        }
    }

    /// Counts a line. If this source, and `all` together, may print it, returns the number of lines that were left
    /// out before.
    pub fn line(&mut self, all: &mut Together, now_ms: u64) -> Option<u32> {
        let debts = (
            self.debt.after_line(self.rate, now_ms),
            all.debt.after_line(all.rate, now_ms),
        );
        match debts {
            (Some(own), Some(of_all)) => {
                (self.debt, all.debt) = (own, of_all);
                Some(core::mem::take(&mut self.left_out))
            }
            _ => {
                self.left_out = self.left_out.saturating_add(1);
                None
            }
        }
    }
}

/// The limit of all sources of one degree of trust that have a [`Single`].
#[derive(Clone, Copy, Debug)]
pub struct Together {
    rate: Rate,
    debt: Debt,
}

impl Together {
    /// Creates the limit, without lines.
    pub const fn new(trust: Trust) -> Self {
        Self {
            rate: trust.of_all(),
            debt: Entry::FREE.debt,
        }
    }
}

/// An entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    source: Option<Addr>,
    debt: Debt,
    /// When the source was last seen.
    seen_ms: u64,
    left_out: u32,
}

impl Entry {
    /// An entry without a source.
    pub const FREE: Self = Self {
        source: None,
        debt: Debt { paid_ms: 0 },
        seen_ms: 0,
        left_out: 0,
    };
}

/// Lines that were left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// Number of lines of the source that prints a line now.
    pub own: u32,
    /// Number of lines of another source that is silent now, with its address, or of evicted
    /// sources together.
    pub others: Option<(Option<Addr>, u32)>,
}

/// The sources of one kind that have caused lines, as many as the table `T` has entries.
///
/// All times are milliseconds of one clock that does not go backwards.
#[derive(Clone, Debug)]
pub struct Limiter<T> {
    one: Rate,
    all: Rate,
    table: T,
    debt: Debt,
    /// Left-out lines of sources that have no entry.
    evicted: u32,
}

impl<T: DerefMut<Target = [Entry]>> Limiter<T> {
    /// Creates a limiter with a table of free entries.
    pub const fn new(trust: Trust, table: T) -> Self {
        Self {
            one: trust.of_one(),
            all: trust.of_all(),
            table,
            debt: Entry::FREE.debt,
            evicted: 0,
        }
    }

    /// Counts a line of a source. If it may be printed, returns the lines that were left out
    /// before.
    pub fn line(&mut self, source: &Addr, now_ms: u64) -> Option<LeftOut> {
        let Some(debt) = self.debt.after_line(self.all, now_ms) else {
            // Evicts no other source for a line that is not printed.
            let known = self.find(source).map(|entry| &mut entry.left_out);
            let count = match known {
                Some(count) => count,
                None => &mut self.evicted,
            };
            *count = count.saturating_add(1);
            return None;
        };
        let one = self.one;
        let entry = self.entry(source)?;
        entry.seen_ms = now_ms;
        let Some(own_debt) = entry.debt.after_line(one, now_ms) else {
            entry.left_out = entry.left_out.saturating_add(1);
            return None;
        };
        entry.debt = own_debt;
        let own = core::mem::take(&mut entry.left_out);
        self.debt = debt;
        Some(LeftOut {
            own,
            others: self.others(now_ms),
        })
    }

    fn find(&mut self, source: &Addr) -> Option<&mut Entry> {
        let mut table = self.table.iter_mut();
        table.find(|entry| entry.source.as_ref() == Some(source))
    }

    /// The source's entry, which may evict another source; `None` if the table has no entries.
    fn entry(&mut self, source: &Addr) -> Option<&mut Entry> {
        let is_own = |entry: &Entry| entry.source.as_ref() == Some(source);
        let entries = self.table.iter_mut();
        let entry =
            entries.min_by_key(|entry| (!is_own(entry), entry.source.is_some(), entry.seen_ms))?;
        if !is_own(entry) {
            self.evicted = self.evicted.saturating_add(entry.left_out);
            *entry = Entry {
                source: Some(*source),
                ..Entry::FREE
            };
        }
        Some(entry)
    }

    /// Takes the number of left-out lines of evicted sources, or of a source that could print again
    /// and is silent.
    fn others(&mut self, now_ms: u64) -> Option<(Option<Addr>, u32)> {
        if self.evicted > 0 {
            return Some((None, core::mem::take(&mut self.evicted)));
        }
        let one = self.one;
        let mut table = self.table.iter_mut();
        let silent = table
            .find(|entry| entry.left_out > 0 && entry.debt.after_line(one, now_ms).is_some())?;
        Some((silent.source, core::mem::take(&mut silent.left_out)))
    }
}

/// The limiters of all kinds of sources.
#[derive(Clone, Debug)]
pub struct Limiters<T> {
    strangers: Limiter<T>,
    connected: Limiter<T>,
    authenticated: Limiter<T>,
}

impl<T: DerefMut<Target = [Entry]>> Limiters<T> {
    /// Creates the limiters, each with a table of free entries.
    pub fn new([strangers, connected, authenticated]: [T; 3]) -> Self {
        Self {
            strangers: Limiter::new(Trust::Stranger, strangers),
            connected: Limiter::new(Trust::Connected, connected),
            authenticated: Limiter::new(Trust::Authenticated, authenticated),
        }
    }

    /// Counts a line of a source, see [`Limiter::line`].
    pub fn line(&mut self, trust: Trust, source: &Addr, now_ms: u64) -> Option<LeftOut> {
        let limiter = match trust {
            Trust::Stranger => &mut self.strangers,
            Trust::Connected => &mut self.connected,
            Trust::Authenticated => &mut self.authenticated,
        };
        limiter.line(source, now_ms)
    }
}
