// SPDX-License-Identifier: GPL-2.0

//! Lines on standard error.

/// Prints a line on standard error, after the name of the program, if anybody reads it.
///
/// `eprintln!` panics when nobody does: `ibnbd ... 2>&1 | head` has ended, the terminal is gone, or
/// the service manager has closed its end. A command must not stop half-way because of that.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::note::print(format_args!("ibnbd: {}\n", format_args!($($words)*)))
    };
}

/// Prints text on standard error, if anybody reads it.
pub(crate) fn print(text: std::fmt::Arguments<'_>) {
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), text);
}
