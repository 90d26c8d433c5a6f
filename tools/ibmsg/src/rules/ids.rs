// SPDX-License-Identifier: GPL-2.0

//! Numbers of users and groups, from wherever this machine has their names.

use std::io;
use std::process::Command;

/// Which names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// Users.
    Users,
    /// Groups.
    Groups,
}

/// How `getent` is run: with a database and a name. Returns its output, or an error if it fails.
pub type Getent<'a> = &'a dyn Fn(&str, &str) -> io::Result<Vec<u8>>;

/// The number of a user or group. `getent` asks all sources of names that the system has.
///
/// # Errors
///
/// Why there is none, for a person.
pub fn number(of: Of, name: &str) -> Result<u32, String> {
    let getent = |database: &str, name: &str| {
        let found = Command::new("getent").args([database, name]).output()?;
        match found.status.success() {
            true => Ok(found.stdout),
            false => Err(io::ErrorKind::Other.into()),
        }
    };
    number_by(&getent, of, name)
}

/// The same, with another `getent`.
///
/// # Errors
///
/// As of [`number`].
pub fn number_by(getent: Getent<'_>, of: Of, name: &str) -> Result<u32, String> {
    let (database, what) = match of {
        Of::Users => ("passwd", "user"),
        Of::Groups => ("group", "group"),
    };
    let unknown = || format!("there is no {what} {name:?}");
    // It would take a number for an id, and a dash for an option.
    if name.is_empty() || name.starts_with('-') || name.bytes().all(|b| b.is_ascii_digit()) {
        return Err(unknown());
    }
    let found = match getent(database, name) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::Other => return Err(unknown()),
        Err(e) => return Err(format!("getent, which finds users by name: {e}")),
    };
    let text = String::from_utf8_lossy(&found);
    // NAME:PASSWORD:NUMBER:...
    let number = text
        .split(':')
        .nth(2)
        .and_then(|number| number.parse().ok());
    number.ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(number(Of::Users, "root"), Ok(0));
        assert_eq!(number(Of::Groups, "root"), Ok(0));
        for name in ["no such user", "", "-s", "0"] {
            let why = number(Of::Users, name).expect_err("no number");
            assert!(why.contains("there is no user"), "{why}");
        }
        let why = number(Of::Groups, "no-such-group").expect_err("no number");
        assert_eq!(why, "there is no group \"no-such-group\"");
    }
}
