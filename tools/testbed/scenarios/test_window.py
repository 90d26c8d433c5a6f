# SPDX-License-Identifier: GPL-2.0
"""The client limits what is in flight on a connection also where the server does not: towards the
kernel's own server, and over iWARP. So its queues need no room for all requests of the path."""

import pytest

from testbed import blockdev, fio
from testbed.free_memory import free_bytes
from testbed.stack import STACKS

CPUS = 8
pytestmark = [pytest.mark.fast, pytest.mark.cpus(CPUS)]

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
MIB = 1 << 20
# The paths whose memory is measured together, as some pages are free only later.
PATHS = 4


def check(pair, server_stack, most_mib: int) -> None:
    """Measures paths of the client, each of a session with a disk, and has more in flight from one processor
    than its connection takes."""
    server, client = pair
    devices = [server.null_blk(f"nullb{number}", size_mb=16) for number in range(1 + PATHS)]
    server.run(server_stack.load_server())
    client.run(OURS.load_client())

    def map_device(number: int) -> str:
        name = server_stack.exported(devices[number])
        return f'echo "sessname=s{number} path=ip:10.0.1.1 device_path={name}" > {OURS.map_file}'

    # With what is there only once.
    client.run(map_device(0))
    before = free_bytes(client)
    client.run(" && ".join(map_device(1 + number) for number in range(PATHS)))
    taken = (before - free_bytes(client)) / PATHS / MIB
    print(f"\n{taken:.2f} MiB for each path")
    assert taken < most_mib
    fio.run(client, f"--name=deep --filename={OURS.disk} --rw=randrw --bsrange=4k-16k --iodepth=256 --direct=1 "
            "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=16m --cpus_allowed=0", timeout=300)
    assert blockdev.same_on_both(pair, devices[0], OURS.disk, 16)
    client.run(" && ".join(OURS.unmap(number) for number in range(1 + PATHS)))


@pytest.mark.quiet
@pytest.mark.rdma("rxe")
def test_towards_the_kernels_own_server(pair):
    # 12.4, and 29.5 with queues for all requests in each connection.
    check(pair, MAINLINE, 16)


@pytest.mark.rdma("siw")
def test_over_iwarp(pair):
    # 9.4, and 15.8.
    check(pair, OURS, 12)
