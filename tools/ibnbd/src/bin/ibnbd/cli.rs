// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use ibnbd_host::configfs;
use ibnbd_host::disk_name::DiskName;
use ibnbd_host::family::Side;
use ibnbd_host::prefix::Prefix;
use ibnbd_host::value;
use ibnbd_proto::checksum::DataChecksum;
use ibnbd_proto::identity::IdentityCheck;
use ibtrs_proto::auth::{KeyError, KeyId};
use ibtrs_proto::downtime::Downtime;

use crate::examples;

const EXAMPLES: &str = "\
Examples:
  ibnbd map 10.0.1.1 disk1                    maps disk1 of a server, and prints /dev/ibnbd0
  ibnbd map storage1,storage1-b disk1         the same over two paths
  ibnbd list                                  disks here, and devices that clients have open
  ibnbd unmap ibnbd0
  ibnbd export add /dev/vg/data disk1         on a server: clients may open it as disk1
  ibnbd check                                 what is wrong, and what mends it

Exit status: 0 done, 1 refused by the kernel or the server, 2 wrong usage, 3 no such thing,
4 a module is not loaded, 5 not root, 6 wrong configuration; `status` has codes of its own.";

/// Maps, exports and watches network block devices over RDMA.
#[derive(Parser, Debug)]
#[command(name = "ibnbd", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// How to print what is shown
    #[arg(short, long, value_enum, default_value = "table", global = true)]
    pub(crate) output: Format,
    /// Columns of tables and CSV, in that order
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", global = true)]
    pub(crate) columns: Vec<String>,
    /// Folder that stands for the machine's root
    #[arg(long, default_value = "/", hide = true, global = true)]
    pub(crate) root: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One document; its schema is in Documentation/tool.schema.json
    Json,
    /// The same document
    Yaml,
    /// Comma-separated values with a line of names
    Csv,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Lists disks that are mapped here, and devices that clients have open
    #[command(after_help = examples::LIST)]
    List,
    /// Shows all of a disk, a session, a path, or a device that a client has open
    #[command(after_help = examples::SHOW)]
    Show {
        /// A disk (ibnbd0, a link to it, its name on the server), a session, or SESSION/PATH
        name: String,
    },
    /// Lists sessions, at either end
    #[command(after_help = examples::SESSIONS)]
    Sessions,
    /// Lists paths, at either end
    #[command(after_help = examples::PATHS)]
    Paths {
        /// Only of that session
        session: Option<String>,
    },
    /// Shows what disks and paths have counted
    #[command(after_help = examples::STATS)]
    Stats {
        /// Only that disk, session or path
        name: Option<String>,
        /// Lets counts of paths, and percentiles of disks, begin at zero, once they were shown
        #[arg(long)]
        reset: bool,
    },
    /// Maps a device of a server as a disk
    #[command(after_help = MAP_EXAMPLES)]
    Map(Map),
    /// Lists the exports of a server that this machine may map, and the server's addresses
    #[command(after_help = DISCOVER_HELP)]
    Discover(Server),
    /// Unmaps disks
    #[command(after_help = examples::UNMAP)]
    Unmap(Unmap),
    /// Has the server open a disk again that it refused, or that its operator has closed
    #[command(after_help = examples::REMAP)]
    Remap {
        /// A disk
        disk: String,
    },
    /// Gives a disk another size, for a server that does not tell
    #[command(after_help = examples::RESIZE)]
    Resize {
        /// A disk
        disk: String,
        /// Bytes; with K, M, G, T or P in powers of 1024, with s in sectors of 512
        size: String,
    },
    /// Adds, removes and connects paths of a session
    #[command(subcommand)]
    Path(PathCommand),
    /// Shows or sets which path of a session a request takes
    #[command(after_help = examples::POLICY)]
    Policy {
        /// A session
        session: String,
        /// min-inflight, round-robin or min-latency
        policy: Option<String>,
    },
    /// Changes settings of a session or a disk
    #[command(after_help = SET_HELP)]
    Set {
        /// A session or a disk
        name: String,
        /// Settings
        #[arg(required = true, value_name = "SETTING=VALUE")]
        settings: Vec<String>,
    },
    /// Manages the devices that clients may open
    #[command(subcommand)]
    Export(ExportCommand),
    /// Manages the hosts that exports may name
    #[command(subcommand)]
    Host(HostCommand),
    /// Manages the addresses on which this server listens
    #[command(subcommand)]
    Port(PortCommand),
    /// Makes, loads, lists and removes the keys by which clients and servers know each other
    #[command(subcommand)]
    Key(KeyCommand),
    /// Lists the clients of this server
    #[command(after_help = examples::CLIENTS)]
    Clients,
    /// Throws a client's path out, or all paths of its session; it may connect again
    #[command(after_help = examples::DISCONNECT)]
    Disconnect {
        /// The client's session
        session: String,
        /// One of its paths only
        path: Option<String>,
    },
    /// Takes a device from clients; their I/O to it fails
    #[command(after_help = examples::CLOSE)]
    Close {
        /// The device, by its name here or that of the clients
        device: String,
        /// Only from that session
        session: Option<String>,
    },
    /// Stops this server in good order, so that clients lose nothing; they wait until it is undone
    #[command(after_help = examples::DRAIN)]
    Drain {
        /// Takes clients again
        #[arg(long)]
        undo: bool,
        /// Tells clients for how long the server is away: seconds, or 10m, or 2h; 0 to tell them nothing
        #[arg(long, value_name = "TIME", conflicts_with = "undo", value_parser = downtime)]
        downtime: Option<u32>,
    },
    /// Says in one line how things are, for monitoring
    #[command(after_help = STATUS_HELP)]
    Status,
    /// Finds what is wrong, and says what mends it
    #[command(after_help = CHECK_HELP)]
    Check,
    /// Collects what a bug report needs
    #[command(after_help = examples::REPORT)]
    Report {
        /// A file instead of standard output
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Prints metrics for Prometheus, or serves them
    #[command(after_help = METRICS_HELP)]
    Metrics(Metrics),
    /// Prints events as they come; with --output json a document a line
    #[command(after_help = examples::WATCH)]
    Watch {
        /// Ends after that many
        #[arg(short = 'n', long)]
        count: Option<u64>,
    },
    /// Shows what disks, sessions and paths do, all the time
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// Shows each request of a disk as it ends, and where its time went; with --output json a
    /// document a line
    #[command(after_help = TRACE_HELP)]
    Trace(Trace),
    /// Makes the machine what the files in /etc/ibtrs say, and shows the difference first
    #[command(after_help = APPLY_HELP)]
    Apply(Apply),
    /// Writes into the files in /etc/ibtrs what the machine has; comments and order stay
    #[command(after_help = examples::SAVE)]
    Save(Save),
    /// Prints completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which one
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages of all commands
    #[command(after_help = examples::MANPAGES)]
    Manpages {
        /// Into that folder
        folder: PathBuf,
    },
}

const MAP_EXAMPLES: &str = "\
Examples:
  ibnbd map 10.0.1.1 disk1
  ibnbd map storage1 disk1 --path 10.0.1.2,10.0.1.1 --path 10.0.2.2,10.0.2.1
  ibnbd map fe80::1%eth0 disk1 --ro
  ibnbd map 10.0.1.1 disk1 --all-paths        also over the other addresses that the server names

Without --session the session is called HOST@SERVER, and disks of the same server share it.";

const DISCOVER_HELP: &str = "\
The server lists what the session may open now, so the session has to be the one that is to map, with
its key. It ends when the server has answered, unless it has disks. Addresses are those of the ports
that the server's operator has made.

Examples:
  ibnbd discover 10.0.1.1 --session web1
  ibnbd discover 10.0.1.1 --session web1 -o json";

const SET_HELP: &str = "\
Settings of a session: mp_policy, max_reconnect_attempts, failover_time_ms, reconnect_delay_ms,
hb_interval_ms, hb_missed_max, queue_timeout_s, reauth_interval_s, key_id. Of a disk: io_timeout_ms,
io_timeout_limit, identity (auto or none), cache_lost and checksum_errors (0 only).

Example:
  ibnbd set s queue_timeout_s=300 failover_time_ms=2000";

const EXPORT_HELP: &str = "\
An export is made in configfs if --ro, --migration, --realtime, --any-host, --host or --from is
given, if there are exports in configfs, or if ibnbd_server has no dev_search_path; else it is a
device file in that directory. While there are exports in configfs, clients cannot open the
devices in the directory.

Examples:
  ibnbd export add /dev/vg/data disk1                     in the directory of ibnbd_server
  ibnbd export add /dev/vg/data disk1 --host web1         in configfs, for the host web1
  ibnbd export add /dev/vg/data disk1 --from 10.0.1.0/24  in configfs, for clients without keys";

const SET_EXPORT_HELP: &str = "\
Settings: access_mode (ro, rw, migration), allow_realtime and allow_any_host (0, 1),
allow_unauthenticated (prefixes, or nothing), device_path (of a disabled export).

Example:
  ibnbd export set disk1 access_mode=ro allow_unauthenticated=10.0.1.0/24,fe80::/10";

const SET_HOST_HELP: &str = "\
Settings: addresses (prefixes, or nothing for any), and these, of which 0 is no limit: max_paths,
max_connections and max_devices (up to 65535), max_memory_mib and max_bandwidth_mib_s (up to
1048576), max_iops (100 to 100000000).

Example:
  ibnbd host set web1 addresses=10.0.1.0/24 max_devices=4";

const ADD_PORT_HELP: &str = "\
Without any port the server listens on all addresses, at the port_nr of ibnbd_server. With the first
one it listens on the ports that are enabled, and nowhere else. Paths that are connected stay.

Examples:
  ibnbd port add left 10.0.1.1
  ibnbd port add right fe80::1%eth1 --port 1235
  ibnbd port add ib gid:fe80::2:c903:0:1";

const SET_PORT_HELP: &str = "\
Settings: address, port (1 to 65535), enable (0, 1). The server does not listen on an enabled port
while its address or number changes; paths that are connected stay.

Example:
  ibnbd port set left address=10.0.1.2 port=1235";

const NEW_KEY_HELP: &str = "\
Example, with a file that only root can read:
  (umask 077; ibnbd key new >/etc/ibtrs/web1.key)";

const LOAD_KEY_HELP: &str = "\
The key's text has its id. Connections that are made from then on use it; those that are there stay.

Examples:
  ibnbd key load web1 <web1.key
  ibnbd key load web1 --credential web1.cred  in a service with LoadCredentialEncrypted=web1.cred:...";

const STATUS_HELP: &str = "\
Exit status: 0 OK, 1 WARNING (a path is lost, requests take too long, the server here is drained, or
that of a session was stopped as planned), 2 CRITICAL (I/O waits or fails), 3 UNKNOWN (no module).

Example:
  ibnbd status";

const CHECK_HELP: &str = "\
Exit status: 1 if there is an error among the findings, else 0. Root sees more: keys, and the rules of
the firewall.

Examples:
  ibnbd check
  ibnbd check -o json";

const TOP_HELP: &str = "\
Percentiles are those of the interval, as limits of the driver's counts: reads/writes in microseconds.
q, Esc or Ctrl-C ends it.

Examples:
  ibnbd top
  ibnbd top --interval 10
  ibnbd top --batch 3 -o csv                  three samples, for programs";

const TRACE_HELP: &str = "\
Times are in microseconds. CLIENT was spent on this machine, FAILOVER on paths that were lost or have
damaged the request, and SERVER on the way to the server, there, and back. Of SERVER, QUEUE was spent on
the server before its disk got the request, DISK on that disk, and WIRE on the rest of the way; a dash if
the server does not tell.
Ctrl-C ends it.

Example:
  ibnbd trace ibnbd0 --slower-than 10         requests that took 10 ms or more";

#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// A disk
    pub(crate) disk: String,
    /// Only requests that took at least that many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) slower_than: Option<f64>,
    /// Ends after that many
    #[arg(short = 'n', long)]
    pub(crate) count: Option<u64>,
}

fn downtime(text: &str) -> Result<u32, String> {
    let seconds = value::seconds(text).and_then(|seconds| u32::try_from(seconds).ok());
    let seconds = seconds.filter(|seconds| *seconds <= Downtime::MAX_S);
    seconds.ok_or_else(|| "it is not a time of at most a day, such as 600, 10m or 2h".to_owned())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|ms| ms.is_finite() && *ms >= 0.0);
    number.ok_or_else(|| "it is not a number of milliseconds".to_owned())
}

const APPLY_HELP: &str = "\
It shows a line for each step: + is made, ~ changed, - taken away (with --prune only), ! cannot be
done while something is in use. client.toml, server.toml and conf.d/*.toml are read as one. Disks
with auto = false stay as they are; `--disk` maps one of them, as the unit ibnbd@.service does.

With --until-done systemd is told that the service has started after the first attempt, whatever
became of it, and `systemctl status` shows what is missing. Files that are wrong at first end it.

Examples:
  ibnbd apply --dry-run                       only shows the difference
  ibnbd apply
  ibnbd apply --side server --prune
  ibnbd apply --disk web1/disk1               only the disk1 of the session web1";

const METRICS_HELP: &str = "\
Examples:
  ibnbd metrics --listen                      serves http://127.0.0.1:11234/metrics
  ibnbd metrics --listen [::]:11234           the same, to all machines that reach the port
  ibnbd metrics --textfile /var/lib/prometheus/node-exporter/ibnbd.prom

Nobody has to log in to read what is served: names of disks, sessions and addresses are in it.";

/// Where metrics are served unless an address is given.
const METRICS_ADDRESS: &str = "127.0.0.1:11234";

#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// A file of node_exporter's textfile collector, which is replaced at once
    #[arg(long, value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,
    /// Serves them over HTTP, until it is ended; 127.0.0.1:11234 without an address
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = METRICS_ADDRESS)]
    #[arg(conflicts_with = "textfile")]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Seconds from one sample to the next
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
    /// Prints that many samples instead of drawing them
    #[arg(short, long, value_name = "N")]
    pub(crate) batch: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Only shows the difference
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also takes away what the files do not name: disks that nobody uses, paths, exports, ports
    #[arg(long)]
    pub(crate) prune: bool,
    /// Goes on until all of it is done, with pauses of up to 30 s; for services
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) until_done: bool,
    /// Only what the files say about the client, or about the server
    #[arg(long, value_enum)]
    pub(crate) side: Option<OneSide>,
    /// Only that disk with its session and paths, whether it says auto = false or not
    #[arg(long, value_name = "SESSION/DEVICE", conflicts_with_all = ["prune", "side"])]
    pub(crate) disk: Option<DiskName>,
    /// Refuses files that need names: of servers, or of this machine for a session without a name
    #[arg(long)]
    pub(crate) no_names: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OneSide {
    /// Sessions and their disks
    Client,
    /// Exports, hosts and ports
    Server,
}

impl From<OneSide> for Side {
    fn from(side: OneSide) -> Self {
        match side {
            OneSide::Client => Self::Client,
            OneSide::Server => Self::Server,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Save {
    /// Only shows the files as they would be
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also takes out of the files what the machine has not
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// The files of the configuration.
#[derive(Args, Debug)]
pub(crate) struct Files {
    /// The folder of the files
    #[arg(long, default_value = ibnbd_host::config::FOLDER, value_name = "FOLDER")]
    pub(crate) config: String,
}

/// A server, and the session with it.
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Names or addresses of one server: each makes a path
    #[arg(
        value_delimiter = ',',
        required = true,
        num_args = 1,
        value_name = "SERVER[,SERVER...]"
    )]
    pub(crate) servers: Vec<String>,
    /// Name of the session
    #[arg(short, long)]
    pub(crate) session: Option<String>,
    /// A path, from an address here to one of the server
    #[arg(short, long = "path", value_name = "SRC,DST")]
    pub(crate) paths: Vec<String>,
    /// The server's port
    #[arg(long, default_value_t = 1234, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// The key of a new session, if not that called default
    #[arg(long, value_name = "ID", value_parser = key_id)]
    pub(crate) key_id: Option<KeyId>,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("access"))]
pub(crate) struct Map {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The device's name on the server
    pub(crate) device: String,
    /// Adds a path to each further address that the server names and this machine can reach
    #[arg(long)]
    pub(crate) all_paths: bool,
    /// For reading only
    #[arg(long, group = "access")]
    pub(crate) ro: bool,
    /// To hand a disk over: another client may write to it at the same time
    #[arg(long, group = "access")]
    pub(crate) migration: bool,
    /// Nobody else may have the device open
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// Queues of a new session, if not one for each CPU: each path has a connection for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) queues: Option<u32>,
    /// Queues for polled I/O; -1 for one for each CPU
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1..=4096))]
    pub(crate) poll_queues: i64,
    /// Longest time, in milliseconds, that I/O of a new session stands still when a path is lost
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1000..=300_000))]
    pub(crate) failover_time_ms: Option<u32>,
    /// Checksum of the data on its way: none or crc32c
    #[arg(long, value_name = "CHECKSUM", value_parser = checksum)]
    pub(crate) checksum: Option<DataChecksum>,
    /// A disk without identity after a restart of the server: auto (default) does not use it while
    /// it is open, none uses any disk of its name and size
    #[arg(long, value_name = "CHECK", value_parser = identity)]
    pub(crate) identity: Option<IdentityCheck>,
    /// Writes the disk into /etc/ibtrs/client.toml as well
    #[arg(long)]
    pub(crate) persist: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Unmap {
    /// Disks, by any of their names
    #[arg(required_unless_present = "unused")]
    pub(crate) disks: Vec<String>,
    /// Also if somebody uses them: their I/O fails
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Takes them out of /etc/ibtrs/client.toml as well
    #[arg(long)]
    pub(crate) persist: bool,
    /// Only those that nobody uses, of these disks or of all; names those that stay
    #[arg(long, conflicts_with_all = ["force", "persist"])]
    pub(crate) unused: bool,
    /// Of all disks, leaves those that say auto = false in the files in /etc/ibtrs
    #[arg(long, requires = "unused", conflicts_with = "disks")]
    pub(crate) auto: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PathCommand {
    /// Adds a path, and waits until it is connected
    #[command(after_help = examples::PATH_ADD)]
    Add {
        /// A session
        session: String,
        /// Names or addresses
        #[arg(value_name = "[SRC,]DST")]
        path: String,
    },
    /// Removes a path
    #[command(after_help = examples::PATH_REMOVE)]
    Remove(PathOf),
    /// Connects a path again, and waits until it is
    #[command(after_help = examples::PATH_RECONNECT)]
    Reconnect(PathOf),
    /// Disconnects a path, until it is reconnected
    #[command(after_help = examples::PATH_DISCONNECT)]
    Disconnect(PathOf),
    /// Moves the requests of a path to the others, and waits until none is in flight on it
    #[command(after_help = examples::PATH_DRAIN)]
    Drain {
        #[command(flatten)]
        of: PathOf,
        /// Lets it take requests again
        #[arg(long)]
        undo: bool,
    },
    /// Connects all paths of a session again, so that both sides prove their key, while requests
    /// take the other paths
    #[command(after_help = examples::PATH_REAUTH)]
    Reauth {
        /// A session
        session: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PathOf {
    /// A session
    pub(crate) session: String,
    /// One of its paths: both addresses, or one that no other path has
    pub(crate) path: String,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ExportCommand {
    /// Lists the devices that clients may open
    #[command(after_help = examples::EXPORT_LIST)]
    List(Directory),
    /// Lets clients open a device
    #[command(after_help = EXPORT_HELP)]
    Add(AddExport),
    /// Takes a device from those that clients may open
    #[command(after_help = examples::EXPORT_REMOVE)]
    Remove {
        /// The name that clients give
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// Also if clients have it open; from then on their I/O to an export in configfs fails
        #[arg(short, long)]
        force: bool,
        /// All exports, hosts and ports in configfs, without which ibnbd_server can be unloaded
        #[arg(long, conflicts_with_all = ["name", "force", "directory", "session"])]
        all: bool,
        #[command(flatten)]
        directory: Directory,
    },
    /// Lets hosts open an export
    #[command(after_help = examples::EXPORT_ALLOW)]
    Allow(HostsOf),
    /// Lets hosts open an export no longer, and closes it for them
    #[command(after_help = examples::EXPORT_DENY)]
    Deny(HostsOf),
    /// Lets clients open an export that was disabled
    #[command(after_help = examples::EXPORT_ENABLE)]
    Enable {
        /// An export
        name: String,
    },
    /// Closes an export for all clients, until it is enabled
    #[command(after_help = examples::EXPORT_DISABLE)]
    Disable {
        /// An export
        name: String,
    },
    /// Changes settings of an export
    #[command(after_help = SET_EXPORT_HELP)]
    Set(SetOf),
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("mode"))]
pub(crate) struct AddExport {
    /// A block device, or a link to one; it may also come behind the name
    pub(crate) device: String,
    /// The name that clients give; that of the device without it
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) rules: ExportRules,
    #[command(flatten)]
    pub(crate) directory: Directory,
}

/// Each of them makes an export in configfs, and none in a directory.
#[derive(Args, Debug)]
pub(crate) struct ExportRules {
    /// Clients may open it in the mode ro only
    #[arg(long, group = "mode", conflicts_with_all = ["directory", "session"])]
    pub(crate) ro: bool,
    /// Clients may open it in the mode migration as well, to hand the disk over
    #[arg(long, group = "mode", conflicts_with_all = ["directory", "session"])]
    pub(crate) migration: bool,
    /// Realtime I/O priorities of clients are kept
    #[arg(long, conflicts_with_all = ["directory", "session"])]
    pub(crate) realtime: bool,
    /// Every session with a key may open it
    #[arg(long, conflicts_with_all = ["directory", "session"])]
    pub(crate) any_host: bool,
    /// A host that may open it
    #[arg(long = "host", value_name = "HOST", conflicts_with_all = ["directory", "session"])]
    pub(crate) hosts: Vec<String>,
    /// Addresses from which sessions without a key may open it
    #[arg(long, value_name = "PREFIX", value_parser = prefix, conflicts_with_all = ["directory", "session"])]
    pub(crate) from: Vec<Prefix>,
}

#[derive(Args, Debug)]
pub(crate) struct HostsOf {
    /// An export
    pub(crate) name: String,
    /// Hosts
    #[arg(required = true, value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct SetOf {
    /// Its name
    pub(crate) name: String,
    /// Settings
    #[arg(required = true, value_name = "SETTING=VALUE")]
    pub(crate) settings: Vec<String>,
}

/// The limits of a host; 0 is no limit.
#[derive(Args, Debug)]
pub(crate) struct HostLimits {
    /// Most paths that it may have; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_paths"))]
    pub(crate) max_paths: u64,
    /// Most connections that its paths may have, one for each queue and one more; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_connections"))]
    pub(crate) max_connections: u64,
    /// Most memory of the server that its paths may take; 0 for any amount
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = limit("max_memory_mib"))]
    pub(crate) max_memory_mib: u64,
    /// Most devices that it may have open; 0 for the limit of ibnbd_server
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_devices"))]
    pub(crate) max_devices: u64,
    /// Most requests in a second, at least 100; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = limit("max_iops"))]
    pub(crate) max_iops: u64,
    /// Most MiB of reads and writes in a second; 0 for any amount
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = limit("max_bandwidth_mib_s"))]
    pub(crate) max_bandwidth_mib_s: u64,
}

/// Takes the value of a limit of a host.
fn limit(key: &'static str) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |word| configfs::limit(key, word)
}

#[derive(Subcommand, Debug)]
pub(crate) enum HostCommand {
    /// Lists the hosts that exports may name
    #[command(after_help = examples::HOST_LIST)]
    List,
    /// Makes a session known by its name, so that exports may name it; its keys are loaded with
    /// `ibnbd key load`
    #[command(after_help = examples::HOST_ADD)]
    Add {
        /// The session's name
        name: String,
        /// Addresses that its paths may come from; any without it
        #[arg(long = "address", value_name = "PREFIX", value_parser = prefix)]
        addresses: Vec<Prefix>,
        #[command(flatten)]
        limits: HostLimits,
    },
    /// Removes a host, and disconnects its paths
    #[command(after_help = examples::HOST_REMOVE)]
    Remove {
        /// The session's name
        name: String,
        /// Also if exports name it, or if it is connected
        #[arg(short, long)]
        force: bool,
    },
    /// Changes settings of a host
    #[command(after_help = SET_HOST_HELP)]
    Set(SetOf),
}

#[derive(Subcommand, Debug)]
pub(crate) enum PortCommand {
    /// Lists the addresses on which the server listens; on all of them if the list is empty
    #[command(after_help = examples::PORT_LIST)]
    List,
    /// Makes the server listen on an address, and from the first one on no longer on all of them
    #[command(after_help = ADD_PORT_HELP)]
    Add {
        /// A name for it
        name: String,
        /// An address of this machine, 0.0.0.0 or ::
        address: String,
        /// The port number, if not the port_nr of ibnbd_server
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
    },
    /// Changes settings of a port
    #[command(after_help = SET_PORT_HELP)]
    Set(SetOf),
    /// Stops listening on a port, and removes it; with the last one the server listens on all
    /// addresses again
    #[command(after_help = examples::PORT_REMOVE)]
    Remove {
        /// A port
        name: String,
    },
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).map_err(|why| format!("it {why}"))
}

#[derive(Args, Debug)]
pub(crate) struct Directory {
    /// The directory of devices, if not that of ibnbd_server
    #[arg(long)]
    pub(crate) directory: Option<String>,
    /// The session, where each one has a directory of its own
    #[arg(long)]
    pub(crate) session: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Prints a new key, for both ends of a session
    #[command(after_help = NEW_KEY_HELP)]
    New {
        /// Its name: 1 to 32 letters, digits and -_.@
        #[arg(long, default_value = "default", value_parser = key_id)]
        id: KeyId,
    },
    /// Loads a session's key into the kernel, and replaces the one with its id
    #[command(after_help = LOAD_KEY_HELP)]
    Load(LoadKey),
    /// Lists the keys that the kernel has, without their secret part
    #[command(after_help = examples::KEY_LIST)]
    List,
    /// Removes a session's key from the kernel, and disconnects the paths of clients that it has
    /// authenticated
    #[command(after_help = examples::KEY_REMOVE)]
    Remove {
        /// A session
        session: String,
        /// The key's name
        #[arg(long, default_value = "default", value_parser = key_id)]
        id: KeyId,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("source"))]
pub(crate) struct LoadKey {
    /// A session, which need not be there yet
    pub(crate) session: String,
    /// A file with the key's text, instead of standard input
    #[arg(long, group = "source")]
    pub(crate) file: Option<PathBuf>,
    /// A credential of the service in which this runs
    #[arg(long, value_name = "NAME", group = "source")]
    pub(crate) credential: Option<PathBuf>,
}

fn checksum(text: &str) -> Result<DataChecksum, &'static str> {
    DataChecksum::parse(text).map_err(|error| error.as_str())
}

fn identity(text: &str) -> Result<IdentityCheck, &'static str> {
    IdentityCheck::parse(text).map_err(|error| error.as_str())
}

fn key_id(text: &str) -> Result<KeyId, &'static str> {
    KeyId::new(text.as_bytes()).ok_or(KeyError::Id.as_str())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Commands without subcommands, each with the words that lead to it.
    fn leaves(command: &clap::Command, way: &str, found: &mut Vec<(String, String)>) {
        let way = format!("{way} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string);
        if !command.has_subcommands() {
            found.push((way.trim().to_owned(), help.unwrap_or_default()));
        }
        for sub in command.get_subcommands() {
            leaves(sub, &way, found);
        }
    }

    /// The words of an example, without the comment and what the shell handles.
    fn words(example: &str) -> Vec<&str> {
        let plain = example.split("  ").next().unwrap_or_default();
        let plain = plain.trim_start_matches("(umask 077; ");
        let until = plain.find(['<', '>']).unwrap_or(plain.len());
        plain[..until].split_whitespace().collect()
    }

    #[test]
    fn each_command_has_examples_that_it_takes() {
        let mut all = Vec::new();
        leaves(&Cli::command(), "", &mut all);
        assert!(all.len() > 45, "{}", all.len());
        for (way, help) in all {
            let below = help.split_once("Example").map(|(_, below)| below);
            let below = below.unwrap_or_else(|| panic!("{way} has no example"));
            let lines = below
                .lines()
                .skip(1)
                .map_while(|line| line.strip_prefix("  "));
            let lines: Vec<&str> = lines.collect();
            assert_eq!(below.starts_with("s:"), lines.len() > 1, "{way}");
            assert!(!lines.is_empty(), "{way} has no example");
            for line in lines {
                let words = words(line);
                assert!(words.join(" ").starts_with(&way), "{way}: {line}");
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_definitions_go_together() {
        Cli::command().debug_assert();
    }
}
