// SPDX-License-Identifier: GPL-2.0

//! The servers that a client has joined: the file `joined.toml`, which `ibnbd join` writes, and in
//! which `ibnbd map NAME` looks for the server of a disk.

use std::io;
use std::net::IpAddr;

use ibtrs_proto::auth::KeyId;
use serde::{Deserialize, Serialize};

use super::handshake::Place;
use crate::mapping::Mapping;
use crate::root::Root;

/// The file.
pub const FILE: &str = "/etc/ibtrs/joined.toml";

const HEAD: &str = "\
# Servers that this machine has joined, which `ibnbd join` writes. `ibnbd map NAME` maps NAME of the
# one that exports it.
";

/// A server, and the session that it knows this machine by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    /// The session's name.
    pub session: String,
    /// Addresses of the server, with `ip:` or `gid:`.
    pub addresses: Vec<String>,
    /// The port of all of them.
    pub port: u16,
    /// Where this machine joined it.
    pub joined_at: Vec<IpAddr>,
    /// The id of the key, if it is not the usual one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key_id: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    server: Vec<Joined>,
}

impl Joined {
    /// The server that a client has joined by a session.
    pub fn new(session: &str, id: &KeyId, place: &Place, joined_at: &[IpAddr]) -> Self {
        Self {
            key_id: (*id != KeyId::default()).then(|| id.as_str().to_owned()),
            joined_at: joined_at.to_vec(),
            session: session.to_owned(),
            addresses: place.addresses.clone(),
            port: place.port,
        }
    }

    /// The session with it.
    pub fn mapping(&self) -> Mapping {
        Mapping {
            session: self.session.clone(),
            paths: self.addresses.clone(),
            port: (self.port != 1234).then_some(self.port),
            key_id: self.key_id.clone(),
            ..Mapping::default()
        }
    }

    /// Whether a token with these addresses is for the same server.
    pub fn is_at(&self, addresses: &[IpAddr]) -> bool {
        let is_own = |address: &IpAddr| {
            self.joined_at.contains(address) || self.addresses.contains(&format!("ip:{address}"))
        };
        addresses.iter().any(is_own)
    }
}

/// All servers that were joined.
///
/// # Errors
///
/// The system's; `InvalidData` with the reason if the file is wrong.
pub fn all(root: &Root) -> io::Result<Vec<Joined>> {
    let text = match root.read(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let file: Result<File, _> = toml_edit::de::from_str(&text);
    let file = file.map_err(|error| {
        let why = error.to_string();
        io::Error::new(io::ErrorKind::InvalidData, why.trim_end().to_owned())
    })?;
    Ok(file.server)
}

/// The id of the key of a session that was made by joining a server, unless it is the usual one.
pub fn key_id(root: &Root, session: &str) -> Option<String> {
    // Commands that need more of a file that is wrong report it.
    let all = all(root).unwrap_or_default();
    let own = all.into_iter().find(|joined| joined.session == session);
    own.and_then(|joined| joined.key_id)
}

/// The text of the file with a server in it, in place of the one of the same session.
///
/// # Errors
///
/// As of [`all`].
pub fn with(root: &Root, server: &Joined) -> io::Result<String> {
    let mut servers = all(root)?;
    servers.retain(|other| other.session != server.session);
    servers.push(server.clone());
    let text = toml_edit::ser::to_string_pretty(&File { server: servers });
    let text = text.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{HEAD}\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn joined(session: &str, address: &str) -> Joined {
        Joined {
            session: session.to_owned(),
            addresses: vec![address.to_owned(), "ip:10.0.9.1".to_owned()],
            port: 1235,
            joined_at: vec!["192.168.1.1".parse().unwrap()],
            key_id: None,
        }
    }

    #[test]
    fn servers_are_kept_by_session() {
        let tree = Tree::new();
        let root = Root::new(tree.base());
        assert_eq!(all(&root).unwrap(), []);
        let (first, second) = (joined("a", "ip:10.0.1.1"), joined("b", "ip:10.0.2.1"));
        tree.file(FILE, with(&root, &first).unwrap());
        tree.file(FILE, with(&root, &second).unwrap());
        assert_eq!(all(&root).unwrap(), [first, second.clone()]);
        let moved = joined("a", "ip:10.0.3.1");
        tree.file(FILE, with(&root, &moved).unwrap());
        assert_eq!(all(&root).unwrap(), [second, moved]);
        assert!(tree.text(FILE).starts_with("# Servers"));
        assert!(!tree.text(FILE).contains("key_id"));
        let again = Joined {
            key_id: Some("join-1".to_owned()),
            ..joined("a", "ip:10.0.3.1")
        };
        tree.file(FILE, with(&root, &again).unwrap());
        assert_eq!(key_id(&root, "a").as_deref(), Some("join-1"));
        assert_eq!((key_id(&root, "b"), key_id(&root, "c")), (None, None));
        assert_eq!(again.mapping().key_id.as_deref(), Some("join-1"));
    }

    #[test]
    fn a_server_is_known_by_each_of_its_addresses() {
        let server = joined("a", "ip:10.0.1.1");
        let is_at =
            |text: &str| server.is_at(&["10.9.9.9".parse().unwrap(), text.parse().unwrap()]);
        assert!(is_at("10.0.1.1") && is_at("10.0.9.1") && is_at("192.168.1.1"));
        assert!(!is_at("10.0.2.1"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let tree = Tree::new();
        let root = Root::new(tree.base());
        for text in ["[[server]]\nsession = 1\n", "x = 1\n", "[[server"] {
            tree.file(FILE, text);
            let error = all(&root).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(
                error.to_string().contains("line 1") || error.to_string().contains("line 2"),
                "{error}"
            );
        }
    }
}
