// SPDX-License-Identifier: GPL-2.0

//! Explanations of error numbers, and advice.

use ibtrs_proto::auth::AuthError;
use ibtrs_proto::Errno;

/// The task that was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// A disk was to be mapped.
    Map,
    /// A server was to be asked for its exports. What [`Task::Map`] says of connecting holds as well.
    Discover,
    /// A disk was to be unmapped.
    Unmap,
    /// A disk was to be opened again.
    Remap,
    /// A disk was to have another size.
    Resize,
    /// A path was to be added, or connected.
    Path,
    /// A setting was to be changed.
    Set,
    /// A device was to be taken from a client.
    Close,
    /// A server was to be drained.
    Drain,
    /// An export in configfs was to be changed.
    Export,
    /// A host in configfs was to be changed.
    Host,
    /// A port in configfs was to be changed.
    Port,
    /// Something else.
    Other,
}

/// An error of a task: the reason, and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Of which task.
    pub task: Task,
    /// Which error.
    pub errno: Errno,
    /// Words of the kernel's line for it, if only that tells it from others of the number.
    pub line: Option<&'static str>,
    /// The reason, in words.
    pub why: &'static str,
    /// The remedy.
    pub todo: &'static str,
}

const fn advice(task: Task, errno: Errno, why: &'static str, todo: &'static str) -> Advice {
    Advice {
        task,
        errno,
        line: None,
        why,
        todo,
    }
}

impl Advice {
    /// The same for the case that the kernel's line has these words.
    const fn with_line(mut self, line: &'static str) -> Self {
        self.line = Some(line);
        self
    }
}

/// The kernel's words when a mapping has failed before the server was asked for the device.
const NO_SESSION: &str = "the session cannot be opened";
/// Its words when the server has refused the device.
const NOT_OPENED: &str = "cannot open the device on the server";
/// Where an address leads, and whose silence it may be.
const SILENCE: &str = "check that the server is up and its address right, that ibnbd_server is loaded there and `rdma link` shows its RDMA device, and that RoCE's UDP port 4791 passes firewalls";
const KEYS: &str = "load the same key on both: `ibnbd key load SESSION`; see `ibnbd key list`; the session's name (--session) must be that of a host of the server: see `ibnbd host list` there";

/// Errors that have advice of their own; `Documentation/troubleshooting.md` has the same words.
pub const TABLE: &[Advice] = &[
    advice(Task::Map, Errno::EEXIST, "the device is mapped on that session, or another network namespace has a session with this name", "see `ibnbd list`; take another --session"),
    advice(Task::Map, Errno::ENXIO, "the session does not exist, and no path is given", "give the server's address"),
    advice(Task::Map, Errno::ENETUNREACH, "no route leads to the address", "check routes and the address"),
    advice(Task::Map, Errno::EHOSTUNREACH, "no route leads to the address", "check routes and the address"),
    advice(Task::Map, Errno::ENODEV, "no RDMA device leads to the address", "see `rdma link`; make one with `rdma link add rxe0 type rxe netdev INTERFACE`").with_line(NO_SESSION),
    advice(Task::Map, Errno::ENODEV, "the export is disabled on the server", "`ibnbd export enable` on the server").with_line(NOT_OPENED),
    advice(Task::Map, Errno::ENODEV, "no RDMA device leads to the address, or the export is disabled", "see `rdma link`; make one with `rdma link add rxe0 type rxe netdev INTERFACE`; `ibnbd export enable` on the server"),
    advice(Task::Map, Errno::EADDRNOTAVAIL, "the source address does not belong to this machine", "check --path; see `ip address`"),
    advice(Task::Map, Errno::ETIMEDOUT, "the server did not answer within 30 s", SILENCE),
    advice(Task::Map, Errno::ECONNREFUSED, "nobody listens on the server's port", "load ibnbd_server there; check --port, and `ibnbd port list` there"),
    advice(Task::Map, Errno::ECONNRESET, "the server ended the connection while it was set up", "the server's log has the reason; `ibnbd report` there shows it"),
    advice(Task::Map, Errno::ECONNABORTED, "the connection ended while it was set up", "the log of this machine and the server's have the reason"),
    advice(Task::Map, Errno::E2BIG, "the queues of the RDMA device are shorter than the server asks for", "set a smaller sess_queue_depth of ibtrs_server"),
    advice(Task::Map, Errno::ENOMEM, "there is no memory for it, here or on the server", "set a smaller sess_queue_depth or max_chunk_size of ibtrs_server"),
    advice(Task::Map, Errno::ENOENT, "the server has no such export", "check the name with `ibnbd export list` on the server"),
    advice(Task::Map, Errno::ENOTDIR, "a part of the name is not a directory on the server", "check the name with `ibnbd export list` on the server"),
    advice(Task::Map, Errno::ELOOP, "the name leads through a circle of links on the server", "export the device itself: `ibnbd export add` on the server"),
    advice(Task::Map, Errno::ENOTBLK, "the name is not a block device on the server", "check the name with `ibnbd export list` on the server"),
    advice(Task::Map, Errno::EXDEV, "a symbolic link leads out of the server's dev_search_path", "export the device itself: `ibnbd export add` on the server"),
    advice(Task::Map, Errno::EACCES, "the server exports nothing of that name to this machine, or for reading only", "`ibnbd check` and the kernel's lines on the server say which; `ibnbd export allow` there, or map with --ro"),
    advice(Task::Map, Errno::EPERM, "the allowed number of clients already writes to the device", "unmap it elsewhere, or take --ro or --migration"),
    advice(Task::Map, Errno::EBUSY, "the device is in use on the server, or a client uses it exclusively", "unmount it there, or map with --ro"),
    advice(Task::Map, Errno::EINVAL, "a value makes no sense, or the server's device cannot be used", "see the kernel's line"),
    advice(Task::Map, Errno::ENOSPC, "the session has as many devices open as the server allows", "set a larger max_devices of ibnbd_server or of the host there, or take another --session"),
    advice(Task::Map, Errno::EOPNOTSUPP, "the disk is zoned, or the server does not know exclusive use or checksums", "leave --exclusive and --checksum out; zoned disks cannot be used"),
    advice(Task::Map, Errno::ENOTCONN, "the session has lost its server", "see `ibnbd paths`; map again when a path is connected"),
    advice(Task::Map, Errno::EPROTO, "the server's answer makes no sense", "check that it is a server of RTRS 2.0 and RNBD 2.2"),
    advice(Task::Map, Errno::EBADMSG, "a message was damaged on the way to the server, twice", "map again; if that recurs, look for a defective network card or memory in either machine"),
    advice(Task::Map, Errno::EFBIG, "the device is larger than a disk can be", "export a part of it"),
    advice(Task::Map, Errno::EDQUOT, "the paths of the host would exceed a limit on the server, whose log says which", "`ibnbd host set` there, with a larger max_paths, max_connections or max_memory_mib"),
    advice(Task::Map, Errno::ENOKEY, "authentication is required, and this machine or the server has no key", "load it there: `ibnbd key load SESSION`; see `ibnbd key list`"),
    advice(Task::Map, Errno::EKEYREJECTED, "the keys of this machine and the server differ, or only one of them authenticates", KEYS),
    advice(Task::Map, Errno::EPROTONOSUPPORT, "the server takes none of the suites of authentication that this machine offers", "compare the parameter `auth_suites` of ibtrs_client here and of ibtrs_server there"),
    advice(Task::Discover, Errno::EOPNOTSUPP, "the server does not list its exports: it is the kernel's own, or older", "see `ibnbd export list` on the server, and map by name and address"),
    advice(Task::Discover, Errno::EEXIST, "a session with this name exists, and has no path to these addresses or is that of another network namespace", "see `ibnbd paths`; ask at an address of the session's server, or take another --session"),
    advice(Task::Discover, Errno::ENODEV, "no RDMA device leads to the address", "see `rdma link`; make one with `rdma link add rxe0 type rxe netdev INTERFACE`"),
    advice(Task::Discover, Errno::EINVAL, "a value makes no sense, or the session has another key", "see the kernel's line"),
    advice(Task::Discover, Errno::EACCES, "the server does not let the session connect from this address, or not without a key", "its log has the reason; `ibnbd host list` there shows the addresses"),
    advice(Task::Discover, Errno::ENOTCONN, "the session has lost its server", "see `ibnbd paths`; try it again when a path is connected"),
    advice(Task::Discover, Errno::ETIMEDOUT, "the server did not answer within 30 s, or list all within 60 s", SILENCE),
    advice(Task::Discover, Errno::EFBIG, "the server lists more than 1 MiB of names, or in more than 512 answers", "see `ibnbd export list` on the server, and map by name"),
    advice(Task::Unmap, Errno::EBUSY, "the disk is in use", "see `fuser -v` and `findmnt`; end what uses it, or take --force"),
    advice(Task::Unmap, Errno::EALREADY, "it is being unmapped, or its mapping is not complete yet", "wait for that"),
    advice(Task::Remap, Errno::EALREADY, "the disk is open", "nothing: it can be used"),
    advice(Task::Remap, Errno::ESTALE, "the server still has another disk under the name", "correct the names on the server, or unmap and map to use the other disk"),
    advice(Task::Remap, Errno::ENOTCONN, "the server cannot be reached", "see `ibnbd paths`"),
    advice(Task::Remap, Errno::ENOENT, "the server has no such export", "export it again: `ibnbd export add` on the server"),
    advice(Task::Remap, Errno::ENODEV, "the export is disabled on the server, or the disk is being unmapped here", "`ibnbd export enable` on the server, then `ibnbd remap` again"),
    advice(Task::Remap, Errno::EBUSY, "the disk is being opened already, or its device is in use on the server or by a client that uses it exclusively", "see `ibnbd show` of the disk; unmount it on the server"),
    advice(Task::Remap, Errno::ETIMEDOUT, "the server did not answer within 30 s", "see `ibnbd paths`; the server's log says whether its disk hangs"),
    advice(Task::Resize, Errno::EINVAL, "the size is zero, or not a whole number of blocks", "give a multiple of the disk's block size"),
    advice(Task::Resize, Errno::EFBIG, "the size is more than a disk can have", "give the size of the server's device"),
    advice(Task::Resize, Errno::ENOENT, "the disk is not open", "see `ibnbd show` of the disk"),
    advice(Task::Path, Errno::EEXIST, "the session already has that path", "see `ibnbd paths`"),
    advice(Task::Path, Errno::ENOSPC, "the session has 128 paths", "remove one first"),
    advice(Task::Path, Errno::ESTALE, "another server answers at that address", "give an address of the session's server"),
    advice(Task::Path, Errno::EBUSY, "the path is being connected or closed", "wait for that"),
    advice(Task::Path, Errno::ETIMEDOUT, "the server did not answer in time", SILENCE),
    advice(Task::Path, Errno::ECONNREFUSED, "nobody listens on the server's port there", "check the address"),
    advice(Task::Path, Errno::ECONNRESET, "the server ended the connection while it was set up", "the server's log has the reason"),
    advice(Task::Path, Errno::ENODEV, "no RDMA device leads to the address, or the path is being removed", "see `rdma link`"),
    advice(Task::Path, Errno::EHOSTUNREACH, "no route leads to the address", "check routes and the address"),
    advice(Task::Path, Errno::ENETUNREACH, "no route leads to the address", "check routes and the address"),
    advice(Task::Path, Errno::EACCES, "the server does not let the session connect from this address", "`ibnbd host list` there shows the addresses, `ibnbd host set` changes them"),
    advice(Task::Path, Errno::EDQUOT, "the paths of the host would exceed a limit on the server, whose log says which", "`ibnbd host set` there, with a larger max_paths, max_connections or max_memory_mib"),
    advice(Task::Path, Errno::ENOKEY, "authentication is required, and this machine or the server has no key", "load it there: `ibnbd key load SESSION`; see `ibnbd key list`"),
    advice(Task::Path, Errno::EKEYREJECTED, "the keys of this machine and the server differ, or only one of them authenticates", KEYS),
    advice(Task::Path, Errno::EPROTONOSUPPORT, "the server takes none of the suites of authentication that this machine offers", "compare the parameter `auth_suites` of ibtrs_client here and of ibtrs_server there"),
    advice(Task::Set, Errno::ERANGE, "the number is out of range", "see Documentation/reference.md for the ranges"),
    advice(Task::Set, Errno::EINVAL, "the value is none that can be set", "see Documentation/reference.md for the values"),
    advice(Task::Close, Errno::ENODEV, "somebody else closes it", "nothing"),
    advice(Task::Drain, Errno::ETIMEDOUT, "not all disks are flushed, or not within stop_timeout_s, so that their clients may lose unflushed writes", "see the kernel's lines for the disks; `ibnbd list` says when no session is left"),
    advice(Task::Export, Errno::EEXIST, "there is an export of that name, or it names the host", "see `ibnbd export list`"),
    advice(Task::Export, Errno::ENOENT, "there is no such device, export or host", "give the path of a block device, from / on; see `ibnbd export list` and `ibnbd host list`"),
    advice(Task::Export, Errno::ENOTBLK, "it is not a block device", "export a disk, a partition or a volume"),
    advice(Task::Export, Errno::ENOTDIR, "a part of the path is not a directory", "give the path of a block device, from / on"),
    advice(Task::Export, Errno::ENXIO, "the device has no driver", "see `lsblk` for devices that are there"),
    advice(Task::Export, Errno::ENOMEDIUM, "the drive has no medium", "insert one, or export another device"),
    advice(Task::Export, Errno::ELOOP, "the path leads through a circle of links, or through /proc", "give the path of the device itself"),
    advice(Task::Export, Errno::EOPNOTSUPP, "the device is zoned", "export another one: zoned disks cannot be used"),
    advice(Task::Export, Errno::EBUSY, "the export is enabled, and its device stays so long", "`ibnbd export disable` closes it for all clients; then set device_path"),
    advice(Task::Export, Errno::EINVAL, "a value makes no sense, or the export has no device", "see the kernel's line; set device_path"),
    advice(Task::Export, Errno::ERANGE, "the number is out of range", "give 0 or 1"),
    advice(Task::Export, Errno::E2BIG, "there are more than 64 prefixes", "give shorter prefixes, which more addresses have"),
    advice(Task::Export, Errno::ENOTEMPTY, "the export names hosts", "try it again: somebody else has changed it at the same time"),
    advice(Task::Host, Errno::EEXIST, "there is a host of that name", "see `ibnbd host list`; `ibnbd host set` changes it"),
    advice(Task::Host, Errno::EBUSY, "an export names the host", "`ibnbd export deny` takes it away"),
    advice(Task::Host, Errno::ENOENT, "somebody else removes it", "see `ibnbd host list`"),
    advice(Task::Host, Errno::EINVAL, "a value makes no sense", "see the kernel's line"),
    advice(Task::Host, Errno::ERANGE, "the number is out of range", "see `ibnbd host set --help`, and exports.md for the ranges"),
    advice(Task::Host, Errno::E2BIG, "there are more than 64 prefixes", "give shorter prefixes, which more addresses have"),
    advice(Task::Port, Errno::EEXIST, "there is a port of that name", "see `ibnbd port list`; `ibnbd port set` changes it"),
    advice(Task::Port, Errno::ENOENT, "somebody else removes it", "see `ibnbd port list`"),
    advice(Task::Port, Errno::EBUSY, "the port is enabled, and its address and number stay so long", "try it again: somebody else has enabled it at the same time"),
    advice(Task::Port, Errno::EINVAL, "a value makes no sense, or the port has no address", "see the kernel's line; `ibnbd port set` with address=ADDRESS"),
    advice(Task::Port, Errno::ERANGE, "the number is out of range", "give a port number from 1 to 65535"),
    advice(Task::Port, Errno::ENODEV, "no RDMA device has the address", "see `rdma link`; make one with `rdma link add rxe0 type rxe netdev INTERFACE`"),
    advice(Task::Port, Errno::EADDRNOTAVAIL, "the address does not belong to this machine", "see `ip address`"),
    advice(Task::Port, Errno::EADDRINUSE, "another port or another module listens on the address and the port number", "see `ibnbd port list`; take another port number, or unload the other module, the kernel's rnbd_server for example"),
];

/// Words in lines of the kernel, and what helps: they say more than the error's number does.
/// `Documentation/troubleshooting.md` has them as well.
pub const LINES: [(&str, &str); 5] = [
    (AuthError::NoKey.as_str(), "load it on the machine that says so: `ibnbd key load SESSION`"),
    (AuthError::Required.as_str(), "load it on the other machine: `ibnbd key load SESSION`"),
    (AuthError::Proof.as_str(), "load the same key on both machines: `ibnbd key load SESSION`; `ibnbd key list` shows their ids, `ibnbd show SESSION` the client's key_id; the session's name must be that of a host of the server: see `ibnbd host list` there"),
    (AuthError::NoSuite.as_str(), "set the parameter `auth_suites` of ibtrs_client and ibtrs_server to any on both machines, or to the same suite"),
    (AuthError::Mixed.as_str(), "unmap all disks of the session, then map them again"),
];

/// The remedy for an error of the kernel.
pub fn of_line(line: &str) -> Option<&'static str> {
    let found = LINES.iter().find(|(words, _)| line.contains(words));
    found.map(|(_, todo)| *todo)
}

/// The same of several lines, the last of which counts.
pub fn of_lines(lines: &[String]) -> Option<&'static str> {
    lines.iter().rev().find_map(|line| of_line(line))
}

/// The explanation of an error of a task, of which the kernel has printed these lines: one for this
/// task, or the general one of the number.
pub fn find(task: Task, errno: i32, lines: &[String]) -> (String, Option<&'static str>) {
    let errno = Errno(errno);
    let name = errno.as_str();
    let known = match task {
        // Their servers refuse what that of a mapping does.
        Task::Discover | Task::Remap => {
            of(task, errno, lines).or_else(|| of(Task::Map, errno, lines))
        }
        task => of(task, errno, lines),
    };
    match known {
        Some(advice) => (format!("{} ({name})", advice.why), Some(advice.todo)),
        None if name == "E?" => (
            std::io::Error::from_raw_os_error(errno.get()).to_string(),
            None,
        ),
        None => (format!("{} ({name})", general(errno)), None),
    }
}

/// The advice for which the last line speaks that speaks for any, or the one without a line.
fn of(task: Task, errno: Errno, lines: &[String]) -> Option<&'static Advice> {
    let own = || TABLE.iter().filter(|a| a.task == task && a.errno == errno);
    let of_line = |line: &String| own().find(|a| a.line.is_some_and(|words| line.contains(words)));
    let exact = lines.iter().rev().find_map(of_line);
    exact.or_else(|| own().find(|a| a.line.is_none()))
}

fn general(errno: Errno) -> String {
    match errno {
        Errno::EINTR => "it was interrupted".to_owned(),
        Errno::ENODEV => "it goes away, or somebody else removes it".to_owned(),
        other => {
            let text = std::io::Error::from_raw_os_error(other.get()).to_string();
            let plain = text.split(" (os error").next().unwrap_or(&text);
            plain.to_lowercase()
        }
    }
}
