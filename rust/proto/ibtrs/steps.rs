// SPDX-License-Identifier: GPL-2.0

//! Actions of state changes, queued for a work item.

/// Most steps that can be queued.
const MAX_STEPS: usize = 8;

/// The actions that several steps of a state machine ask for, in the order of the steps, and new
/// states to report.
///
/// A state change is decided under a spin lock; a work item takes all actions later and carries
/// them out.
#[derive(Clone, Debug)]
pub struct Steps<A> {
    steps: [Option<A>; MAX_STEPS],
    len: usize,
}

impl<A: Copy> Default for Steps<A> {
    fn default() -> Self {
        Self {
            steps: [None; MAX_STEPS],
            len: 0,
        }
    }
}

impl<A: Copy + PartialEq> Steps<A> {
    /// Adds the actions of a step, unless they equal those of the last queued step: operators can
    /// repeat a request as often as they like while the work item is busy. If the list is full,
    /// `merge` merges the actions into the last step. The actions of a path never fill the list: no
    /// state machine makes more than a few different steps without the work item.
    pub fn push(&mut self, actions: A, merge: impl FnOnce(A, A) -> A) {
        if self.iter().last() == Some(actions) {
            return;
        }
        if let Some(place) = self.steps.get_mut(self.len) {
            *place = Some(actions);
            self.len = self.len.saturating_add(1);
        } else if let Some(Some(last)) = self.steps.last_mut() {
            *last = merge(*last, actions);
        }
    }
}

impl<A: Copy> Steps<A> {
    /// Takes all steps out.
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the steps, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = A> + '_ {
        self.steps.iter().take(self.len).flatten().copied()
    }
}

/// Carries out all queued actions: calls `perform` for each step, until `take` returns no steps.
pub fn carry_out<A: Copy>(mut take: impl FnMut() -> Steps<A>, mut perform: impl FnMut(A)) {
    loop {
        let steps = take();
        if steps.is_empty() {
            break;
        }
        steps.iter().for_each(&mut perform);
    }
}
