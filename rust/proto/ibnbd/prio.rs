// SPDX-License-Identifier: GPL-2.0

//! I/O priorities as Linux encodes them: a class in the upper three bits, hints, and a level in
//! the lower three.

const CLASS_SHIFT: u32 = 13;
const REST: u16 = (1 << CLASS_SHIFT) - 1;
const NONE: u16 = 0;
const REALTIME: u16 = 1;
const BEST_EFFORT: u16 = 2;
const IDLE: u16 = 3;

/// The priority that the server gives a request whose client asks for `asked`.
///
/// A client of the realtime class would starve every other user of the disk, the server's own
/// included, so the class becomes best effort unless `allow_realtime` is set. The level and the
/// hints stay. A class that Linux does not have is no priority.
#[inline]
pub const fn granted(asked: u16, allow_realtime: bool) -> u16 {
    match asked >> CLASS_SHIFT {
        REALTIME if !allow_realtime => BEST_EFFORT << CLASS_SHIFT | asked & REST,
        NONE | REALTIME | BEST_EFFORT | IDLE => asked,
        _ => 0,
    }
}
