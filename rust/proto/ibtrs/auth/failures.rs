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
//! All failures count alike, whether or not there is a key of the id and the session name that the
//! client gives: a difference would tell a stranger which names and ids exist. A success pays off
//! nothing, or a client with a key of its own could try any number of others in between.
//!
//! A client whose key was removed goes on trying, with growing delays. So that other clients of its
//! machine do not wait for it when a path of theirs is lost, paths of a known session, which the
//! network shows by its UUID, are a source of their own at each origin. A stranger who has read the
//! UUID on the network fails at another origin, and uses up another source.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The origin of the connection.
    pub origin: Origin,
    /// The UUID of the authenticated session that the connection is to join; `None` if there is no
    /// such session yet.
    pub session: Option<[u8; 16]>,
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
    pub fn failed(&mut self, source: &Source, now_ms: u64) {
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
}

impl<const N: usize> Default for Failures<N> {
    fn default() -> Self {
        Self::new()
    }
}
