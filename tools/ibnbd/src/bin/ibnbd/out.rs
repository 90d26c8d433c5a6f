// SPDX-License-Identifier: GPL-2.0

//! Tables, CSV, JSON and YAML.

use std::borrow::Cow;

use comfy_table::{presets, Table as Drawn};
use ibnbd_host::value::{Latency, Operation};
use serde::Serialize;

use crate::cli::Format;
use crate::context::Context;
use crate::fail::Failure;

/// Rows under names of columns.
pub(crate) struct Table {
    columns: Vec<Cow<'static, str>>,
    rows: Vec<Vec<String>>,
    /// Former names of columns, each with the present one.
    former: Vec<(&'static str, &'static str)>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<&'static str>>) -> Self {
        let columns = columns.into().into_iter().map(Cow::Borrowed);
        Self {
            columns: columns.collect(),
            rows: Vec::new(),
            former: Vec::new(),
        }
    }

    /// The same with names that are made.
    pub(crate) fn named(columns: impl Iterator<Item = String>) -> Self {
        Self {
            columns: columns.map(Cow::Owned).collect(),
            rows: Vec::new(),
            former: Vec::new(),
        }
    }

    /// Has a column be found by a name that it had in an earlier version, too.
    pub(crate) fn formerly(mut self, former: &'static str, now: &'static str) -> Self {
        self.former.push((former, now));
        self
    }

    /// With each renamed column also under its former name, for programs.
    fn with_former(mut self) -> Self {
        for (former, now) in core::mem::take(&mut self.former) {
            if let Some(at) = self.place(now) {
                self.columns.insert(at, Cow::Borrowed(former));
                for row in &mut self.rows {
                    row.insert(at, row.get(at).cloned().unwrap_or_default());
                }
            }
        }
        self
    }

    pub(crate) fn row(&mut self, row: impl Into<Vec<String>>) {
        self.rows.push(row.into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn columns(&self) -> &[Cow<'static, str>] {
        &self.columns
    }

    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    fn place(&self, name: &str) -> Option<usize> {
        let at = |name: &str| {
            let mut columns = self.columns.iter();
            columns.position(|column| column.eq_ignore_ascii_case(name))
        };
        let is_former = |(former, _): &&(&str, &str)| former.eq_ignore_ascii_case(name);
        let now = || self.former.iter().find(is_former).map(|(_, now)| *now);
        at(name).or_else(|| at(now()?))
    }

    fn has(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// With those of the columns that it has, in that order.
    fn select(mut self, wanted: &[String]) -> Self {
        let named: Vec<(usize, &String)> = wanted
            .iter()
            .filter_map(|name| Some((self.place(name)?, name)))
            .collect();
        let places: Vec<usize> = named.iter().map(|(at, _)| *at).collect();
        let pick = |row: &[String]| {
            places
                .iter()
                .filter_map(|&at| row.get(at).cloned())
                .collect()
        };
        self.rows = self.rows.iter().map(|row| pick(row)).collect();
        let former = self.former.iter().map(|(former, _)| *former);
        let former: Vec<&str> = former.collect();
        let header = |(at, name): &(usize, &String)| {
            let asked = former
                .iter()
                .find(|former| former.eq_ignore_ascii_case(name));
            match asked {
                Some(former) => Some(Cow::Borrowed(*former)),
                None => self.columns.get(*at).cloned(),
            }
        };
        self.columns = named.iter().filter_map(header).collect();
        self
    }

    /// As people see it.
    pub(crate) fn drawn(&self) -> String {
        let mut table = Drawn::new();
        table.load_preset(presets::NOTHING);
        table.set_header(self.columns.iter().map(|name| name.to_uppercase()));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| visible(cell)));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
        lines.collect()
    }

    fn csv(&self) -> Result<String, Failure> {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::new(crate::fail::REFUSED, "csv", error.to_string())
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        let columns = self.columns.iter().map(|column| column.as_bytes());
        writer.write_record(columns).map_err(|e| bad(&e))?;
        for row in &self.rows {
            writer.write_record(row).map_err(|e| bad(&e))?;
        }
        let bytes = writer.into_inner().map_err(|e| bad(&e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The text of a cell as a table shows it.
pub(crate) fn visible(cell: &str) -> String {
    match cell {
        "" => "-".to_owned(),
        text => printable(text),
    }
}

/// A name from the other end of the network may hold anything: nothing of it reaches the terminal
/// as control, turns the line around, or takes no room, so that two names look alike.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// Prints a document, or its tables.
pub(crate) fn emit<T: Serialize>(
    context: &Context,
    document: &T,
    tables: Vec<Table>,
) -> Result<(), Failure> {
    let text = match context.format {
        Format::Json => json(document)? + "\n",
        Format::Yaml => serde_yaml_ng::to_string(document)
            .map_err(|e| Failure::new(crate::fail::REFUSED, "yaml", e.to_string()))?,
        Format::Csv | Format::Table => joined(context, tables)?,
    };
    context.print(&text)
}

pub(crate) fn json<T: Serialize>(document: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(document)
        .map_err(|e| Failure::new(crate::fail::REFUSED, "json", e.to_string()))
}

/// Tables that have rows, or the first one if none has; with the columns that were chosen.
pub(crate) fn joined(context: &Context, tables: Vec<Table>) -> Result<String, Failure> {
    let draw = |table: &Table| {
        if context.format == Format::Csv {
            table.csv()
        } else {
            Ok(table.drawn())
        }
    };
    let tables = chosen(tables, &context.columns, context.format)?;
    let all_empty = tables.iter().all(Table::is_empty);
    let mut parts = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        if table.is_empty() && !(all_empty && number == 0) {
            continue;
        }
        parts.push(draw(table)?);
    }
    Ok(parts.join("\n"))
}

/// The tables that have all of the columns; if none has, what each has of them. No columns stand
/// for all.
fn chosen(
    mut tables: Vec<Table>,
    wanted: &[String],
    format: Format,
) -> Result<Vec<Table>, Failure> {
    if wanted.is_empty() {
        let with_former = format == Format::Csv;
        let all = |table: Table| match with_former {
            true => table.with_former(),
            false => table,
        };
        return Ok(tables.into_iter().map(all).collect());
    }
    for name in wanted {
        if !tables.iter().any(|table| table.has(name)) {
            let mut all: Vec<String> = Vec::new();
            for column in tables.iter().flat_map(|table| &table.columns) {
                if !all.iter().any(|known| known == column) {
                    all.push(column.to_string());
                }
            }
            let all = all.join(",");
            return Err(
                Failure::usage("--columns", format!("there is no column {name}"))
                    .todo(format!("take some of: {all}")),
            );
        }
    }
    let has_all = |table: &Table| wanted.iter().all(|name| table.has(name));
    if tables.iter().any(has_all) {
        tables.retain(has_all);
    }
    let selected = tables.into_iter().map(|table| table.select(wanted));
    Ok(selected.filter(|table| !table.columns.is_empty()).collect())
}

/// A value that may not be known.
pub(crate) fn cell<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// A number, or a dash.
pub(crate) fn or_dash(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The limit below which that many percent of the reads and of the writes stayed: `8/16`.
pub(crate) fn percentiles(latency: Option<&Latency>, percent: u64) -> String {
    let of = |operation| latency.and_then(|latency| latency.percentile(percent, operation));
    match (of(Operation::Read), of(Operation::Write)) {
        (None, None) => String::new(),
        (reads, writes) => format!("{}/{}", or_dash(reads), or_dash(writes)),
    }
}

/// The same for sizes.
pub(crate) fn size(value: Option<u64>) -> String {
    value.map(ibnbd_host::value::human).unwrap_or_default()
}

/// Microseconds or milliseconds, from nanoseconds.
pub(crate) fn time(ns: Option<u64>) -> String {
    match ns {
        None => String::new(),
        Some(ns) if ns < 1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        Some(ns) => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Table> {
        let mut disks = Table::new(["disk", "state", "size"]);
        disks.row(["ibnbd0", "open", "1"].map(str::to_owned));
        let mut opened = Table::new(["opened", "size"]);
        opened.row(["sda", "2"].map(str::to_owned));
        vec![disks, opened]
    }

    #[test]
    fn columns_choose_among_tables() {
        for (wanted, shown) in [
            ("", "disk,state,size|opened,size"),
            ("disk,state", "disk,state"),
            ("SIZE,disk", "size,disk"),
            ("opened", "opened"),
            ("size", "size|size"),
            ("disk,opened", "disk|opened"),
            ("size,disk,opened", "size,disk|size,opened"),
        ] {
            let names: Vec<String> = wanted
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            let tables = chosen(two(), &names, Format::Csv).unwrap_or_else(|_| panic!("{wanted}"));
            let found: Vec<String> = tables.iter().map(|t| t.columns.join(",")).collect();
            assert_eq!(found.join("|"), shown, "{wanted}");
            for table in &tables {
                assert!(table
                    .rows
                    .iter()
                    .all(|row| row.len() == table.columns.len()));
            }
        }
        let error = chosen(
            two(),
            &["disk".to_owned(), "colour".to_owned()],
            Format::Csv,
        );
        assert_eq!(error.err().map(|e| e.code), Some(crate::fail::USAGE));
    }

    #[test]
    fn what_is_not_seen_is_written() {
        for text in ["disk-1", "a\"b'c\\d", "é", "盘", "a b"] {
            assert_eq!(visible(text), text);
        }
        for (text, shown) in [
            ("", "-"),
            ("a\x1b[31m", "a\\u{1b}[31m"),
            ("a\nb", "a\\nb"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{200b}b", "a\\u{200b}b"),
            ("a\u{200d}b", "a\\u{200d}b"),
            ("a\u{2066}b", "a\\u{2066}b"),
            ("\u{feff}a", "\\u{feff}a"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
