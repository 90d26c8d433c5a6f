# SPDX-License-Identifier: GPL-2.0
"""Several paths of a session on our server, with the kernel's own client: it knows
nothing of our extensions, so that the server has to see for itself which path the
client has given up."""

import errno
import os
import time

import pytest

from testbed import blockdev, fio
from testbed.stack import STACKS

# On the fast kernel: mainline cannot be told to be patient with emulated guests.
pytestmark = [pytest.mark.fast, pytest.mark.links(2)]

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
    load.kill()
    load.wait(20, check=False)
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


def slow_disk(server, name: str, seconds: int) -> str:
    """A disk whose every request takes its time."""
    folder = f"/sys/kernel/config/nullb/{name}"
    server.run("modprobe null_blk nr_devices=0 && "
               f"mkdir {folder} && cd {folder} && echo 16 > size && echo 1 > memory_backed && "
               f"echo 2 > irqmode && echo {seconds * 10**9} > completion_nsec && echo 1 > power",
               timeout=300)
    return f"/dev/{name}"


@pytest.mark.parametrize("invalidate", ["Y", "N"])
def test_a_retry_waits_for_the_first_attempt(pair, invalidate):
    """A write that is on a slow disk is sent again by the other path: the disk
    never has both, and nobody else is disturbed."""
    server, client = pair
    seconds = 12
    server.null_blk("nullb1", size_mb=16)
    start(pair, f"always_invalidate={invalidate}")
    map_disk(client, "nullb1", session="other", paths=("10.0.1.1",))
    slow_disk(server, "nullb0", seconds)
    # The kernel reads a new disk for partitions, slowly.
    client.run(f'echo "sessname=s path=ip:10.0.1.1 path=ip:10.0.2.1 device_path=nullb0" > {MAINLINE.map_file}',
               timeout=300)
    before = int(server.run("cat /sys/block/nullb0/stat").split()[4])
    begun = time.monotonic()
    write = client.start("dd if=/dev/urandom of=/dev/rnbd1 bs=64k count=1 oflag=direct status=none")
    server.wait_until("[ $(awk '{ print $1 + $2 }' /sys/block/nullb0/inflight) = 1 ]")
    # Whichever path it took.
    for which, other in ((ONE, TWO), (TWO, ONE)):
        client.run(f"echo 1 > {path(which)}/disconnect", timeout=120)
        if server.run("dmesg | grep -c 's: .*given up by the client' || true") != "0":
            break
        client.run(f"echo 1 > {path(which)}/reconnect", timeout=120)
    assert server.run("awk '{ print $1 + $2 }' /sys/block/nullb0/inflight") == "1"
    # Others are not disturbed: an old session, and a new one.
    client.run("dd if=/dev/rnbd0 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=10)
    assert write.running
    write.wait(60)
    assert time.monotonic() - begun > 1.9 * seconds
    assert int(server.run("cat /sys/block/nullb0/stat").split()[4]) == before + 2
