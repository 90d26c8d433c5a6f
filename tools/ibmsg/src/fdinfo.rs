// SPDX-License-Identifier: GPL-2.0

//! The portals and channels of all processes, from `/proc/PID/fdinfo`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// Descriptors of all processes together that are examined at most. A process with more than are left is skipped.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// `enum ibmsg_state`
const STATES: [&str; 5] = ["unknown", "connecting", "open", "closing", "closed"];

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A message portal.
    Portal,
    /// A channel.
    Channel,
}

/// A process that has a portal or a channel open.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: u32,
    /// The name of its program.
    pub program: String,
}

/// The program and the process: `server (12)`. Any user can choose the name, so it is escaped.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.program.escape_debug(), self.pid)
    }
}

/// The lines of a file in fdinfo that are about a portal or a channel, by their names.
pub type Fields = BTreeMap<String, String>;

/// A portal or a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// Which of the two.
    pub kind: Kind,
    /// The processes that have it: one, unless it was inherited by `fork` or passed over a socket.
    pub owners: Vec<Owner>,
    /// What the kernel says about it; none if this process may not read that.
    pub fields: Option<Fields>,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Portals by their names, then channels by session and number. Those that could not be read come last.
    pub all: Vec<Open>,
    /// Processes that this one may not examine, or that have too many descriptors.
    pub unseen: usize,
}

impl Found {
    /// The portals.
    pub fn portals(&self) -> impl Iterator<Item = &Open> {
        self.all.iter().filter(|open| open.kind == Kind::Portal)
    }

    /// The channels.
    pub fn channels(&self) -> impl Iterator<Item = &Open> {
        self.all.iter().filter(|open| open.kind == Kind::Channel)
    }
}

impl Open {
    /// A field.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields.as_ref()?.get(name).map(String::as_str)
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The state of a channel; none if it could not be read.
    pub fn state(&self) -> Option<&'static str> {
        let number = usize::try_from(self.number("state")?).ok();
        let state = number.and_then(|number| STATES.get(number));
        Some(state.copied().unwrap_or(STATES[0]))
    }

    /// How a channel is named: `SESSION/NUMBER`. Both ends of a channel of this machine have the same one.
    pub fn name(&self) -> Option<String> {
        match self.kind {
            Kind::Portal => self.text("portal").map(str::to_owned),
            Kind::Channel => Some(format!(
                "{}/{}",
                self.text("session")?,
                self.text("channel")?
            )),
        }
    }

    /// What tells it from all others.
    fn key(&self) -> Key {
        let field = |name| self.text(name).unwrap_or_default().to_owned();
        let number = |name| self.number(name).unwrap_or(0);
        // Kernels that number no files have a row for each process.
        let first = self.number("file").is_none() && self.kind == Kind::Channel;
        let owner = self
            .owners
            .first()
            .filter(|_| first || self.fields.is_none());
        Key {
            kind: self.kind,
            is_unread: self.fields.is_none(),
            session: field("session"),
            channel: number("channel"),
            portal: field("portal"),
            file: number("file"),
            owner: owner.map(|owner| (owner.pid, owner.fd)),
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: Kind,
    is_unread: bool,
    session: String,
    channel: u64,
    portal: String,
    file: u64,
    owner: Option<(u32, u32)>,
}

/// The lines of a file in fdinfo that are about a portal or a channel.
pub fn fields(text: &str) -> Fields {
    let general = ["pos", "flags", "mnt_id", "ino"];
    text.lines()
        .filter_map(|line| line.split_once(":\t"))
        .filter(|(name, _)| !general.contains(name))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn numbers(path: &Path) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(path)?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

/// The portals and channels of all processes that this one may examine: all for root, else only those of the
/// same user. `root` is `/`. Each process is examined once.
pub fn read(root: &Path) -> Found {
    let proc = root.join("proc");
    let (mut found, mut unseen, mut left) = (BTreeMap::new(), 0, MAX_DESCRIPTORS);
    let mut pids = numbers(&proc).unwrap_or_default();
    pids.sort_unstable();
    for pid in pids {
        let process = proc.join(pid.to_string());
        match numbers(&process.join("fd")) {
            Ok(fds) if fds.len() <= left => {
                left -= fds.len();
                for fd in fds {
                    add(&mut found, &process, pid, fd);
                }
            }
            Err(e) if is_gone(&e) => {}
            Ok(_) | Err(_) => unseen += 1,
        }
    }
    let mut all: Vec<Open> = found.into_values().collect();
    for open in &mut all {
        open.owners.sort_unstable();
    }
    Found { all, unseen }
}

/// The process has ended, or has closed the descriptor.
fn is_gone(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

fn add(found: &mut BTreeMap<Key, Open>, process: &Path, pid: u32, fd: u32) {
    let target = fs::read_link(process.join("fd").join(fd.to_string()));
    let kind = match target.ok().as_deref().and_then(Path::to_str) {
        Some("anon_inode:[ibmsg-channel]") => Kind::Channel,
        Some("anon_inode:[ibmsg-portal]") => Kind::Portal,
        _ => return,
    };
    let fields = match fs::read_to_string(process.join("fdinfo").join(fd.to_string())) {
        Ok(text) => Some(fields(&text)),
        Err(e) if is_gone(&e) => return,
        Err(_) => None,
    };
    // The kernel says nothing about a file that is just being closed.
    if fields.as_ref().is_some_and(Fields::is_empty) {
        return;
    }
    let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let owner = Owner {
        pid,
        fd,
        program: program.trim_end().to_owned(),
    };
    let open = Open {
        kind,
        owners: vec![owner.clone()],
        fields,
    };
    found
        .entry(open.key())
        .and_modify(|first| first.owners.push(owner))
        .or_insert(open);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up `/proc`.
    struct Root(tempfile::TempDir);

    impl Root {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn process(&self, pid: u32, program: &str) {
            let process = self.0.path().join(format!("proc/{pid}"));
            for folder in ["fd", "fdinfo"] {
                fs::create_dir_all(process.join(folder)).expect("a folder");
            }
            fs::write(process.join("comm"), format!("{program}\n")).expect("a file");
        }

        fn descriptor(&self, pid: u32, fd: u32, to: &str, info: &str) {
            let process = self.0.path().join(format!("proc/{pid}"));
            std::os::unix::fs::symlink(to, process.join(format!("fd/{fd}"))).expect("a link");
            fs::write(process.join(format!("fdinfo/{fd}")), info).expect("a file");
        }
    }

    const CHANNEL: &str = "anon_inode:[ibmsg-channel]";
    const PORTAL: &str = "anon_inode:[ibmsg-portal]";

    #[test]
    fn what_processes_have() {
        let root = Root::new();
        root.process(12, "server");
        fs::create_dir_all(root.0.path().join("proc/self")).expect("a folder");
        root.descriptor(12, 3, "/dev/ibmsg", "pos:\t0\n");
        let text =
            "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t9\nportal:\tkv\noffers:\t2\nodd\n";
        root.descriptor(12, 4, PORTAL, text);
        // One that was closed, and one that is just being closed.
        let gone = root.0.path().join("proc/12");
        std::os::unix::fs::symlink(CHANNEL, gone.join("fd/11")).expect("a link");
        root.descriptor(12, 13, CHANNEL, "pos:\t0\n");
        let found = read(root.0.path());
        assert_eq!((found.all.len(), found.unseen), (1, 0));
        let portal = &found.all[0];
        assert_eq!(portal.kind, Kind::Portal);
        assert_eq!(
            (portal.name().as_deref(), portal.number("offers")),
            (Some("kv"), Some(2))
        );
        let owner = &portal.owners[0];
        assert_eq!(
            (owner.pid, owner.fd, owner.program.as_str()),
            (12, 4, "server")
        );
        assert_eq!(portal.fields.as_ref().map(Fields::len), Some(2));
        assert_eq!(read(Path::new("/nowhere")), Found::default());
    }

    #[test]
    fn a_channel_of_several_processes_is_one() {
        let root = Root::new();
        let info = |file: u32, side: &str, number: u32| {
            format!("file:\t{file}\nsession:\tlocal\nside:\t{side}\nportal:\tkv\nchannel:\t{number}\nstate:\t2\n")
        };
        for pid in [9, 10] {
            root.process(pid, "worker");
            root.descriptor(pid, 5, CHANNEL, &info(7, "server", 10));
        }
        root.descriptor(9, 6, CHANNEL, &info(7, "server", 10));
        root.process(11, "client");
        root.descriptor(11, 3, CHANNEL, &info(6, "client", 10));
        root.descriptor(11, 4, CHANNEL, &info(8, "client", 9));
        let found = read(root.0.path());
        let rows: Vec<_> = found
            .channels()
            .map(|open| {
                let owners: Vec<_> = open.owners.iter().map(|o| (o.pid, o.fd)).collect();
                (open.name().unwrap_or_default(), open.state(), owners)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("local/9".to_owned(), Some("open"), vec![(11, 4)]),
                ("local/10".to_owned(), Some("open"), vec![(11, 3)]),
                (
                    "local/10".to_owned(),
                    Some("open"),
                    vec![(9, 5), (9, 6), (10, 5)]
                ),
            ]
        );
        assert_eq!(found.portals().count(), 0);
    }

    #[test]
    fn what_may_not_be_read_is_not_permitted() {
        let root = Root::new();
        root.process(12, "server");
        root.descriptor(12, 4, CHANNEL, "x");
        // Reading a folder fails as reading a file without the right to it does, also for root.
        let info = root.0.path().join("proc/12/fdinfo/4");
        fs::remove_file(&info).expect("no file");
        fs::create_dir(&info).expect("a folder");
        // So does listing a file.
        fs::create_dir_all(root.0.path().join("proc/13")).expect("a folder");
        fs::write(root.0.path().join("proc/13/fd"), "").expect("a file");
        let found = read(root.0.path());
        assert_eq!((found.all.len(), found.unseen), (1, 1));
        let open = &found.all[0];
        assert_eq!(
            (open.name(), open.state(), open.owners.len()),
            (None, None, 1)
        );
    }
}
