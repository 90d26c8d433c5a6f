# SPDX-License-Identifier: GPL-2.0
"""The server is killed and comes back: the client opens its devices again if they are the same
disks."""

import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from testbed import blockdev, fio, uevents
from testbed.lab import Pair, wait_for
from testbed.stack import Stack

pytestmark = [pytest.mark.fast, pytest.mark.kills, pytest.mark.long]

SIZE_MB = 64
STATE = "/sys/block/ibnbd0/ibnbd/state"
WRITER = fio.WRITER.format(disk="/dev/ibnbd0", size_mb=8, rate=100)


def new_disk(pair: Pair, name: str) -> Path:
    """A disk with one partition, whose UUID is like no other's."""
    image = pair.folder / f"{name}.img"
    with open(image, "wb") as file:
        file.truncate(SIZE_MB << 20)
    subprocess.run(["sfdisk", "--quiet", image], input="label: gpt\n,,L\n", text=True, check=True)
    return image


def start_server(pair: Pair, stack: Stack, disks: list[Path]) -> None:
    pair.reboot("server", disks)
    pair.server.run(stack.load_server())


def map_partition(pair: Pair, stack: Stack, path: str = "/dev/vda1") -> None:
    pair.client.run(stack.load_client())
    pair.client.run(stack.map_device(path))
    # Booting takes longer on a kernel that checks itself.
    pair.client.run("for f in /sys/class/ibtrs-client/*/queue_timeout_s; do "
                    "[ ! -e $f ] || echo 600 > $f; done")


def state(pair: Pair) -> str:
    return pair.client.run(f"cat {STATE}").strip()


def wait_for_state(pair: Pair, wanted: str, timeout: float = 240) -> None:
    wait_for(lambda: state(pair) == wanted, timeout, f"the disk is {wanted}")


def content(disk: Path) -> bytes:
    """The partition's data, as the host sees it."""
    return disk.read_bytes()[1 << 20:-(1 << 20)]


def test_io_goes_on_when_the_server_was_restarted(pair, stack):
    disk = new_disk(pair, "disk")
    start_server(pair, stack, [disk])
    map_partition(pair, stack)
    assert state(pair) == "open"
    events = uevents.listen(pair.client)
    load = pair.client.start(WRITER)
    pair.client.wait_until("[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt 200 ]")

    pair.server.kill()
    wait_for_state(pair, "closed")
    start_server(pair, stack, [disk])
    wait_for_state(pair, "open")
    # Every write was answered, and reads back what was written.
    load.wait(600)

    events.kill()
    seen = events.wait(20, check=False)
    assert "offline@/devices/virtual/block/ibnbd0 " in seen and "IBNBD_STATE=closed" in seen
    assert "online@/devices/virtual/block/ibnbd0 " in seen and "IBNBD_STATE=open" in seen
    there = blockdev.checksum(pair.server, "/dev/vda1", 16)
    assert blockdev.checksum(pair.client, "/dev/ibnbd0", 16) == there
    pair.client.run(stack.unmap())


@pytest.mark.thorough
def test_another_disk_under_the_name_is_refused(pair, stack):
    right, wrong = new_disk(pair, "right"), new_disk(pair, "wrong")
    start_server(pair, stack, [right])
    map_partition(pair, stack)
    pair.client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=1M count=8 oflag=direct status=none")
    before = blockdev.checksum(pair.client, "/dev/ibnbd0", 8)
    untouched = content(wrong)
    load = pair.client.start("fio --name=w --filename=/dev/ibnbd0 --rw=randwrite --bs=4k --iodepth=8 "
                             "--direct=1 --ioengine=io_uring --offset=16m --size=8m --time_based --runtime=900 "
                             + fio.IN_BURSTS)
    pair.client.wait_until("[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt 200 ]")

    pair.server.kill()
    start_server(pair, stack, [wrong])
    # Waiting requests end with an error, and so do new ones.
    assert not load.wait(300, check=False).ok
    assert state(pair) == "closed"
    said = pair.client.run("dmesg | grep 'the server now has another disk'")
    assert "ibnbd0: the server now has another disk under this name: /dev/vda1: its identity" in said
    assert not pair.client.ok("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct")
    refused = pair.client.run("echo 1 > /sys/block/ibnbd0/ibnbd/remap_device", check=False)
    assert os.strerror(errno.ESTALE) in refused
    pair.server.kill()
    assert content(wrong) == untouched

    # The right one again.
    wait_for_state(pair, "closed")
    start_server(pair, stack, [right])
    wait_for_state(pair, "open")
    assert blockdev.checksum(pair.client, "/dev/ibnbd0", 8) == before
    pair.client.run(stack.unmap())


def test_a_disk_that_was_put_right_is_remapped(pair, stack):
    disks = [new_disk(pair, "a"), new_disk(pair, "b")]
    # The node stands for the name that the client asks for.
    name = "cp -a --remove-destination /dev/{} /dev/data"
    pair.reboot("server", disks)
    pair.server.run(name.format("vda1"))
    pair.server.run(stack.load_server())
    map_partition(pair, stack, "/dev/data")
    already = pair.client.run("echo 1 > /sys/block/ibnbd0/ibnbd/remap_device", check=False)
    assert os.strerror(errno.EALREADY) in already
    for wrong in ("2", "", "0"):
        assert not pair.client.ok(f"echo '{wrong}' > /sys/block/ibnbd0/ibnbd/remap_device")

    pair.server.kill()
    pair.reboot("server", disks)
    # Not there at first, which is no reason to give up.
    pair.server.run(stack.load_server())
    pair.client.wait_for_log("data cannot be opened again yet: ENOENT", 240)
    assert state(pair) == "closed"
    pair.server.run(name.format("vdb1"))
    pair.client.wait_for_log("another disk under this name: /dev/data", 60)
    pair.server.run(name.format("vda1"))
    pair.client.run("echo 1 > /sys/block/ibnbd0/ibnbd/remap_device")
    assert state(pair) == "open"
    pair.client.run("dd if=/dev/ibnbd0 of=/dev/null bs=64k count=16 iflag=direct status=none")
    pair.client.run(stack.unmap())


@pytest.mark.parametrize("connected", (True, False), ids=("connected", "disconnected"))
def test_a_shorter_queue_timeout_applies_at_once(pair, stack, connected):
    """The session is back, and the disk is not open yet."""
    server, client = pair
    session, name = "/sys/class/ibtrs-client/demo", "/dev/disk-to-wait-for"
    paths = f"for f in {session}/paths/*/{{}}; do echo 1 > $f; done"
    server.run(f"ln -s $(basename {server.null_blk(size_mb=16)}) {name}")
    blockdev.load(pair, stack)
    client.run(stack.map_device(name))
    server.run(f"{stack.unload('server')} && rm {name}", timeout=60)
    server.run(stack.load_server())
    client.wait_for_log(f"ibnbd0: {name} cannot be opened again yet", 60)
    read = client.start("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct status=none")
    if connected:
        # Until the next attempt is some time ahead.
        time.sleep(20)
    else:
        client.run(paths.format("disconnect"))
    assert read.running
    client.run(f"echo 1 > {session}/queue_timeout_s")
    assert os.strerror(errno.EIO) in read.wait(5, check=False)
    client.wait_for_log(f"ibnbd0: I/O fails until {name} can be opened again", 10)
    client.run(f"echo 600 > {session}/queue_timeout_s")
    if not connected:
        client.run(paths.format("reconnect"), timeout=60)
    server.run(f"ln -s nullb0 {name}")
    client.wait_until(f"echo 1 > {STATE.replace('state', 'remap_device')}; [ $(cat {STATE}) = open ]", 60)
    client.run("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct status=none")
    client.run(stack.unmap())
    server.run(f"rm {name}")


@pytest.mark.thorough
def test_unmapped_by_force_while_the_server_is_away(pair, stack):
    disk = new_disk(pair, "disk")
    start_server(pair, stack, [disk])
    map_partition(pair, stack)
    load = pair.client.start(WRITER)
    pair.client.wait_until("[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt 200 ]")
    pair.server.kill()
    wait_for_state(pair, "closed")
    pair.client.run(stack.unmap(how="force"), timeout=60)
    assert not load.wait(60, check=False).ok
    assert blockdev.disks(pair.client, stack) == []
    pair.client.run("modprobe -r ibnbd_client", timeout=60)


def replace_server(pair: Pair, stack: Stack) -> str:
    """The server loses its power, and one with a blank disk of the same name and size takes its place."""
    pair.server.kill()
    wait_for_state(pair, "closed")
    pair.reboot("server")
    device = pair.server.null_blk(size_mb=SIZE_MB)
    pair.server.run(stack.load_server())
    return device


def is_blank(pair: Pair, device: str) -> bool:
    return pair.server.ok(f"cmp -n {SIZE_MB << 20} {device} /dev/zero")


@pytest.mark.fresh
def test_a_blank_disk_of_the_name_is_not_written_to(pair, stack):
    """A file system is mounted from a disk without identity. Once nobody has that open, the disk is used again."""
    device = blockdev.map_new(pair, stack, size_mb=SIZE_MB)
    client = pair.client
    client.wait_for_log("ibnbd0: /dev/nullb0 has no identity: after a restart of the server it is not used while it is "
                        "open", 10)
    client.run("mkdir -p /mnt/disk && mkfs.ext4 -q /dev/ibnbd0 && mount /dev/ibnbd0 /mnt/disk && "
               "echo kept > /mnt/disk/file && sync /mnt/disk/file && echo later > /mnt/disk/unwritten")
    # The server loses the session, and is the same otherwise.
    pair.server.run("modprobe -r ibnbd_server")
    pair.server.run(stack.load_server())
    wait_for_state(pair, "open")
    client.run("echo more > /mnt/disk/more && sync /mnt/disk/more")

    assert replace_server(pair, stack) == device
    client.wait_for_log("ibnbd0: /dev/nullb0 may be another disk: it has no identity, and was replaced or the server "
                        "has booted since; the disk is not used while it is open", 240)
    assert state(pair) == "closed"
    assert not client.ok("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=1 oflag=direct")
    refused = client.run("echo 1 > /sys/block/ibnbd0/ibnbd/remap_device", check=False)
    assert os.strerror(errno.ESTALE) in refused
    client.run("umount /mnt/disk", timeout=120)
    wait_for_state(pair, "open", 30)
    assert is_blank(pair, device)
    client.wait_for_log("ibnbd0: /dev/nullb0 is used without proof that it is the same disk: it is not open", 10)
    # Nothing of the disk before is in the page cache.
    assert client.ok(f"cmp -n {SIZE_MB << 20} /dev/ibnbd0 /dev/zero")
    client.run(stack.unmap())


@pytest.mark.fresh
@pytest.mark.thorough
def test_an_operator_vouches_for_a_disk_without_identity(pair, stack):
    device = pair.server.null_blk(size_mb=SIZE_MB)
    blockdev.load(pair, stack)
    client = pair.client
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path={device} identity=none" > {stack.map_file}')
    assert client.run("cat /sys/block/ibnbd0/ibnbd/identity") == "none"
    client.wait_for_log("ibnbd0: /dev/nullb0 has no identity: any disk of this name and size is used", 10)
    load = client.start(WRITER)
    client.wait_until("[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt 200 ]")
    replace_server(pair, stack)
    wait_for_state(pair, "open")
    client.wait_for_log("without proof that it is the same disk: identity is none", 10)
    # It is written to, and what was written before is gone.
    written = "[ $(awk '{ print $5 }' /sys/block/ibnbd0/stat) -gt $before ]"
    client.run("before=$(awk '{ print $5 }' /sys/block/ibnbd0/stat); "
               f"for i in $(seq 60); do {written} && exit; sleep 1; done; exit 1", timeout=90)
    load.kill()
    client.run(stack.unmap(how="force"), timeout=60)
