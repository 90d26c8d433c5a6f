// SPDX-License-Identifier: GPL-2.0

//! Limits how often a source may fail to authenticate.
//!
//! Each source has a debt, in milliseconds: a failure adds [`FAILURE_MS`], and time pays it off. A
//! source that owes [`FORGIVEN`] failures or more must wait until it owes less. So a source may
//! fail a few times at once, and after that once every two seconds; a source without failures
//! never waits.
//!
//! Only a wrong proof on an established connection counts as a failure. Connection requests do
//! not, because anybody can forge their source address: a stranger could keep an honest client
//! out by failing in its name.
//!
//! A failure does not count if the client names a key that is not loaded, and another client of its
//! address is connected that has authenticated. A client whose key was removed goes on trying, and
//! the other sessions of that machine must not wait for it when a path of theirs is lost. No proof
//! fits a key that is not loaded, so a stranger at this address gains nothing but the knowledge of
//! ids, which are not secret.
//!
//! The table has a fixed size. If it is full, the source with the smallest debt is forgotten. A
//! stranger with more addresses than that can escape the limit, but never keeps others out.

use crate::origin::Origin;

/// Debt for each failure, in milliseconds.
pub const FAILURE_MS: u64 = 2000;
/// Failures that a source may have before it must wait.
pub const FORGIVEN: u64 = 5;

/// Greatest debt. Proofs that were under way when the source reached its limit add no more.
const MAX_DEBT_MS: u64 = FAILURE_MS * (FORGIVEN + 1);

/// The source of a failure.
pub type Source = Origin;

/// The circumstances of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The session has no usable key of the id that the client names.
    pub no_key: bool,
    /// An authenticated client has a path connected from the same source.
    pub beside_client: bool,
}

impl Failure {
    /// Whether the failure counts against its source.
    const fn counts(self) -> bool {
        !(self.no_key && self.beside_client)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// `None` if the entry was never used.
    source: Option<Source>,
    /// Time at which the debt is paid off; the entry is free from then on.
    paid_ms: u64,
}

/// The sources that have failed recently, `N` at most.
///
/// All times are milliseconds of one clock that does not go backwards.
#[derive(Clone, Debug)]
pub struct Failures<const N: usize> {
    entries: [Entry; N],
}

impl<const N: usize> Failures<N> {
    /// Creates a table without failures.
    pub const fn new() -> Self {
        let free = Entry {
            source: None,
            paid_ms: 0,
        };
        Self { entries: [free; N] }
    }

    fn find(&self, source: &Source) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.source.as_ref() == Some(source))
    }

    /// Returns the milliseconds that a source must wait before it may try again, or 0.
    pub fn wait_ms(&self, source: &Source, now_ms: u64) -> u64 {
        let debt = self
            .find(source)
            .map_or(0, |entry| entry.paid_ms.saturating_sub(now_ms));
        debt.saturating_sub(FAILURE_MS * (FORGIVEN - 1))
    }

    /// Records a failure of a source.
    pub fn failed(&mut self, source: &Source, failure: Failure, now_ms: u64) {
        if !failure.counts() {
            return;
        }
        let paid_ms = self.find(source).map_or(0, |entry| entry.paid_ms);
        let limit = now_ms.saturating_add(MAX_DEBT_MS);
        let paid_ms = paid_ms.max(now_ms).saturating_add(FAILURE_MS).min(limit);
        // The source's own entry, else the smallest debt: free entries have none.
        let entry = self
            .entries
            .iter_mut()
            .min_by_key(|entry| (entry.source.as_ref() != Some(source), entry.paid_ms));
        if let Some(entry) = entry {
            *entry = Entry {
                source: Some(*source),
                paid_ms,
            };
        }
    }

    /// Forgets the failures of a source that has authenticated.
    pub fn succeeded(&mut self, source: &Source) {
        for entry in &mut self.entries {
            if entry.source.as_ref() == Some(source) {
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
