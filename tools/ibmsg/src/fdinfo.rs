// SPDX-License-Identifier: GPL-2.0

//! The portals and channels of all processes, from `/proc/PID/fdinfo`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A portal or a channel that a process has open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// The process.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The descriptor.
    pub fd: u32,
    /// It is a channel, not a portal.
    pub is_channel: bool,
    /// What the kernel says about it, by its names.
    pub fields: BTreeMap<String, String>,
}

/// The lines of a file in fdinfo that are about a portal or a channel.
pub fn fields(text: &str) -> BTreeMap<String, String> {
    let general = ["pos", "flags", "mnt_id", "ino"];
    text.lines()
        .filter_map(|line| line.split_once(":\t"))
        .filter(|(name, _)| !general.contains(name))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The portals and channels of all processes that this one may look at. `root` is `/`.
pub fn list(root: &Path) -> Vec<Open> {
    let mut found = Vec::new();
    let numbers = |path: &Path| -> Vec<u32> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).collect()
    };
    let proc = root.join("proc");
    let mut pids = numbers(&proc);
    pids.sort_unstable();
    for pid in pids {
        let process = proc.join(pid.to_string());
        let mut fds = numbers(&process.join("fd"));
        fds.sort_unstable();
        for fd in fds {
            // The process may have closed it since.
            let target = fs::read_link(process.join("fd").join(fd.to_string()));
            let is_channel = match target.ok().as_deref().and_then(Path::to_str) {
                Some("anon_inode:[ibmsg-channel]") => true,
                Some("anon_inode:[ibmsg-portal]") => false,
                _ => continue,
            };
            let said = fs::read_to_string(process.join("fdinfo").join(fd.to_string()));
            let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(Open {
                pid,
                program: program.trim_end().to_owned(),
                fd,
                is_channel,
                fields: fields(&said.unwrap_or_default()),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_have() {
        let root = tempfile::tempdir().expect("a folder");
        let process = root.path().join("proc/12");
        for folder in ["fd", "fdinfo"] {
            fs::create_dir_all(process.join(folder)).expect("a folder");
        }
        fs::create_dir_all(root.path().join("proc/self")).expect("a folder");
        fs::write(process.join("comm"), "server\n").expect("a file");
        let link = |fd: &str, to: &str| {
            std::os::unix::fs::symlink(to, process.join("fd").join(fd)).expect("a link");
        };
        link("3", "/dev/ibmsg");
        link("11", "anon_inode:[ibmsg-channel]");
        link("4", "anon_inode:[ibmsg-portal]");
        let text =
            "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t9\nportal:\tkv\noffers:\t2\nodd\n";
        fs::write(process.join("fdinfo/4"), text).expect("a file");
        let found = list(root.path());
        let short: Vec<_> = found
            .iter()
            .map(|open| (open.fd, open.is_channel))
            .collect();
        assert_eq!(short, [(4, false), (11, true)]);
        let portal = &found[0];
        assert_eq!((portal.pid, portal.program.as_str()), (12, "server"));
        let fields: Vec<_> = portal
            .fields
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        assert_eq!(fields, [("offers", "2"), ("portal", "kv")]);
        // The other one is gone.
        assert!(found[1].fields.is_empty());
        assert!(list(Path::new("/nowhere")).is_empty());
    }
}
