// SPDX-License-Identifier: GPL-2.0

//! A document for people: what belongs together stands together, and a list is a table.

use serde_json::{Map, Value};

use crate::out::{visible, Table};

/// Columns that come first, as they say what a row is about.
const FIRST: [&str; 3] = ["name", "below_us", "below_ms"];

/// The values of an object, then each of its parts under its name.
pub(super) fn text(object: &Map<String, Value>) -> String {
    let mut groups = vec![values(object)];
    for (name, value) in object {
        match value {
            Value::Object(part) => groups.extend(of_object(name, part)),
            Value::Array(rows) => groups.push(titled(name, &of_list(rows))),
            _ => {}
        }
    }
    groups.retain(|group| !group.is_empty());
    groups.join("\n")
}

fn of_object(name: &str, part: &Map<String, Value>) -> Vec<String> {
    let mut body = values(part);
    let mut further = Vec::new();
    for (of_part, value) in part {
        match value {
            Value::Object(part) => further.extend(of_object(&format!("{name} {of_part}"), part)),
            // Rows of a histogram need no name of their own.
            Value::Array(rows) => body += &of_list(rows),
            _ => {}
        }
    }
    further.insert(0, titled(name, &body));
    further
}

fn titled(name: &str, text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("{}:\n{text}", name.replace('_', " ")),
    }
}

/// Names and plain values; what is not known is left out.
fn values(object: &Map<String, Value>) -> String {
    let mut fields: Vec<(&String, String)> = object
        .iter()
        .filter_map(|(name, value)| Some((name, plain(value)?)))
        .collect();
    fields.sort_by_key(|(name, _)| order(name));
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = fields.iter().map(|(name, value)| {
        let line = format!("{name:width$}  {}", visible(value));
        format!("  {}\n", line.trim_end())
    });
    lines.collect()
}

fn order(name: &str) -> usize {
    FIRST
        .iter()
        .position(|first| *first == name)
        .unwrap_or(FIRST.len())
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(items) => {
            let words: Option<Vec<String>> = items.iter().map(plain).collect();
            words
                .filter(|words| !words.is_empty())
                .map(|words| words.join(" "))
        }
        Value::Object(_) | Value::Null => None,
    }
}

/// Objects as rows of a table, with all that any of them has.
fn of_list(rows: &[Value]) -> String {
    let rows: Vec<&Map<String, Value>> = rows.iter().filter_map(Value::as_object).collect();
    let mut columns: Vec<&str> = Vec::new();
    for (column, value) in rows.iter().flat_map(|row| row.iter()) {
        let is_shown = plain(value).is_some() || FIRST.contains(&column.as_str());
        if is_shown && !columns.contains(&column.as_str()) {
            columns.push(column);
        }
    }
    columns.sort_by_key(|column| order(column));
    if columns.is_empty() {
        return String::new();
    }
    let mut table = Table::named(columns.iter().map(|column| column.replace('_', " ")));
    for row in rows {
        let cell = |column: &&str| match row.get(*column) {
            // The last row of a histogram.
            Some(Value::Null) if column.starts_with("below") => "more".to_owned(),
            value => value.and_then(plain).unwrap_or_default(),
        };
        table.row(columns.iter().map(cell).collect::<Vec<_>>());
    }
    let lines = table.drawn();
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_stand_together_and_lists_are_tables() {
        let value = json!({
            "state": "open", "name": "ibnbd0", "session": null,
            "latency": {"longest_read_us": 12, "rows": [
                {"below_us": 1, "reads": 0}, {"below_us": null, "reads": 7},
            ]},
            "paths": [{"name": "a@b", "state": "connected", "gone": null}],
            "exports": ["x", "y"],
            "settings": {"mp_policy": "round-robin"},
            "none": {}, "empty": [],
        });
        let expected = "  name     ibnbd0
  exports  x y
  state    open

latency:
  longest_read_us  12
  BELOW US  READS
  1         0
  more      7

paths:
  NAME  STATE
  a@b   connected

settings:
  mp_policy  round-robin
";
        let text = text(value.as_object().unwrap());
        assert_eq!(text, expected);
    }

    #[test]
    fn nothing_of_it_reaches_the_terminal_as_control() {
        let value = json!({"name": "a\u{1b}[31m", "paths": [{"name": "\u{202e}x"}]});
        let text = text(value.as_object().unwrap());
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{202e}'),
            "{text}"
        );
    }
}
