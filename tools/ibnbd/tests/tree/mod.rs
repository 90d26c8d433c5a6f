// SPDX-License-Identifier: GPL-2.0

//! A made-up sysfs tree, as our modules create it.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod ran;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ibtrs_proto::settings::Setting;
use ibtrs_proto::stats::counter::{client_path, message_refusals, server_path, Counter};
use tempfile::TempDir;

pub struct Tree {
    folder: TempDir,
}

pub const LATENCY: &str =
    "1 us: 0 0\n2 us: 0 0\n4 us: 3 1\n8 us: 6 0\n>= 8 us: 1 3\nmaximum us: 11 2500\n";

/// The same of a disk, with discards and flushes.
pub const DISK_LATENCY: &str =
    "1 us: 0 0 0 0\n2 us: 0 0 0 1\n4 us: 2 1 0 0\n8 us: 5 0 4 0\n>= 8 us: 1 3 0 0\nmaximum us: 12 2501 7 1\n";

/// The last failover of a session.
pub const FAILOVER: &str = "time 1764376027.042\npath ip:10.0.1.2@ip:10.0.1.1\n\
    cause no heartbeat from the server (ETIMEDOUT)\nrequests 16\n\
    total_ms 3700\ndetect_ms 3500\nmove_ms 200\n";

/// The last changes of a session.
pub const EVENTS: &str = "\
1764376031.210 - connected \n\
1764376031.200 ip:10.0.1.2@ip:10.0.1.1 connected \n\
1764376027.042 ip:10.0.1.2@ip:10.0.1.1 lost no heartbeat from the server (ETIMEDOUT)\n";

/// The times of all its failovers.
pub const FAILOVER_TIMES: &str =
    "1 ms: 0\n2 ms: 0\n4 ms: 1\n8 ms: 0\n>= 8 ms: 2\nmaximum ms: 3700\n";

/// Whether tests write the files and parts of files that are generated, in place of comparing them.
pub fn may_write() -> bool {
    std::env::var_os("IBNBD_WRITE_GENERATED").is_some()
}

/// Compares a generated part of a file of the project, or writes it: the lines between the first
/// one that begins with `after` and the next that begins with `before`, or the end of the file.
#[track_caller]
pub fn is_generated(file: &str, after: &str, before: &str, wanted: &str) {
    // Several tests write parts of one file.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let file = &of_package(&format!("../../{file}"));
    let text = std::fs::read_to_string(file).unwrap();
    let line = |from: usize, head: &str| {
        let at = format!("\n{}", &text[from..]).find(&format!("\n{head}"));
        from + at.unwrap_or_else(|| panic!("{}: no line {head:?}", file.display()))
    };
    let begin = line(0, after);
    let begin = begin + text[begin..].find('\n').unwrap() + 1;
    let end = match before {
        "" => text.len(),
        before => line(begin, before),
    };
    if may_write() {
        std::fs::write(file, [&text[..begin], wanted, &text[end..]].concat()).unwrap();
        return;
    }
    let file = file.display();
    assert_eq!(
        &text[begin..end],
        wanted,
        "{file}: `make generated` writes it"
    );
}

/// A file of this package's sources.
pub fn of_package(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

impl Tree {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn base(&self) -> &Path {
        self.folder.path()
    }

    pub fn real(&self, path: &str) -> PathBuf {
        self.base().join(path.trim_start_matches('/'))
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let real = self.real(path);
        fs::create_dir_all(real.parent().unwrap()).unwrap();
        fs::write(real, content).unwrap();
        self
    }

    pub fn files(&self, folder: &str, files: &[(&str, &str)]) -> &Self {
        for (name, content) in files {
            self.file(&format!("{folder}/{name}"), content);
        }
        self
    }

    pub fn folder(&self, path: &str) -> &Self {
        fs::create_dir_all(self.real(path)).unwrap();
        self
    }

    pub fn link(&self, path: &str, target: &str) -> &Self {
        let real = self.real(path);
        fs::create_dir_all(real.parent().unwrap()).unwrap();
        symlink(target, real).unwrap();
        self
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.real(path)).unwrap()
    }

    /// The script of this folder that stands for a program. It is a link: one that was just
    /// written could not be started while another test starts something.
    pub fn program(&self, path: &str) -> &Self {
        let name = path.rsplit('/').next().unwrap();
        let script = of_package(&format!("tests/tree/{name}"));
        self.link(path, script.to_str().unwrap())
    }

    pub fn keyctl(&self) -> &Self {
        self.program("/usr/bin/keyctl")
    }

    /// The client's modules.
    pub fn client(&self) -> &Self {
        self.file("/sys/class/ibnbd-client/ctl/map_device", "Usage: ...\n")
            .file("/sys/class/ibnbd-client/ctl/open_session", "Usage: ...\n")
            .file("/sys/class/ibnbd-client/ctl/close_session", "Usage: ...\n")
            .file("/sys/class/ibnbd-client/ctl/opened_sessions", "")
            .file("/sys/devices/system/cpu/possible", "0-3\n")
            .folder("/sys/class/ibtrs-client")
            .file("/sys/module/ibnbd_client/srcversion", "0123\n")
            .file("/sys/module/ibtrs_client/parameters/ack_timeout", "0\n")
    }

    pub fn disk(&self, number: usize, session: &str, mapping_path: &str) -> &Self {
        let block = format!("/sys/block/ibnbd{number}");
        let wwid = mapping_path.replace('/', "-");
        self.files(&block, &[
            ("size", "131072\n"),
            ("queue/io_timeout", "30000\n"),
            ("stat", "      10        0      80        5       20        0      160       40        1       45       45        2        0        0        0        3        1\n"),
        ]);
        self.files(
            &format!("{block}/ibnbd"),
            &[
                ("state", "open\n"),
                ("session", &format!("{session}\n")),
                ("mapping_path", &format!("{mapping_path}\n")),
                ("access_mode", "rw\n"),
                ("exclusive", "0\n"),
                ("nr_queues", "4\n"),
                ("nr_poll_queues", "0\n"),
                ("io_timeout_limit", "0\n"),
                ("timed_out", "0\n"),
                ("cache_lost", "0\n"),
                ("data_checksum", "none\n"),
                ("checksum_errors", "0 0\n"),
                ("wwid", &format!("ibnbd-{session}{wwid}-0123456789abcdef\n")),
                ("identity", "auto\n"),
                (
                    "unmap_device",
                    "Usage: echo <normal|force> > unmap_device\n",
                ),
                ("remap_device", "Usage: echo 1 > remap_device\n"),
                ("resize", "Usage: echo <new size in sectors> > resize\n"),
                ("latency_us", DISK_LATENCY),
            ],
        )
    }

    pub fn session(&self, name: &str, paths: &[(&str, &str, &str)]) -> &Self {
        let folder = format!("/sys/class/ibtrs-client/{name}");
        self.files(
            &folder,
            &[
                (
                    "add_path",
                    "Usage: echo [<source>,]<destination> > add_path\n",
                ),
                ("max_reconnect_attempts", "-1\n"),
                ("mp_policy", "min-inflight (MI: 1)\n"),
                ("mpath_policy", "min-inflight (MI: 1)\n"),
                ("last_failover", FAILOVER),
                ("events", EVENTS),
                ("outage", ""),
                ("oldest_request_ms", "0\n"),
                ("failover_times_ms", FAILOVER_TIMES),
                ("server_back_in_s", "\n"),
                ("key_id", "default\n"),
            ],
        );
        for setting in Setting::ALL {
            self.file(
                &format!("{folder}/{}", setting.name),
                format!("{}\n", setting.default),
            );
        }
        self.folder(&format!("{folder}/paths"));
        for (src, dst, state) in paths {
            let error = if *state == "connected" {
                "\n"
            } else {
                "no heartbeat from the server (ETIMEDOUT)\n"
            };
            let path = format!("{folder}/paths/ip:{src}@ip:{dst}");
            self.files(
                &path,
                &[
                    ("state", &format!("{state}\n")),
                    ("src_addr", &format!("ip:{src}\n")),
                    ("dst_addr", &format!("ip:{dst}\n")),
                    ("hca_name", "rxe0\n"),
                    ("hca_port", "1\n"),
                    ("key_id", "\n"),
                    ("suite", "\n"),
                    (
                        "extensions",
                        if *state == "connected" { "1\n" } else { "\n" },
                    ),
                    (
                        "message_connections",
                        if *state == "connected" { "1\n" } else { "0\n" },
                    ),
                    ("cur_latency", "120500 ns\n"),
                    ("last_error", error),
                    ("disconnect", "Usage: echo 1 > disconnect\n"),
                    ("drain", "0\n"),
                    ("standby", "0\n"),
                    ("heartbeat_overdue_ms", "0\n"),
                    ("reconnect", "Usage: echo 1 > reconnect\n"),
                    ("remove_path", "Usage: echo 1 > remove_path\n"),
                    ("stats/rdma", "10 40960 20 81920 1 2\n"),
                    ("stats/reconnects", "3 4\n"),
                    ("stats/rdma_lat_us", LATENCY),
                    ("stats/reset_all", "echo 1 to reset all statistics\n"),
                ],
            );
            self.counters(&path, client_path::ALL);
        }
        self
    }

    /// The server's modules, with that folder.
    pub fn server(&self, search_path: &str) -> &Self {
        self.files(
            "/sys/module/ibnbd_server/parameters",
            &[
                ("port_nr", "1234\n"),
                ("dev_search_path", &format!("{search_path}\n")),
                ("max_devices", "256\n"),
                ("allow_rt_prio", "N\n"),
                ("stop_timeout_s", "30\n"),
                ("downtime_s", "0\n"),
            ],
        );
        self.files(
            "/sys/module/ibtrs_server/parameters",
            &[
                ("max_chunk_size", "135168\n"),
                ("sess_queue_depth", "512\n"),
                ("always_invalidate", "Y\n"),
            ],
        );
        self.file("/sys/class/ibnbd-server/ctl/drain", "0\n")
            .folder("/sys/class/ibnbd-server/ctl/devices")
            .folder("/sys/class/ibtrs-server")
    }

    /// The server's directory in configfs.
    pub fn configfs(&self) -> &Self {
        self.file(
            "/proc/mounts",
            "sysfs /sys sysfs rw 0 0\nconfigfs /sys/kernel/config configfs rw,nosuid 0 0\n",
        )
        .folder("/sys/kernel/config/ibnbd/exports")
        .folder("/sys/kernel/config/ibnbd/hosts")
        .folder("/sys/kernel/config/ibnbd/ports")
    }

    /// A port in configfs that is enabled.
    pub fn port(&self, name: &str, address: &str) -> &Self {
        self.configfs().files(
            &format!("/sys/kernel/config/ibnbd/ports/{name}"),
            &[
                ("address", &format!("{address}\n")),
                ("port", "1234\n"),
                ("enable", "1\n"),
                ("listening", "1\n"),
            ],
        )
    }

    /// An export in configfs that is enabled, with hosts that are there.
    pub fn export(&self, name: &str, device: &str, hosts: &[&str]) -> &Self {
        let folder = format!("/sys/kernel/config/ibnbd/exports/{name}");
        self.configfs().files(
            &folder,
            &[
                ("device_path", &format!("{device}\n")),
                ("access_mode", "rw\n"),
                ("allow_realtime", "0\n"),
                ("allow_any_host", "0\n"),
                ("allow_unauthenticated", "\n"),
                ("enable", "1\n"),
            ],
        );
        self.folder(&format!("{folder}/allowed_hosts"));
        for host in hosts {
            self.link(
                &format!("{folder}/allowed_hosts/{host}"),
                &format!("../../../hosts/{host}"),
            );
        }
        self
    }

    /// A host in configfs.
    pub fn host(&self, name: &str) -> &Self {
        self.configfs().files(
            &format!("/sys/kernel/config/ibnbd/hosts/{name}"),
            &[
                ("addresses", "\n"),
                ("max_paths", "0\n"),
                ("max_connections", "0\n"),
                ("max_memory_mib", "0\n"),
                ("max_devices", "0\n"),
                ("max_iops", "0\n"),
                ("max_bandwidth_mib_s", "0\n"),
            ],
        )
    }

    /// Gives a path of a client of this server the key that it has proved to have.
    pub fn authenticated(&self, name: &str, src: &str, dst: &str, id: &str) -> &Self {
        let folder = format!("/sys/class/ibtrs-server/{name}/paths/ip:{src}@ip:{dst}");
        self.served(name, src, dst)
            .file(&format!("{folder}/key_id"), format!("{id}\n"))
            .file(&format!("{folder}/suite"), "x25519\n")
    }

    pub fn served(&self, name: &str, src: &str, dst: &str) -> &Self {
        let folder = format!("/sys/class/ibtrs-server/{name}/paths/ip:{src}@ip:{dst}");
        self.files(
            &folder,
            &[
                ("src_addr", &format!("ip:{src}\n")),
                ("dst_addr", &format!("ip:{dst}\n")),
                ("hca_name", "rxe0\n"),
                ("hca_port", "1\n"),
                ("key_id", "\n"),
                ("suite", "\n"),
                ("extensions", "1\n"),
                ("message_connections", "1\n"),
                ("disconnect", "Usage: echo 1 > disconnect\n"),
                ("stats/rdma", "10 40960 20 81920 0\n"),
                ("stats/reset_all", "echo 1 to reset all statistics\n"),
            ],
        );
        self.counters(&folder, server_path::ALL)
    }

    /// Those of a path, each with a value of its own.
    fn counters(&self, path: &str, counters: &[Counter]) -> &Self {
        for (counter, value) in counters.iter().zip(5..) {
            let file = format!("{path}/stats/{}", counter.name());
            self.file(&file, format!("{value}\n"));
        }
        self
    }

    pub fn opened(&self, device: &str, session: &str, mapping_path: &str) -> &Self {
        self.file(&format!("/sys/class/block/{device}/size"), "131072\n");
        self.files(
            &format!("/sys/class/ibnbd-server/ctl/devices/{device}/sessions/{session}"),
            &[
                ("mapping_path", &format!("{mapping_path}\n")),
                ("access_mode", "rw\n"),
                ("read_only", "0\n"),
                ("force_close", "Usage: echo 1 > force_close\n"),
            ],
        )
    }

    /// A client with two sessions, one of which has lost a path, and three disks.
    pub fn usual_client(&self) -> &Self {
        self.client()
            .session(
                "s",
                &[
                    ("10.0.1.2", "10.0.1.1", "connected"),
                    ("10.0.2.2", "10.0.2.1", "connected"),
                ],
            )
            .session(
                "t",
                &[
                    ("10.0.1.2", "10.0.3.1", "connected"),
                    ("10.0.2.2", "10.0.3.2", "disconnected"),
                ],
            )
            .disk(0, "s", "/dev/nullb0")
            .disk(1, "s", "disk1")
            .disk(10, "t", "/dev/nullb0")
    }

    /// The module for messages, and no rules.
    pub fn messages(&self) -> &Self {
        self.folder("/sys/module/ibmsg");
        for place in ["portals", "sessions", "hosts"] {
            self.folder(&format!("/sys/kernel/config/ibmsg/{place}"));
        }
        self
    }

    /// A file of that kind that a process has open.
    fn open(&self, (pid, program): (u32, &str), fd: u32, kind: &str, info: &str) -> &Self {
        let process = format!("/proc/{pid}");
        // It may take the place of another one.
        let _ = fs::remove_file(self.real(&format!("{process}/fd/{fd}")));
        self.file(&format!("{process}/comm"), format!("{program}\n"))
            .file(&format!("{process}/fdinfo/{fd}"), info)
            .link(
                &format!("{process}/fd/{fd}"),
                &format!("anon_inode:[ibmsg-{kind}]"),
            )
    }

    /// A portal of a process.
    pub fn message_portal(&self, process: (u32, &str), name: &str, offers: u32) -> &Self {
        let mut info =
            format!("portal:\t{name}\noffers:\t{offers}\nbacklog:\t4\nunauthenticated:\t0\n");
        for (counter, count) in message_refusals::ALL.iter().zip(5..) {
            info += &format!("{}:\t{count}\n", counter.name());
        }
        self.open(process, 3, "portal", &info)
    }

    /// A rule for a session, in `sessions` or `hosts`, that counts refused channels from `first` on, by the reason.
    pub fn message_rule(&self, place: &str, session: &str, first: u64) -> &Self {
        let folder = format!("/sys/kernel/config/ibmsg/{place}/{session}");
        for (counter, count) in message_refusals::ALL.iter().zip(first..) {
            self.file(
                &format!("{folder}/{}", counter.name()),
                format!("{count}\n"),
            );
        }
        self
    }

    /// A channel of a process, with further or other fields.
    pub fn channel(&self, process: (u32, &str), fd: u32, session: &str, more: &str) -> &Self {
        let has = |name: &str| more.contains(&format!("{name}:"));
        let usual = [
            ("file", fd),
            ("channel", fd),
            ("state", 2),
            ("connected", 1),
            ("sent", 9),
            ("queued", 9),
            ("taken", 9),
            ("received", 6),
            ("sent_bytes", 90),
            ("received_bytes", 60),
            ("waiting", 0),
            ("unacknowledged", 0),
            ("moves", 0),
            ("calls", 4),
            ("call_us", 2000),
            ("served", 0),
            ("served_us", 0),
        ];
        let usual = usual.iter().filter(|(name, _)| !has(name));
        let lines: String = usual.map(|(name, n)| format!("{name}:\t{n}\n")).collect();
        let side = if has("side") { "" } else { "side:\tclient\n" };
        let info = format!("session:\t{session}\nportal:\tkv\n{side}{lines}{more}");
        self.open(process, fd, "channel", &info)
    }

    /// The kernel's own client and server: fewer files, and others.
    pub fn mainline(&self) -> &Self {
        self.files("/sys/block/rnbd0", &[("size", "2048\n")]);
        self.files(
            "/sys/block/rnbd0/rnbd",
            &[
                ("state", "open\n"),
                ("session", "m\n"),
                ("mapping_path", "dev/nullb0\n"),
                ("access_mode", "rw\n"),
                ("nr_poll_queues", "0\n"),
                (
                    "unmap_device",
                    "Usage: echo <normal|force> > unmap_device\n",
                ),
            ],
        );
        self.files(
            "/sys/class/rtrs-client/m",
            &[
                ("mpath_policy", "min-inflight (MI: 1)\n"),
                ("max_reconnect_attempts", "-1\n"),
                ("add_path", "Usage\n"),
            ],
        );
        self.files(
            "/sys/class/rtrs-client/m/paths/ip:10.0.1.2@ip:10.0.1.1",
            &[
                ("state", "connected\n"),
                ("src_addr", "ip:10.0.1.2\n"),
                ("dst_addr", "ip:10.0.1.1\n"),
                ("hca_name", "rxe0\n"),
                ("hca_port", "1\n"),
                ("cur_latency", "17000 ns\n"),
                ("stats/rdma", "1 4096 2 8192 0 0\n"),
                ("stats/reconnects", "0 0\n"),
            ],
        );
        self.files(
            "/sys/class/rtrs-server/n/paths/ip:10.0.1.3@ip:10.0.1.2",
            &[
                ("src_addr", "ip:10.0.1.3\n"),
                ("dst_addr", "ip:10.0.1.2\n"),
                ("hca_name", "rxe0\n"),
                ("hca_port", "1\n"),
                ("stats/rdma", "1 4096 2 8192\n"),
            ],
        );
        self.folder("/sys/class/rtrs-server/ctl");
        self.file("/sys/class/block/nullb1/size", "2048\n");
        self.files(
            "/sys/class/rnbd-server/ctl/devices/nullb1/sessions/n",
            &[
                ("mapping_path", "dev/nullb1\n"),
                ("access_mode", "migration\n"),
                ("read_only", "0\n"),
                ("force_close", "Usage\n"),
            ],
        )
    }
}
