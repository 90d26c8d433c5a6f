# SPDX-License-Identifier: GPL-2.0
"""A disk of our server is stuck while a path of the kernel's own client is lost.  That client does
not know our extensions, so the server itself has to find out which path was superseded."""

import hashlib
import os
import time

import pytest

from testbed import blockdev
from testbed.stack import STACKS

# On the fast kernel: time limits of mainline are fixed, and too short for emulated guests.
# Nor can it do without immediates, which soft-iWARP has none of.
pytestmark = [pytest.mark.fast, pytest.mark.quiet, pytest.mark.links(2), pytest.mark.rdma("rxe")]

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
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
    stuck = blockdev.StuckDisk(server, "/dev/nullb0")
    start(pair, f"always_invalidate={invalidate} sess_queue_depth=64")
    map_disk(client, "nullb1", session="other", paths=("10.0.1.1",))
    map_disk(client, stuck.device.removeprefix("/dev/"))
    with stuck.suspended():
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
    write.wait(60)
    assert stats(server, second)[2] == 1 and stats(server, second)[4] == 0
    # The server's own disk has the written data.
    there = server.run("dd if=/dev/nullb0 bs=64k count=1 iflag=direct status=none | sha256sum")
    assert there.split()[0] == hashlib.sha256(data).hexdigest()
    client.wait_until(f"cd {path(first)} && {{ grep -qx connected state || "
                      "echo 1 > reconnect; grep -qx connected state; }", 120)
    for number in range(3):
        client.run(MAINLINE.unmap(number))
    stuck.remove()


def wait_for_path(server) -> str:
    """The path that has a write in service."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for which in (ONE, TWO):
            if stats(server, which)[4]:
                return which
    raise AssertionError("no path has a request in service")
