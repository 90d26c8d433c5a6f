// SPDX-License-Identifier: GPL-2.0

//! Actions of state changes, queued for a work item.

/// Steps that can wait.
const MAX_STEPS: usize = 8;

/// The actions that several steps of a state machine ask for, in the order of the steps, and new
/// states to report.
///
/// A state change is decided under a spin lock, and what it asks for is done later
/// by a work item, which takes all.
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

impl<A: Copy> Steps<A> {
    /// Adds the actions of a step. More steps than fit, which no sequence of
    /// events makes, become one by `merge`.
    pub fn push(&mut self, actions: A, merge: impl FnOnce(A, A) -> A) {
        if let Some(place) = self.steps.get_mut(self.len) {
            *place = Some(actions);
            self.len += 1;
        } else if let Some(Some(last)) = self.steps.last_mut() {
            *last = merge(*last, actions);
        }
    }

    /// Takes all steps out.
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Goes through the steps in their order.
    pub fn iter(&self) -> impl Iterator<Item = A> + '_ {
        self.steps.iter().take(self.len).flatten().copied()
    }
}

/// Does what remains to be done: `perform` for the actions of each step, until
/// `take` gives no more.
pub fn carry_out<A: Copy>(mut take: impl FnMut() -> Steps<A>, mut perform: impl FnMut(A)) {
    loop {
        let steps = take();
        if steps.is_empty() {
            break;
        }
        steps.iter().for_each(&mut perform);
    }
}
