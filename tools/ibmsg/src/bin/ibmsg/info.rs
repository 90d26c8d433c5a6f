// SPDX-License-Identifier: GPL-2.0

//! `info`

use std::path::Path;

use ibmsg::fdinfo::{list, Open};
use ibmsg::words::Doing;
use serde_json::{json, Value};

use crate::out::{Failure, Out};

const STATES: [&str; 5] = ["?", "connecting", "open", "closing", "closed"];

fn state(open: &Open) -> &'static str {
    let number: Option<usize> = open.fields.get("state").and_then(|text| text.parse().ok());
    let state = number.and_then(|number| STATES.get(number));
    state.copied().unwrap_or(STATES[0])
}

fn line(open: &Open) -> String {
    let field = |name: &str| open.fields.get(name).map_or("?", String::as_str);
    let what = match open.is_channel {
        false => format!("portal   {}: {} offers", field("portal"), field("offers")),
        true => format!(
            "channel  {} of {}, number {}: {}, {} sent, {} queued, {} read, {} received, {} wait",
            field("portal"),
            field("session"),
            field("channel"),
            state(open),
            field("sent"),
            field("queued"),
            field("taken"),
            field("received"),
            field("waiting"),
        ),
    };
    format!(
        "{what}; {} ({}), descriptor {}",
        open.program.escape_debug(),
        open.pid,
        open.fd
    )
}

fn document(open: &Open) -> Value {
    let mut fields = serde_json::Map::new();
    for (name, value) in &open.fields {
        let value = match value.parse::<u64>() {
            Ok(number) if name != "session" && name != "portal" => json!(number),
            _ => json!(value),
        };
        fields.insert(name.clone(), value);
    }
    if open.is_channel {
        fields.insert("state".into(), json!(state(open)));
    }
    let kind = if open.is_channel { "channel" } else { "portal" };
    json!({
        "kind": kind, "pid": open.pid, "program": open.program, "fd": open.fd, "fields": fields,
    })
}

/// Fails if the module is not loaded.
pub(crate) fn check_module() -> Result<(), Failure> {
    if Path::new(ibmsg::DEVICE).exists() {
        return Ok(());
    }
    let error = std::io::Error::from_raw_os_error(2);
    let doing = Doing::Open;
    let error = ibmsg::Error::System { doing, error };
    Err(Failure::of(ibmsg::DEVICE, &error))
}

pub(crate) fn run(out: Out) -> Result<(), Failure> {
    check_module()?;
    for open in list(Path::new("/")) {
        out.say(line(&open), document(&open))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(is_channel: bool, text: &str) -> Open {
        Open {
            pid: 7,
            program: "se\u{1b}rver".into(),
            fd: 4,
            is_channel,
            fields: ibmsg::fdinfo::fields(text),
        }
    }

    #[test]
    fn lines_and_documents() {
        let portal = open(false, "portal:\t12\noffers:\t2\n");
        assert_eq!(
            line(&portal),
            "portal   12: 2 offers; se\\u{1b}rver (7), descriptor 4"
        );
        assert_eq!(
            document(&portal)["fields"],
            json!({"portal": "12", "offers": 2})
        );
        let text = "session:\tlocal\nportal:\tkv\nchannel:\t3\nstate:\t2\nsent:\t9\nqueued:\t8\ntaken:\t7\n\
                    received:\t6\nwaiting:\t5\n";
        let channel = open(true, text);
        assert_eq!(
            line(&channel),
            "channel  kv of local, number 3: open, 9 sent, 8 queued, 7 read, 6 received, 5 wait; \
             se\\u{1b}rver (7), descriptor 4"
        );
        assert_eq!(document(&channel)["fields"]["state"], "open");
        assert!(line(&open(true, "state:\t99\n")).contains("number ?: ?"));
    }
}
