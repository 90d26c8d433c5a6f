# SPDX-License-Identifier: GPL-2.0
"""The histogram of request times of a disk, by operation."""

import pytest

from testbed import blockdev

pytestmark = pytest.mark.fast

SESSION = "/sys/class/ibtrs-client/demo"
ROWS = [f"{1 << power} us" for power in range(21)] + [">= 1048576 us"]
# Every operation once and more, past the page cache.
OPERATIONS = """
dd if=/dev/urandom of={disk} bs=4k count=32 oflag=direct conv=fsync status=none
dd if={disk} of=/dev/null bs=16k count=16 iflag=direct status=none
blkdiscard -f -o 1M -l 1M {disk}
blkdiscard -f -z -o 2M -l 64k {disk}
"""


def counted(client, disk: str) -> dict[str, list[int]]:
    """The rows of the file: reads, writes, discards, flushes."""
    rows = dict(line.split(": ") for line in client.run(f"cat {disk}/ibnbd/latency_us").splitlines())
    return {label: [int(word) for word in row.split()] for label, row in rows.items()}


def in_all(rows: dict[str, list[int]]) -> list[int]:
    return [sum(column) for column in zip(*(rows[label] for label in ROWS))]


def block_layers(client, disk: str) -> list[int]:
    """The block layer's counters: reads, writes, discards, flushes.  It counts the empty
    write as well which asks for a flush, and never comes to a driver."""
    words = client.run(f"cat {disk}/stat").split()
    reads, writes, discards, flushes = (int(words[at]) for at in (0, 4, 11, 15))
    return [reads, writes - flushes, discards, flushes]


def test_requests_are_counted_by_the_time_they_took(pair, stack):
    server, client = pair
    server.null_blk("nullb0", 32)
    server.run("cd /sys/kernel/config/nullb/nullb0 && echo 0 > power && echo 1 > discard && "
               "echo 16 > cache_size && echo 1 > power")
    blockdev.load(pair, stack)
    client.run(stack.map_device("/dev/nullb0"))
    disk = f"/sys/block/{stack.family}0"
    client.run(f"set -e{OPERATIONS.format(disk=stack.disk)}")
    rows = counted(client, disk)
    assert list(rows) == [*ROWS, "maximum us"]
    assert in_all(rows) == block_layers(client, disk)
    assert all(count > 0 for count in in_all(rows))
    # The longest one is in the last row that has any.
    for column, longest in enumerate(rows["maximum us"]):
        row = [label for label in ROWS if rows[label][column]][-1]
        assert row == ROWS[min(longest.bit_length(), 21)], (column, longest)

    client.run(f"echo 0 > {disk}/ibnbd/latency_us && echo 0 > {disk}/queue/iostats && "
               f"set -e{OPERATIONS.format(disk=stack.disk)} echo 1 > {disk}/queue/iostats")
    rows = counted(client, disk)
    assert in_all(rows) == [0] * 4 and rows["maximum us"] == [0] * 4

    # The time without a path is the request's as well.
    client.run(f"cd {SESSION}/paths/* && echo 1 > disconnect && {{ sleep 1.5; echo 1 > reconnect; }} & "
               f"cd {SESSION}/paths/* && while [ $(cat state) = connected ]; do sleep 0.05; done; "
               f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none && wait")
    rows = counted(client, disk)
    assert rows[">= 1048576 us"] == [1, 0, 0, 0] and in_all(rows) == [1, 0, 0, 0]
    assert rows["maximum us"][0] >= 1_048_576
    client.run(stack.unmap())
