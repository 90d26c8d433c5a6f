// SPDX-License-Identifier: GPL-2.0

//! How often a source may fail to authenticate.
//!
//! A source has a debt, in milliseconds: each failure adds [`FAILURE_MS`], time pays it off. A
//! source that owes [`FORGIVEN`] failures or more waits until it owes less. So each source has a
//! few failures at once, and after that one every two seconds; a source without failures never
//! waits.
//!
//! Only a proof that an established connection brought and that was wrong counts as a failure.
//! Connection requests do not, because anybody can forge their source address: a stranger would
//! keep an honest client out by failing in its name.
//!
//! The table has a fixed size. If it is full, the source with the smallest debt is forgotten. A
//! stranger with more addresses than that can so escape the limit, but never keep others out.

/// Debt of a failure, in milliseconds.
pub const FAILURE_MS: u64 = 2000;
/// Failures that a source may have at once.
pub const FORGIVEN: u64 = 5;

/// Greatest debt. Proofs that were under way when the source reached its limit add no more.
const MAX_DEBT_MS: u64 = FAILURE_MS * (FORGIVEN + 1);

/// A source address as bytes: IPv6, IPv4 mapped to IPv6, or GID.
pub type Source = [u8; 16];

#[derive(Clone, Copy, Debug)]
struct Entry {
    source: Source,
    /// When the debt is paid off; the entry is free from then on.
    paid_ms: u64,
}

/// The sources that have failed lately, `N` at most.
///
/// All times are milliseconds of one clock that does not go backwards.
#[derive(Clone, Debug)]
pub struct Failures<const N: usize> {
    entries: [Entry; N],
}

impl<const N: usize> Failures<N> {
    /// Nobody has failed.
    pub const fn new() -> Self {
        let free = Entry {
            source: [0; 16],
            paid_ms: 0,
        };
        Self { entries: [free; N] }
    }

    fn find(&self, source: &Source) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.source == *source)
    }

    /// How many milliseconds a source has to wait before it may try; 0: none.
    pub fn wait_ms(&self, source: &Source, now_ms: u64) -> u64 {
        let debt = self
            .find(source)
            .map_or(0, |entry| entry.paid_ms.saturating_sub(now_ms));
        debt.saturating_sub(FAILURE_MS * (FORGIVEN - 1))
    }

    /// A source has failed. Returns whether this failure is its first lately, or the one that
    /// makes it wait: these are worth a line in the log, others would repeat it.
    pub fn failed(&mut self, source: &Source, now_ms: u64) -> bool {
        let paid_ms = self.find(source).map_or(0, |entry| entry.paid_ms);
        let waited = self.wait_ms(source, now_ms) > 0;
        let limit = now_ms.saturating_add(MAX_DEBT_MS);
        let paid_ms = paid_ms.max(now_ms).saturating_add(FAILURE_MS).min(limit);
        let first = paid_ms == now_ms.saturating_add(FAILURE_MS);
        // The source's own entry, else the smallest debt: free entries have none.
        let entry = self
            .entries
            .iter_mut()
            .min_by_key(|entry| (entry.source != *source, entry.paid_ms));
        if let Some(entry) = entry {
            *entry = Entry {
                source: *source,
                paid_ms,
            };
        }
        first || !waited && self.wait_ms(source, now_ms) > 0
    }

    /// A source has authenticated: its failures are forgotten.
    pub fn succeeded(&mut self, source: &Source) {
        for entry in &mut self.entries {
            if entry.source == *source {
                entry.paid_ms = 0;
            }
        }
    }
}

impl<const N: usize> Default for Failures<N> {
    fn default() -> Self {
        Self::new()
    }
}
