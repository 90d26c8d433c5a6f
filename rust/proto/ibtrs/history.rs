// SPDX-License-Identifier: GPL-2.0

//! The last changes of something, for operators who were not there.
//!
//! A [`Ring`] has a fixed number of places, so that a change can be added while memory is short. Changes of different
//! importance have a ring each, and in a ring those that come often make room first: they cannot push out the others.

use core::fmt;
use core::ops::DerefMut;

/// The most places of a ring: [`Ring::push`] has a bit for each change, the new one included.
pub const MOST: usize = 127;

/// The last changes, as many as the table `S` has places.
#[derive(Clone, Debug)]
pub struct Ring<S> {
    /// The changes, the oldest first, then places without one.
    places: S,
    len: usize,
}

/// Whether two changes are of one class. Each change is of exactly one class.
pub type Alike<T> = fn(&T, &T) -> bool;

impl<T: 'static, S: DerefMut<Target = [Option<T>]>> Ring<S> {
    /// Creates a ring without changes. All places must be empty, and there may be at most [`MOST`].
    pub const fn new(places: S) -> Self {
        Self { places, len: 0 }
    }

    /// The changes, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = &T> {
        self.places.iter().rev().flatten()
    }

    /// The same, to be altered.
    pub fn latest_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().rev().flatten()
    }

    /// Takes the latest change out for which `is_it` holds.
    pub fn take(&mut self, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let from_latest = self.latest().position(is_it)?;
        let at = self.len.checked_sub(from_latest.checked_add(1)?)?;
        self.remove(at)
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let later = self.places.get_mut(at..self.len)?;
        let (first, _) = later.split_first_mut()?;
        let removed = first.take();
        later.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        removed
    }

    /// Adds a change. If there is no place, another one makes room.
    ///
    /// `alike` divides changes into classes, the coarsest division first. The class with the most changes makes room, the
    /// new one counted; of those with equally many, the one with the oldest change. Within it, the next division selects
    /// a class in the same way, and of that the oldest change goes. So of `k` classes, each keeps as many changes as were
    /// added to it, or at least one in `k` of the places.
    pub fn push(&mut self, change: T, alike: &[Alike<T>]) {
        if self.len == self.places.len() {
            let at = self.gives_way(Some(&change), alike);
            self.remove(at);
        }
        if let Some(place) = self.places.get_mut(self.len) {
            *place = Some(change);
            self.len = self.len.saturating_add(1);
        }
    }

    /// Removes changes until all together take at most `most` of what each takes, in the order in which they make room
    /// for a new one.
    pub fn fit(&mut self, most: usize, takes: impl Fn(&T) -> usize, alike: &[Alike<T>]) {
        let mut taken = self.latest().map(&takes).fold(0, usize::saturating_add);
        while taken > most {
            let at = self.gives_way(None, alike);
            let Some(removed) = self.remove(at) else {
                return;
            };
            taken = taken.saturating_sub(takes(&removed));
        }
    }

    /// Takes over the changes of a ring that has no more places than this one.
    pub fn copy_from(&mut self, other: &Self)
    where
        T: Copy,
    {
        self.places.fill(None);
        for (to, from) in self.places.iter_mut().zip(other.places.iter()) {
            *to = *from;
        }
        self.len = other.len.min(self.places.len());
    }

    /// Returns which change makes room, for a new one if there is one.
    ///
    /// It is called under locks. Each division compares the oldest change of a class with those that are in no class yet,
    /// so that no two changes are compared twice, and few are where there are few classes.
    fn gives_way(&self, new: Option<&T>, alike: &[Alike<T>]) -> usize {
        let changes = || self.places.iter().flatten().chain(new).enumerate();
        let nth = |n: usize| self.places.get(n).and_then(Option::as_ref).or(new);
        let mut selected = changes().fold(Places::NONE, |all, (n, _)| all.with(n));
        for same in alike {
            let (mut rest, mut largest) = (selected, Places::NONE);
            // A class of what is left cannot be larger than that.
            while rest.len() > largest.len() {
                let Some((first, oldest)) = rest.first().and_then(|n| Some((n, nth(n)?))) else {
                    break;
                };
                let others = changes().filter(|(n, change)| rest.has(*n) && same(oldest, change));
                let class = others.fold(Places::NONE.with(first), |class, (n, _)| class.with(n));
                rest = rest.without(class);
                // Of those with equally many, the one with the oldest change came first.
                if class.len() > largest.len() {
                    largest = class;
                }
            }
            selected = largest;
        }
        selected.first().unwrap_or(0)
    }
}

/// Some changes of a ring, by their places.
#[derive(Clone, Copy)]
struct Places(u128);

impl Places {
    const NONE: Self = Self(0);

    fn bit(n: usize) -> u128 {
        u32::try_from(n).map_or(0, |n| 1u128.checked_shl(n).unwrap_or(0))
    }

    fn with(self, n: usize) -> Self {
        Self(self.0 | Self::bit(n))
    }

    fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    fn has(self, n: usize) -> bool {
        self.0 & Self::bit(n) != 0
    }

    fn len(self) -> u32 {
        self.0.count_ones()
    }

    fn first(self) -> Option<usize> {
        let first = (self.0 != 0).then(|| self.0.trailing_zeros())?;
        usize::try_from(first).ok()
    }
}

/// The most ranges of [`Numbers`].
const RANGES: usize = 8;

/// Some numbers, such as those of disks: at most a few ranges of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// The first and the last number of each range, in their order.
    ranges: [Option<(u32, u32)>; RANGES],
}

impl Numbers {
    /// A single number.
    pub fn one(number: u32) -> Self {
        let mut ranges = [None; RANGES];
        if let Some(first) = ranges.first_mut() {
            *first = Some((number, number));
        }
        Self { ranges }
    }

    /// Whether a number is one of them.
    pub fn contains(&self, number: u32) -> bool {
        let mut ranges = self.ranges.iter().flatten();
        ranges.any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// Adds a number. Returns whether there is room for it.
    pub fn add(&mut self, number: u32) -> bool {
        if self.contains(number) {
            return true;
        }
        let follows = |(_, last): (u32, u32)| last.checked_add(1) == Some(number);
        let precedes = |(first, _): (u32, u32)| first.checked_sub(1) == Some(number);
        let before = self
            .ranges
            .iter()
            .position(|range| range.is_some_and(follows));
        let after = self
            .ranges
            .iter()
            .position(|range| range.is_some_and(precedes));
        match (before, after) {
            (Some(before), Some(after)) => self.join(before, after, number),
            (Some(at), None) => self.alter(at, |(first, _)| (first, number)),
            (None, Some(at)) => self.alter(at, |(_, last)| (number, last)),
            (None, None) => return self.insert(number),
        }
        true
    }

    fn alter(&mut self, at: usize, f: impl FnOnce((u32, u32)) -> (u32, u32)) {
        if let Some(Some(range)) = self.ranges.get_mut(at) {
            *range = f(*range);
        }
    }

    /// `number` is all that is between two ranges.
    fn join(&mut self, before: usize, after: usize, number: u32) {
        let later = self.ranges.get_mut(after..).unwrap_or_default();
        let taken = later.first_mut().and_then(Option::take);
        if !later.is_empty() {
            later.rotate_left(1);
        }
        let last = taken.map_or(number, |(_, last)| last);
        self.alter(before, |(first, _)| (first, last));
    }

    fn insert(&mut self, number: u32) -> bool {
        let is_full = self.ranges.iter().all(Option::is_some);
        let is_later = |range: &Option<(u32, u32)>| range.is_none_or(|(first, _)| first > number);
        let at = self.ranges.iter().position(is_later);
        let later = at.and_then(|at| self.ranges.get_mut(at..));
        match later {
            Some(later) if !is_full => {
                later.rotate_right(1);
                if let Some(place) = later.first_mut() {
                    *place = Some((number, number));
                }
                true
            }
            _ => false,
        }
    }
}

/// As the kernel writes lists of CPUs: `0-31,33`.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (first, last) in self.ranges.iter().flatten() {
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

/// For how long changes of other disks join a change of a disk, in milliseconds.
pub const TOGETHER_MS: u64 = 2000;

/// A change that happened to some disks of a session at about the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskChange<C> {
    /// When it happened to the first of them, in milliseconds since 1970.
    pub at_ms: i64,
    /// The disks.
    pub disks: Numbers,
    /// What has happened.
    pub what: &'static str,
    /// Why.
    pub cause: C,
}

impl<C: PartialEq> DiskChange<C> {
    /// Lets a change of one disk join one of `changes`, of which the latest comes first. Returns the change if it joins
    /// none.
    ///
    /// A session that is lost concerns all of its disks, which an operator reads as one change. The changes of each disk
    /// keep their order: none joins a change that is older than another one of its disk.
    pub fn join<'a>(self, disk: u32, changes: impl Iterator<Item = &'a mut Self>) -> Option<Self>
    where
        C: 'a,
    {
        for former in changes.take_while(|former| !former.disks.contains(disk)) {
            let is_recent = self.at_ms.abs_diff(former.at_ms) < TOGETHER_MS;
            let is_same = former.what == self.what && former.cause == self.cause;
            if is_recent && is_same && former.disks.add(disk) {
                return None;
            }
        }
        Some(self)
    }
}
