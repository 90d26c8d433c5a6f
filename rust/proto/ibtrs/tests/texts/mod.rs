// SPDX-License-Identifier: GPL-2.0

//! Checks of the error texts of both protocols.

use std::collections::HashSet;

/// The texts of one type: lines of ASCII that begin and end with something, all of them different.
pub fn differ(of: &str, texts: &[&str]) {
    for text in texts {
        let is_line = text.bytes().all(|b| (b' '..=b'~').contains(&b));
        assert!(is_line && !text.is_empty(), "{of}: {text:?}");
        assert_eq!(*text, text.trim(), "{of}");
        assert_ne!(*text, "xyzzy", "{of}");
    }
    let set: HashSet<_> = texts.iter().collect();
    assert_eq!(set.len(), texts.len(), "{of}: {texts:?}");
}

/// All errors of a type, and the errno of each.
macro_rules! errors {
    ($type:ident: $($error:expr => $errno:ident,)*) => {
        texts::differ(stringify!($type), &[$($error.as_str()),*]);
        $(assert_eq!($error.errno(), Errno::$errno, "{:?}", $error);)*
    };
}
