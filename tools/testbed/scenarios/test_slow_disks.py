# SPDX-License-Identifier: GPL-2.0
"""A disk that is slow, or whose host has reached a limit, makes only its own I/O wait: not that of other
disks of the same connection, not that of other clients, and no heartbeats."""

import contextlib
import os
import re

import pytest

from testbed import blockdev, exports, fio, keyring
from testbed.stack import STACKS

OURS = STACKS["ibtrs"]
pytestmark = [pytest.mark.fast, pytest.mark.cpus(2)]

SLOW, QUICK = "/dev/nullb1", "/dev/nullb0"
SLOW_MS = 200
# Of the queue that handles the completions of all clients, on each CPU; the kernel has 1024.
HANDLERS = "/sys/bus/workqueue/devices/ib-comp-wq/max_active"
# Much longer than a read of an idle machine takes, much shorter than a disk with a backlog.
SOON_MS = 600


def make_disks(server) -> None:
    """A quick disk, and one that executes one request at a time."""
    server.null_blk("nullb0", size_mb=16)
    folder = "/sys/kernel/config/nullb/nullb1"
    server.run(f"mkdir {folder} && cd {folder} && echo 16 > size && echo 1 > memory_backed && echo 1 > submit_queues && "
               f"echo 1 > hw_queue_depth && echo 2 > irqmode && echo {SLOW_MS * 1000000} > completion_nsec && "
               "echo 1 > power", timeout=300)


@pytest.fixture
def disks(pair):
    make_disks(pair.server)
    # Many sessions have room in the memory of a guest.
    pair.server.run("modprobe ibtrs_server sess_queue_depth=64")
    blockdev.load(pair, OURS)
    return pair


def map_disk(client, device: str, session: str, options: str = "") -> str:
    """Maps a disk of the server; returns the client's."""
    before = set(blockdev.disks(client, OURS))
    client.run(f'echo "sessname={session} path=ip:10.0.1.1 device_path={device} {options}" > {OURS.map_file}')
    (new,) = set(blockdev.disks(client, OURS)) - before
    return f"/dev/{new}"


def stop(client, load) -> None:
    client.run("killall -q fio || :")
    load.wait(120, check=False)


def floods(client, disks: list[str], depth: int):
    """Reads disks without end, from each CPU."""
    jobs = " ".join(f"--name=load{cpu}{at} --filename={disk} --cpus_allowed={cpu}"
                    for at, disk in enumerate(disks) for cpu in (0, 1))
    return client.start("fio --rw=randread --bs=4k --direct=1 --ioengine=io_uring --time_based --runtime=600 "
                        f"--iodepth={depth} {jobs}")


@contextlib.contextmanager
def flooded(pair, disks: list[str], depth: int):
    """While this lasts, the slow disk has more requests than it can take."""
    inflight = "cat /sys/block/nullb1/inflight"
    load = floods(pair.client, disks, depth)
    try:
        pair.server.wait_until(f"[ $({inflight} | tr -s ' ' | cut -d' ' -f2) -ge 1 ]")
        yield load
    finally:
        stop(pair.client, load)


def slowest_read_ms(client, disk: str, seconds: int = 8) -> float:
    """Reads now and then from each CPU."""
    words = client.run(
        f"for cpu in 0 1; do taskset -c $cpu python3 -c \"\nimport mmap, os, time\n"
        f"file, page = os.open('{disk}', os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)\n"
        f"end, worst = time.monotonic() + {seconds}, 0\n"
        "while time.monotonic() < end:\n"
        "    begin = time.monotonic()\n"
        "    os.preadv(file, [page], 0)\n"
        "    worst = max(worst, time.monotonic() - begin)\n"
        "    time.sleep(0.05)\n"
        "print(worst)\" & done; wait", timeout=120)
    return max(map(float, words.split())) * 1000


def test_other_clients_do_not_wait(disks):
    """Not even if the client of the slow disk has more connections than the kernel handles at a time."""
    server, client = disks
    former = server.run(f"cat {HANDLERS}")
    slow = [map_disk(client, SLOW, f"slow{number}", "access_mode=ro") for number in range(6)]
    quick = map_disk(client, QUICK, "quick")
    session = "/sys/class/ibtrs-client/quick"
    client.run(f"cd {session} && echo 300 > hb_interval_ms && echo 3 > hb_missed_max")
    try:
        server.run(f"echo 2 > {HANDLERS}")
        with flooded(disks, slow, depth=8):
            worst = slowest_read_ms(client, quick)
    finally:
        server.run(f"echo {former} > {HANDLERS}")
    assert worst < SOON_MS, worst
    log = client.run("dmesg")
    assert not re.search(r"quick: .*no heartbeat", log), log


def test_other_disks_of_the_connection_do_not_wait(disks):
    _, client = disks
    slow = map_disk(client, SLOW, "demo", "nr_queues=1")
    quick = map_disk(client, QUICK, "demo", "nr_queues=1")
    with flooded(disks, [slow], depth=16):
        assert slowest_read_ms(client, quick) < SOON_MS


def test_a_limit_holds_up_its_own_disks_only(pair):
    """The other disk was opened before the operator set the limit, so it has none."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    for name in ("nullb0", "nullb1"):
        server.null_blk(name, size_mb=16)
    server.run("modprobe ibnbd_server")
    client.run(OURS.load_client())
    for name, device in (("quick", QUICK), ("limited", SLOW)):
        exports.make(server, name, device, allow_any_host=1)
    quick = map_disk(client, "quick", "demo", "nr_queues=1")
    exports.make_host(server, max_iops=100)
    limited = map_disk(client, "limited", "demo", "nr_queues=1")
    load = floods(client, [limited], depth=64)
    try:
        stat = f"/sys/block/{os.path.basename(limited)}/stat"
        client.wait_until(f"read -r reads _ < {stat} && [ $reads -gt 50 ]")
        assert slowest_read_ms(client, quick) < SOON_MS
    finally:
        stop(client, load)
    figures = fio.run(client, f"--name=x --filename={limited} --rw=randread --bs=4k --iodepth=64 --direct=1 "
                              "--ioengine=io_uring --time_based --runtime=5")
    assert 50 < figures.read.iops <= 115, figures


def test_a_backlog_ends_with_its_device_or_path(disks):
    """What waits for the disk then is not executed any more, so that nobody waits for it."""
    server, client = disks
    slow = map_disk(client, SLOW, "demo", "nr_queues=1")
    session = "/sys/class/ibtrs-client/demo"
    most = 10
    with flooded(disks, [slow], depth=64):
        # Some 25 s of work.
        path = f"{session}/paths/ip:10.0.1.2@ip:10.0.1.1"
        before = server.uptime()
        client.run(f"echo 1 > {path}/disconnect", timeout=60)
        server.wait_for_log("path closed", timeout=60)
        assert server.uptime() - before < most
        client.run(f"echo 1 > {path}/reconnect; true")
        client.wait_until(f"grep -q '^connected' {path}/state")
        blockdev.wait_for_reads(client, OURS, count=1)
        before = server.uptime()
        server.run("echo 1 > /sys/class/ibnbd-server/ctl/devices/nullb1/sessions/demo/force_close", timeout=60)
        server.wait_for_log("closed: an operator wrote to force_close")
        assert server.uptime() - before < most


def test_disks_that_may_make_the_server_wait(pair):
    """Such as those of device-mapper targets that know no REQ_NOWAIT, and I/O that a disk must split."""
    server, client = pair
    server.null_blk("nullb0", size_mb=16)
    server.run(f"modprobe dm_delay && {blockdev.DMSETUP} create waits --table '0 32768 delay {QUICK} 0 0'")
    folder = "/sys/kernel/config/nullb/nullb1"
    server.run(f"mkdir {folder} && cd {folder} && echo 16 > size && echo 1 > memory_backed && echo 8 > max_sectors && "
               "echo 4 > hw_queue_depth && echo 1 > power")
    blockdev.load(pair, OURS)
    for device in ("/dev/dm-0", SLOW):
        disk = map_disk(client, device, "demo")
        for size in ("4k", "64k"):
            client.run(f"fio --name=w --filename={disk} --rw=randwrite --bs={size} --iodepth=32 --direct=1 "
                       "--ioengine=io_uring --size=8m --verify=crc32c --verify_fatal=1 --do_verify=1", timeout=300)
        # Writes of the page cache, and a flush.
        client.run(f"dd if=/dev/zero of={disk} bs=64k count=16 conv=fsync status=none && blkdiscard -z {disk}")
    client.run(OURS.unmap(0) + " && " + OURS.unmap(1))
    server.wait_until(f"{blockdev.DMSETUP} remove waits")
