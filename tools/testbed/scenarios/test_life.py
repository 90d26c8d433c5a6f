# SPDX-License-Identifier: GPL-2.0
"""Disks, modules and whole servers come and go, even in the middle of I/O."""

import errno
import os
import time

import pytest

from testbed import blockdev, fio, slab
from testbed.lab import wait_for

SESSION = "/sys/class/ibtrs-client/demo"
# Three that read and write at the same place, for longer than the disk is there.
COPIES = ("copy() {{ dd if={disk} of={disk} bs=16k iflag=direct oflag=direct skip=$1 seek=$1 status=none; }}; "
          "copy 0 & copy 512 & copy 1024; wait")


# The full numbers on the kernel without checks, and with IBTRS_LONG=1 on the one with checks
# as well: some of them are enough for what that one looks for.
LONG = bool(os.environ.get("IBTRS_LONG"))


def times(full: int, checked: int):
    return pytest.mark.parametrize("times", [
        pytest.param(full, id=f"{full}", marks=[pytest.mark.fast, pytest.mark.long, pytest.mark.thorough]),
        pytest.param(full if LONG else checked, id="checked")])


@times(full=100, checked=4)
def test_mapped_and_unmapped_again_and_again(pair, stack, times):
    client = pair.client
    device = pair.server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    once = f"{stack.map_device(device)} && {stack.unmap()}"
    client.run(f"{once} && {once}")
    before = [slab.used(guest) for guest in pair]
    client.run(f"for i in $(seq {times - 2}); do {once} || exit 1; done", timeout=1500)
    assert blockdev.disks(client, stack) == []
    if times < 100:
        # Too few to be told from what comes and goes.  There kmemleak is asked.
        return
    for guest, objects in zip(pair, before):
        # One object that is left by each time would be 98; some are given back later. The server
        # keeps the chunks of paths that ended for up to four minutes.
        wait_for(lambda: slab.grown(objects, slab.used(guest), by=98) == {}, 300, "all memory is given back")


@times(full=20, checked=2)
def test_loaded_and_unloaded_under_load(pair, stack, times):
    server, client = pair
    device = server.null_blk(size_mb=64)
    for _ in range(times):
        blockdev.load(pair, stack)
        client.run(stack.map_device(device))
        load = client.start(COPIES.format(disk=stack.disk))
        blockdev.wait_for_reads(client, stack)
        client.run(stack.unmap(how="force"))
        # With an error, or at the end of a disk that has none any more.
        load.wait(60, check=False)
        unloading = server.start(stack.unload("server"))
        client.run(stack.unload("client"))
        unloading.wait(60)
        for guest in pair:
            # The others cannot be there without it.
            assert guest.ok(f"[ ! -e /sys/module/{stack.core_module} ]")


def test_a_disk_in_use_is_not_unmapped(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack)
    holder = client.start(f"exec 3<{stack.disk}; echo open; sleep 600")
    wait_for(lambda: "open" in holder.text, 30, "the disk is open")
    refused = client.run(stack.unmap(), check=False)
    assert os.strerror(errno.EBUSY) in refused
    holder.kill()
    holder.wait(20, check=False)
    client.run(stack.unmap())
    assert blockdev.disks(client, stack) == []


def test_force_does_not_wait_for_another_disk(pair, stack):
    """Two disks of a session share its tags; the requests of one wait for a path, and the other one is
    unmapped by force."""
    client = pair.client
    for number in range(2):
        blockdev.map_new(pair, stack, f"nullb{number}", size_mb=16)
    client.run(f"cd {SESSION} && echo 40 > queue_timeout_s && for path in paths/*; do echo 1 > $path/disconnect; done")
    waiting = client.start(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct")
    client.wait_until("[ $(awk '{ print $1 + $2 }' /sys/block/ibnbd0/inflight) = 1 ]")
    started = time.monotonic()
    client.run(stack.unmap(1, "force"))
    took = time.monotonic() - started
    assert took < 15, f"{took:.1f} s"
    assert not client.ok("[ -e /sys/block/ibnbd1 ]")
    client.run(f"for path in {SESSION}/paths/*; do echo 1 > $path/reconnect; done")
    assert waiting.wait(60).ok


def test_a_second_disk_does_not_wait_for_the_first(pair, stack):
    """Two disks of a session share its tags; the server does not answer a request of the first one."""
    server, client = pair
    stuck = blockdev.StuckDisk(server, server.null_blk("nullb0", size_mb=16))
    other = server.null_blk("nullb1", size_mb=16)
    blockdev.load(pair, stack)
    client.run(stack.map_device(stuck.device))
    with stuck.suspended():
        waiting = client.start(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct")
        client.wait_until("[ $(awk '{ print $1 + $2 }' /sys/block/ibnbd0/inflight) = 1 ]")
        started = time.monotonic()
        client.run(stack.map_device(other), timeout=30)
        took = time.monotonic() - started
        assert took < 5, f"{took:.1f} s"
        assert blockdev.same_on_both(pair, other, "/dev/ibnbd1", 16)
        client.run(stack.unmap(1))
        # The first disk has noticed nothing of the other one.
        assert client.ok("[ $(awk '{ print $1 + $2 }' /sys/block/ibnbd0/inflight) = 1 ]")
    assert waiting.wait(60).ok
    client.run(stack.unmap(0))
    stuck.remove()


def test_force_ends_io_with_errors(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack)
    load = client.start(fio.LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    client.run(stack.unmap(how="force"))
    assert not load.wait(60, check=False).ok
    wait_for(lambda: blockdev.disks(client, stack) == [], 30, "the disk is gone")


@pytest.mark.thorough
@pytest.mark.fast
@pytest.mark.kills
def test_the_server_is_killed_under_load(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack)
    load = client.start(fio.LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    blockdev.fail_fast(client)
    pair.server.kill()
    assert not load.wait(120, check=False).ok
    client.run(stack.unmap(how="force"), timeout=120)
    wait_for(lambda: blockdev.disks(client, stack) == [], 30, "the disk is gone")

    pair.reboot("server")
    blockdev.map_new(pair, stack)
    client.run(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
