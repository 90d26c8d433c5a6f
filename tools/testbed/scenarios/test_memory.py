# SPDX-License-Identifier: GPL-2.0
"""The memory of a server: its messages reveal nothing about it, and it need not be contiguous."""

import os

import pytest

from testbed import blockdev, fio, free_memory
from testbed.hostile import launch
from testbed.lab import wait_for

# Raw messages need immediates, which soft-iWARP does not have.
pytestmark = [pytest.mark.fast, pytest.mark.rdma("rxe")]

# IBTRS_LONG=1 runs the larger number.
LOSSES = 50 if os.environ.get("IBTRS_LONG") else 8

PAGE = 4096


def test_addresses_say_nothing_of_memory(pair, stack):
    """A server tells its clients where its chunks are. Software RDMA has the kernel's
    own addresses of them, which lie in the upper half of all, and a card those of the
    bus: neither is what is told, and it is never the same."""
    server, client = pair
    server.null_blk(size_mb=16)
    server.run(stack.load_server())
    said = launch.program(client, """
for session in "one", "other":
    print(*(addr for addr, key in RawClient(ADDRESS, session).chunks))
""").wait(120)
    told = [[int(addr) for addr in line.split()] for line in said.splitlines()]
    one, other = told
    assert len(one) == len(other) > 1
    both = one + other
    assert all(addr < 1 << 63 and addr % PAGE == 0 for addr in both), [hex(addr) for addr in both]
    assert len(set(both)) == len(both)
    # As many of each half of what is left, nearly: no common beginning.
    assert {addr >> 60 for addr in both} == set(range(8))
    # Nor a distance from one to the next that tells of the one after.
    assert len({after - before for before, after in zip(one, one[1:])}) > len(one) // 2


def test_no_path_shares_a_protection_domain(pair, stack):
    """Two sessions between the same devices, one of them with two paths: nothing that is registered for a
    path is within the reach of another one's peer, which guesses keys."""
    server, client = pair
    server.run(stack.load_server())
    client.run(stack.load_client())

    def domains() -> list[int]:
        return [guest.run("rdma resource show pd").count("comm [ibtrs]") for guest in pair]

    for count, session in enumerate(("one", "other"), 1):
        client.run(stack.map_device(server.null_blk(session, size_mb=16), session=session))
        wait_for(lambda: domains() == [count, count], 60, "each session has a protection domain at either end")
    # A second path between the same devices, by the other address of the link.
    client.run(f"echo ip:fd00:0:0:1::1 > {stack.sessions('client')}/one/add_path")
    wait_for(lambda: domains() == [3, 3], 60, "each path has a protection domain at either end")
    for disk in range(2):
        client.run(stack.unmap(disk))
    wait_for(lambda: domains() == [0, 0], 60, "protection domains are gone")


# Successful ones, and failed ones.
RECONNECTS = "/sys/class/ibtrs-client/one/paths/*/stats/reconnects"
# What remains in large blocks: connections and the disk take some of it.
LARGE_MIB = 48


def free_kib(guest, order: int = 0) -> int:
    """What is free in blocks of that order or a higher one."""
    blocks = [line.split()[4:] for line in guest.run("cat /proc/buddyinfo").splitlines()]
    return sum(int(count) * 4 << number for zone in blocks for number, count in enumerate(zone) if number >= order)


@pytest.mark.parametrize("parameters", ["slots=N always_invalidate=Y", "slots=N always_invalidate=N",
                                        "slots_over_rxe=Y max_chunk_size=1052672"])
def test_a_path_needs_no_contiguous_memory(pair, stack, parameters):
    """The server's free memory is in small blocks, for the most part, when a client connects, loses
    its paths and comes back: it is never refused, and all data is right."""
    server, client = pair
    device, other = server.null_blk(size_mb=32), server.null_blk("nullb1", size_mb=16)
    server.run(f"modprobe {stack.transport('server')} {parameters} && {stack.load_server()}")
    client.run(f"modprobe {stack.transport('client')} slots_over_rxe=Y && {stack.load_client()}")
    # Nothing larger than four pages is free then but that, and the guests' kernels cannot compact memory.
    # Without two pages in a row, rxe could not send its packets.
    scatter = free_memory.take(server, LARGE_MIB, holes=True)
    # A path has 66 MiB of chunks alone.
    assert free_kib(server, order=3) < 60 << 10 and free_kib(server) > 150 << 10, server.run("cat /proc/buddyinfo")

    client.run(stack.map_device(device, session="one"))
    client.run("cd /sys/class/ibtrs-client/one && echo 10 > reconnect_delay_ms && echo -1 > max_reconnect_attempts")
    print(server.run("cat /proc/buddyinfo"))
    fio.run(client, f"--name=all --filename={stack.disk} --rw=randrw --bsrange=512-1m --iodepth=32 --direct=1 "
            "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=32m", timeout=600)
    for loss in range(1, 1 + LOSSES):
        server.run("echo 1 > $(ls -d /sys/class/ibtrs-server/one/paths/*/disconnect)")
        # The server's log leaves lines out, as they become many.
        client.wait_until(f"read again rest < $(ls {RECONNECTS}) && [ $again -ge {loss} ]", 60)
        client.run(f"dd if={stack.disk} of=/dev/null bs=128k count=8 iflag=direct status=none", timeout=60)
    # For which nothing is kept.
    client.run(stack.map_device(other, session="two"))
    assert blockdev.same_on_both(pair, device, stack.disk, 32)
    log = server.run("dmesg")
    assert "ENOMEM" not in log and "oom" not in log.lower(), log
    client.run(f"{stack.unmap()} && {stack.unmap(1)}")
    scatter.kill()
