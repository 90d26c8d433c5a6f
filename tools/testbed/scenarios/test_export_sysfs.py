# SPDX-License-Identifier: GPL-2.0
"""The server's sysfs files of exports, and the closing of a device by the operator."""

import errno
import os
from contextlib import ExitStack

import pytest

from testbed import blockdev, fio, mishaps
from testbed.lab import wait_for

pytestmark = pytest.mark.fast

DEVICES = "/sys/class/ibnbd-server/ctl/devices"
MAP = 'echo "sessname={} path=ip:10.0.1.1 device_path={} access_mode={}" > /sys/class/ibnbd-client/ctl/map_device'


def show(guest, folder: str) -> dict[str, str]:
    """The files of a folder, with what is in them."""
    text = guest.run(f"cd '{folder}' && for f in *; do [ ! -f $f ] || echo $f=$(cat $f); done")
    return dict(line.split("=", 1) for line in text.splitlines())


def names(guest, folder: str) -> list[str]:
    return sorted(guest.run(f"ls {folder}").split())


def test_exports_are_shown(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack)
    client.run(MAP.format("second", "nullb0", "ro"))
    # A device is shown once for each session, whatever the names.
    refused = client.run(MAP.format("second", device, "ro"), check=False)
    assert os.strerror(errno.EEXIST) in refused
    assert names(server, DEVICES) == ["nullb0"]
    assert names(server, f"{DEVICES}/nullb0") == ["block_dev", "sessions"]
    # The link leads to the disk.
    assert server.run(f"cat {DEVICES}/nullb0/block_dev/dev") == server.run("cat /sys/block/nullb0/dev")
    assert server.run(f"readlink -f {DEVICES}/nullb0/block_dev").strip() == "/sys/devices/virtual/block/nullb0"
    sessions = f"{DEVICES}/nullb0/sessions"
    assert names(server, sessions) == ["demo", "second"]
    usage = "Usage: echo 1 > force_close"
    assert show(server, f"{sessions}/demo") == {
        "read_only": "0", "access_mode": "rw", "mapping_path": device, "force_close": usage}
    assert show(server, f"{sessions}/second") == {
        "read_only": "1", "access_mode": "ro", "mapping_path": "nullb0", "force_close": usage}
    modes = server.run(f"stat -c %a {sessions}/demo/force_close {sessions}/demo/read_only").split()
    assert modes == ["644", "444"]
    # An unmapped disk is gone at once.
    client.run(stack.unmap(0))
    assert names(server, sessions) == ["second"]
    client.run(stack.unmap(1))
    assert names(server, DEVICES) == []
    server.run(f"modprobe -r {stack.server_module}")
    assert not server.ok("[ -e /sys/class/ibnbd-server ]")


def test_a_device_is_closed_by_force(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack)
    other = server.null_blk("nullb1", size_mb=16)
    client.run(stack.map_device(other))
    close = f"{DEVICES}/nullb0/sessions/demo/force_close"
    for wrong in ("0", "2", "", "yes"):
        refused = server.run(f"echo '{wrong}' > {close}", check=False)
        assert os.strerror(errno.EINVAL) in refused, wrong
    load = client.start(f"fio --name=x --filename={stack.disk} --rw=randrw --bs=4k --iodepth=16 --direct=1 "
                        f"--ioengine=io_uring --time_based --runtime=600 --size=32m {fio.NOW_AND_THEN}")
    blockdev.wait_for_reads(client, stack)
    # The first writer closes the device, the other one gets an error.
    server.run(f"for i in 1 2; do ( echo 1 > {close} ) 2>> /tmp/said & done; wait")
    assert names(server, DEVICES) == ["nullb1"]
    # The disk is free for others at once, and no request of the client reaches it.
    server.run(f"exec 3<>{device}; echo x >&3")
    assert not load.wait(60, check=False).ok
    assert not client.ok(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct")
    # The session's other device does not notice.
    client.run("dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none")
    # The client was told, and waits for someone to say when to ask again.
    client.wait_until("[ $(cat /sys/block/ibnbd0/ibnbd/state) = closed ]")
    assert client.run("cat /sys/block/ibnbd1/ibnbd/state").strip() == "open"
    client.run("echo 1 > /sys/block/ibnbd0/ibnbd/remap_device && cat /sys/block/ibnbd0/ibnbd/state | grep open")
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    client.run(f"{stack.unmap(0)} && {stack.map_device(device)}")
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")


def test_no_name_leads_out_of_the_search_path(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    place = "/mnt/e/a-demo-z/demo/in"
    # Where the kernel looks, that is below /host.
    seen = f"/host{place}"
    server.run(f"mkdir -p {place}/by-id {place}/sub && cp -a {device} {place}/disk && touch {place}/file && "
               f"cd {place} && ln -s ../disk by-id/good && ln -s /dev/nullb0 absolute && ln -s {seen}/disk inside && "
               "ln -s ../../../../../dev/nullb0 up && ln -s ../../../../../dev dev && ln -s by-id/good twice && "
               f"cp -a {device} ../outside && ln -s ../outside beside && ln -s loop loop")
    server.run("modprobe ibnbd_server dev_search_path=/host/mnt/e/a-%SESSNAME%-z/%SESSNAME%/in")
    client.run(stack.load_client())
    refusals = {
        "absolute": errno.EXDEV,
        # It leads nowhere else, but what it says is about the server's files.
        "inside": errno.EXDEV,
        "up": errno.EXDEV,
        "beside": errno.EXDEV,
        "dev/nullb0": errno.EXDEV,
        "../outside": errno.EINVAL,
        "sub/../disk": errno.EINVAL,
        "/": errno.EINVAL,
        "/dev/nullb0": errno.EXDEV,
        "/nullb0": errno.ENOENT,
        "/host/mnt/e/a-demo-z/demo/outside": errno.ENOENT,
        "disk/x": errno.ENOTDIR,
        "loop": errno.ELOOP,
        "file": errno.ENOTBLK,
        "sub": errno.ENOTBLK,
        "n" * 254: errno.ENOENT,
    }
    server.run("dmesg --clear")
    for name, number in refusals.items():
        refused = client.run(stack.map_device(name), check=False)
        assert os.strerror(number) in refused, (name, refused)
    # One line for each: a client may cause a hundred at once.
    lines = server.run("dmesg | grep ': refused, rw: '").splitlines()
    assert len(lines) > 12 and len({line.split("device ")[1] for line in lines}) == len(lines), lines
    assert any("a symbolic link leads out of dev_search_path (EXDEV)" in line for line in lines)
    refused = client.run(stack.map_device("n" * 255), check=False)
    assert os.strerror(errno.ENAMETOOLONG) in refused
    # A session has nothing of another's.
    refused = client.run(stack.map_device("disk", session="two"), check=False)
    assert os.strerror(errno.ENOENT) in refused

    for name in ("disk", "by-id/good", "twice", f"{seen}/disk", "//by-id/./good"):
        client.run(f"{stack.map_device(name)} && {stack.unmap()}")
    server.run("modprobe -r ibnbd_server")

    # Where all may be opened, a link may lead anywhere, but for those of procfs.
    server.run("modprobe ibnbd_server dev_search_path=/")
    client.run(f"{stack.map_device(seen + '/absolute')} && {stack.unmap()}")
    refused = client.run(stack.map_device("/proc/1/root/dev/nullb0"), check=False)
    assert os.strerror(errno.ELOOP) in refused
    server.run("rm -r /mnt/e")


def test_the_clients_files(pair, stack):
    client = pair.client
    device = blockdev.map_new(pair, stack, size_mb=16)
    folder = "/sys/block/ibnbd0/ibnbd"
    shown = show(client, folder)
    # test_latency checks the counts: the partition scan has already read something.
    assert shown.pop("latency_us").startswith("1 us: ")
    assert shown == {
        "state": "open", "session": "demo", "mapping_path": device, "access_mode": "rw", "exclusive": "0",
        "nr_queues": client.run("nproc").strip(), "nr_poll_queues": "0",
        "wwid": "ibnbd-demo-dev-nullb0", "io_timeout_limit": "0",
        "timed_out": "0", "cache_lost": "0", "data_checksum": "none", "checksum_errors": "0 0",
        "identity": "auto",
        "unmap_device": "Usage: echo <normal|force> > unmap_device",
        "remap_device": "Usage: echo 1 > remap_device",
        "resize": "Usage: echo <new size in sectors> > resize"}
    modes = client.run(f"cd {folder} && stat -c '%n %a' *").splitlines()
    written = {"unmap_device", "remap_device", "resize", "io_timeout_limit", "cache_lost", "latency_us",
               "checksum_errors", "identity"}
    assert all(line.split()[1] == ("644" if line.split()[0] in written else "444") for line in modes), modes
    link = "/sys/class/ibnbd-client/ctl/devices/!dev!nullb0@demo"
    assert client.run(f"readlink -f '{link}'").strip() == "/sys/devices/virtual/block/ibnbd0"

    def refuses(file: str, text: str, number: int) -> None:
        answer = client.run(f"echo '{text}' > {folder}/{file}", check=False)
        assert os.strerror(number) in answer, (file, text, answer)

    for text in ("", "1", "Force", "normal force"):
        refuses("unmap_device", text, errno.EINVAL)
    refuses("resize", "x", errno.EINVAL)
    refuses("resize", "9" * 30, errno.ERANGE)
    refuses("resize", str(1 << 60), errno.EFBIG)
    refuses("remap_device", "0", errno.EINVAL)
    refuses("remap_device", "1", errno.EALREADY)
    for text in ("", "1", "x"):
        refuses("cache_lost", text, errno.EINVAL)
    client.run(f"echo 0 > {folder}/cache_lost")
    client.run("for f in /sys/class/ibtrs-client/demo/paths/*/disconnect; do echo 1 > $f; done")
    client.wait_until(f"[ $(cat {folder}/state) = closed ]")
    refuses("resize", "1024", errno.ENOENT)
    client.run("for f in /sys/class/ibtrs-client/demo/paths/*/reconnect; do echo 1 > $f; done")
    client.wait_until(f"[ $(cat {folder}/state) = open ]")
    client.run(f"echo ' force ' > {folder}/unmap_device")
    assert not client.ok(f"[ -e '{link}' ]") and blockdev.disks(client, stack) == []


def map_two_disks(pair, stack) -> list[str]:
    """Of one session over two paths; returns the server's disks."""
    disks = [pair.server.null_blk(f"nullb{number}", size_mb=16) for number in (0, 1)]
    blockdev.load(pair, stack)
    for disk in disks:
        pair.client.run(f'echo "sessname=demo path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={disk}" > {stack.map_file}')
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    return disks


@pytest.mark.links(2)
def test_a_closed_device_is_noticed_though_a_path_is_lost(pair, stack):
    """The server does not know yet that the path is lost, and sends one of the two notices over it."""
    server, client = pair
    map_two_disks(pair, stack)
    with mishaps.cable_out(pair, client, 2):
        for number in (0, 1):
            server.run(f"echo 1 > {DEVICES}/nullb{number}/sessions/demo/force_close")
        for number in (0, 1):
            client.wait_until(f"[ $(cat /sys/block/ibnbd{number}/ibnbd/state) = closed ]", 90)
        for number in (0, 1):
            client.run(f"echo 1 > /sys/block/ibnbd{number}/ibnbd/remap_device")
        # What is open again is not closed by a notice that comes late.
        client.run("sleep 3; cat /sys/block/ibnbd?/ibnbd/state | grep -c '^open' | grep -qx 2")


@pytest.mark.links(2)
def test_what_was_unmapped_without_a_path_is_closed_later(pair, stack):
    """The client knows that its paths are lost, and the server does not: it keeps the session."""
    server, client = pair
    mishaps.make_ready(pair)
    disks = map_two_disks(pair, stack)
    session = "/sys/class/ibtrs-client/demo"
    client.run(f"cd {session} && echo 500 > hb_interval_ms && echo 2 > hb_missed_max && echo 200 > reconnect_delay_ms")
    with ExitStack() as links:
        # The second comes back when the rest is over.
        links.enter_context(mishaps.losing(client, 2, 100))
        with mishaps.losing(client, 1, 100):
            wait_for(lambda: blockdev.connected(client) == 0, 30, "both paths are lost")
            client.run(stack.unmap(0))
            assert names(server, DEVICES) == ["nullb0", "nullb1"]
        wait_for(lambda: blockdev.connected(client) == 1, 60, "a path is back")
        wait_for(lambda: names(server, DEVICES) == ["nullb1"], 10, "the device is closed")
        # Nobody else has it, and it can be mapped again.
        server.run("exec 3<>/dev/nullb0; dd if=/dev/zero of=/dev/nullb0 bs=4k count=1 oflag=direct status=none")
        client.run(stack.map_device(disks[0]))
        client.run("dd if=/dev/ibnbd0 of=/dev/null bs=64k count=4 iflag=direct status=none")
