// SPDX-License-Identifier: GPL-2.0

//! What is said of a server that was stopped as planned.

/// When it will be back: `back in 540 s`.
pub fn back(left_s: u64) -> String {
    match left_s {
        0 => "late".to_owned(),
        left => format!("back in {left} s"),
    }
}
