# SPDX-License-Identifier: GPL-2.0
"""Paths fail and come back under load: no I/O fails, every byte is right.

test_changes.py disturbs one link after the other.  Here operators disconnect and remove paths, and
sessions have times without any path."""

import time

import pytest

from testbed import blockdev, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.load import Load
from testbed.mishaps import losing

pytestmark = [pytest.mark.links(2), pytest.mark.fast, pytest.mark.long]

SESSION = "/sys/class/ibtrs-client/demo"
# Four seconds, and not thirty, until silence is noticed.
SETTINGS = (f"cd {SESSION} && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max && "
            "echo 100 > reconnect_delay_ms")


@pytest.fixture
def load(pair, stack):
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    pair.client.run(SETTINGS)
    return Load(pair.client, stack)


def test_paths_are_added_and_removed(pair, stack, load):
    client = pair.client
    for link in (2, 1):
        path = f"{SESSION}/paths/*@ip:{SERVER_ADDRESS.format(link=link)}"
        client.run(f"cd {path} && echo 1 > disconnect && [ $(cat state) = disconnected ]")
        load.goes_on()
        client.run(f"cd {path} && echo 1 > reconnect && [ $(cat state) = connected ]")
        client.run(f"cd {path} && echo 1 > remove_path")
        assert blockdev.connected(client) == 1
        load.goes_on()
        client.run(f"echo ip:{SERVER_ADDRESS.format(link=link)} > {SESSION}/add_path")
        assert blockdev.connected(client) == 2
        load.goes_on()
    load.end()


def test_no_path_for_45_seconds(pair, stack, load):
    client = pair.client
    start = client.uptime()
    with losing(client, 1, 100), losing(client, 2, 100):
        time.sleep(45)
        assert blockdev.connected(client) == 0
    load.goes_on(timeout=120)
    print(f"\nno path for 45 s: longest time without I/O {load.gap(start):.1f} s")
    load.end()


def test_no_path_for_too_long(pair, stack):
    client = pair.client
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    read = f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none"
    client.run(f"{SETTINGS} && echo 5 > queue_timeout_s")
    client.run(read)
    with losing(client, 1, 100), losing(client, 2, 100):
        wait_for(lambda: blockdev.connected(client) == 0, 60, "both paths fail")
        started = time.monotonic()
        assert not client.ok(read)
        assert time.monotonic() - started < 30
        # And at once from then on.
        assert not client.ok(f"timeout 2 {read}")
    client.wait_until(read, timeout=120)


@pytest.mark.fresh
def test_the_server_is_killed_and_comes_back(pair, stack):
    client = pair.client
    device = blockdev.map_two_paths(pair, stack)
    # null_blk has no identity, and the reader has it open.
    client.run(f"{SETTINGS} && echo 300 > queue_timeout_s && echo none > /sys/block/ibnbd0/ibnbd/identity")
    reader = client.start(f"dd if={stack.disk} of=/dev/null bs=64k count=4000 iflag=direct status=none; "
                          f"dd if={stack.disk} of=/dev/null bs=64k iflag=direct status=none")
    pair.server.kill()
    wait_for(lambda: blockdev.connected(client) == 0, 60, "both paths fail")
    pair.reboot("server")
    # The same disk again, for who looks at the server's size and name.
    assert pair.server.null_blk(size_mb=32) == device
    blockdev.load(pair, stack)
    assert reader.wait(240, check=False).ok


def test_a_disk_is_mapped_again_while_its_close_is_on_a_dead_path(pair, stack):
    """The program that unmaps it is killed, and the path is lost later. CLOSE does not close the new disk."""
    server, client = pair
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack)
    server.null_blk("nullb1", 16)
    client.run(stack.map_device("/dev/nullb1"))
    paths = f"{SESSION}/paths"
    client.run(f"cd {SESSION} && echo 2000 > hb_interval_ms && echo 5 > hb_missed_max && echo 100 > reconnect_delay_ms && "
               f"echo 1 > {paths}/*@ip:10.0.2.1/disconnect")
    wait_for(lambda: blockdev.connected(client) == 1, 30, "the second path is disconnected")
    # The server hears of these heartbeats when the path connects again, and keeps the dead path for as long.
    client.run(f"echo 1 > {paths}/*@ip:10.0.1.1/disconnect && echo 1 > {paths}/*@ip:10.0.1.1/reconnect", timeout=60)
    wait_for(lambda: blockdev.connected(client) == 1, 30, "the first path is connected again")
    with mishaps.losing(client, 1, 100):
        unmapping = client.start(stack.unmap(1))
        client.wait_until("[ ! -b /dev/ibnbd1 ]", 30)
        client.run("sleep 1")
        unmapping.kill()
        client.run(f"echo 1 > {paths}/*@ip:10.0.2.1/reconnect", timeout=60)
        # What is stuck on the dead path has the next messages take the other one.
        reader = client.start(f"fio --name=stuck --filename={stack.disk} --rw=randread --bs=4k --iodepth=8 --direct=1 "
                              "--ioengine=io_uring --size=1m")
        client.run("sleep 2; [ $(awk '{ print $1 }' /sys/block/ibnbd0/inflight) -gt 0 ]")
        wait_for(lambda: client.ok(stack.map_device("/dev/nullb1")), 90, "the disk is mapped again", pause=1)
        # Both if the loss of the other one has not been noticed yet.
        wait_for(lambda: blockdev.connected(client) == 1, 60, "the first path is lost")
        reader.wait(60)
        client.run("sleep 2; dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=120)
    wait_for(lambda: blockdev.connected(client) == 2, 60, "the first path is back")
    client.run(f"dd if=/dev/ibnbd1 of=/dev/null bs=64k count=16 iflag=direct status=none && {stack.unmap(1)}")
