// SPDX-License-Identifier: GPL-2.0

//! Lists of users, groups and hosts.

use ibmsg_proto::access::{
    self,
    ListError, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::configfs::Buf;

use crate::{
    access::List,
    types::Name, //
};

/// The list that an operator has written, or the wrong entry in it, or [`ENOMEM`].
pub(super) type Parsed<T> = Result<Arc<List<T>>, Result<ListError, Error>>;

/// Parses ids of users or groups.
pub(super) fn ids(input: &[u8]) -> Parsed<u32> {
    List::new(access::ids(input).map_err(Ok)?)
}

/// Parses names of hosts.
pub(super) fn hosts(input: &[u8]) -> Parsed<Name> {
    let words = access::hosts(input).map_err(Ok)?;
    List::new(words.map(|word| match word? {
        access::Entry::Any => Ok(access::Entry::Any),
        access::Entry::One(name) => match Name::new(name.as_str().as_bytes()) {
            Ok(name) => Ok(access::Entry::One(name)),
            Err(_) => Err(ListError::Host),
        },
    }))
}

/// Shows a list as it can be written.
///
/// # Errors
///
/// Those of [`Buf::write`].
pub(super) fn show<T: Ord + kernel::fmt::Display>(buf: &mut Buf<'_>, list: &List<T>) -> Result {
    let mut blank = "";
    if list.has_all {
        buf.write(fmt!("any"))?;
        blank = " ";
    }
    for entry in list.entries() {
        buf.write(fmt!("{}{}", blank, entry))?;
        blank = " ";
    }
    buf.bytes(b"\n")
}
