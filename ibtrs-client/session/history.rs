// SPDX-License-Identifier: GPL-2.0

//! The latest changes of a session, its paths and its disks, for a later diagnosis by operators.
//!
//! There are two rings of fixed size, which are allocated with the session, as a path may be lost while memory is
//! short. Disks have a separate ring, as a session may have many disks, and the event of a path is often the cause of
//! theirs.

use super::Session;
use crate::{
    path::parent::{
        CONNECTED,
        FAILED, //
    },
    text::Text, //
};
use ibtrs_proto::history::{
    Alike,
    DiskChange,
    Numbers,
    Ring, //
};
use kernel::{
    fmt,
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::SpinLockIrq,
    time::{
        ClockSource,
        RealTime, //
    }, //
};
use kx::sysfs::Buf;

/// Capacity of the ring of the session and its paths, and of the ring of its disks.
const MAX: usize = 64;

/// Bytes of the file: a page, without the terminator of the text.
const ROOM: usize = PAGE_SIZE - 1;

/// Minimum share of these bytes for changes of disks, if changes of paths need the rest.
const MAX_OF_DISKS: usize = PAGE_SIZE / 2;

/// The name that stands for the session instead of a path.
const SESSION: &str = "-";

/// Returns the milliseconds since 1970.
///
/// # Context
///
/// Any.
pub(super) fn now_ms() -> i64 {
    RealTime::ktime_get() / 1_000_000
}

/// A change of a path, or of the session.
#[derive(Clone, Copy)]
struct Change {
    at_ms: i64,
    /// The name of the path, or [`SESSION`].
    of: Text,
    what: &'static str,
    cause: Text,
}

impl Change {
    /// Returns whether both describe the same change of one path.
    fn repeats(&self, former: &Self) -> bool {
        self.what == former.what && self.cause == former.cause
    }
}

/// A change, and its sequence number across both rings.
#[derive(Clone, Copy)]
struct Numbered<T> {
    number: u64,
    change: T,
}

type Changes<T> = Ring<KVVec<Option<Numbered<T>>>>;

/// The order of eviction: first changes of the path, or the session, that has the most, and of these the most
/// frequent kind. When the last connection of a path is evicted, no older change of the path remains;
/// [`Rings::has_failed_so`] relies on that.
const OF_PATHS: [Alike<Numbered<Change>>; 2] = [
    |a, b| a.change.of == b.change.of,
    |a, b| a.change.what == b.change.what,
];

/// The order of eviction for disks: the most frequent kind of change, and of these the most
/// frequent disks.
const OF_DISKS: [Alike<Numbered<DiskChange<Text>>>; 2] = [
    |a, b| a.change.what == b.change.what,
    |a, b| a.change.disks == b.change.disks,
];

struct Rings {
    paths: Changes<Change>,
    disks: Changes<DiskChange<Text>>,
    /// The common prefix of the names of the disks.
    prefix: &'static str,
    /// Number of the next change.
    next: u64,
}

impl Rings {
    fn new() -> Result<Self> {
        Ok(Self {
            paths: Ring::new(KVVec::from_elem(None, MAX, GFP_KERNEL)?),
            disks: Ring::new(KVVec::from_elem(None, MAX, GFP_KERNEL)?),
            prefix: "",
            next: 0,
        })
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Returns whether the change is a failure that the path has already had, for the same reason, since its last
    /// connection: a path that fails to connect for hours must not evict everything else.
    fn has_failed_so(&self, change: &Change) -> bool {
        let kept = self.paths.latest().map(|kept| &kept.change);
        let of_path = kept.filter(|kept| kept.of == change.of);
        let mut since = of_path.take_while(|kept| kept.what != CONNECTED);
        change.what == FAILED && since.any(|former| change.repeats(former))
    }

    fn push(&mut self, change: Change) {
        if self.has_failed_so(&change) {
            return;
        }
        let number = self.number();
        self.paths.push(Numbered { number, change }, &OF_PATHS);
    }

    fn push_disk(&mut self, disk: u32, change: DiskChange<Text>) {
        let former = self.disks.latest_mut().map(|kept| &mut kept.change);
        if let Some(change) = change.join(disk, former) {
            let number = self.number();
            self.disks.push(Numbered { number, change }, &OF_DISKS);
        }
    }

    /// Copies all changes.
    fn copy_from(&mut self, other: &Self) {
        self.paths.copy_from(&other.paths);
        self.disks.copy_from(&other.disks);
        (self.prefix, self.next) = (other.prefix, other.next);
    }

    /// Evicts changes until the lines of the rest take at most [`ROOM`] bytes, in the same order as for new changes, so
    /// that frequent changes do not hide the rest.
    fn fit(&mut self) {
        let prefix = self.prefix;
        let of_path = |kept: &Numbered<Change>| Line::Path(&kept.change).len();
        let of_disk = |kept: &Numbered<DiskChange<Text>>| Line::Disk(prefix, &kept.change).len();
        let paths: usize = self.paths.latest().map(of_path).sum();
        let room_of_disks = ROOM.saturating_sub(paths).max(MAX_OF_DISKS);
        self.disks.fit(room_of_disks, of_disk, &OF_DISKS);
        let disks: usize = self.disks.latest().map(of_disk).sum();
        self.paths
            .fit(ROOM.saturating_sub(disks), of_path, &OF_PATHS);
    }

    /// Returns the lines, the latest first.
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let (mut paths, mut disks) = (
            self.paths.latest().peekable(),
            self.disks.latest().peekable(),
        );
        core::iter::from_fn(move || {
            let of_disk = disks.peek().map(|kept| kept.number);
            let is_path = paths.peek().is_some_and(|path| Some(path.number) > of_disk);
            match is_path {
                true => paths.next().map(|kept| Line::Path(&kept.change)),
                false => disks
                    .next()
                    .map(|kept| Line::Disk(self.prefix, &kept.change)),
            }
        })
    }
}

/// A line of the file.
enum Line<'a> {
    Path(&'a Change),
    Disk(&'static str, &'a DiskChange<Text>),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at_ms, what, cause) = match self {
            Self::Path(change) => (change.at_ms, change.what, &change.cause),
            Self::Disk(_, change) => (change.at_ms, change.what, &change.cause),
        };
        let (s, ms) = (at_ms / 1000, at_ms % 1000);
        write!(f, "{s}.{ms:03} ")?;
        match self {
            Self::Path(change) => f.write_str(change.of.as_str())?,
            Self::Disk(prefix, change) => write!(f, "{prefix}{}", change.disks)?,
        }
        writeln!(f, " {what} {}", cause.as_str())
    }
}

impl Line<'_> {
    fn len(&self) -> usize {
        struct Counted(usize);

        impl fmt::Write for Counted {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }

        let mut counted = Counted(0);
        let _ = fmt::Write::write_fmt(&mut counted, fmt!("{}", *self));
        counted.0
    }
}

/// The history of a session.
#[pin_data]
pub(super) struct History {
    #[pin]
    rings: SpinLockIrq<Rings>,
}

impl History {
    /// Allocates a history.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let rings = Rings::new()?;
        Ok(pin_init!(Self {
            rings <- new_spinlock_irq!(rings, "History::rings"),
        }))
    }

    /// Adds a change.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn record(
        &self,
        of: fmt::Arguments<'_>,
        what: &'static str,
        cause: fmt::Arguments<'_>,
    ) {
        let mut change = Change {
            at_ms: 0,
            of: Text::new(of),
            what,
            cause: Text::new(cause),
        };
        let mut rings = self.rings.lock();
        // Under the lock, so that times are in order.
        change.at_ms = now_ms();
        rings.push(change);
    }

    /// Adds a change of a disk, whose name is `prefix` followed by its number. All disks have the same
    /// prefix.
    fn record_disk(
        &self,
        (prefix, disk): (&'static str, u32),
        what: &'static str,
        cause: fmt::Arguments<'_>,
    ) {
        let mut change = DiskChange {
            at_ms: 0,
            disks: Numbers::one(disk),
            what,
            cause: Text::new(cause),
        };
        let mut rings = self.rings.lock();
        change.at_ms = now_ms();
        rings.prefix = prefix;
        rings.push_disk(disk, change);
    }
}

impl Session {
    /// Adds a change of the session itself to its history.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn record_session(&self, what: &'static str, cause: fmt::Arguments<'_>) {
        self.history.record(fmt!("{SESSION}"), what, cause);
    }

    /// Adds a change of a disk of the session to the session's history. The name of the disk is a prefix, which is the
    /// same for all disks, and its number.
    ///
    /// # Context
    ///
    /// Any.
    pub fn record_disk(
        &self,
        disk: (&'static str, u32),
        what: &'static str,
        cause: fmt::Arguments<'_>,
    ) {
        self.history.record_disk(disk, what, cause);
    }

    /// Writes as many of the last changes as fit, the latest first.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn show_history(&self, buf: &mut Buf<'_>) -> Result {
        let mut rings = Rings::new()?;
        rings.copy_from(&self.history.rings.lock());
        rings.fit();
        for line in rings.lines() {
            buf.write(fmt!("{}", line))?;
        }
        Ok(())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_client_history)]
mod tests {
    use super::*;

    fn lose(rings: &mut Rings, at_ms: i64) {
        let of = Text::new(fmt!("ip:10.0.1.1"));
        let what = "lost";
        let cause = Text::new(fmt!("no heartbeat"));
        rings.push(Change {
            at_ms,
            of,
            what,
            cause,
        });
    }

    fn change(rings: &mut Rings, disk: u32, what: &'static str, at_ms: i64) {
        let disks = Numbers::one(disk);
        let cause = Text::EMPTY;
        let change = DiskChange {
            at_ms,
            disks,
            what,
            cause,
        };
        rings.push_disk(disk, change);
    }

    /// The changes in the order of the file, the latest first: whether of a disk, and when.
    fn shown(rings: &Rings) -> Result<KVVec<(bool, i64)>> {
        let mut found = KVVec::new();
        for line in rings.lines() {
            let told = match line {
                Line::Path(change) => (false, change.at_ms),
                Line::Disk(_, change) => (true, change.at_ms),
            };
            found.push(told, GFP_KERNEL)?;
        }
        Ok(found)
    }

    #[test]
    fn a_path_that_comes_and_goes_leaves_the_others() -> Result {
        let mut rings = Rings::new()?;
        lose(&mut rings, 1);
        let change = |at_ms, what| Change {
            at_ms,
            of: Text::new(fmt!("ip:10.0.2.1")),
            what,
            cause: Text::EMPTY,
        };
        rings.push(change(2, "drained"));
        for at_ms in 3..1000 {
            rings.push(change(at_ms, CONNECTED));
            rings.push(change(at_ms, FAILED));
            // A repeated failure is not a change.
            rings.push(change(at_ms, FAILED));
        }
        let found = shown(&rings)?;
        assert_eq!(found.len(), MAX);
        // Other changes of the path are retained, too.
        assert_eq!(found.get(MAX - 2..), Some(&[(false, 2), (false, 1)][..]));
        Ok(())
    }

    /// The file can hold less than the rings.
    #[test]
    fn what_does_not_fit_the_file_is_what_happens_most_often() -> Result {
        let mut rings = Rings::new()?;
        let of_path = |rings: &mut Rings, what, at_ms| {
            rings.push(Change {
                at_ms,
                of: Text::new(fmt!("ip:10.0.1.2@ip:10.0.1.1")),
                what,
                cause: Text::new(fmt!("no heartbeat from the server (ETIMEDOUT)")),
            });
        };
        of_path(&mut rings, "drained", 1);
        for at in 0..500 {
            of_path(&mut rings, CONNECTED, 10 + at);
            of_path(&mut rings, "lost", 10 + at);
        }
        let len = |rings: &Rings| rings.lines().map(|line| line.len()).sum::<usize>();
        assert!(len(&rings) > ROOM);
        let mut paths = Rings::new()?;
        paths.copy_from(&rings);
        paths.fit();
        let found = shown(&paths)?;
        assert!(len(&paths) <= ROOM && found.len() > 40);
        assert_eq!(found.first(), Some(&(false, 509)));
        assert_eq!(found.last(), Some(&(false, 1)));
        // Disks get at least half of the file, and do not hide this either.
        change(&mut rings, 0, "unmapped", 20_000);
        for at in 3..500 {
            change(&mut rings, 1, "resized", 10_000 * at);
        }
        rings.fit();
        let found = shown(&rings)?;
        assert!(len(&rings) <= ROOM && found.contains(&(true, 20_000)));
        assert_eq!(found.first(), Some(&(true, 4_990_000)));
        assert_eq!(found.last(), Some(&(false, 1)));
        Ok(())
    }

    #[test]
    fn a_disk_that_is_resized_again_and_again_leaves_the_others() -> Result {
        let mut rings = Rings::new()?;
        change(&mut rings, 0, "closed", 1);
        for at in 2..1000 {
            change(&mut rings, 1, "resized", 10_000 * at);
        }
        assert_eq!(shown(&rings)?.last(), Some(&(true, 1)));
        Ok(())
    }

    #[test]
    fn disks_do_not_push_out_paths() -> Result {
        let mut rings = Rings::new()?;
        lose(&mut rings, 1);
        for at in 2..1000 {
            // Too far apart to be one change.
            change(
                &mut rings,
                0,
                ["closed", "open"][at % 2],
                10_000 * at as i64,
            );
        }
        let found = shown(&rings)?;
        assert_eq!(found.len(), MAX + 1);
        assert_eq!(found.first(), Some(&(true, 9_990_000)));
        assert_eq!(found.last(), Some(&(false, 1)));
        Ok(())
    }

    #[test]
    fn all_disks_of_a_session_are_one_change() -> Result {
        let mut rings = Rings::new()?;
        for time in 0..40 {
            lose(&mut rings, time * 100_000);
            for disk in 0..500 {
                change(&mut rings, disk, "closed", time * 100_000 + 1);
            }
            for disk in 0..500 {
                change(&mut rings, disk, "open", time * 100_000 + 50_000);
            }
        }
        // The last 32 losses, and all 40 of the path.
        let found = shown(&rings)?;
        assert_eq!(found.len(), 40 + MAX);
        let lost = (39 * 100_000, 39 * 100_000 + 1, 39 * 100_000 + 50_000);
        let expected = [(true, lost.2), (true, lost.1), (false, lost.0)];
        assert_eq!(found.get(..3), Some(&expected[..]));
        Ok(())
    }
}
