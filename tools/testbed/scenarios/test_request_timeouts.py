# SPDX-License-Identifier: GPL-2.0
"""Requests that take longer than the disk's io_timeout."""

import errno
import os
import time

import pytest

from testbed import blockdev, fio, mishaps
from testbed.channel import Job
from testbed.lab import SERVER_ADDRESS, wait_for

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
LIMIT = "/sys/block/ibnbd0/ibnbd/io_timeout_limit"
TIMED_OUT = "/sys/block/ibnbd0/ibnbd/timed_out"
REMAP = "/sys/block/ibnbd0/ibnbd/remap_device"
TIMEOUT = "/sys/block/ibnbd{}/queue/io_timeout"


def map_disks(pair, stack, *devices: str, size_mb: int = 16) -> None:
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    for device in devices:
        pair.client.run(f'echo "sessname=demo {paths} device_path={device}" > {stack.map_file}')
    wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "both paths are connected")
    # Nobody else is to notice anything.
    pair.client.run(f"cd {SESSION} && echo 60000 > hb_interval_ms && echo 100 > hb_missed_max &&"
                    " echo round-robin > mp_policy")


def reconnects(guest) -> int:
    return sum(int(line.split()[0]) for line in guest.run(f"cat {SESSION}/paths/*/stats/reconnects").splitlines())


SCAN = "python3 -c 'import fcntl; fcntl.ioctl(open(\"/dev/ibnbd0\"), 0x125f)'"


def test_a_partition_scan_that_is_stuck_is_ended_by_force(pair, stack):
    """It holds a mutex that opening and closing the disk wait for, and so does unmapping it otherwise."""
    server, client = pair
    server.null_blk(size_mb=16)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    blockdev.load(pair, stack)
    map_disks(pair, stack, stuck.device)
    with stuck.suspended():
        scan = client.start(SCAN)
        client.wait_until("[ $(cat /sys/block/ibnbd0/inflight | tr -d ' ') != 00 ]", 30)
        assert os.strerror(errno.EBUSY) in client.run(stack.unmap(), timeout=60, check=False)
        assert scan.running
        client.run(stack.unmap(how="force"), timeout=60)
        assert not client.ok("[ -e /sys/block/ibnbd0 ]")
        scan.wait(30, check=False)


def test_a_disk_that_is_stuck_costs_no_path(pair, stack):
    server, client = pair
    for number in range(2):
        server.null_blk(f"nullb{number}", size_mb=16)
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    blockdev.load(pair, stack)
    map_disks(pair, stack, stuck.device, "/dev/nullb1")
    client.run(f"[ $(cat {TIMEOUT.format(0)}) = 30000 ] && echo 1000 > {TIMEOUT.format(0)}")
    with stuck.suspended():
        write = client.start("dd if=/dev/urandom of=/dev/ibnbd0 bs=64k count=1 oflag=direct status=none")
        # Several times the time-out, and the time to answer.
        client.wait_until("[ $(dmesg | grep -c 'backing device is slow') -ge 2 ]", 60)
        client.wait_until(f"[ $(cat {TIMED_OUT}) = 1 ]", 30)
        client.run("dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=20)
        assert write.running and blockdev.connected(client) == 2 and reconnects(client) == 0
        assert client.run(f"cat {LIMIT}") == "0" and not client.ok(f"bash -c 'echo 1001 > {LIMIT}'")

        # With a limit both end with an error.  The read is sent before: later on it would be refused.
        read = client.start("dd if=/dev/ibnbd0 of=/dev/null bs=16k count=1 iflag=direct status=none")
        client.wait_until(f"[ $(cat {TIMED_OUT}) = 2 ]", 30)
        client.run(f"echo 2 > {LIMIT}")
        for job in (write, read):
            assert os.strerror(errno.ETIMEDOUT) in job.wait(60, check=False)
        # They count until the server has answered.
        assert client.run(f"cat {TIMED_OUT}") == "2"
        # Nothing gets to that disk before it has answered: a request that was sent would take a minute.
        client.run(f"echo 30000 > {TIMEOUT.format(0)}")
        said = client.run("dd if=/dev/zero of=/dev/ibnbd0 bs=4k count=1 oflag=direct status=none", timeout=20, check=False)
        assert os.strerror(errno.ETIMEDOUT) in said
        client.run("dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=20)
        assert blockdev.connected(client) == 2 and reconnects(client) == 0
    # The read's answer is not welcome any more: the key of its memory, which is too much for a buffer, is gone.
    wait_for(lambda: reconnects(client) == 1 and blockdev.connected(client) == 2, 60, "the path is back")
    client.wait_until("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct status=none", 60)
    assert client.run(f"cat {TIMED_OUT}") == "0"
    client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=64k count=16 oflag=direct status=none")
    assert blockdev.same_on_both(pair, "/dev/nullb0", "/dev/ibnbd0", 1)
    for number in range(2):
        client.run(stack.unmap(number))
    stuck.remove()


def test_with_a_scheduler_nothing_is_left_of_an_outage(pair, stack):
    """A request that the driver gives back gets another tag from the scheduler, and takes its timeouts there."""
    server, client = pair
    device, name = server.null_blk(size_mb=16), "/dev/disk-of-an-outage"
    away, back = f"rm {name}", f"ln -s {os.path.basename(device)} {name}"
    server.run(back)
    blockdev.load(pair, stack)
    map_disks(pair, stack, name)
    client.run(f"echo 600 > {SESSION}/queue_timeout_s; echo 100 > {SESSION}/reconnect_delay_ms;"
               f" echo mq-deadline > /sys/block/ibnbd0/queue/scheduler; echo 2 > /sys/block/ibnbd0/queue/nomerges;"
               f" echo 1000 > {TIMEOUT.format(0)}")
    requests = 32

    def stop() -> None:
        server.run(f"{stack.unload('server')} && {away}", timeout=60)

    def begin_without_the_disk() -> None:
        client.run("dmesg -C")
        server.run(stack.load_server())
        client.wait_until(f"dmesg | grep -q 'ibnbd0: {name} cannot be opened again yet'", 60)

    def start() -> Job:
        return client.start(f"fio --name=x --filename=/dev/ibnbd0 --rw=randwrite --bs=4k --iodepth={requests} --direct=1"
                            f" --ioengine=io_uring --number_ios={2 * requests}")

    def reopen() -> None:
        server.run(back)
        # The client may open it by itself just before.
        client.wait_until(f"echo 1 > {REMAP}; [ $(cat {os.path.dirname(REMAP)}/state) = open ]", 30)

    def all_have_timed_out() -> None:
        client.wait_until(f"[ $(cat {TIMED_OUT}) = {requests} ]", 60)

    stop()
    writes = start()
    all_have_timed_out()
    begin_without_the_disk()
    # Each was refused, as its session is gone, and waits for the disk: still as many.
    all_have_timed_out()
    reopen()
    writes.wait(60)
    assert client.run(f"cat {TIMED_OUT}") == "0"

    # With a limit, what waits for the disk fails when that is back, and nothing of what follows.
    stop()
    begin_without_the_disk()
    client.run(f"echo 1 > {LIMIT}")
    late = start()
    all_have_timed_out()
    said = client.run("dd if=/dev/ibnbd0 of=/dev/null bs=4k count=1 iflag=direct status=none", timeout=20, check=False)
    assert os.strerror(errno.ETIMEDOUT) in said
    reopen()
    assert os.strerror(errno.ETIMEDOUT) in late.wait(60, check=False)
    assert client.run(f"cat {TIMED_OUT}") == "0"
    client.run(f"echo 30000 > {TIMEOUT.format(0)}")
    client.run("dd if=/dev/urandom of=/dev/ibnbd0 bs=64k count=16 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, "/dev/ibnbd0", 1)
    client.run(stack.unmap())
    server.run(away)


def test_a_path_that_is_silent_is_found_out(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    mishaps.make_ready(pair)
    # Packets are sent again for minutes before the connection breaks.
    client.run("modprobe ibtrs_client ack_timeout=25")
    blockdev.load(pair, stack)
    map_disks(pair, stack, device)
    client.run(f"echo 2000 > {TIMEOUT.format(0)}")
    job = client.start("fio --name=x --filename=/dev/ibnbd0 --rw=randwrite --bsrange=4k-32k --iodepth=8 --direct=1"
                       " --ioengine=io_uring --time_based --runtime=900 --size=12m --verify=crc32c --verify_fatal=1"
                       f" --verify_backlog=32 {fio.IN_BURSTS}")
    blockdev.wait_for_reads(client, stack)
    begin = time.monotonic()
    with mishaps.losing(server, 2, 100):
        wait_for(lambda: blockdev.connected(client) == 1, 40, "the path fails")
        print(f"\nfailed after {time.monotonic() - begin:.1f} s")
        assert "request timed out and the server does not respond" in client.run("dmesg")
        before = int(client.run("awk '{ print $5 }' /sys/block/ibnbd0/stat"))
        client.wait_until(f"[ $(awk '{{ print $5 }}' /sys/block/ibnbd0/stat) -gt {before + 50} ]", 60)
    fio.end(client, job)
    assert blockdev.same_on_both(pair, device, "/dev/ibnbd0", 12)
