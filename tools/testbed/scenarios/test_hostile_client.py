# SPDX-License-Identifier: GPL-2.0
"""A client that breaks the protocol, against the kernel's server: its messages are answered or end
its own path, and no other client notices."""

import pytest

from testbed.hostile import launch, report
from testbed.hostile.beside import Beside, at_least, ends_well, seconds, seed, table
from testbed.load import Load
from testbed.stack import STACKS

# The hostile client writes with immediates, which soft-iWARP does not have.
pytestmark = pytest.mark.rdma("rxe")
OURS = STACKS["ibtrs"]
# As in testbed.hostile.attacks, which only guests can import.
DISK, SLOW, OTHER, COMMON, SLOW_NS = "hostile", "slow", "other", "common", 500_000_000
ELSEWHERE = "10.0.1.99"


def export(server, *others: str) -> None:
    """Loads a server with the disk that attacks are about, and others."""
    for name in (DISK, *others):
        server.null_blk(name, size_mb=64)
    # Few chunks, as a session is set up again and again.
    server.run(f"{OURS.load_server()} sess_queue_depth=16")


def slow_disk(server) -> None:
    """A disk whose requests take a while."""
    folder = f"/sys/kernel/config/nullb/{SLOW}"
    server.run(f"mkdir {folder} && cd {folder} && echo 64 > size && echo 1 > memory_backed && echo 2 > irqmode && "
               f"echo {SLOW_NS} > completion_nsec && echo 1 > power")


def nothing_is_left(server) -> None:
    server.wait_until("! rdma resource show qp | grep -q 'type RC'")
    server.run(OURS.unload("server"))


@pytest.mark.fast
@pytest.mark.long
def test_attacks(pair):
    server, client = pair
    export(server, OTHER, COMMON)
    slow_disk(server)
    client.run(f"ip addr add {ELSEWHERE}/24 dev eth0")
    said = launch.start(client, "attack", table()).wait(3600, check=False)
    print(said)
    assert not report.failures(said)
    assert len(report.parse(said)) > at_least(150), said
    client.run(f"ip addr del {ELSEWHERE}/24 dev eth0")
    nothing_is_left(server)


@pytest.mark.fast
@pytest.mark.quiet
def test_fuzz(pair):
    """A client that changes valid requests by chance; an honest one beside it keeps half
    of its speed."""
    server, client = pair
    export(server, OTHER)
    client.run(OURS.load_client())
    client.run(OURS.map_device(f"/dev/{OTHER}"))
    load = Load(client, OURS)
    fuzz = launch.ready(launch.start(client, "fuzz", f"{seed()} {seconds()} {DISK}"))
    ends_well(load, fuzz, Beside(client, "testbed.hostile.fuzz"))
    client.run(OURS.unmap())
    nothing_is_left(server)
