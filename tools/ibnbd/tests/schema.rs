// SPDX-License-Identifier: GPL-2.0

//! Validates the documents that the command prints against `Documentation/tool.schema.json`, as any
//! other program could.

mod tree;

use ibnbd_host::uevent;
use serde_json::{json, Value};
use tree::ran::run;
use tree::Tree;

const SCHEMA: &str = include_str!("../../../Documentation/tool.schema.json");

/// Keywords that say nothing of the value.
const NOTES: [&str; 6] = [
    "$schema",
    "$defs",
    "title",
    "description",
    "format",
    "default",
];

/// Validates values by the keywords of JSON Schema (draft 2020-12) that the file has; any other one
/// is a fault of the test.
struct Validator {
    schema: Value,
}

impl Validator {
    fn new() -> Self {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let draft = "https://json-schema.org/draft/2020-12/schema";
        assert_eq!(schema["$schema"], draft);
        Self { schema }
    }

    /// The faults of the document of a command.
    fn faults(&self, command: &str, document: &Value) -> Vec<String> {
        let schema = &self.schema["properties"][command];
        assert!(schema.is_object(), "no schema of {command}");
        let mut faults = Vec::new();
        self.look(schema, document, command, &mut faults);
        faults
    }

    fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        let mut faults = Vec::new();
        self.look(schema, value, "", &mut faults);
        faults.is_empty()
    }

    fn look(&self, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        // Those that are true or false.
        let Value::Object(keywords) = schema else {
            assert!(schema.is_boolean(), "{at}: {schema}");
            if *schema == Value::Bool(false) {
                faults.push(format!("{at}: nothing may be here"));
            }
            return;
        };
        for (keyword, rule) in keywords {
            let mut fault = |is_right: bool| {
                if !is_right {
                    faults.push(format!("{at}: {value} against {keyword} {rule}"));
                }
            };
            let valid = |schemas: &Value| {
                let schemas = schemas.as_array().unwrap();
                schemas.iter().filter(|s| self.is_valid(s, value)).count()
            };
            match keyword.as_str() {
                "type" => fault(match rule {
                    Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                    kind => is_of(kind, value),
                }),
                "const" => fault(value == rule),
                "enum" => fault(rule.as_array().unwrap().contains(value)),
                "minimum" => fault(value.as_f64().is_none_or(|n| n >= rule.as_f64().unwrap())),
                "maximum" => fault(value.as_f64().is_none_or(|n| n <= rule.as_f64().unwrap())),
                "anyOf" => fault(valid(rule) > 0),
                "oneOf" => fault(valid(rule) == 1),
                "required" => {
                    for name in rule.as_array().unwrap() {
                        fault(value.get(name.as_str().unwrap()).is_some() || !value.is_object());
                    }
                }
                "$ref" => {
                    let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    let schema = &self.schema["$defs"][name];
                    assert!(!schema.is_null(), "{rule}");
                    self.look(schema, value, at, faults);
                }
                "items" => {
                    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.look(rule, item, &format!("{at}/{number}"), faults);
                    }
                }
                "properties" => {
                    for (name, schema) in rule.as_object().unwrap() {
                        if let Some(field) = value.get(name) {
                            self.look(schema, field, &format!("{at}/{name}"), faults);
                        }
                    }
                }
                "additionalProperties" => {
                    let known = keywords.get("properties").and_then(Value::as_object);
                    for (name, field) in value.as_object().into_iter().flatten() {
                        if known.is_none_or(|known| !known.contains_key(name)) {
                            self.look(rule, field, &format!("{at}/{name}"), faults);
                        }
                    }
                }
                other => assert!(NOTES.contains(&other), "{at}: keyword {other}"),
            }
        }
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}

/// A machine that has something of each kind.
fn machine() -> Tree {
    let tree = Tree::new();
    tree.usual_client().mainline().server("/exports");
    tree.authenticated("u", "10.0.1.3", "10.0.1.1", "default")
        .opened("sda", "u", "a");
    tree.host("web1")
        .export("disk1", "/dev/sda", &["web1"])
        .port("left", "ip:10.0.1.1");
    tree.keyctl().file("/ring", "21\n").file(
        "/proc/keys",
        "00000015 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:s: 32\n",
    );
    // Half of it cannot be read.
    tree.file("/sys/block/ibnbd1/ibnbd/io_timeout_limit", "?\n");
    let found = "/sys/class/ibnbd-client/ctl/discovered/s";
    tree.file("/sys/class/ibnbd-client/ctl/discover", "").files(
        found,
        &[
            ("number", "7\n"),
            ("request", "sessname=s path=ip:10.0.1.1\n"),
            ("portals", "ip:10.0.1.1 1234\n"),
            ("port", "1234\n"),
            ("unlisted", "0\n"),
            ("pages", "1\n"),
            ("0/exports", "disk1 rw 131072 512\nx ro 0 0\n"),
        ],
    );
    tree
}

#[track_caller]
fn printed(tree: &Tree, words: &str) -> Value {
    let words: Vec<&str> = words.split(' ').chain(["-o", "json"]).collect();
    let ran = run(tree, &words);
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", ran.err))
}

#[test]
fn each_document_is_as_the_schema_says() {
    let (validator, tree) = (Validator::new(), machine());
    let mut seen = Vec::new();
    for (command, words) in [
        ("list", "list"),
        ("sessions", "sessions"),
        ("paths", "paths"),
        ("tree", "tree"),
        ("stats", "stats"),
        ("show", "show ibnbd0"),
        ("show", "show ibnbd1"),
        ("show", "show rnbd0"),
        ("show", "show s"),
        ("show", "show u"),
        ("show", "show s/10.0.1.1"),
        ("show", "show sda"),
        ("clients", "clients"),
        ("export list", "export list"),
        ("export list", "export list --directory /exports"),
        ("host list", "host list"),
        ("port list", "port list"),
        ("key list", "key list"),
        ("discover", "discover 10.0.1.1 --session s"),
        ("check", "check"),
        ("events", "events"),
        ("status", "status"),
    ] {
        tree.folder("/exports");
        let document = printed(&tree, words);
        assert_eq!(validator.faults(command, &document), [""; 0], "{words}");
        assert_eq!(document["format"], 1);
        seen.push(command);
    }
    let message = b"change@/x/ibnbd0\0SUBSYSTEM=block\0IBNBD_STATE=closed\0";
    let event = serde_json::to_value(uevent::parse(message, 5).unwrap()).unwrap();
    assert_eq!(validator.faults("watch", &event), [""; 0]);
    seen.extend(["watch", "trace"]);
    for command in validator.schema["properties"].as_object().unwrap().keys() {
        assert!(seen.contains(&command.as_str()), "{command}");
    }
}

#[test]
fn a_machine_without_anything_is_as_the_schema_says() {
    let (validator, tree) = (Validator::new(), Tree::new());
    for command in [
        "list", "sessions", "paths", "tree", "stats", "clients", "check", "status",
    ] {
        let document = printed(&tree, command);
        assert_eq!(validator.faults(command, &document), [""; 0], "{command}");
    }
}

/// A program must not fail when a later version tells more.
#[test]
fn further_fields_are_allowed() {
    let (validator, tree) = (Validator::new(), machine());
    let mut document = printed(&tree, "list");
    document["colour"] = json!("red");
    document["disks"][0]["colour"] = json!({"is": ["red", 3]});
    assert_eq!(validator.faults("list", &document), [""; 0]);
}

#[test]
fn what_is_not_as_the_schema_says_is_found() {
    let (validator, tree) = (Validator::new(), machine());
    let list = printed(&tree, "list");
    let changes: [fn(&mut Value); 8] = [
        |list| list["disks"][0]["name"] = json!(3),
        |list| list["disks"][0]["size_bytes"] = json!(-1),
        |list| list["disks"][0]["size_bytes"] = json!("64"),
        |list| list["disks"][0]["family"] = json!("nbd"),
        |list| list["disks"][0]["cache_lost"] = json!(0),
        |list| list["disks"][1] = json!([]),
        |list| list["opened"] = Value::Null,
        |list| {
            list.as_object_mut().unwrap().remove("disks");
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut document = list.clone();
        change(&mut document);
        assert_eq!(validator.faults("list", &document).len(), 1, "{number}");
    }
    assert!(!validator.faults("status", &list).is_empty());
}
