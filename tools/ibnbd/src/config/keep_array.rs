// SPDX-License-Identifier: GPL-2.0

//! Edits arrays of texts. What stays in them keeps its comments.

use toml_edit::{value, Array, RawString, Table, Value};

/// A text of an array with what stands around it.
struct Piece {
    /// The text before it, without the end of the line of the piece before.
    lead: String,
    value: Value,
    /// The text between it and its comma.
    suffix: String,
    /// The end of its line, behind the comma: its comment.
    tail: String,
}

fn raw(text: Option<&RawString>) -> String {
    text.and_then(RawString::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Takes the end of the line before off a text that goes on in the next line.
fn take_tail(text: String) -> (String, String) {
    match text.find('\n') {
        Some(end) => {
            let (tail, rest) = text.split_at(end);
            (tail.trim_end().to_owned(), rest.to_owned())
        }
        None => (String::new(), text),
    }
}

/// Edits the array of a key, which is made if it is not there.
pub(super) fn replace(
    table: &mut Table,
    key: &str,
    stays: impl Fn(&Value) -> bool,
    new: Vec<String>,
) {
    let item = table.entry(key).or_insert_with(|| value(Array::new()));
    if let Some(array) = item.as_array_mut() {
        edit(array, stays, new);
    }
}

/// Takes out of an array what `stays` does not say of, and puts `new` at its end.
fn edit(array: &mut Array, stays: impl Fn(&Value) -> bool, new: Vec<String>) {
    let mut opening = String::new();
    let mut pieces: Vec<Piece> = Vec::new();
    for value in array.iter() {
        let (tail, lead) = take_tail(raw(value.decor().prefix()));
        pieces
            .last_mut()
            .map_or(&mut opening, |last| &mut last.tail)
            .push_str(&tail);
        pieces.push(Piece {
            lead,
            suffix: raw(value.decor().suffix()),
            tail: String::new(),
            value: value.clone(),
        });
    }
    let mut trailing = raw(Some(array.trailing()));
    if let Some(last) = pieces.last_mut() {
        // Without a comma after the last one all of it is in front of the missing comma.
        if !array.trailing_comma() {
            trailing = std::mem::take(&mut last.suffix) + &trailing;
        }
        (last.tail, trailing) = take_tail(trailing);
    }
    let first = pieces
        .first()
        .map(|piece| piece.lead.clone())
        .unwrap_or_default();
    let line = |piece: &Piece| {
        let start = piece.lead.rfind('\n')?;
        piece.lead.get(start..).map(str::to_owned)
    };
    let line = pieces.iter().rev().find_map(line);

    pieces.retain(|piece| stays(&piece.value));
    for text in new {
        pieces.push(Piece {
            lead: line.clone().unwrap_or_else(|| " ".to_owned()),
            value: text.into(),
            suffix: String::new(),
            tail: String::new(),
        });
    }
    array.clear();
    let mut before = opening;
    for (
        at,
        Piece {
            mut lead,
            mut value,
            suffix,
            tail,
        },
    ) in pieces.into_iter().enumerate()
    {
        if before.contains('#') && !lead.starts_with('\n') {
            lead = "\n    ".to_owned();
        } else if at == 0 && !lead.contains('\n') {
            lead.clone_from(&first);
        }
        value.decor_mut().set_prefix(before + &lead);
        value.decor_mut().set_suffix(suffix);
        array.push_formatted(value);
        before = tail;
    }
    let is_plain = !(before.contains('#') || trailing.contains('#'));
    if array.is_empty() && is_plain {
        trailing.clear();
    }
    array.set_trailing(before + &trailing);
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml_edit::DocumentMut;

    /// The array without `gone` and with `new`.
    fn edited(array: &str, gone: &[&str], new: &[&str]) -> String {
        let mut document: DocumentMut = format!("a = {array}\n").parse().unwrap();
        let array = document["a"].as_array_mut().unwrap();
        let new = new.iter().map(ToString::to_string).collect();
        edit(array, |value| !gone.contains(&value.as_str().unwrap()), new);
        let text = document.to_string();
        text.parse::<DocumentMut>().unwrap();
        text["a = ".len()..].trim_end().to_owned()
    }

    #[test]
    fn a_line_stays_a_line() {
        assert_eq!(edited(r#"["a", "b"]"#, &["a"], &["c"]), r#"["b", "c"]"#);
        assert_eq!(edited(r#"["a"]"#, &["a"], &["c"]), r#"["c"]"#);
        assert_eq!(edited(r#"[ "a", "b" ]"#, &["b"], &[]), r#"[ "a" ]"#);
        assert_eq!(edited("[]", &[], &["c", "d"]), r#"["c", "d"]"#);
        assert_eq!(edited(r#"["a"]"#, &["a"], &[]), "[]");
    }

    #[test]
    fn comments_stay_at_what_they_are_about() {
        let array = "[ # all\n  \"a\", # one\n  # two\n  \"b\", # three\n  \"c\" # four\n]";
        assert_eq!(
            edited(array, &["b"], &["d"]),
            "[ # all\n  \"a\", # one\n  \"c\", # four\n  \"d\"\n]"
        );
        assert_eq!(
            edited(array, &["a"], &[]),
            "[ # all\n  # two\n  \"b\", # three\n  \"c\" # four\n]"
        );
        assert_eq!(
            edited(array, &["c"], &[]),
            "[ # all\n  \"a\", # one\n  # two\n  \"b\" # three\n]"
        );
        assert_eq!(edited(array, &["a", "b", "c"], &[]), "[ # all\n]");
        let array = "[\n  \"a\", # one\n  # last\n]";
        assert_eq!(
            edited(array, &[], &["b"]),
            "[\n  \"a\", # one\n  \"b\",\n  # last\n]"
        );
        assert_eq!(
            edited("[\"a\", \"b\", # both\n]", &[], &["c"]),
            "[\"a\", \"b\", # both\n    \"c\",\n]"
        );
    }
}
