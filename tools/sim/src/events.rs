// SPDX-License-Identifier: GPL-2.0

//! What is still to happen in a run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::schedule::Time;

/// Events by their times. Those of one time happen in the order in which they were added.
pub(crate) struct Events<E> {
    /// Time, number, and place of the event.
    heap: BinaryHeap<Reverse<(Time, u64, usize)>>,
    places: Vec<Option<E>>,
    /// Places without an event.
    free: Vec<usize>,
    number: u64,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(256),
            places: Vec::with_capacity(256),
            free: Vec::with_capacity(256),
            number: 0,
        }
    }

    /// Something happens at that time.
    pub(crate) fn add(&mut self, when: Time, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(event);
        self.number += 1;
        self.heap.push(Reverse((when, self.number, place)));
    }

    /// What happens next, and when.
    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        let Reverse((when, _, place)) = self.heap.pop()?;
        self.free.push(place);
        Some((when, self.places[place].take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_is_first_and_the_order_of_one_time_stays() {
        let mut events = Events::new();
        for (when, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            events.add(when, event);
        }
        assert_eq!(events.pop(), Some((1, 'a')));
        events.add(5, 'e');
        let rest: String = std::iter::from_fn(|| events.pop())
            .map(|(_, event)| event)
            .collect();
        assert_eq!(rest, "bcde");
        assert_eq!(events.pop(), None);
    }
}
