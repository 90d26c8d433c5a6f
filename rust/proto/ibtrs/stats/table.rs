// SPDX-License-Identifier: GPL-2.0

//! Tables with a column for each CPU: `sg_entries`, `cpu_migration` and its two parts.

use core::fmt::{Display, Formatter, Result};

/// The source of a table's numbers.
pub trait PerCpu {
    /// The numbers of all CPUs are below this.
    fn nr_cpus(&self) -> u32;

    /// Whether the CPU is possible.
    fn is_possible(&self, cpu: u32) -> bool;

    /// The value of a row at a CPU; zero for rows and CPUs that do not exist.
    fn count(&self, row: usize, cpu: u32) -> u64;
}

/// The possible CPUs.
fn cpus<T: PerCpu + ?Sized>(of: &T) -> impl Iterator<Item = u32> + '_ {
    (0..of.nr_cpus()).filter(|cpu| of.is_possible(*cpu))
}

/// Rows of a table of scatter lists' lengths: 1 to 4, then up to each power of two, then the rest.
pub const SG_ROWS: usize = 10;

/// Lengths that have a row of their own.
const SG_LINEAR: usize = 4;

/// Longest table that a file can show, in bytes.
const PAGE: usize = 4095;

/// CPUs that the table shows whether or not they have counted.
const FEW_CPUS: usize = 16;

/// The row of [`SgEntries`] that counts scatter lists of `entries` elements; below [`SG_ROWS`].
/// A request without data is in none.
#[inline]
pub const fn sg_row(entries: u32) -> Option<usize> {
    let bits = u32::BITS.saturating_sub(entries.leading_zeros()) as usize;
    match entries {
        0 => None,
        // Lossless.
        1..=4 => Some((entries as usize).saturating_sub(1)),
        // 5 to 7 have three bits.
        _ if bits.saturating_add(1) < SG_ROWS => Some(bits.saturating_add(1)),
        _ => Some(SG_ROWS.saturating_sub(1)),
    }
}

/// The file `sg_entries`: how many requests each CPU has submitted, by the length of their scatter
/// lists. The rows of the source are those of [`sg_row`].
///
/// With more than 16 CPUs, the table has only those that counted something, as many as fit in a
/// page.
pub struct SgEntries<'a, T: PerCpu>(pub &'a T);

impl<T: PerCpu> SgEntries<'_, T> {
    fn total(&self, cpu: u32) -> u64 {
        (0..SG_ROWS).fold(0, |sum, row| sum.saturating_add(self.0.count(row, cpu)))
    }

    /// The CPUs that have a column.
    fn columns(&self) -> impl Iterator<Item = u32> + '_ {
        let all = cpus(self.0).count() <= FEW_CPUS;
        cpus(self.0).filter(move |cpu| all || self.total(*cpu) > 0)
    }

    /// Bytes of a column, and the number of columns that fit: each line has seven bytes and a
    /// newline more, and there are a line of CPUs, one of totals, and one for the columns that are
    /// left out.
    fn fit(&self) -> (usize, usize) {
        let longest = self.columns().fold(0, |max, cpu| max.max(self.total(cpu)));
        let digits = longest.checked_ilog10().unwrap_or(0).saturating_add(1);
        let width = (digits as usize).max(5);
        let lines = SG_ROWS.saturating_add(3);
        let room = PAGE.checked_div(lines).unwrap_or(0).saturating_sub(8);
        let column = width.saturating_add(1);
        (width, room.checked_div(column).unwrap_or(0))
    }
}

impl<T: PerCpu> Display for SgEntries<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (width, most) = self.fit();
        f.write_str("n\\cpu: ")?;
        for cpu in self.columns().take(most) {
            write!(f, " {cpu:>width$}")?;
        }
        for row in 0..SG_ROWS {
            match row.checked_sub(SG_LINEAR) {
                None => write!(f, "\n=  {:>3}:", row.saturating_add(1))?,
                Some(_) if row.saturating_add(1) == SG_ROWS => {
                    write!(
                        f,
                        "\n>= {:>3}:",
                        1_u32.wrapping_shl((row as u32).saturating_sub(2))
                    )?;
                }
                Some(_) => write!(
                    f,
                    "\n<  {:>3}:",
                    1_u32.wrapping_shl((row as u32).saturating_sub(1))
                )?,
            }
            for cpu in self.columns().take(most) {
                write!(f, " {:>width$}", self.0.count(row, cpu))?;
            }
        }
        f.write_str("\ntotal: ")?;
        for cpu in self.columns().take(most) {
            write!(f, " {:>width$}", self.total(cpu))?;
        }
        f.write_str("\n")?;
        match self.columns().count().saturating_sub(most) {
            0 => Ok(()),
            hidden => writeln!(f, "and {hidden} more CPUs"),
        }
    }
}

/// Rows of the source of [`CpuMigration`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrationRow {
    /// Completions that were due on this CPU and came on another one.
    From,
    /// Completions that came on this CPU and were due on another one.
    To,
}

impl MigrationRow {
    /// The index of the row.
    pub const fn index(self) -> usize {
        match self {
            Self::From => 0,
            Self::To => 1,
        }
    }
}

/// The CPU at which [`MigrationRow::From`] counts a completion on connection `cid` of a path that
/// CPU `on` has handled; none if the completion came on a CPU of that connection.
///
/// Connection 1 is the first of the `nr_queues` connections for I/O that is not polled. CPU `i`
/// sends on number `i % nr_queues` of them, so with fewer of them than CPUs each has several CPUs.
/// The first one stands for them all. The service connection and polled connections have no CPU.
#[inline]
pub const fn migrated_from(cid: u16, nr_queues: u32, on: u32) -> Option<u32> {
    // Lossless.
    let Some(home) = (cid as u32).checked_sub(1) else {
        return None;
    };
    // The first comparison saves the division where nothing has migrated.
    if home == on || home >= nr_queues {
        return None;
    }
    match on.checked_rem(nr_queues) {
        Some(queue) if queue != home => Some(home),
        _ => None,
    }
}

/// The file `cpu_migration`: completions that came on another CPU than they should have. The rows
/// of the source are those of [`MigrationRow`].
pub struct CpuMigration<'a, T: PerCpu>(pub &'a T);

impl<T: PerCpu> Display for CpuMigration<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("cpu: ")?;
        for cpu in cpus(self.0) {
            write!(f, " {cpu}")?;
        }
        for (name, row) in [("from:", MigrationRow::From), ("to:  ", MigrationRow::To)] {
            write!(f, "\n{name}")?;
            for cpu in cpus(self.0) {
                write!(f, " {}", self.0.count(row.index(), cpu))?;
            }
        }
        f.write_str("\n")
    }
}

/// The files `cpu_migration_from` and `cpu_migration_to`: a row of [`CpuMigration`], each number
/// followed by a blank.
pub struct MigrationLine<'a, T: PerCpu>(pub &'a T, pub MigrationRow);

impl<T: PerCpu> Display for MigrationLine<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for cpu in cpus(self.0) {
            write!(f, "{} ", self.0.count(self.1.index(), cpu))?;
        }
        f.write_str("\n")
    }
}
