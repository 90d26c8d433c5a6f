// SPDX-License-Identifier: GPL-2.0

//! The settings that the driver declares, in the command and in the documentation.
//!
//! To write what is generated from the declarations: `make generated`.

mod tree;

use ibtrs_proto::settings::Setting;
use tree::ran::good;
use tree::{is_generated, of_package, Tree};

#[test]
fn the_walk_of_sysfs_has_each_setting() {
    let line = |setting: Setting| {
        let least = match setting.may_be_unlimited {
            true => -1,
            false => i64::from(setting.min),
        };
        let Setting {
            name, max, default, ..
        } = setting;
        format!("    \"{name}\": _number({least}, {max}, {default}),\n")
    };
    let lines: String = Setting::ALL.map(line).concat();
    is_generated(
        "tools/testbed/sysfs_walk.py",
        "CLIENT_SETTINGS = {",
        "}",
        &lines,
    );
}

#[test]
fn the_abi_has_the_range_of_each_setting() {
    let file = of_package("../../Documentation/ABI/testing/sysfs-class-ibtrs-client");
    let text = std::fs::read_to_string(file).unwrap();
    for setting in Setting::ALL {
        let head = format!(
            "What:\t\t/sys/class/ibtrs-client/<session>/{}\n",
            setting.name
        );
        let entry = text.split(&head).nth(1).unwrap();
        let entry = entry.split("\nWhat:").next().unwrap();
        for number in [setting.min, setting.max, setting.default] {
            let words = |c: char| !c.is_ascii_digit();
            let found = entry.split(words).any(|word| word == number.to_string());
            assert!(found, "{}: {number}", setting.name);
        }
    }
}

#[test]
fn the_reference_has_each_setting() {
    let text = std::fs::read_to_string(of_package("../../Documentation/reference.md")).unwrap();
    for setting in Setting::ALL {
        assert!(
            text.contains(&format!("| `{}`", setting.name))
                || text.contains(&format!(", `{}` |", setting.name))
        );
    }
}

#[test]
fn the_help_of_set_names_each_setting() {
    let tree = Tree::new();
    let help = good(&tree, &["set", "--help"]);
    let named = |setting: &Setting| help.contains(&format!("{},", setting.name));
    assert!(Setting::ALL.iter().all(named), "{help}");
}
