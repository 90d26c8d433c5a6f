# SPDX-License-Identifier: GPL-2.0
"""The server's messages reveal nothing about its memory."""

import pytest

from testbed.hostile import launch

# Raw messages need immediates, which soft-iWARP does not have.
pytestmark = [pytest.mark.fast, pytest.mark.rdma("rxe")]

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
