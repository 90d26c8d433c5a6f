// SPDX-License-Identifier: GPL-2.0

//! What the services do at the next boot, by the files in `/etc/ibtrs`.

use std::io;

use super::{Finding, Severity};
use crate::config::plan::{self, Wish};
use crate::config::{self, Config};
use crate::configfs::Configured;
use crate::family::Side;
use crate::folder;
use crate::host;
use crate::join::{joined, store};
use crate::model::Machine;
use crate::root::Root;

pub(super) fn all(root: &Root, machine: &Machine) -> Vec<Finding> {
    let mut found: Vec<Finding> = of_joined(root).into_iter().collect();
    found.extend(
        store::doubles(root)
            .iter()
            .map(|session| of_double(session)),
    );
    let aside = store::sessions_aside(root).unwrap_or_default();
    found.extend(aside.iter().map(|session| of_aside(root, session)));
    let files = match config::files(root, config::FOLDER) {
        Ok(files) if files.is_empty() => return found,
        Ok(files) => files,
        Err((file, error)) => {
            found.push(unread(&file, &error));
            return found;
        }
    };
    match config::read(&files) {
        Err(problems) => {
            let remedy = "correct the line: until then the services do nothing at a boot";
            found.extend(
                problems
                    .iter()
                    .map(|problem| Finding::new(Severity::Error, problem.to_string(), remedy)),
            );
        }
        Ok(config) => {
            found.extend(to_do(root, machine, &config));
            found.extend(not_kept(root, machine, &config));
        }
    }
    found
}

fn unread(file: &str, error: &io::Error) -> Finding {
    let what = format!("{file} cannot be read: {error}");
    Finding::new(Severity::Error, what, "try it as root")
}

fn of_joined(root: &Root) -> Option<Finding> {
    let error = joined::all(root).err()?;
    let what = format!("{}: {error}", joined::FILE);
    let remedy = "correct it, or join the servers again: ibnbd join TOKEN";
    Some(Finding::new(Severity::Error, what, remedy))
}

/// A session with keys in two files.
fn of_double(session: &str) -> Finding {
    let what = format!(
        "/etc/ibtrs/keys has {session}.cred and {session}.key: the credential counts, and nothing reads the keys of \
         the other file, which are not encrypted"
    );
    let remedy = format!(
        "rm /etc/ibtrs/keys/{session}.key; or if its keys are the right ones: rm /etc/ibtrs/keys/{session}.cred, \
         then ibnbd key load {session} --kept"
    );
    Finding::new(Severity::Warning, what, remedy)
}

/// A host with keys that the command which removes it has set aside.
fn of_aside(root: &Root, host: &str) -> Finding {
    let files = store::files_aside(root, host);
    let what = format!(
        "the removal of host {host} was interrupted: no boot loads its keys in {}",
        files.join(" ")
    );
    let kept = files.iter().map(|file| {
        let before = file.trim_end_matches(store::ASIDE);
        format!("mv {file} {before}")
    });
    let kept: Vec<String> = kept.collect();
    let remedy = format!(
        "ibnbd host remove {host}, or ibnbd apply --prune; or if the keys are to stay: {}",
        kept.join("; ")
    );
    Finding::new(Severity::Warning, what, remedy)
}

/// What the files have, and the machine does not.
fn to_do(root: &Root, machine: &Machine, config: &Config) -> Vec<Finding> {
    // The names of servers are looked up at the boot: a check must not wait for that.
    let nowhere = |_: &str| Err(io::ErrorKind::NotFound.into());
    let wish = Wish {
        resolve: &nowhere,
        prune: false,
        side: None,
        disk: None,
    };
    let of_names = config::needs_names(config);
    let needs_names = |line: &str| !of_names.is_empty() && line.contains("no address is known");
    let steps = plan::steps(root, machine, config, &wish);
    let lines = steps.iter().map(ToString::to_string);
    let found = lines.filter(|line| !needs_names(line)).map(|line| {
        let what = format!("the next boot does what the machine has not now: {line}");
        Finding::new(
            Severity::Hint,
            what,
            "ibnbd apply does it now; ibnbd save takes over what there is",
        )
    });
    found.collect()
}

/// What the machine has, and will not have after a boot.
fn not_kept(root: &Root, machine: &Machine, config: &Config) -> Vec<Finding> {
    let kept = plan::disks(root, config);
    let mut lost = Vec::new();
    for disk in machine.our_disks() {
        let (session, device) = (disk.session.as_deref(), disk.mapping_path.as_deref());
        let is_kept = kept.iter().any(|(name, _)| {
            Some(name.session.as_str()) == session && Some(name.device.as_str()) == device
        });
        if !is_kept && session.is_some() {
            lost.push(format!("disk {}", disk.name));
        }
    }
    if host::has(root, Side::Server) {
        let configured = Configured::read(root, machine);
        let is_kept = |name: &str| {
            let mut exports = config.exports.iter();
            exports.any(|export| export.name == name || folder::last_part(&export.device) == name)
        };
        let exports = configured.exports.iter().map(|export| &export.name);
        lost.extend(
            exports
                .filter(|name| !is_kept(name))
                .map(|name| format!("export {name}")),
        );
        let hosts = configured.hosts.iter().map(|host| &host.name);
        let is_kept = |name: &&String| config.hosts.iter().any(|host| host.name == **name);
        lost.extend(
            hosts
                .filter(|name| !is_kept(name))
                .map(|name| format!("host {name}")),
        );
    }
    lost.iter()
        .map(|what| {
            let what = format!(
                "{what} is in no file of {}: the next boot does not bring it back",
                config::FOLDER
            );
            Finding::new(Severity::Hint, what, "ibnbd save")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn found(tree: &Tree) -> Vec<String> {
        let root = Root::new(tree.base());
        let found = all(&root, &Machine::read(&root));
        found
            .iter()
            .map(|finding| format!("{}: {}", finding.severity.as_str(), finding.what))
            .collect()
    }

    #[test]
    fn without_files_nothing_is_said() {
        let tree = Tree::new();
        tree.usual_client();
        assert_eq!(found(&tree), Vec::<String>::new());
    }

    #[test]
    fn a_file_of_keys_that_does_not_count_is_a_warning() {
        let tree = Tree::new();
        tree.file("/etc/ibtrs/keys/web1.key", "")
            .file("/etc/ibtrs/keys/web2.cred", "");
        assert_eq!(found(&tree), Vec::<String>::new());
        tree.file("/etc/ibtrs/keys/web1.cred", "");
        let found = found(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        let what = "warning: /etc/ibtrs/keys has web1.cred and web1.key: the credential counts";
        assert!(found[0].starts_with(what), "{found:?}");
    }

    #[test]
    fn a_removal_that_was_interrupted_is_a_warning() {
        let tree = Tree::new();
        tree.file("/etc/ibtrs/keys/web1.cred.gone", "")
            .file("/etc/ibtrs/keys/web1.key.gone", "");
        let what = "warning: the removal of host web1 was interrupted: no boot loads its keys in \
            /etc/ibtrs/keys/web1.cred.gone /etc/ibtrs/keys/web1.key.gone";
        assert_eq!(found(&tree), [what]);
    }

    #[test]
    fn each_wrong_line_is_an_error() {
        let tree = Tree::new();
        let text = "[[session]]\nname = \"a.b\"\nservers = [\"10.0.1.1\"]\nport = 0\n";
        tree.file("/etc/ibtrs/client.toml", text)
            .file(joined::FILE, "x = 1\n");
        let found = found(&tree);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].starts_with("error: /etc/ibtrs/joined.toml: "),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("error: /etc/ibtrs/client.toml:2:8: name: "),
            "{found:?}"
        );
        assert!(
            found[2].starts_with("error: /etc/ibtrs/client.toml:4:8: port: "),
            "{found:?}"
        );
    }

    #[test]
    fn what_the_next_boot_does_and_what_it_does_not_is_said() {
        let tree = Tree::new();
        tree.client()
            .session("s", &[("10.0.1.2", "10.0.1.1", "connected")])
            .disk(0, "s", "disk1");
        let text = "[[session]]\nname = \"s\"\nservers = [\"10.0.1.1\"]\n[[session.disk]]\ndevice = \"disk2\"\n";
        tree.file("/etc/ibtrs/client.toml", text);
        let found = found(&tree);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("not now: + map disk2 of session s"),
            "{found:?}"
        );
        assert_eq!(
            found[1],
            "hint: disk ibnbd0 is in no file of /etc/ibtrs: the next boot does not bring it back"
        );
    }

    #[test]
    fn exports_and_hosts_that_are_not_saved_are_named() {
        let tree = Tree::new();
        tree.server("")
            .host("web1")
            .export("disk1", "/dev/vdb", &["web1"])
            .file("/etc/ibtrs/server.toml", "");
        let found = found(&tree);
        assert!(
            found
                .iter()
                .any(|line| line.contains("export disk1 is in no file")),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .any(|line| line.contains("host web1 is in no file")),
            "{found:?}"
        );
    }
}
