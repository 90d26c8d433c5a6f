# SPDX-License-Identifier: GPL-2.0
"""Several paths of a session on our server, with the kernel's own client: it knows
nothing of our extensions, so that the server has to see for itself which path the
client has given up."""

import errno
import hashlib
import os
import time

import pytest

from testbed import blockdev, fio
from testbed.stack import STACKS

# On the fast kernel: mainline cannot be told to be patient with emulated guests.
pytestmark = [pytest.mark.fast, pytest.mark.quiet, pytest.mark.links(2)]

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
VERIFY = ("--name=verify --filename={disk} --rw=randrw --bsrange=4k-64k --size=6m --iodepth=4 "
          "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1")
LOAD = ("fio --name=load --filename={disk} --rw=randrw --bs=8k --iodepth=4 --direct=1 "
        "--ioengine=io_uring --time_based --runtime=600 --size=8m --rate_iops=100 "
        "--verify=crc32c --verify_fatal=1")
PATHS = "/sys/class/rtrs-client/{session}/paths"
ONE, TWO = "ip:10.0.1.2@ip:10.0.1.1", "ip:10.0.2.2@ip:10.0.2.1"


def start(pair, parameters: str = "") -> None:
    server, client = pair
    server.run(f"dmesg -C; modprobe ibtrs_server {parameters}")
    server.run(OURS.load_server())
    client.run(MAINLINE.load_client())


def map_disk(client, name: str = "nullb0", session: str = "s",
             paths=("10.0.1.1", "10.0.2.1")) -> None:
    options = " ".join(f"path=ip:{path}" for path in paths)
    client.run(f'echo "sessname={session} {options} device_path={name}" > {MAINLINE.map_file}')


def path(which: str, session: str = "s") -> str:
    return f"{PATHS.format(session=session)}/{which}"


def state(client, which: str) -> str:
    return client.run(f"cat {path(which)}/state")


def ios(client, disk: str = "rnbd0") -> int:
    """Requests that have ended."""
    fields = client.run(f"cat /sys/block/{disk}/stat").split()
    return int(fields[0]) + int(fields[4])


def wait_for_ios(client, more: int, timeout: float = 60) -> None:
    wanted = ios(client) + more
    client.wait_until(f"[ $(awk '{{ print $1 + $5 }}' /sys/block/rnbd0/stat) -ge {wanted} ]", timeout)


@pytest.mark.parametrize("invalidate", ["Y", "N"])
def test_two_paths_carry_a_session(pair, invalidate):
    server, client = pair
    device = server.null_blk(size_mb=16)
    start(pair, f"always_invalidate={invalidate}")
    map_disk(client)
    fio.run(client, VERIFY.format(disk=MAINLINE.disk), timeout=600)
    assert blockdev.checksum(server, device, 6) == blockdev.checksum(client, MAINLINE.disk, 6)
    for which in (ONE, TWO):
        reads, _, writes, *_ = client.run(f"cat {path(which)}/stats/rdma").split()
        assert int(reads) and int(writes)
    assert server.run("dmesg | grep -c 'path connected'") == "2"
    client.run(MAINLINE.unmap())
    server.wait_until("dmesg | grep -q 's: session closed'")
    assert server.run("dmesg | grep -c 's: session closed'") == "1"


def test_links_fail_one_after_the_other(pair):
    server, client = pair
    device = server.null_blk(size_mb=16)
    start(pair)
    map_disk(client)
    load = client.start(LOAD.format(disk=MAINLINE.disk))
    wait_for_ios(client, 50)
    client.run("modprobe sch_netem")
    for nic, which in (("eth1", TWO), ("eth0", ONE)):
        # Not by pulling the cable: soft-RoCE's queue pair for the messages of the connection
        # manager stays broken when one of them could not be handed to the network.
        client.run(f"tc qdisc replace dev {nic} root netem loss 100%")
        client.wait_until(f"grep -q disconnected {path(which)}/state", 60)
        wait_for_ios(client, 50)
        client.run(f"tc qdisc del dev {nic} root")
        # It tries by itself after half a minute, and may be refused as long as the
        # server has not noticed.
        client.wait_until(f"cd {path(which)} && {{ grep -qx connected state || "
                          "echo 1 > reconnect; grep -qx connected state; }", 120)
        wait_for_ios(client, 50)
        assert load.running
    # fio's workers are in sessions of their own.
    client.run("pkill -x fio; while pgrep -x fio > /dev/null; do sleep 0.2; done", timeout=60)
    load.wait(60, check=False)
    assert blockdev.checksum(server, device, 8) == blockdev.checksum(client, MAINLINE.disk, 8)


def test_paths_are_added_and_removed_under_load(pair):
    server, client = pair
    server.null_blk(size_mb=16)
    start(pair)
    map_disk(client, paths=("10.0.1.1",))
    load = client.start(LOAD.format(disk=MAINLINE.disk))
    wait_for_ios(client, 50)
    for _ in range(5):
        client.run("echo ip:10.0.2.1 > /sys/class/rtrs-client/s/add_path")
        assert state(client, TWO) == "connected"
        wait_for_ios(client, 30)
        client.run(f"echo 1 > {path(TWO)}/remove_path")
        wait_for_ios(client, 30)
    # Its addresses are taken as long as it lives.
    refused = client.run("echo ip:10.0.1.1 > /sys/class/rtrs-client/s/add_path", check=False)
    assert os.strerror(errno.EEXIST) in refused
    assert "another path of the session has the same addresses" in server.run("dmesg")
    assert load.running


def stats(server, which: str) -> list[int]:
    """Reads, their bytes, writes, their bytes, in flight, as the server counts."""
    folder = f"/sys/class/ibtrs-server/s/paths/{which}/stats"
    return [int(number) for number in server.run(f"cat {folder}/rdma").split()]


@pytest.mark.parametrize("invalidate", ["Y", "N"])
def test_a_retry_waits_for_the_first_attempt(pair, invalidate):
    """A write that a disk is stuck with is sent again by the other path: it is not
    served before the first attempt is over, and nobody else is disturbed."""
    server, client = pair
    data = os.urandom(64 << 10)
    for number in range(3):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run("modprobe dm_mod && dmsetup create --noudevsync stuck --table '0 32768 linear /dev/nullb0 0' "
               "&& [ -b /dev/dm-0 ]")
    start(pair, f"always_invalidate={invalidate} sess_queue_depth=64")
    map_disk(client, "nullb1", session="other", paths=("10.0.1.1",))
    map_disk(client, "dm-0")
    server.run("dmsetup suspend --noflush --nolockfs --noudevsync stuck")
    try:
        client.push("/tmp/data", data)
        write = client.start("dd if=/tmp/data of=/dev/rnbd1 bs=64k count=1 oflag=direct status=none")
        first, second = (ONE, TWO) if wait_for_path(server) == ONE else (TWO, ONE)
        client.run(f"echo 1 > {path(first)}/disconnect", timeout=120)
        server.wait_until(f"[ ! -e /sys/class/ibtrs-server/s/paths/{first} ]")
        time.sleep(3)
        assert stats(server, second)[2:] == [0, 0, 0]
        # The client connects that path again, and is let in when the disk is done with it.
        assert not client.ok(f"echo 1 > {path(first)}/reconnect", timeout=120)
        # Others are not disturbed: an old session, and a new one.
        client.run("dd if=/dev/rnbd0 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=20)
        map_disk(client, "nullb2", session="new", paths=("10.0.2.1",))
        client.run("dd if=/dev/rnbd2 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=20)
        assert write.running
    finally:
        server.run("dmsetup resume --noudevsync stuck")
    write.wait(60)
    assert stats(server, second)[2] == 1 and stats(server, second)[4] == 0
    # What was written is what the server's own disk has.
    there = server.run("dd if=/dev/nullb0 bs=64k count=1 iflag=direct status=none | sha256sum")
    assert there.split()[0] == hashlib.sha256(data).hexdigest()
    client.wait_until(f"cd {path(first)} && {{ grep -qx connected state || "
                      "echo 1 > reconnect; grep -qx connected state; }", 120)
    for number in range(3):
        client.run(MAINLINE.unmap(number))
    server.wait_until("dmsetup remove --noudevsync stuck")


def wait_for_path(server) -> str:
    """The path that has a write in service."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for which in (ONE, TWO):
            if stats(server, which)[4]:
                return which
    raise AssertionError("no path has a request in service")
