# SPDX-License-Identifier: GPL-2.0
"""The files of sessions and paths on both sides: their contents and accepted input, alone and from
several processes at once while I/O runs; events and traces."""

import errno
import os
import re
import time
from pathlib import Path

import pytest

from testbed import abi, blockdev, exports, fio, sysfs_walk
from testbed.paths import TOP

pytestmark = pytest.mark.links(2)

CLIENT = "/sys/class/ibtrs-client/demo"
SERVER = "/sys/class/ibtrs-server/demo"
FIRST = f"{CLIENT}/paths/ip:10.0.1.2@ip:10.0.1.1"
SECOND = f"{CLIENT}/paths/ip:10.0.2.2@ip:10.0.2.1"
# How long the files are read and written by several processes.
SECONDS = 60 if os.environ.get("IBTRS_LONG") else 6
# I/O all the time that leaves processors for those who use the files.
LOAD = ("fio --name=load --filename=/dev/ibnbd0 --rw=randrw --bsrange=512-128k --iodepth=16 --rate_iops=15 "
        "--direct=1 --ioengine=io_uring --verify=crc32c --verify_backlog=32 --time_based --runtime=600 --size=32m")


DISK = "/sys/block/ibnbd0/ibnbd"
CONTROL = "/sys/class/ibnbd-client/ctl"
EXPORT = "/sys/class/ibnbd-server/ctl/devices/nullb0/sessions/demo"
PARAMETERS = "/sys/module/{0}/parameters"
# The folders of each side that sysfs_walk.py knows, as it wants them.
OF_CLIENT = f"client={CLIENT} disk={DISK} control={CONTROL}"
OF_SERVER = f"server={SERVER} server_control=/sys/class/ibnbd-server/ctl export={EXPORT}"


@pytest.fixture
def mapped(pair, stack):
    """A session with a path on each link, and a disk."""
    blockdev.map_new(pair, stack, size_mb=64)
    pair.client.run(f"echo ip:10.0.2.2,ip:10.0.2.1 > {CLIENT}/add_path")
    for guest in pair:
        guest.push("/tmp/sysfs_walk.py", Path(sysfs_walk.__file__).read_text())
    return pair


def look(guest, folders: str, *modules: str) -> None:
    """At each file once, and at the parameters of modules."""
    parameters = " ".join(f"{module}={PARAMETERS.format(module)}" for module in modules)
    guest.run(f"python3 /tmp/sysfs_walk.py 0 0 {folders} {parameters}", timeout=300)


def refused(guest, command: str, number: int, timeout: float = 120) -> None:
    answer = guest.run(command, timeout, check=False)
    assert not answer.ok and os.strerror(number) in answer, answer


def test_every_file_of_the_client(mapped):
    look(mapped.client, OF_CLIENT, "ibtrs_client")


def test_every_file_of_the_server(mapped):
    look(mapped.server, OF_SERVER, "ibtrs_server", "ibnbd_server")
    names = mapped.server.run(f"ls {SERVER}/paths").split()
    assert sorted(names) == ["ip:10.0.1.2@ip:10.0.1.1", "ip:10.0.2.2@ip:10.0.2.1"]


# All files of ours, wherever they are, less those of the device core.
FIND = ("for folder in /sys/kernel/config/ibnbd/ /sys/kernel/config/ibmsg/ /sys/class/ib[nt]*-*/*/ /sys/block/ibnbd*/ibnbd/ "
        "/sys/module/ib[nt]*_*/parameters/ /sys/module/ibmsg/parameters/; do "
        "[ ! -d $folder ] || find $folder -name power -prune -o -type f ! -name uevent -printf '%m %p\\n'; done")


@pytest.mark.fast
def test_files_are_those_that_are_documented(mapped):
    entries, met = abi.entries(), set()
    exports.make_host(mapped.server, "other")
    exports.make(mapped.server, "other", "/dev/nullb0", allow_unauthenticated="any")
    exports.make_port(mapped.server, "other", "ip:10.0.1.1")
    mapped.client.run("echo sessname=demo > /sys/class/ibnbd-client/ctl/discover && modprobe ibmsg && "
                      "{ mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config; } && mkdir /sys/kernel/config/ibmsg/{portals/kv,sessions/local,hosts/demo}")
    for guest in mapped:
        for mode, path in (line.split() for line in guest.run(FIND).splitlines()):
            path = path.replace("//", "/")
            entry = next((entry for entry in entries if entry.fits(path)), None)
            assert entry is not None, f"{path} is not documented"
            assert int(mode, 8) == entry.mode, f"{path} has the mode {mode}"
            met.add(entry)
    assert [entry.what for entry in entries if entry.mode is not None and entry not in met] == []


def test_modules_have_one_version(mapped):
    kbuild = (TOP / "Kbuild").read_text()
    version = re.search(r"^ibtrs-version := (\S+)$", kbuild, re.M)[1]
    for guest, modules in ((mapped.client, "{ibtrs_core,ibtrs_client,ibnbd_client}"),
                           (mapped.server, "{ibtrs_core,ibtrs_server,ibnbd_server}")):
        assert guest.run(f"cat /sys/module/{modules}/version").split() == [version] * 3


@pytest.mark.thorough
def test_a_device_that_is_renamed(mapped):
    """Its name is read all the time meanwhile: it is the one or the other."""
    server, client = mapped
    name, other = f"{mapped.rdma}0", "renamed"
    files = {server: f"{SERVER}/paths/ip:10.0.1.2@ip:10.0.1.1/hca_name", client: f"{FIRST}/hca_name"}
    reading = [guest.start(f"while [ ! -e /tmp/renamed ]; do read -r name < {file}; echo $name; done | sort -u")
               for guest, file in files.items()]
    for guest in files:
        guest.run(f"end=$(($(date +%s) + {SECONDS})); while [ $(date +%s) -lt $end ]; do "
                  f"rdma dev set {name} name {other} && rdma dev set {other} name {name} || exit 1; done; "
                  "touch /tmp/renamed", timeout=300)
    of_server, of_client = (set(job.wait(60).split()) for job in reading)
    assert of_server == {name, other}
    # The client's file names the device as it was when it connected.
    assert of_client == {name}
    server.run(f"rdma dev set {name} name {other}")
    try:
        assert server.run(f"cat {files[server]}").strip() == other
    finally:
        server.run(f"rdma dev set {other} name {name}")


@pytest.mark.fast
def test_values(mapped):
    server, client = mapped
    assert client.run(f"cat {FIRST}/state {FIRST}/src_addr {FIRST}/dst_addr {FIRST}/hca_name {FIRST}/hca_port"
                      ).split() == ["connected", "ip:10.0.1.2", "ip:10.0.1.1", f"{mapped.rdma}0", "1"]
    path = f"{SERVER}/paths/ip:10.0.2.2@ip:10.0.2.1"
    assert server.run(f"cat {path}/src_addr {path}/dst_addr {path}/hca_name {path}/hca_port"
                      ).split() == ["ip:10.0.2.2", "ip:10.0.2.1", f"{mapped.rdma}1", "1"]
    client.run(f"echo 7 > {CLIENT}/max_reconnect_attempts && echo min-l > {CLIENT}/mp_policy && "
               f"echo 200 > {CLIENT}/hb_interval_ms")
    assert client.run(f"cat {CLIENT}/max_reconnect_attempts {CLIENT}/mpath_policy {CLIENT}/hb_interval_ms"
                      ).split("\n") == ["7", "min-latency (ML: 2)", "200"]
    client.wait_until(f"[ $(cut -d' ' -f1 {FIRST}/cur_latency) -gt 0 ]")
    for file, low, high in (("max_reconnect_attempts", -1, 9999), ("hb_interval_ms", 100, 60000), ("hb_missed_max", 1, 100),
                            ("reconnect_delay_ms", 10, 30000), ("queue_timeout_s", 0, 86400), ("queue_timeout_s", -1, -1),
                            ("reauth_interval_s", 10, 2_592_000), ("reauth_interval_s", 0, 0)):
        for value in (low, high):
            client.run(f"echo {value} > {CLIENT}/{file}")
            assert client.run(f"cat {CLIENT}/{file}") == str(value)


@pytest.mark.fast
def test_statistics_count_and_begin_anew(mapped):
    server, client = mapped
    client.run(f"echo 1 > {SECOND}/disconnect && echo 1 > {FIRST}/stats/reset_all")
    server_stats = f"{SERVER}/paths/ip:10.0.1.2@ip:10.0.1.1/stats"
    server.run(f"echo 0 > {server_stats}/reset_all")
    client.run("dd if=/dev/zero of=/dev/ibnbd0 bs=16k count=64 oflag=direct status=none && "
               "dd if=/dev/ibnbd0 of=/dev/null bs=4k count=32 iflag=direct status=none")

    def numbers(guest, file):
        return [int(word) for word in guest.run(f"cat {file}").split() if word.isdigit()]

    for guest, file in ((client, f"{FIRST}/stats/rdma"), (server, f"{server_stats}/rdma")):
        reads, read_bytes, writes, write_bytes, in_flight = numbers(guest, file)[:5]
        assert reads >= 32 and read_bytes >= 32 * 4096
        assert writes == 64 and 64 * 16384 < write_bytes < 64 * 16384 + 64 * 512
        assert in_flight == 0
    counted = sum(numbers(client, f"{FIRST}/stats/rdma")[0:4:2])
    for file in ("rdma_lat", "rdma_lat_us"):
        lines = client.run(f"cat {FIRST}/stats/{file}").splitlines()
        assert sum(int(word) for line in lines[:-1] for word in line.split(": ")[1].split()) == counted
    total = client.run(f"tail -n 1 {FIRST}/stats/sg_entries").split()
    assert total[0] == "total:" and sum(map(int, total[1:])) >= 96
    largest, total, calls = numbers(server, f"{server_stats}/wc_completion")
    assert 1 <= largest <= total and 1 <= calls <= total

    client.run(f"echo 0 > {FIRST}/stats/rdma")
    assert numbers(client, f"{FIRST}/stats/rdma") == [0] * 6
    assert sum(numbers(client, f"{FIRST}/stats/wc_completion")) > 0
    client.run(f"echo 1 > {FIRST}/stats/reset_all")
    assert client.run(f"cat {FIRST}/stats/rdma_lat | cut -d: -f2 | sort -u").strip() == "0 0"
    migrated = client.run(f"cat {FIRST}/stats/cpu_migration_from {FIRST}/stats/cpu_migration_to").split()
    assert set(migrated) == {"0"}


def test_paths_come_and_go(mapped):
    server, client = mapped
    load = client.start(LOAD)
    refused(client, f"echo ip:10.0.2.2,ip:10.0.2.1 > {CLIENT}/add_path", errno.EEXIST)
    client.run(f"echo 1 > {SECOND}/disconnect")
    assert client.run(f"cat {SECOND}/state {SECOND}/last_error") == "disconnected\ndisconnected by a user"
    server.wait_until(f"! test -e {SERVER}/paths/ip:10.0.2.2@ip:10.0.2.1")
    client.run(f"echo 1 > {SECOND}/reconnect")
    assert client.run(f"cat {SECOND}/state") == "connected"
    assert client.run(f"cat {SECOND}/stats/reconnects").split()[0] == "1"
    client.run(f"echo 1 > {SECOND}/remove_path")
    assert not client.ok(f"test -e {SECOND}")
    # Without a source the directory gets the one that is used.
    client.run(f"echo ip:10.0.2.1 > {CLIENT}/add_path")
    client.run(f"test -e {SECOND}/stats/rdma")
    # The first writer removes it.
    answers = client.run(f"for i in 1 2 3 4; do (echo 1 > {SECOND}/remove_path && echo removed) 2>&1 & done; wait")
    assert answers.split("\n").count("removed") == 1
    # The server throws a path out; the client connects it again.
    server.run(f"echo 1 > {SERVER}/paths/ip:10.0.1.2@ip:10.0.1.1/disconnect")
    client.wait_until(f"[ $(cut -d' ' -f1 {FIRST}/stats/reconnects) -ge 1 ]")
    client.wait_until(f"grep -qx connected {FIRST}/state")
    assert client.run(f"cat {FIRST}/last_error") != ""
    client.run("kill -INT $(pidof fio | cut -d' ' -f1)")
    load.wait(60)


@pytest.mark.thorough
def test_a_session_that_ends_while_paths_are_added(mapped, stack):
    """The writers to add_path are in a file of the directory that goes away."""
    nobody = " ".join(f"ip:10.0.1.{host}" for host in range(71, 77))
    mapped.client.run(f"""
for _ in $(seq {20 if os.environ.get("IBTRS_LONG") else 2}); do
    # The session has little to do when it ends.
    for path in {CLIENT}/paths/*; do
        echo 1 > $path/disconnect || exit 1
    done
    for path in {nobody}; do
        (echo $path > {CLIENT}/add_path) 2> /dev/null &
    done
    while [ $(ls {CLIENT}/paths | wc -l) -lt 6 ]; do sleep 0.05; done
    echo force > {DISK}/unmap_device && wait && [ ! -e {CLIENT} ] || exit 2
    {stack.map_device("/dev/nullb0")} || exit 3
done""", timeout=100)


@pytest.mark.fast
def test_unreachable_addresses(mapped):
    client = mapped.client
    before = client.run(f"ls {CLIENT}/paths")
    refused(client, f"echo ip:10.0.2.2,ip:10.0.2.77 > {CLIENT}/add_path", errno.ETIMEDOUT)
    job = client.start(f"timeout -s INT 2 sh -c 'echo ip:10.0.2.2,ip:10.0.2.78 > {CLIENT}/add_path'")
    job.wait(20, check=False)
    assert client.run(f"ls {CLIENT}/paths") == before


@pytest.mark.quiet
@pytest.mark.long
def test_eight_processes_while_io_runs(mapped):
    server, client = mapped
    load = client.start(LOAD)
    walkers = [guest.start(f"python3 /tmp/sysfs_walk.py {SECONDS} 8 {folders}")
               for guest, folders in ((client, OF_CLIENT), (server, OF_SERVER))]
    client.push("/tmp/flap", f"""
while [ ! -e /tmp/enough ]; do
	echo 1 > {SECOND}/disconnect; echo 1 > {SECOND}/reconnect; echo 1 > {SECOND}/remove_path
	echo ip:10.0.2.2,ip:10.0.2.1 > {CLIENT}/add_path
done""")
    flaps = client.start("rm -f /tmp/enough; . /tmp/flap")
    for walker in walkers:
        walker.wait(300)
    client.run("touch /tmp/enough")
    flaps.wait(120, check=False)
    client.run("kill -INT $(pidof fio | cut -d' ' -f1)")
    load.wait(120)


LISTEN = """
import socket, sys, time
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
s.bind((0, 1))
s.settimeout(1)
print("listening", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        words = s.recv(8192).split(b"\\0")
    except TimeoutError:
        continue
    if b"/ibtrs-" in words[0]:
        print(*(w.decode() for w in [words[0]] + [w for w in words if w.startswith(b"IBTRS_")]), flush=True)
"""


@pytest.mark.fast
def test_events(mapped):
    server, client = mapped
    for guest in mapped:
        guest.push("/tmp/listen.py", LISTEN)
    jobs = [guest.start("python3 /tmp/listen.py 15 > /tmp/events") for guest in mapped]
    client.wait_until("grep -q listening /tmp/events")
    server.wait_until("grep -q listening /tmp/events")
    client.run(f"echo 1 > {SECOND}/drain && echo 0 > {SECOND}/drain && echo 1 > {SECOND}/standby && "
               f"echo 1 > {SECOND}/disconnect && echo 1 > {SECOND}/reconnect && echo 1 > {SECOND}/remove_path && "
               f"echo 1 > {FIRST}/disconnect && echo 1 > {FIRST}/reconnect")
    for job in jobs:
        job.wait(60)
    said = client.run("cat /tmp/events")
    second = "change@/devices/virtual/ibtrs-client/demo IBTRS_PATH=ip:10.0.2.2@ip:10.0.2.1 IBTRS_STATE="
    for state in ("closed", "connected", "removed"):
        assert f"{second}{state}\n" in said + "\n", said
    for variable in ("DRAINED=1", "DRAINED=0", "STANDBY=1"):
        assert second.replace("STATE=", f"{variable}\n") in said + "\n", said
    assert "offline@/devices/virtual/ibtrs-client/demo IBTRS_SESSION_STATE=disconnected" in said
    assert "online@/devices/virtual/ibtrs-client/demo IBTRS_SESSION_STATE=connected" in said
    said = server.run("cat /tmp/events")
    second = "change@/devices/virtual/ibtrs-server/demo IBTRS_PATH=ip:10.0.2.2@ip:10.0.2.1 IBTRS_STATE="
    assert second + "disconnected" in said and second + "connected" in said, said


# The variables of each event, by its side.
PATH = r"session=demo path=(ip:10\.0\.[12]\.2@)?ip:10\.0\.[12]\.1"
FENCE = rf"{PATH} epoch=\d+ drain=[01]"
EVENTS = {
    "client": {
        "path_state": rf"{PATH} from=connected to=closing", "submit": rf"{PATH} tag=\d+ write bytes=4\d{{3}}$",
        "complete": rf"{PATH} tag=\d+ error=0 ns=[1-9]\d+ queue_ns=\d+ disk_ns=\d+$", "failover": r"session=demo tag=\d+ epoch=\d+",
        "requeue": r"session=demo tag=\d+ epoch=0", "fence": FENCE, "fence_done": FENCE,
    },
    "server": {
        "path_state": rf"{PATH} from=connected to=closing", "request": rf"{PATH} tag=\d+ write bytes=4\d{{3}}$",
        "response": rf"{PATH} tag=\d+ error=0", "fence": FENCE, "fence_done": FENCE,
    },
}


@pytest.mark.fast
def test_traces(mapped, stack):
    """Each event is there when it happens, with what it is to tell."""
    (server, client), tracing = mapped, "/sys/kernel/tracing"
    for guest in mapped:
        guest.run(f"echo > {tracing}/trace; echo 1 > {tracing}/events/ibtrs/enable")
    load = client.start(f"fio --name=load --filename={stack.disk} --rw=randrw --bs=4k --iodepth=16 --direct=1 "
                        "--ioengine=io_uring --time_based --runtime=600 --size=8m")
    blockdev.wait_for_reads(client, stack)
    # One path takes over from the other what the server has not answered; then there is none.
    server.freeze()
    time.sleep(0.5)
    change = client.start(f"echo 1 > {SECOND}/disconnect && echo 1 > {SECOND}/reconnect")
    time.sleep(0.5)
    server.thaw()
    change.wait(60)
    blockdev.wait_for_reads(client, stack)
    # All that the load has may be in flight then, so somebody else asks for something, too.
    client.run(f"echo 1 > {FIRST}/disconnect; echo 1 > {SECOND}/disconnect; "
               f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none & sleep 0.5; "
               f"echo 1 > {FIRST}/reconnect && echo 1 > {SECOND}/reconnect; wait")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)
    for side, events in EVENTS.items():
        guest = getattr(mapped, side)
        trace = guest.run(f"echo 0 > {tracing}/events/ibtrs/enable; cat {tracing}/trace; echo > {tracing}/trace")
        missing = [event for event, tells in events.items()
                   if not re.search(rf": ibtrs_{side}_{event}: {tells}", trace, re.M)]
        assert not missing, (missing, trace[-20000:])


@pytest.mark.fast
def test_names_are_unique_on_a_machine(mapped, stack):
    client = mapped.client
    client.run("ip netns add other")
    refused(client, f"ip netns exec other bash -c '{stack.map_device('/dev/nullb0')}'", errno.EEXIST)
    client.run("ip netns del other")
    assert client.run("ls /sys/class/ibtrs-client") == "demo"
