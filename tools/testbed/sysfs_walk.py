# SPDX-License-Identifier: GPL-2.0
"""The expected contents of our files in sysfs, and the input that they accept.

In a guest this is also a program: `sysfs_walk.py SECONDS PROCESSES KIND=FOLDER...` reads and writes
the files of the folders, for SECONDS and from PROCESSES processes, each file at least once, and
ends with 0 if each file had the expected contents.  With 0 processes it reads each file once, and
reports unknown files."""

import errno
import os
import random
import re
import sys
import time
from dataclasses import dataclass, replace

ADDRESS = r"(ip:[0-9a-f.:]+|gid:[0-9a-f:]+)"
COUNT = r"\d+"


@dataclass(frozen=True)
class File:
    """One file: its mode, a pattern of all that it shows, what may be written to
    it without harm, and what may not, with the errors."""

    mode: int
    pattern: str
    good: tuple[str, ...] = ()
    bad: tuple[tuple[str, int], ...] = ()


def _number(low: int, high: int, usual: int) -> File:
    return File(0o644, r"-?\d+\n", (str(usual), f" {usual}\n"), (
        ("", errno.EINVAL), ("x", errno.EINVAL), ("1 2", errno.EINVAL), ("0x10", errno.EINVAL),
        ("+5", errno.EINVAL), ("1.5", errno.EINVAL), ("\x01", errno.EINVAL),
        (str(low - 1), errno.ERANGE), (str(high + 1), errno.ERANGE), ("9" * 30, errno.ERANGE)))


NOT_ONE = tuple((text, errno.EINVAL) for text in ("", "0", "2", "11", "yes", "1 1", "-1", "\xff"))
NOT_A_RESET = tuple((text, errno.EINVAL) for text in ("", "2", "-1", "reset", "0 0", "01"))
# The errors of the files of a removed path.
GONE = (errno.ENOENT, errno.ENODEV)
RESETS = ("0", "1", "1\n")
POLICY = File(
    0o644, r"(round-robin \(RR: 0\)|min-inflight \(MI: 1\)|min-latency \(ML: 2\))\n",
    ("0", "2", "rr", "ML", "mi", "round", "min-l", "Min-Inflight"),
    tuple((text, errno.EINVAL) for text in ("", "3", "-1", "min", "min-", "r r", "fastest")))


def _usage(file: str) -> File:
    return File(0o644, f"Usage: echo 1 > {file}\n", (), NOT_ONE)


def _stats(pattern: str) -> File:
    return File(0o644, pattern, RESETS, NOT_A_RESET)


def _latency(unit: str, rows: int, columns: int = 2) -> File:
    counts = " ".join([COUNT] * columns)
    limits = "".join(f"{1 << power} {unit}: {counts}\n" for power in range(rows))
    return _stats(limits + f">= {1 << (rows - 1)} {unit}: {counts}\n"
                           f"maximum {unit}: {counts}\n")


SG_ROWS = "".join(rf"{sign} +{limit}:( +\d+)+\n" for sign, limit in
                  [("=", n) for n in range(1, 5)] + [("<", 1 << n) for n in range(3, 8)] + [(">=", 128)])
RESET_ALL = _stats("echo 1 to reset all statistics\n")

AUTH = "(auto|none|optional|required)"
SUITES = "(any|x25519|hmac)"
# The key that both sides have proved to have; none without authentication.
PROVED = File(0o444, r"[\w.@-]{0,32}\n")
# By which suite; none likewise.
SUITE = File(0o444, r"(x25519|hmac|)\n")

# From the declarations in rust/proto/ibtrs/settings.rs, by `make generated`.
CLIENT_SETTINGS = {
    "failover_time_ms": _number(1000, 300000, 5000),
    "reconnect_delay_ms": _number(10, 30000, 1000),
    "hb_interval_ms": _number(100, 60000, 0),
    "hb_missed_max": _number(1, 100, 5),
    "queue_timeout_s": _number(-1, 86400, 600),
    "reauth_interval_s": _number(10, 2592000, 0),
}

CLIENT = {
    "add_path": File(0o644, r"Usage: echo \[<source>,\]<destination> > add_path\n\n.*\n", (), tuple(
        (text, errno.EINVAL) for text in (
            "", "10.0.1.1", "ip:", "ip:10.0.1", "ip:10.0.1.256", "tcp:10.0.1.1", "ip:10.0.1.1,", ",ip:10.0.1.1",
            "ip:10.0.1.2,ip:10.0.1.1,ip:10.0.1.1", "ip:10.0.1.2 ip:10.0.1.1", "ip:fd00::1,ip:10.0.1.1",
            "gid:1", "ip:0.0.0.0", "ip:224.0.0.1", "ip:10.0.1.1%1", "x" * 4000, "\xff\xfe"))),
    "max_reconnect_attempts": _number(-1, 9999, -1),
    **CLIENT_SETTINGS,
    "mp_policy": POLICY,
    "mpath_policy": POLICY,
    "failover_plan": File(0o444, r"total_ms \d+\ndetect_ms \d+\nmove_ms \d+\nhb_interval_ms \d+\nhb_missed_max \d+\n"
                          r"ack_timeout \d+\nretry_count \d+\n"),
    "last_failover": File(0o444, r"(time \d+\.\d{3}\npath [^\n]+\ncause [^\n]+\nrequests \d+\n"
                          r"(total_ms \d+\ndetect_ms \d+\nmove_ms \d+\n)?)?"),
    "events": File(0o444, r"(\d+\.\d{3} \S+ [a-z]+ [^\n]*\n)*[^\n]*"),
    "outage": File(0o444, r"(since \d+\.\d{3}\n((fails_in_s \d+|fails_since \d+\.\d{3})\n)?)?"),
    "oldest_request_ms": File(0o444, r"\d+\n"),
    "failover_times_ms": _latency("ms", 17, 1),
    "server_back_in_s": File(0o444, r"\d*\n"),
    "key_id": File(0o644, r"[\w.@-]{1,32}\n", ("default", "default\n"), tuple(
        (text, errno.EINVAL) for text in ("", "\n", "a b", "a:b", "x" * 33, "\xff"))),
}

# From the declarations in rust/proto/ibtrs/stats/counter.rs, by `make generated`.
CLIENT_PATH_COUNTERS = (
    "window_full",
)
SERVER_PATH_COUNTERS = (
    "buffer_waits",
    "fetched_bytes",
)


def _counters(names: tuple[str, ...]) -> dict[str, File]:
    return {f"stats/{name}": _stats(r"\d+\n") for name in names}


CLIENT_PATH = {
    "state": File(0o444, r"(connected|disconnected)\n"),
    "reconnect": _usage("reconnect"),
    "disconnect": _usage("disconnect"),
    "drain": _number(0, 1, 0),
    "standby": _number(0, 1, 0),
    "remove_path": _usage("remove_path"),
    # Empty before the first connection.
    "hca_name": File(0o444, r"\w*\n"),
    "hca_port": File(0o444, r"\d+\n"),
    "src_addr": File(0o444, f"{ADDRESS}?\n"),
    "dst_addr": File(0o444, f"{ADDRESS}\n"),
    "cur_latency": File(0o444, r"\d+ ns\n"),
    "heartbeat_overdue_ms": File(0o444, r"\d+\n"),
    "key_id": PROVED,
    "suite": SUITE,
    # Empty while it is not connected.
    "extensions": File(0o444, r"[01]?\n"),
    "message_connections": File(0o444, r"[01]\n"),
    "last_error": File(0o444, r"[^\n]*\n"),
    "stats/reset_all": RESET_ALL,
    "stats/sg_entries": _stats(rf"n\\cpu: ( +\d+)+\n{SG_ROWS}total: ( +\d+)+\n"),
    "stats/cpu_migration": _stats(r"cpu: ( \d+)+\nfrom:( \d+)+\nto:  ( \d+)+\n"),
    "stats/cpu_migration_from": _stats(r"(\d+ )+\n"),
    "stats/cpu_migration_to": _stats(r"(\d+ )+\n"),
    "stats/reconnects": _stats(r"\d+ \d+\n"),
    "stats/rdma_lat": _latency("ms", 17),
    "stats/rdma_lat_us": _latency("us", 21),
    "stats/wc_completion": _stats(r"\d+ \d+\n"),
    "stats/rdma": _stats(r"\d+ \d+ \d+ \d+ \d+ \d+\n"),
    **_counters(CLIENT_PATH_COUNTERS),
}

SERVER_PATH = {
    "disconnect": _usage("disconnect"),
    "hca_name": File(0o444, r"\w+\n"),
    "key_id": PROVED,
    "suite": SUITE,
    "extensions": File(0o444, r"[01]\n"),
    "message_connections": File(0o444, r"[01]\n"),
    "hca_port": File(0o444, r"\d+\n"),
    "src_addr": File(0o444, f"{ADDRESS}\n"),
    "dst_addr": File(0o444, f"{ADDRESS}\n"),
    "stats/reset_all": RESET_ALL,
    "stats/rdma": _stats(r"\d+ \d+ \d+ \d+ \d+\n"),
    "stats/wc_completion": _stats(r"\d+ \d+ \d+\n"),
    **_counters(SERVER_PATH_COUNTERS),
}

# The line of a mapping that is there.
MAPPING = "sessname=demo device_path=/dev/nullb0"
CONTROL = {
    "map_device": File(0o644, r'Usage: echo "sessname=[^\n]*\n\n(.+\n)+', (), tuple(
        (text, errno.EINVAL) for text in (
            "x", "sessname=demo", "device_path=/dev/nullb0", f"{MAPPING} sessname=t", f"{MAPPING} colour=blue",
            f"{MAPPING} path=10.0.1.1", f"{MAPPING} dest_port=0", f"{MAPPING} access_mode=RW",
            "sessname=a/b device_path=x", "sessname= device_path=x", "\x01", "\xff\xfe", "x" * 4000)) + (
        (f"sessname={'x' * 255} device_path=x", errno.ENAMETOOLONG), (MAPPING, errno.EEXIST),
        ("sessname=unknown device_path=x", errno.ENXIO))),
    "open_session": File(0o644, r'Usage: echo "sessname=[^\n]*\n', (), tuple(
        (text, errno.EINVAL) for text in (
            "x", "path=ip:10.0.1.1", MAPPING, "sessname=demo sessname=t", "sessname=demo nr_queues=0", "sessname=a/b", "\x01")) + (
        (f"sessname={'x' * 255}", errno.ENAMETOOLONG), ("sessname=unknown", errno.ENXIO))),
    "close_session": File(0o644, "Usage: echo <name> > close_session\n", (), tuple(
        (text, errno.ENOENT) for text in ("x", "demo", "", "\x01", "x" * 4000))),
    "opened_sessions": File(0o444, r"([^\s/]+\n)*"),
    "discover": File(0o600, r'Usage: echo "sessname=[^\n]*\n', (), tuple(
        (text, errno.EINVAL) for text in (
            "x", "path=ip:10.0.1.1", MAPPING, "sessname=demo sessname=t", "sessname=demo colour=blue",
            "sessname=demo path=10.0.1.1", "sessname=demo dest_port=0", "sessname=demo key_id=a:b", "sessname=a/b",
            "sessname=", "\x01", "\xff\xfe", "x" * 4000)) + (
        (f"sessname={'x' * 255}", errno.ENAMETOOLONG), ("sessname=unknown", errno.ENXIO))),
}

# Of a session with a list, for root alone.
DISCOVERED = {
    "number": File(0o400, r"\d+\n"),
    "request": File(0o400, r"sessname=[^\n]*\n"),
    "portals": File(0o400, rf"({ADDRESS} \d+\n)*"),
    "port": File(0o400, r"\d+\n"),
    "unlisted": File(0o400, r"[01]\n"),
    "pages": File(0o400, r"\d+\n"),
}
DISCOVERED_PAGE = {
    "exports": File(0o400, r"(\S+ (ro|rw|migration) \d+ \d+\n)+"),
}

DISK = {
    "unmap_device": File(0o644, r"Usage: echo <normal\|force> > unmap_device\n", (), tuple(
        (text, errno.EINVAL) for text in ("1", "no", "forced", "normal force", "NORMAL", "\xff"))),
    # The disk is open.
    "remap_device": File(0o644, "Usage: echo 1 > remap_device\n", (), (*NOT_ONE, ("1", errno.EALREADY))),
    "resize": File(0o644, r"Usage: echo <new size in sectors> > resize\n", (), (
        ("x", errno.EINVAL), ("0", errno.EINVAL), ("-1", errno.EINVAL), ("1 2", errno.EINVAL),
        ("9" * 30, errno.ERANGE))),
    "io_timeout_limit": File(0o644, r"\d+\n", ("0", " 0\n"), (
        ("x", errno.EINVAL), ("-1", errno.EINVAL), ("1001", errno.EINVAL), ("9" * 30, errno.ERANGE))),
    "timed_out": File(0o444, "0\n"),
    "cache_lost": File(0o644, "0\n", ("0", " 0\n"), tuple(
        (text, errno.EINVAL) for text in ("", "1", "x", "-0", "0 0", "9" * 30))),
    "nr_queues": File(0o444, r"[1-9]\d*\n"),
    "nr_poll_queues": File(0o444, "0\n"),
    "state": File(0o444, "open\n"),
    "session": File(0o444, "demo\n"),
    "mapping_path": File(0o444, "/dev/nullb0\n"),
    "access_mode": File(0o444, "rw\n"),
    "exclusive": File(0o444, "0\n"),
    # A disk in memory is known by its names only.
    "wwid": File(0o444, "ibnbd-demo-dev-nullb0\n"),
    "identity": File(0o644, r"(auto|none)\n", ("none", "auto\n", " auto "), tuple(
        (text, errno.EINVAL) for text in ("", "\n", "any", "None", "0", "auto none", "\xff"))),
    "latency_us": _latency("us", 21, columns=4),
    "data_checksum": File(0o444, "none\n"),
    "checksum_errors": _stats(r"0 0\n"),
}

DRAIN = _number(0, 1, 0)
SERVER_CONTROL = {
    "drain": replace(DRAIN, bad=(*DRAIN.bad, *((text, errno.EINVAL) for text in (
        "downtime", "downtime=", "downtime=x", "downtime=10m", "uptime=1", "0 downtime=1", "downtime=1 2", "downtime=0x1")),
        ("downtime=86401", errno.ERANGE), ("downtime=-1", errno.ERANGE))),
}

EXPORT = {
    "read_only": File(0o444, "0\n"),
    "access_mode": File(0o444, "rw\n"),
    "mapping_path": File(0o444, "/dev/nullb0\n"),
    "force_close": _usage("force_close"),
}


PREFIX_LIST = File(
    0o644, r"[^\n]*\n", ("10.0.0.0/8, fd00::/8 any\n",), tuple((text, errno.EINVAL) for text in (
        "x", "10.0.1", "10.0.1.0/33", "fe80::/129", "ip:10.0.1.2", "any all", "\x01", "\xff")) + (
        ("any " * 65, errno.E2BIG), ("any " * 1024, errno.EFBIG)))
CONFIGURED_EXPORT = {
    # The export is enabled.
    "device_path": File(0o644, "/dev/nullb0\n", (), (("/dev/nullb0", errno.EBUSY),) + tuple(
        (text, errno.EINVAL) for text in ("nullb0", "\n", "/dev/../x", "/\x01", "/\xff")) + (
        ("/" + "x" * 4094, errno.EFBIG),)),
    "access_mode": File(0o644, "(ro|rw|migration)\n", ("ro", "rw\n", " migration "), tuple(
        (text, errno.EINVAL) for text in ("RW", "\n", "rw ro", "1", "\xff"))),
    "allow_realtime": _number(0, 1, 0),
    "allow_any_host": _number(0, 1, 0),
    "allow_unauthenticated": PREFIX_LIST,
    "enable": _number(0, 1, 1),
}
CONFIGURED_HOST = {
    "addresses": PREFIX_LIST,
    "max_paths": _number(0, 65535, 0),
    "max_connections": _number(0, 65535, 0),
    "max_memory_mib": _number(0, 1048576, 0),
    "max_devices": _number(0, 65535, 0),
    "max_iops": _number(0, 100000000, 0),
    "max_bandwidth_mib_s": _number(0, 1048576, 0),
}
# It is not enabled.
CONFIGURED_PORT = {
    "address": File(0o644, r"(ip|gid):[^\n]*\n|\n", ("gid:fe80::1", " ip:10.0.1.1\n"), tuple(
        (text, errno.EINVAL) for text in (
            "\n", "10.0.1.1", "ip:", "ip:10.0.1", "tcp:10.0.1.1", "ip:10.0.1.1,ip:10.0.2.1", "ip:10.0.1.0/24",
            "ip:fe80::1", "ip:fe80::1%eth0", "ip:10.0.1.1%1", "ip:127.0.0.1", "gid:::1", "x" * 4000, "\xff\xfe"))),
    "port": _number(1, 65535, 1234),
    "enable": _number(0, 1, 0),
    "listening": File(0o444, "[01]\n"),
}
ID_LIST = File(0o644, r"[0-9any ]*\n", ("1000, 7 0\n", "any", "\n"), tuple(
    (text, errno.EINVAL) for text in ("root", "-1", "4294967295", "0x1", "1-5", "\x01", "\xff")) + (("1 " * 2048, errno.EFBIG),))
NAME_LIST = File(0o644, r"[^\n]*\n", ("web1, web2@rack local\n", "\n", "any"), tuple(
    (text, errno.EINVAL) for text in (".x", "a/b", "x" * 65, "\x01", "\xff")) + (("x " * 2048, errno.EFBIG),))
# From the same declarations.
MESSAGE_REFUSALS = (
    "refused_rule",
    "refused_limit",
    "refused_backlog",
    "refused_unbound",
    "refused_memory",
    "refused_program",
)
MESSAGE_LIMITS = {
    "max_channels": _number(0, 65536, 0),
    "max_memory_mib": _number(0, 1048576, 0),
    "max_published_mib": _number(0, 1048576, 0),
    "published_bytes": File(0o444, COUNT + r"\n"),
    "channels": File(0o444, COUNT + r"\n"),
    "memory_bytes": File(0o444, COUNT + r"\n"),
    **{name: File(0o444, COUNT + r"\n") for name in MESSAGE_REFUSALS},
}
MESSAGE_USERS = {"allowed_uids": ID_LIST, "allowed_gids": ID_LIST, **MESSAGE_LIMITS}
MESSAGE_PORTAL = {"allowed_hosts": NAME_LIST, "allow_unauthenticated": _number(0, 1, 0), **MESSAGE_USERS}


def _parameters(**patterns: str) -> dict[str, File]:
    return {name: File(0o444, pattern + r"\n") for name, pattern in patterns.items()}


# For each kind of folder: its files, and those of each path below it.
KINDS: dict[str, tuple[dict[str, File], dict[str, File]]] = {
    "client": (CLIENT, CLIENT_PATH),
    "server": ({}, SERVER_PATH),
    "control": (CONTROL, {}),
    "discovered": (DISCOVERED, {}),
    "discovered_page": (DISCOVERED_PAGE, {}),
    "disk": (DISK, {}),
    "server_control": (SERVER_CONTROL, {}),
    "export": (EXPORT, {}),
    "configured_export": (CONFIGURED_EXPORT, {}),
    "configured_host": (CONFIGURED_HOST, {}),
    "configured_port": (CONFIGURED_PORT, {}),
    "message_portal": (MESSAGE_PORTAL, {}),
    "message_session": (MESSAGE_USERS, {}),
    "message_host": (MESSAGE_LIMITS, {}),
    "ibtrs_client": (_parameters(ack_timeout=COUNT, small_io_bytes=COUNT, slots_over_rxe="[YN]", auth=AUTH, auth_suites=SUITES), {}),
    "ibtrs_server": (_parameters(
        max_chunk_size=COUNT, sess_queue_depth=COUNT, always_invalidate="[YN]", remote_invalidation="[YN]",
        capsules="[YN]", slots="[YN]",
        slots_over_rxe="[YN]", max_buffer_memory_mib=COUNT, max_sessions=COUNT,
        max_connections=COUNT, max_attempts_per_address=COUNT, setup_timeout_ms=COUNT,
        max_chunk_memory_mib=COUNT, hb_interval_ms=COUNT, hb_missed_max=COUNT, auth=AUTH, auth_suites=SUITES), {}),
    "ibnbd_server": (_parameters(
        port_nr=COUNT, dev_search_path=r"/[^\n]*", max_devices=COUNT, allow_rt_prio="[YN]",
        stop_timeout_s=COUNT, downtime_s=COUNT), {}),
    "ibmsg": (_parameters(user_mib=COUNT, total_mib=COUNT, reconnect_s=COUNT, stop_timeout_s=COUNT, lose_link=COUNT), {}),
}

# How the documents call the folder of each kind, and those of its paths.
DOCUMENTED = {
    "client": ("/sys/class/ibtrs-client/<session>", "paths/<src@dst>"),
    "server": ("/sys/class/ibtrs-server/<session>", "paths/<client@server>"),
    "control": ("/sys/class/ibnbd-client/ctl", ""),
    "discovered": ("/sys/class/ibnbd-client/ctl/discovered/<session>", ""),
    "discovered_page": ("/sys/class/ibnbd-client/ctl/discovered/<session>/<page>", ""),
    "disk": ("/sys/block/ibnbd<N>/ibnbd", ""),
    "server_control": ("/sys/class/ibnbd-server/ctl", ""),
    "export": ("/sys/class/ibnbd-server/ctl/devices/<device>/sessions/<session>", ""),
    "configured_export": ("/sys/kernel/config/ibnbd/exports/<export>", ""),
    "configured_host": ("/sys/kernel/config/ibnbd/hosts/<host>", ""),
    "configured_port": ("/sys/kernel/config/ibnbd/ports/<port>", ""),
    "message_portal": ("/sys/kernel/config/ibmsg/portals/<portal>", ""),
    "message_session": ("/sys/kernel/config/ibmsg/sessions/<session>", ""),
    "message_host": ("/sys/kernel/config/ibmsg/hosts/<session>", ""),
    "ibtrs_client": ("/sys/module/ibtrs_client/parameters", ""),
    "ibtrs_server": ("/sys/module/ibtrs_server/parameters", ""),
    "ibnbd_server": ("/sys/module/ibnbd_server/parameters", ""),
    "ibmsg": ("/sys/module/ibmsg/parameters", ""),
}


def documented(kind: str) -> dict[str, int]:
    """The modes of a kind's files, by the names that the documents have to have."""
    folder, paths = DOCUMENTED[kind]
    of_folder, of_path = KINDS[kind]
    return ({f"{folder}/{name}": file.mode for name, file in of_folder.items()}
            | {f"{folder}/{paths}/{name}": file.mode for name, file in of_path.items()})


def files(folder: str, kind: str):
    """Each file of a folder, with what it has to be; directories of paths that go
    meanwhile are left out."""
    of_folder, of_path = KINDS[kind]
    for name, file in of_folder.items():
        yield f"{folder}/{name}", file
    for path in os.listdir(f"{folder}/paths") if of_path else ():
        for name, file in of_path.items():
            yield f"{folder}/paths/{path}/{name}", file


def write(path: str, text: str) -> int:
    """Writes to a file in one piece; returns the error, or 0."""
    try:
        handle = os.open(path, os.O_WRONLY)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        os.write(handle, text.encode("latin-1"))
        return 0
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(handle)


def faults(path: str, file: File) -> list[str]:
    """The faults of a file."""
    found = []
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    if not re.fullmatch(file.pattern, text):
        found.append(f"{path} shows {text!r}")
    mode = os.stat(path).st_mode & 0o777
    if mode != file.mode:
        found.append(f"{path} has the mode {mode:o}")
    for text, expected in file.bad:
        # An empty write does not reach the kernel.
        got = write(path, text) if text else expected
        if got != expected:
            found.append(f"{path} answers {text!r} with {errno.errorcode.get(got, got)}")
    for text in file.good:
        got = write(path, text)
        if got:
            found.append(f"{path} refuses {text!r} with {errno.errorcode.get(got, got)}")
    return found


def unknown(folder: str, kind: str) -> list[str]:
    """The files of a folder that nothing is known about."""
    known, found = {name for names in KINDS[kind] for name in names}, []
    for base, folders, names in os.walk(folder):
        # The device core's, and what has a kind of its own.
        folders[:] = [name for name in folders if name not in ("power", "subsystem", "devices", "discovered")
                      and not (kind == "discovered" and name.isdecimal())]
        for name in names:
            short = os.path.relpath(f"{base}/{name}", folder)
            short = re.sub(r"^paths/[^/]+/", "", short)
            if short not in known and short != "uevent":
                found.append(f"{base}/{name} is not known")
    return found


def look(folder: str, kind: str) -> list[str]:
    """The faults of all files of a folder."""
    return unknown(folder, kind) + [fault for path, file in files(folder, kind) for fault in faults(path, file)]


def look_while_paths_go(path: str, file: File) -> list[str]:
    """The same for one file, which may be that of a path that is removed, and
    perhaps added again."""
    try:
        found = faults(path, file)
    except OSError as error:
        if "/paths/" in path and error.errno in GONE:
            return []
        raise
    # If it goes in the middle of it, a write is answered with these.
    return [line for line in found
            if "/paths/" not in path or not any(errno.errorcode[gone] in line for gone in GONE)]


def all_files(folders: list[tuple[str, str]]) -> list[tuple[str, File]]:
    return [each for kind, folder in folders for each in files(folder, kind)]


def walk_on(folders: list[tuple[str, str]], part: list[tuple[str, File]], seconds: float) -> int:
    """The work of one process: its part of the files, and then any others as long as there is time."""
    random.seed()
    end = time.monotonic() + seconds
    while True:
        for path, file in part:
            if found := look_while_paths_go(path, file):
                print("\n".join(found), flush=True)
                return 1
        if time.monotonic() >= end:
            return 0
        everything = all_files(folders)
        # A few, as others remove paths and add them again.
        part = random.sample(everything, min(5, len(everything)))


def _main() -> int:
    seconds, processes = float(sys.argv[1]), int(sys.argv[2])
    folders = [(kind, folder) for kind, _, folder in (word.partition("=") for word in sys.argv[3:])]
    if not processes:
        found = [line for kind, folder in folders for line in look(folder, kind)]
        print("\n".join(found))
        return 1 if found else 0
    children, everything = [], all_files(folders)
    # Starting an interpreter is what takes longest where the kernel checks itself.
    for number in range(processes):
        if not (child := os.fork()):
            os._exit(walk_on(folders, everything[number::processes], seconds))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(_main())
