# SPDX-License-Identifier: GPL-2.0
"""What a server lets itself in for: sessions, memory, clients that vanish."""

import errno
import os

import pytest

from testbed import blockdev
from testbed.stack import STACKS

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]


def start(pair, parameters: str) -> None:
    server, client = pair
    for number in range(2):
        server.null_blk(f"nullb{number}", size_mb=16)
    server.run(f"dmesg -C; modprobe ibtrs_server {parameters}")
    blockdev.load(pair, OURS)


def refused(client, session: str, device: str) -> str:
    output = client.run(OURS.map_device(device, session=session), check=False)
    assert not output.ok
    return output


def test_a_session_too_many_is_refused(pair):
    server, client = pair
    start(pair, "max_sessions=1")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    assert os.strerror(errno.ENOSPC) in refused(client, "two", "/dev/nullb1")
    assert ("ip:10.0.1.2@ip:10.0.1.1: refused: there are max_sessions sessions (ENOSPC)"
            in server.run("dmesg"))
    client.run(f"dd if={OURS.disk} of=/dev/null bs=64k count=16 iflag=direct status=none")
    client.run(OURS.unmap())
    server.wait_until("dmesg | grep -q 'one: session closed'")
    client.run(OURS.map_device("/dev/nullb1", session="two"))


def test_memory_is_limited_and_given_back(pair):
    server, client = pair
    # 64 chunks of 144 KiB: a path takes 9 MiB, and a little for its queues.
    start(pair, "sess_queue_depth=64 max_chunk_memory_mib=12")
    for _ in range(3):
        client.run(OURS.map_device("/dev/nullb0", session="one"))
        assert os.strerror(errno.ENOMEM) in refused(client, "two", "/dev/nullb1")
        client.run(OURS.unmap())
        server.wait_until("! rdma resource show qp | grep -q 'type RC'")
    assert "paths have as much memory as max_chunk_memory_mib says (ENOMEM)" in server.run("dmesg")


def test_queues_count_as_memory(pair):
    server, client = pair
    start(pair, "sess_queue_depth=64 max_chunk_memory_mib=9")
    assert os.strerror(errno.ENOMEM) in refused(client, "one", "/dev/nullb0")
    assert "refused: paths have as much memory" in server.run("dmesg")


@pytest.mark.fast
def test_parameters_that_make_no_session_are_refused(pair):
    for parameters in ("max_sessions=0", "max_sessions=65537", "hb_interval_ms=99", "hb_interval_ms=60001",
                       "hb_missed_max=0", "hb_missed_max=101", "max_chunk_memory_mib=-1",
                       "max_chunk_size=10000", "max_chunk_size=4096", "sess_queue_depth=1",
                       "max_chunk_size=1048576 sess_queue_depth=65535"):
        assert not pair.server.ok(f"modprobe ibtrs_server {parameters}"), parameters


def queue_pairs(server) -> int:
    return int(server.run("rdma resource show qp | grep -c 'type RC' || true"))


@pytest.mark.kills
def test_a_client_that_dies_is_noticed(pair):
    server, client = pair
    start(pair, "hb_interval_ms=500 hb_missed_max=4")
    client.run(OURS.map_device("/dev/nullb0", session="one"))
    assert queue_pairs(server)
    client.kill()
    server.wait_until("dmesg | grep -q 'one: session closed'", 60)
    assert "no heartbeat from the client" in server.run("dmesg")
    assert queue_pairs(server) == 0


@pytest.mark.kills
@pytest.mark.fast
def test_a_client_vanishes_while_it_connects(pair):
    """The kernel's own client makes one connection after the other: on a slow
    link there is time to stop it in between."""
    server, client = pair
    start(pair, "")
    client.run(MAINLINE.load_client())
    client.run("tc qdisc replace dev eth0 root netem delay 1500ms")
    client.start(f'echo "sessname=s path=ip:10.0.1.1 device_path=nullb0" > {MAINLINE.map_file}')
    server.wait_until("rdma resource show qp | grep -q 'type RC'", 60)
    client.kill()
    server.wait_until("dmesg | grep -q 'a client did not complete its connections'", 60)
    server.wait_until("! rdma resource show qp | grep -q 'type RC'", 60)
    # All of it is gone, and the module can go.
    server.run("modprobe -r ibnbd_server", timeout=60)
