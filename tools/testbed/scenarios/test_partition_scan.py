# SPDX-License-Identifier: GPL-2.0
"""The first reads of a new disk: its partition table, and what udev wants to know."""

import errno
import os
import time

import pytest

from testbed import blockdev, uevents
from testbed.lab import wait_for
from testbed.paths import TOP

pytestmark = pytest.mark.fast

FILES = "/sys/block/ibnbd0/ibnbd"
PATHS = "/sys/class/ibtrs-client/demo/paths"
# Seconds: the limit of a read, and of a whole scan.
A_REQUEST, A_SCAN = 30, 150
# udev kills a worker that takes longer for an event.
UDEV = 180
NO_TABLE = "cannot read the partition table: {error}"
TABLE = r"printf 'start=2048, size=8192\nstart=16384, size=8192\n' | sfdisk --quiet -X gpt {device}"
READ = "dd if=/dev/ibnbd{number} of=/dev/null bs=4k count=1 iflag=direct status=none"


def state(client) -> str:
    return client.run(f"cat {FILES}/state")


def stuck_disk(server) -> blockdev.StuckDisk:
    """A disk with two partitions, whose requests can be made to get stuck."""
    device = server.null_blk(size_mb=16)
    server.run(TABLE.format(device=device))
    return blockdev.StuckDisk(server, device)


def is_being_scanned(client) -> None:
    client.wait_until("[ $(cat /sys/block/ibnbd0/inflight | tr -d ' ') != 00 ]", 30)


def no_table(error: int) -> str:
    return NO_TABLE.format(error=errno.errorcode[error])


def test_partitions_are_there_when_the_mapping_returns(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(TABLE.format(device=device))
    blockdev.load(pair, stack)
    for _ in range(20):
        client.run(f"{stack.map_device(device)} && [ -b /dev/ibnbd0p1 ] && [ -b /dev/ibnbd0p2 ] && "
                   f"[ $(cat {FILES}/state) = open ]")
        # The scan has closed the disk.
        client.run(stack.unmap())
    events = uevents.listen(client)
    client.run(stack.map_device(device))
    wait_for(lambda: "IBNBD_STATE=open" in events.text, 30, "the disk is announced")
    client.run(stack.unmap())
    # The second "add" comes after the files and the partitions.
    order = [line.partition(" ")[0].replace("/devices/virtual/block/", "") for line in events.text.splitlines()
             if "block/ibnbd0" in line]
    parts = ["add@ibnbd0/ibnbd0p1", "add@ibnbd0/ibnbd0p2"]
    assert order[:8] == ["add@ibnbd0", "change@ibnbd0", *parts, "add@ibnbd0", *parts, "online@ibnbd0"], order
    events.kill()
    events.wait(20, check=False)


def test_a_mapping_that_is_killed_ends_at_once(pair, stack):
    """While the server does not answer the read of the partition table."""
    server, client = pair
    stuck = stuck_disk(server)
    blockdev.load(pair, stack)
    with stuck.suspended():
        mapping = client.start(stack.map_device(stuck.device))
        is_being_scanned(client)
        assert state(client) == "init"
        mapping.kill()
        mapping.wait(5, check=False)
        # The disk stays. During the scan it can be unmapped by force only.
        assert os.strerror(errno.EBUSY) in client.run(stack.unmap(), timeout=60, check=False)
        assert state(client) == "init"
        client.run(stack.unmap(how="force"), timeout=30)
        assert blockdev.disks(client, stack) == []
        assert not client.ok("dmesg | grep -q 'cannot read the partition table'")
    client.run(f"{stack.map_device(stuck.device)} && [ -b /dev/ibnbd0p2 ]")
    client.run(stack.unmap())

    # The scan of a disk that stays continues.
    with stuck.suspended():
        mapping = client.start(stack.map_device(stuck.device))
        is_being_scanned(client)
        mapping.kill()
        mapping.wait(5, check=False)
        claim = client.start("python3 -c 'import os; os.open(\"/dev/ibnbd0\", os.O_RDONLY | os.O_EXCL)'")
    client.wait_until(f"[ -b /dev/ibnbd0p2 ] && [ $(cat {FILES}/state) = open ]", 30)
    # The exclusive open has waited for the end of the scan.
    claim.wait(30)
    client.run(stack.unmap())
    stuck.remove()


def test_a_scan_without_an_answer_ends(pair, stack):
    """In time for udev, whose worker waits for the scan when it opens the disk."""
    server, client = pair
    stuck = stuck_disk(server)
    blockdev.load(pair, stack)
    client.run("mkdir -p /run/udev/rules.d")
    client.push("/run/udev/rules.d/60-ibnbd.rules", (TOP / "tools/udev/60-ibnbd.rules").read_text())
    daemon = client.start("exec /usr/lib/systemd/systemd-udevd 2>&1")
    client.wait_until("[ -S /run/udev/control ]")
    with stuck.suspended():
        started = time.monotonic()
        client.run(stack.map_device(stuck.device), timeout=A_SCAN)
        took = time.monotonic() - started
        assert A_REQUEST * 0.9 < took, f"{took:.0f} s"
        assert client.ok(f"dmesg | grep -q 'ibnbd0: {no_table(errno.ETIMEDOUT)}'")
        client.run(f"SYSTEMD_IGNORE_CHROOT=1 udevadm settle -t {UDEV}", timeout=UDEV)
        # Until the server answers, other reads fail at once.
        said = client.run(READ.format(number=0), timeout=10, check=False)
        assert os.strerror(errno.ETIMEDOUT) in said
        assert state(client) == "open" and not client.ok("[ -e /dev/ibnbd0p1 ]")
    assert "killed" not in daemon.text and "timeout" not in daemon.text, daemon.text
    client.wait_until(READ.format(number=0), 60)
    client.run("blockdev --rereadpt /dev/ibnbd0")
    client.wait_until("[ -b /dev/ibnbd0p2 ]")
    client.run(f"SYSTEMD_IGNORE_CHROOT=1 udevadm settle -t {UDEV}", timeout=UDEV)
    client.run(stack.unmap())
    daemon.kill()
    daemon.wait(20, check=False)
    client.run("rm -rf /run/udev /dev/disk")
    stuck.remove()


def test_a_scan_with_slow_answers_ends(pair, stack):
    """Each read is within its limit, and the scan as a whole is not."""
    server, client = pair
    server.null_blk(size_mb=16)
    server.run(TABLE.format(device="/dev/nullb0"))
    server.run("modprobe dm_mod && modprobe dm_delay")
    server.run(f"{blockdev.DMSETUP} create slow --table '0 32768 delay /dev/nullb0 0 12000'")
    blockdev.load(pair, stack)
    started = time.monotonic()
    client.run(stack.map_device("/dev/dm-0"), timeout=A_SCAN)
    took = time.monotonic() - started
    assert took > 75, f"{took:.0f} s"
    assert client.ok(f"dmesg | grep -q 'ibnbd0: {no_table(errno.ETIMEDOUT)}'")
    # The disk itself works.
    client.run(READ.format(number=0), timeout=60)
    client.run(stack.unmap(), timeout=120)
    server.wait_until(f"{blockdev.DMSETUP} remove slow", 60)


def time_of_scan(client, mapping, started: float) -> float:
    """Waits for the mapping, whose scan fails within its limit, and returns how long that took."""
    mapping.wait(A_SCAN)
    took = time.monotonic() - started
    assert client.ok(f"dmesg | grep -q 'ibnbd0: {no_table(errno.ETIMEDOUT)}'")
    # Exclusive opens no longer block.
    client.run("python3 -c 'import os; os.open(\"/dev/ibnbd0\", os.O_RDONLY | os.O_EXCL)'", timeout=20)
    return took


def partitions_follow(client) -> None:
    client.wait_until(READ.format(number=0), 60)
    client.run("blockdev --rereadpt /dev/ibnbd0")
    client.wait_until("[ -b /dev/ibnbd0p2 ]")


def test_a_scan_without_a_path_ends(pair, stack):
    """All paths are lost during the scan.  The server has yet to answer a read."""
    server, client = pair
    stuck = stuck_disk(server)
    blockdev.load(pair, stack)
    with stuck.suspended():
        started = time.monotonic()
        mapping = client.start(stack.map_device(stuck.device))
        is_being_scanned(client)
        client.run(f"for f in {PATHS}/*/disconnect; do echo 1 > $f; done")
        took = time_of_scan(client, mapping, started)
        assert A_REQUEST < took, f"{took:.0f} s"
    client.run(f"for f in {PATHS}/*/reconnect; do echo 1 > $f; done", timeout=60)
    partitions_follow(client)
    client.run(stack.unmap())
    stuck.remove()


def test_a_scan_of_a_disk_that_is_opened_again_ends(pair, stack):
    """The server loses the session during the scan, and then the disk."""
    server, client = pair
    device, name = server.null_blk(size_mb=16), "/dev/disk-of-a-scan"
    server.run(TABLE.format(device=device))
    server.run("modprobe dm_mod && modprobe dm_delay")
    server.run(f"{blockdev.DMSETUP} create slow --table '0 32768 delay {device} 0 12000' && ln -s dm-0 {name}")
    blockdev.load(pair, stack)
    started = time.monotonic()
    mapping = client.start(stack.map_device(name))
    is_being_scanned(client)
    server.run(f"{stack.unload('server')} && rm {name}", timeout=60)
    server.run(stack.load_server())
    client.wait_for_log(f"ibnbd0: {name} cannot be opened again yet", 60)
    time_of_scan(client, mapping, started)
    server.run(f"{blockdev.DMSETUP} remove slow && ln -s {os.path.basename(device)} {name}")
    client.wait_until(f"echo 1 > {FILES}/remap_device; [ $(cat {FILES}/state) = open ]", 60)
    partitions_follow(client)
    client.run(stack.unmap())
    server.run(f"rm {name}")


def test_the_first_readers_do_not_wait_for_ever(pair, stack):
    """A read of a disk that is not in use has a limit; a read of a disk in use has none."""
    server, client = pair
    for number in range(2):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"modprobe dm_mod && for i in 0 1; do {blockdev.DMSETUP} create stuck$i --table "
               '"0 32768 linear /dev/nullb$i 0"; done')
    blockdev.load(pair, stack)
    for number in range(2):
        client.run(stack.map_device(f"/dev/dm-{number}"))
    client.run(": <> /dev/ibnbd1")
    server.run(f"for i in 0 1; do {blockdev.DMSETUP} suspend --noflush --nolockfs stuck$i; done")
    try:
        started = time.monotonic()
        reads = [client.start(READ.format(number=number)) for number in range(2)]
        said = reads[0].wait(A_REQUEST * 2, check=False)
        took = time.monotonic() - started
        assert os.strerror(errno.ETIMEDOUT) in said and took > A_REQUEST * 0.9, f"{took:.0f} s: {said}"
        time.sleep(A_REQUEST)
        assert reads[1].running
    finally:
        server.run(f"for i in 0 1; do {blockdev.DMSETUP} resume stuck$i; done")
    reads[1].wait(60)
    for number in range(2):
        client.wait_until(READ.format(number=number), 60)
        client.run(stack.unmap(number))
    server.run(f"for i in 0 1; do {blockdev.DMSETUP} remove stuck$i; done")
