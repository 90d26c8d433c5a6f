# SPDX-License-Identifier: GPL-2.0
"""Exports and hosts in configfs: which sessions may open which export, and the effect of changes by the
operator."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from testbed import blockdev, exports, faults, fio, keyring, sysfs_walk
from testbed.blocktrace import BlockTrace
from testbed.hostile import launch
from testbed.lab import wait_for
from testbed.stack import STACKS

pytestmark = [pytest.mark.links(2)]
fast = pytest.mark.fast

MAINLINE = STACKS["mainline"]
SESSION = "/sys/class/ibtrs-client/demo"
SECOND = f"{SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1"
SERVER = "/sys/class/ibtrs-server"
STATE = "/sys/block/ibnbd{}/ibnbd/state"


@pytest.fixture
def server(pair, stack):
    """The server, with a disk, and without a dev_search_path that would let anybody open it."""
    pair.server.null_blk(size_mb=16)
    pair.server.run("modprobe ibnbd_server")
    pair.client.run(stack.load_client())
    return pair.server


def authenticate(pair) -> None:
    for guest in pair:
        keyring.load(guest)


def map_line(name: str = "disk1", session: str = "demo", options: str = "", links: int = 1) -> str:
    paths = " ".join(f"path=ip:10.0.{link}.1" for link in range(1, links + 1))
    line = f"sessname={session} {paths} device_path={name} {options}"
    return f'echo "{line}" > /sys/class/ibnbd-client/ctl/map_device'


def refused(guest, command: str, number: int) -> None:
    answer = guest.run(command, timeout=120, check=False)
    assert not answer.ok and os.strerror(number) in answer, (command, answer)


def said(server, line: str) -> None:
    log = server.run("dmesg")
    assert line in log, (line, log)


def states(client) -> list[str]:
    return client.run("cat /sys/block/ibnbd*/ibnbd/state").split()


@contextlib.contextmanager
def slow_path(server, target: str):
    """A link of the server to `target`, and what makes it slow: from then on nobody follows it
    until its disk goes on."""
    device = server.null_blk("nullb1", size_mb=16)
    stuck = blockdev.StuckDisk(server, device)
    mount = f"mount {stuck.device} /mnt/slow"
    server.run(f"mkfs.ext4 -q {stuck.device} && mkdir -p /mnt/slow && {mount} && mkdir /mnt/slow/far "
               f"&& ln -s {target} /mnt/slow/far/link")

    def suspend() -> None:
        # The link is not cached any more.
        server.run(f"busybox umount /mnt/slow && {mount}")
        stuck.suspend()

    try:
        yield "/mnt/slow/far/link", suspend
    finally:
        stuck.resume()


def test_a_link_whose_target_takes_long_to_find(pair, stack):
    """root's symlink() keeps the directory that it began in, but not the module: neither is freed
    under it when both are removed meanwhile."""
    server = pair.server
    server.run("modprobe ibnbd_server")
    server.run(f"mkdir {exports.EXPORTS}/disk1 {exports.HOSTS}/demo")
    with slow_path(server, exports.HOSTS) as (hosts, suspend):
        suspend()
        link = server.start(f"ln -s {hosts}/demo {exports.EXPORTS}/disk1/allowed_hosts/demo")
        server.wait_until("grep -l '^State:.D' /proc/$(busybox pidof ln)/status")
        server.run(f"busybox rmdir {exports.EXPORTS}/disk1 {exports.HOSTS}/demo")
        unload = server.start("modprobe -r ibnbd_server")
        server.wait_until(f"[ ! -e {exports.TOP} ]")
        server.run("sleep 1")
        assert unload.running and link.running
    answer = link.wait(60, check=False)
    assert not answer.ok and os.strerror(errno.ENOENT) in answer
    unload.wait(60)
    server.run("modprobe ibnbd_server && modprobe -r ibnbd_server")


@fast
def test_only_an_open_device_is_granted(pair, stack, server):
    client = pair.client
    exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    server.run("mkfs.ext4 -q /dev/nullb0 && mkdir -p /mnt/disk && mount /dev/nullb0 /mnt/disk")
    refused(client, map_line(), errno.EBUSY)
    log = server.run("dmesg")
    assert "export disk1: refused, rw: " in log and "export disk1: granted" not in log
    server.run("busybox umount /mnt/disk")
    client.run(map_line())
    said(server, "demo: ip:10.0.1.2: export disk1: granted, rw: its paths come from allow_unauthenticated")


def test_hosts(pair, stack, server):
    client = pair.client
    authenticate(pair)
    exports.make_host(server)
    exports.make(server, "disk1", "/dev/nullb0")
    # The host exists, and may not open the export; neither may any other name.
    refused(client, map_line(), errno.EACCES)
    said(server, "demo: ip:10.0.1.2: export disk1: refused, rw: its host is not in allowed_hosts (EACCES)")
    # It hears which exports exist, as its operator has configured it.
    refused(client, map_line("/dev/nullb0"), errno.ENOENT)
    said(server, "demo: ip:10.0.1.2: export dev/nullb0: refused, rw: there is no such export (ENOENT)")
    server.run(exports.link("disk1"))
    refused(server, exports.link("disk1") + "2", errno.EEXIST)
    client.run(map_line("/disk1", links=2))
    said(server, "export disk1: granted, rw: its host is in allowed_hosts")
    assert states(client) == ["open"]
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    # The host is taken away under I/O: nothing of it reaches the disk any more.
    server.run(exports.unlink("disk1"))
    server.run("exec 3<>/dev/nullb0")
    assert not blockdev.is_taken(server, "/dev/nullb0")
    said(server, "export disk1: closed: its host is not in allowed_hosts")
    assert not load.wait(60, check=False).ok
    client.wait_until(f"[ $(cat {STATE.format(0)}) = closed ]")
    refused(client, f"echo 1 > {os.path.dirname(STATE.format(0))}/remap_device", errno.EACCES)
    # Every authenticated session may, then.
    server.run(f"echo 1 > {exports.EXPORTS}/disk1/allow_any_host")
    client.run(f"echo 1 > {os.path.dirname(STATE.format(0))}/remap_device")
    assert states(client) == ["open"]
    server.run(exports.link("disk1"))
    server.run(exports.unlink("disk1"))
    assert states(client) == ["open"]
    # A host that is removed loses its paths, and may come back as long as it has a key.
    server.run(f"busybox rmdir {exports.HOSTS}/demo")
    said(server, "disconnected: the host no longer allows this path")
    # Its client may not have noticed yet, so the server says when both are back.
    server.wait_until("dmesg | awk '/no longer allows this path/ { back = 0 } /: path connected/ { back++ } END { exit back < 2 }'")
    client.wait_until(f"grep -qx connected {SESSION}/paths/*/state && [ $(cat {STATE.format(0)}) = open ]")
    server.run(f"echo 0 > {exports.EXPORTS}/disk1/allow_any_host")
    client.wait_until(f"[ $(cat {STATE.format(0)}) = closed ]")
    refused(client, f"echo 1 > {os.path.dirname(STATE.format(0))}/remap_device", errno.EACCES)
    said(server, "its host is not in hosts, and allow_any_host is not set (EACCES)")
    # It is no host any more, so that it cannot find out which exports exist.
    refused(client, map_line("nothing"), errno.EACCES)
    said(server, "export nothing: refused, rw: there is no such export, but only hosts are told that (EACCES)")


def test_an_export_that_is_disabled_and_removed(pair, stack, server):
    client = pair.client
    server.null_blk("nullb1", size_mb=16)
    folder = exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    exports.make(server, "disk2", "/dev/nullb1", allow_unauthenticated="any")
    client.run(map_line())
    client.run(map_line("disk2"))
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    refused(server, f"echo /dev/nullb1 > {folder}/device_path", errno.EBUSY)
    server.run(f"echo 0 > {folder}/enable")
    # Closed when the write has returned.
    assert not blockdev.is_taken(server, "/dev/nullb0")
    assert server.run("ls /sys/class/ibnbd-server/ctl/devices").split() == ["nullb1"]
    assert not load.wait(60, check=False).ok
    client.wait_until(f"[ $(cat {STATE.format(0)}) = closed ]")
    remap = f"echo 1 > {os.path.dirname(STATE.format(0))}/remap_device"
    refused(client, remap, errno.ENODEV)
    server.run(f"echo 1 > {folder}/enable")
    client.run(f"{remap} && dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    # The module stays while there is an export, and goes with the last one.
    assert "in use" in server.run("modprobe -r ibnbd_server", check=False)
    refused(server, f"busybox rmdir {exports.EXPORTS}", errno.EPERM)
    server.run(f"busybox rmdir {folder}")
    assert not blockdev.is_taken(server, "/dev/nullb0")
    # Nobody but a host learns that it is gone.
    refused(client, remap, errno.EACCES)
    said(server, "export disk1: refused, rw: there is no such export, but only hosts are told that (EACCES)")
    # The other one does not notice.
    client.run("dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none")
    server.run(f"busybox rmdir {exports.EXPORTS}/disk2")
    # Without exports everything is as it was: there is no dev_search_path.
    refused(client, remap, errno.EACCES)
    for number in (0, 1):
        client.run(stack.unmap(number, "force"))
    server.run("modprobe -r ibnbd_server")
    assert not server.ok(f"[ -e {exports.TOP} ]")


@fast
def test_a_disk_that_hangs_does_not_hold_the_operator_up(pair, stack):
    server, client = pair
    server.null_blk(size_mb=16)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    server.run("modprobe ibnbd_server stop_timeout_s=2")
    client.run(stack.load_client())
    folder = exports.make(server, "disk1", stuck.device, allow_unauthenticated="any")
    client.run(map_line())
    with stuck.suspended():
        reader = client.start(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
        client.wait_until("[ $(awk '{ print $1 }' /sys/block/ibnbd0/inflight) -gt 0 ]")
        began = server.uptime()
        server.run(f"echo 0 > {folder}/enable")
        assert 1 < server.uptime() - began < 15
        said(server, "disk1: not closed for all clients yet: requests are in service, or an OPEN has not ended")
        # Everything else goes on, and the export goes without its device.
        server.run(f"ls {exports.EXPORTS} && busybox rmdir {folder}")
        assert reader.running
    reader.wait(60, check=False)
    server.wait_until("[ ! -e /sys/class/ibnbd-server/ctl/devices/dm-0 ]")
    said(server, "demo: ip:10.0.1.2: export disk1: closed: it is not enabled")
    client.run(stack.unmap(0, "force"))
    server.run("modprobe -r ibnbd_server")
    stuck.remove()


@fast
def test_an_export_is_taken_away_while_another_is_being_opened(pair, stack):
    """An OPEN that hangs holds the lock of the session's devices, so that none can be closed. The
    client cannot reach the disk any more."""
    server, client = pair
    server.null_blk(size_mb=16)
    other = server.null_blk("nullb2", size_mb=16)
    server.run("modprobe ibnbd_server stop_timeout_s=2")
    client.run(stack.load_client())
    reads = "awk '{ print $1 }' /sys/block/nullb0/stat"
    with slow_path(server, other) as (link, suspend):
        folder = exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
        # The kernel's root is what the guest began with.
        exports.make(server, "disk2", f"/host{link}", allow_unauthenticated="any")
        client.run(map_line())
        client.run(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
        suspend()
        opening = client.start(map_line("disk2"))
        server.wait_until("cat /proc/*/stack 2>/dev/null | grep -q ext4 || busybox ps -o stat,comm | grep -q '^D'")
        server.run(f"echo 0 > {folder}/enable")
        said(server, "disk1: not closed for all clients yet: requests are in service, or an OPEN has not ended")
        served = server.run(reads)
        reader = client.start(f"dd if={stack.disk} of=/dev/null bs=4k skip=1 count=1 iflag=direct status=none")
        client.run("sleep 2")
        assert opening.running and server.run(reads) == served
        # Nor does an export that hangs keep the operator from removing it.
        server.run(f"busybox rmdir {folder}")
        # An export that is taken away during an OPEN is not opened.
        server.run(f"echo 0 > {exports.EXPORTS}/disk2/enable")
    reader.wait(60, check=False)
    answer = opening.wait(60, check=False)
    assert not answer.ok and os.strerror(errno.EACCES) in answer
    said(server, "export disk2: refused, rw: its export was taken away while it was being opened (EACCES)")
    assert server.run(reads) == served
    server.wait_until("[ ! -e /sys/class/ibnbd-server/ctl/devices/nullb0 ]")
    said(server, "demo: ip:10.0.1.2: export disk1: closed: it is not enabled")


def test_taking_an_export_away_needs_no_memory(pair, stack):
    server, client = pair
    if not server.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    faults.load(server)
    server.null_blk(size_mb=16)
    server.null_blk("nullb1", size_mb=16)
    server.run("modprobe ibnbd_server")
    client.run(stack.load_client())
    folder = exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    exports.make(server, "disk2", "/dev/nullb1", allow_unauthenticated="any")
    client.run(map_line())
    client.run(map_line("disk2"))
    memory = faults.BY_NAME["krealloc_node_align_noprof"]
    server.run(f"echo {memory.watched} > {faults.FOLDER}/functions && "
               f"echo {memory.name} 1 {memory.error} 1000000 > {faults.FOLDER}/arm")
    try:
        server.run(f"echo 0 > {folder}/enable", timeout=60)
        said(server, "export disk1: closed: it is not enabled")
        assert not blockdev.is_taken(server, "/dev/nullb0")
    finally:
        server.run(f"echo '- 0 0 0' > {faults.FOLDER}/arm")
    # The client's requests meanwhile were refused, for want of memory.
    assert not client.ok(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
    client.run("dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none")
    client.run(f"{stack.unmap(0, 'force')} && {stack.unmap(1)}")
    server.run(f"{exports.CLEAR} && modprobe -r ibnbd_server && busybox rmmod ibtrs_faults")


@fast
def test_exports_turn_the_search_path_off(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.null_blk("nullb1", size_mb=16)
    blockdev.load(pair, stack)
    client.run(map_line("nullb0"))
    server.run(f"mkdir {exports.EXPORTS}/any")
    # An open device stays open, and nothing else can be opened.
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    refused(client, map_line("nullb1"), errno.EACCES)
    refused(client, map_line("any"), errno.EACCES)
    server.run(f"busybox rmdir {exports.EXPORTS}/any")
    client.run(map_line("nullb1"))
    assert device and states(client) == ["open", "open"]


@fast
def test_modes(pair, stack, server):
    client = pair.client
    folder = exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any", access_mode="ro")
    refused(client, map_line(), errno.EACCES)
    said(server, "export disk1: refused, rw: access_mode does not allow this (EACCES)")
    refused(client, map_line(options="access_mode=ro exclusive=1"), errno.EACCES)
    client.run(map_line(options="access_mode=ro"))
    assert not client.ok(f"dd if=/dev/zero of={stack.disk} bs=4k count=1 oflag=direct status=none")
    client.run(stack.unmap())
    server.run(f"echo rw > {folder}/access_mode")
    refused(client, map_line(options="access_mode=migration"), errno.EACCES)
    client.run(map_line())
    # A writer goes when the mode is narrowed, and a reader stays.
    client.run(map_line(session="other", options="access_mode=ro"))
    server.run(f"echo ro > {folder}/access_mode")
    client.wait_until(f"[ $(cat {STATE.format(0)}) = closed ]")
    assert client.run(f"cat {STATE.format(1)}") == "open"
    server.run(f"echo migration > {folder}/access_mode")
    client.run(map_line(session="third", options="access_mode=migration"))


@fast
def test_sessions_without_authentication(pair, stack, server):
    client = pair.client
    folder = exports.make(server, "disk1", "/dev/nullb0", allow_any_host=1)
    refused(client, map_line(), errno.EACCES)
    said(server, "it is not authenticated: load a key on both sides, or set allow_unauthenticated (EACCES)")
    server.run(f"echo 10.0.2.0/24 > {folder}/allow_unauthenticated")
    refused(client, map_line(), errno.EACCES)
    refused(client, map_line(links=2), errno.EACCES)
    said(server, "it is not authenticated, and not all its paths come from allow_unauthenticated (EACCES)")
    server.run(f"echo 10.0.1.0/24 > {folder}/allow_unauthenticated")
    client.run(map_line())
    said(server, "export disk1: granted, rw: its paths come from allow_unauthenticated")
    # No path from elsewhere joins the session while it has the export open.
    refused(client, f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path", errno.EACCES)
    # Nor does a session of this kind get the name of a host.
    exports.make_host(server, "web1")
    assert not client.ok(map_line(session="web1"), timeout=120)
    said(server, "web1: ip:10.0.1.2@ip:10.0.1.1: session refused: the name is that of a host, and the session is not authenticated (EACCES)")
    said(server, "its session has an export open that allow_unauthenticated does not let from this address (EACCES)")
    server.run(f"echo 10.0.0.0/16, fd00::/8 > {folder}/allow_unauthenticated")
    client.run(f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path")
    # One address less, and the session has it open no more.
    server.run(f"echo 10.0.2.0/24 > {folder}/allow_unauthenticated")
    client.wait_until(f"[ $(cat {STATE.format(0)}) = closed ]")
    # Nor does it keep a name that becomes that of a host.
    exports.make_host(server, "demo")
    said(server, "demo: ip:10.0.1.2@ip:10.0.1.1: disconnected: its session is not authenticated, and its name is now "
         "that of a host")
    server.wait_until("dmesg | awk '/session refused: the name is that of a host/ && / demo: / { found = 1 } END { exit !found }'")
    assert not client.ok(f"grep -qx connected {SESSION}/paths/*/state")


@fast
@pytest.mark.rdma("rxe")
def test_mainlines_client(pair, stack, server):
    client = pair.client
    folder = exports.make(server, "disk1", "/dev/nullb0")
    client.run(MAINLINE.load_client())
    map_mainline = MAINLINE.map_device("disk1")
    assert not client.ok(map_mainline, timeout=120)
    said(server, "export disk1: refused, rw: it is not authenticated")
    server.run(f"echo 10.0.1.2 > {folder}/allow_unauthenticated")
    client.run(map_mainline)
    client.run(f"dd if={MAINLINE.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    client.run(MAINLINE.unmap())


def test_limits_of_a_host(pair, stack, server):
    client = pair.client
    authenticate(pair)
    host = exports.make_host(server, addresses="10.0.2.0/24", max_paths=1, max_devices=1)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    server.null_blk("nullb1", size_mb=16)
    exports.make(server, "disk2", "/dev/nullb1", ("demo",))
    refused(client, map_line(), errno.EACCES)
    said(server, "the host may not connect from this address: see its addresses (EACCES)")
    server.run(f"echo > {host}/addresses")
    client.run(map_line())
    refused(client, f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path", errno.EDQUOT)
    said(server, "the host already has max_paths paths (EDQUOT)")
    refused(client, map_line("disk2"), errno.ENOSPC)
    said(server, "export disk2: refused, rw: the host has max_devices devices open (ENOSPC)")
    # Its only path connects again.
    client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/reconnect")
    server.run(f"echo 2 > {host}/max_paths; echo 0 > {host}/max_devices")
    client.run(f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path")
    client.run(map_line("disk2"))
    # The paths that do not fit go, the others carry the I/O.
    load = client.start(fio.GOES_ON.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    server.run(f"echo 10.0.1.0/24 > {host}/addresses")
    wait_for(lambda: server.run(f"ls {SERVER}/demo/paths").split() == ["ip:10.0.1.2@ip:10.0.1.1"], 30,
             "the other path is closed")
    client.wait_until(f"! grep -qx connected {SECOND}/state")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)
    assert states(client) == ["open", "open"]


def test_connections_and_memory_of_a_host(pair, stack, server):
    client = pair.client
    authenticate(pair)
    connections = int(client.run("nproc")) + 1
    host = exports.make_host(server, max_connections=2 * connections - 1)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    client.run(map_line())
    second = f"echo ip:10.0.2.2,ip:10.0.2.1 > {SESSION}/add_path"
    refused(client, second, errno.EDQUOT)
    said(server, "the host would have more than max_connections connections (EDQUOT)")
    # As much as one path takes is between these.
    server.run(f"echo 0 > {host}/max_connections && echo 1 > {host}/max_memory_mib")
    refused(client, second, errno.EDQUOT)
    said(server, "the paths of the host would take more than max_memory_mib (EDQUOT)")
    server.run(f"echo 1024 > {host}/max_memory_mib && echo {2 * connections} > {host}/max_connections")
    client.run(second)
    # Its paths connect again, and do not count twice.
    client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/reconnect")
    client.wait_until(f"grep -qx connected {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/state")


@fast
@pytest.mark.rdma("rxe")
def test_limits_count_all_sessions_of_a_host(pair, stack, server):
    """A client with the key begins a second session, which has the name only with INFO."""
    authenticate(pair)
    exports.make_host(server, max_paths=1)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    program = launch.program(pair.client, f"""
from testbed.hostile.auth import *
KEY = {keyring.secret("right")!r}
with KeyHolder(KEY, "demo") as first, KeyHolder(KEY, "demo") as second, KeyHolder(KEY, "demo") as third:
    first.connect_all()
    second.offer()
    print(errno.errorcode[second.prove()])
    first.leave()
    third.offer_until_allowed()
    deadline = time.monotonic() + 60
    while (refused := third.prove()) and time.monotonic() < deadline:
        third.leave()
        third = KeyHolder(KEY, "demo")
        third.offer()
    print(refused)
""")
    assert program.wait(120).split() == ["EDQUOT", "0"]
    said(server, "the host already has max_paths paths (EDQUOT)")


def rate(client, stack, job: str, seconds: int) -> fio.Figures:
    """The figures of a load that runs for this time."""
    return fio.run(client, f"--name=rate --filename={stack.disk} --direct=1 --ioengine=io_uring "
                   f"--time_based --runtime={seconds} --size=8m {job}", 120)


@pytest.mark.thorough
@fast
def test_rates_of_a_host(pair, stack, server):
    client = pair.client
    authenticate(pair)
    host = exports.make_host(server, max_iops=100)
    exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    client.run(map_line(links=2))
    # Reads and writes of all CPUs and paths together.
    figures = rate(client, stack, "--rw=randrw --bs=4k --iodepth=8 --numjobs=2", 10)
    # On a machine that is busy requests sleep longer than the limit has them.
    assert 5 < figures.read.iops + figures.write.iops <= 110, figures
    server.run(f"echo 0 > {host}/max_iops && echo 2 > {host}/max_bandwidth_mib_s")
    figures = rate(client, stack, "--rw=randrw --bs=64k --iodepth=4", 10)
    done = (figures.read.bytes + figures.write.bytes) / 2**20
    assert 1 < done <= 22, figures
    # A path that is lost while its requests wait does not wait for them, and they are sent by the other.
    server.run(f"echo 100 > {host}/max_iops")
    load = client.start(fio.GOES_ON.format(disk=stack.disk) + " --thinktime=0")
    blockdev.wait_for_reads(client, stack)
    client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/disconnect", timeout=30)
    blockdev.wait_for_reads(client, stack)
    # Nor does a device that is taken away.
    server.run(f"echo 0 > {exports.EXPORTS}/disk1/enable", timeout=30)
    assert not blockdev.is_taken(server, "/dev/nullb0")
    assert not load.wait(60, check=False).ok
    server.run(f"echo 1 > {exports.EXPORTS}/disk1/enable && echo 0 > {host}/max_iops && echo 0 > {host}/max_bandwidth_mib_s")
    client.run(f"echo 1 > {os.path.dirname(STATE.format(0))}/remap_device")
    figures = rate(client, stack, "--rw=randread --bs=4k --iodepth=8", 3)
    assert figures.read.iops > 110, figures


def test_what_operators_write(pair, stack, server):
    folder, host = f"{exports.EXPORTS}/disk1", f"{exports.HOSTS}/demo"
    server.run(f"mkdir {folder} {host}")
    assert server.run(f"cd {folder} && grep -H . * 2> /dev/null || :").split("\n") == [
        "access_mode:rw", "allow_any_host:0", "allow_realtime:0", "enable:0"]
    assert server.run(f"cd {host} && cat *").split() == ["0"] * 6
    for name, number in (("a b", errno.EINVAL), ("x" * 255, errno.ENAMETOOLONG)):
        refused(server, f"mkdir '{exports.EXPORTS}/{name}'", number)
        refused(server, f"mkdir '{exports.HOSTS}/{name}'", number)
    refused(server, f"mkdir {exports.HOSTS}/a.b", errno.EINVAL)
    refused(server, f"mkdir {folder}", errno.EEXIST)
    for where in (exports.TOP, folder, host, f"{folder}/allowed_hosts"):
        refused(server, f"mkdir {where}/x", errno.EPERM)
    server.run(f"mkdir {exports.EXPORTS}/{'n' * 254} && busybox rmdir {exports.EXPORTS}/{'n' * 254}")
    too_many = "any " * 65
    for file, wrong in {
        f"{folder}/device_path": [("nullb0", errno.EINVAL), ("/dev/../dev/nullb0", errno.EINVAL),
                                  ("/dev/\x01", errno.EINVAL), ("/sys/kernel", errno.EINVAL),
                                  ("//./sys/kernel", errno.EINVAL),
                                  ("", errno.EINVAL), ("/" + "x" * 4094, errno.EFBIG)],
        f"{folder}/access_mode": [("RW", errno.EINVAL), ("", errno.EINVAL), ("rw ro", errno.EINVAL)],
        f"{folder}/allow_realtime": [("2", errno.ERANGE), ("yes", errno.EINVAL)],
        f"{folder}/allow_any_host": [("-1", errno.ERANGE), ("", errno.EINVAL)],
        f"{folder}/allow_unauthenticated": [("10.0.1", errno.EINVAL), ("10.0.1.0/33", errno.EINVAL),
                                            ("any 10.0.1.9/24", errno.EINVAL), ("any all", errno.EINVAL), (too_many, errno.E2BIG)],
        # No device_path yet.
        f"{folder}/enable": [("1", errno.EINVAL), ("on", errno.EINVAL), ("2", errno.ERANGE)],
        f"{host}/addresses": [("demo", errno.EINVAL), ("ip:10.0.1.2", errno.EINVAL), (too_many, errno.E2BIG)],
        f"{host}/max_paths": [("65536", errno.ERANGE), ("-1", errno.ERANGE), ("x", errno.EINVAL)],
        f"{host}/max_connections": [("65536", errno.ERANGE), ("", errno.EINVAL)],
        f"{host}/max_memory_mib": [("1048577", errno.ERANGE), ("1M", errno.EINVAL)],
        f"{host}/max_devices": [("65536", errno.ERANGE), ("1.5", errno.EINVAL)],
        f"{host}/max_iops": [("99", errno.ERANGE), ("1", errno.ERANGE), ("100000001", errno.ERANGE),
                             ("-1", errno.ERANGE)],
        f"{host}/max_bandwidth_mib_s": [("1048577", errno.ERANGE), ("0.5", errno.EINVAL)],
    }.items():
        for text, number in wrong:
            refused(server, f"printf '%s\\n' '{text}' > {file}", number)
    # A refused value changes nothing.
    assert server.run(f"cat {folder}/allow_unauthenticated {host}/addresses").split() == []
    for path, number in (("/dev/nullb7", errno.ENOENT), ("/dev/null", errno.ENOTBLK), ("/dev", errno.ENOTBLK)):
        server.run(f"echo {path} > {folder}/device_path")
        refused(server, f"echo 1 > {folder}/enable", number)
    server.run(f"echo ' /dev/nullb0 ' > {folder}/device_path && echo 1 > {folder}/enable && echo 1 > {folder}/enable")
    assert server.run(f"cat {folder}/device_path") == "/dev/nullb0"
    server.run(f"echo 10.0.1.0/024, FE80::/10 any > {host}/addresses")
    assert server.run(f"cat {host}/addresses") == "10.0.1.0/24 fe80::/10 any"
    # Links.
    hosts = f"{folder}/allowed_hosts"
    for target, number in ((folder, errno.EINVAL), (exports.TOP, errno.EINVAL), ("/sys/kernel/config", errno.ENOENT),
                           (f"{exports.HOSTS}/none", errno.ENOENT), ("/dev", errno.EPERM)):
        refused(server, f"ln -s {target} {hosts}/x", number)
    refused(server, f"ln -s {host} {folder}/x", errno.EPERM)
    server.run(f"cd {hosts} && ln -s ../../../hosts/demo demo")
    refused(server, f"ln -s {host} {hosts}/again", errno.EEXIST)
    refused(server, f"busybox rmdir {host}", errno.EBUSY)
    refused(server, f"busybox rmdir {folder}", errno.ENOTEMPTY)
    server.run(f"busybox rm {hosts}/demo && busybox rmdir {folder} {host}")


@fast
def test_every_file(pair, stack, server):
    """The files of an export, a host and a port, while a client has the export open."""
    authenticate(pair)
    host = exports.make_host(server)
    folder = exports.make(server, "disk1", "/dev/nullb0", ("demo",))
    pair.client.run(map_line())
    server.push("/tmp/sysfs_walk.py", Path(sysfs_walk.__file__).read_text())
    port = f"{exports.PORTS}/first"
    server.run(f"mkdir {port} && python3 /tmp/sysfs_walk.py 0 0 configured_export={folder} configured_host={host} "
               f"configured_port={port}", timeout=300)
    server.run(f"echo 'any ' > {folder}/allow_unauthenticated")
    assert server.run(f"stat -c %a {folder} {folder}/allowed_hosts {host}").split() == ["755"] * 3


@fast
def test_realtime(pair, stack, server):
    """The class of a request arrives at the server's disk as the client gave it only if the export
    lets it, whatever the module's parameter says."""
    client = pair.client
    folder = exports.make(server, "disk1", "/dev/nullb0", allow_unauthenticated="any")
    client.run(map_line())

    def priorities() -> set[str]:
        trace = BlockTrace(server, "/dev/nullb0")
        client.run(f"ionice -c 1 -n 3 dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
        trace.stop()
        return trace.priorities()

    assert "be/3" in priorities()
    server.run(f"echo 1 > {folder}/allow_realtime")
    assert "rt/3" in priorities()
    server.run(f"echo 0 > {folder}/allow_realtime")
    assert "rt/3" not in priorities()
