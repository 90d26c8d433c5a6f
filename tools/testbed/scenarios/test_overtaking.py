# SPDX-License-Identifier: GPL-2.0
"""The overtaking write: the server's disk holds one write while its path is lost.

The client sends the write again over the other path.  If that attempt were answered first, the old
one could still reach the disk after the next write to the same place."""

import os
import re

import pytest

from testbed.held_disk import BLOCK, DEVICE, HeldDisk
from testbed.lab import Pair, wait_for
from testbed.stack import STACKS

LONG = bool(os.environ.get("IBTRS_LONG"))
# Its guests get a disk by a reboot.
pytestmark = [pytest.mark.fast, pytest.mark.links(2), pytest.mark.kills]

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
TRACING = "/sys/kernel/tracing"
# From a processor, each of which has a connection of its own.
WRITE = "taskset -c {cpu} dd if=/tmp/{what} of={disk} bs=4k count=1 seek={block} oflag=direct conv=notrunc status=none"


def held_disk(pair: Pair) -> HeldDisk:
    """The server's disk; its guest is booted again for it."""
    image = pair.folder / "held.img"
    if not image.exists():
        pair.reboot("server", [HeldDisk.create(image)])
    return HeldDisk(pair.server, image)


class Client:
    """A client with two paths to that disk, and what it writes."""

    def __init__(self, pair: Pair, client_stack, server_stack):
        self.guest, self.stack = pair.client, client_stack
        self.data = {what: os.urandom(BLOCK) for what in ("old", "new", "other")}
        for what, data in self.data.items():
            self.guest.push(f"/tmp/{what}", data)
        pair.server.run(server_stack.load_server())
        self.guest.run(client_stack.load_client())
        device = server_stack.exported(DEVICE)
        self.guest.run(f'echo "sessname=s path=ip:10.0.1.1 path=ip:10.0.2.1 device_path={device}"'
                       f" > {client_stack.map_file}")
        self.paths = f"{client_stack.sessions('client')}/s/paths"
        # A path is called by both addresses once it knows them.
        wait_for(lambda: self.guest.run(f"cat {self.paths}/*@*/state", check=False).split() == ["connected"] * 2,
                 60, "both paths are connected")

    def write(self, what: str, block: int = 0, cpu: int = 0):
        return self.guest.start(WRITE.format(cpu=cpu, what=what, disk=self.stack.disk, block=block))

    def busy_paths(self) -> set[str]:
        """The paths that have a request in flight; mainline says so also of one that is lost."""
        paths = self.guest.run(f"ls {self.paths}").split()
        return {path for path in paths if int(self.guest.run(f"cat {self.paths}/{path}/stats/rdma").split()[4])}

    def name(self, data: bytes) -> str:
        return next((what for what, right in self.data.items() if right == data), "nothing that was written")


def hold_the_old_write(disk: HeldDisk, client: Client):
    """The old data is on its way to the disk, and its path is lost.  Returns both."""
    with disk.holding_a_write():
        old = client.write("old")
    (lost,) = client.busy_paths()
    client.guest.run(f"echo 1 > {client.paths}/{lost}/disconnect")
    return old, lost


class Trace:
    """A trace of the requests that our server hands to its disk."""

    def __init__(self, server):
        self.server = server
        server.run(f"echo > {TRACING}/trace; echo 1 > {TRACING}/events/ibtrs/ibtrs_server_request/enable")

    def writes(self) -> list[str]:
        """The paths that writes have come by, as they were handed to the disk."""
        return re.findall(r"ibtrs_server_request: .*path=(\S+) .*write", self.server.run(f"cat {TRACING}/trace"))


@pytest.mark.parametrize("client_stack", [
    pytest.param(OURS, id="our-client"),
    # Soft-iWARP has no immediates, which mainline cannot do without.
    pytest.param(MAINLINE, id="mainline-client", marks=[pytest.mark.rdma("rxe"), pytest.mark.quiet])])
def test_our_server_lets_none_overtake(pair, client_stack):
    disk = held_disk(pair)
    client = Client(pair, client_stack, OURS)
    server, trace = pair.server, Trace(pair.server)
    old, lost = hold_the_old_write(disk, client)
    wait_for(lambda: client.busy_paths() - {lost}, 60, "the write is sent again")
    # Later requests over the connections of that path are answered.  It is not, as long as
    # the first attempt is on the disk, nor is it handed to the disk.
    for cpu in (0, 1):
        client.write("other", block=1, cpu=cpu).wait(60)
    first, *others = trace.writes()
    assert len(others) == 2 and first not in others
    assert old.running
    disk.release()
    old.wait(60)
    assert client.name(disk.block(0)) == "old"
    assert trace.writes() == [first, *others, others[0]]
    client.write("new").wait(60)
    # Nothing is left that could still write.
    client.guest.run(client_stack.unmap())
    server.wait_until("! ls /sys/class/ibtrs-server | grep -q .")
    server.run(OURS.unload("server"))
    assert server.run("cat /sys/block/vda/inflight").split() == ["0", "0"]
    assert client.name(disk.block(0)) == "new"
    assert client.name(disk.block(1)) == "other"


@pytest.mark.rdma("rxe")
@pytest.mark.quiet
@pytest.mark.skipif(not LONG, reason="tells about mainline only: IBTRS_LONG=1")
@pytest.mark.parametrize("client_stack", [OURS, MAINLINE], ids=["our-client", "mainline-client"])
def test_what_mainlines_server_does(pair, client_stack):
    disk = held_disk(pair)
    client = Client(pair, client_stack, MAINLINE)
    old, _ = hold_the_old_write(disk, client)
    try:
        old.wait(60)
        # Answered, so the client may write to that place and to others.
        client.write("new").wait(60)
        before = client.name(disk.block(0))
        client.write("other", block=1).wait(60)
    finally:
        disk.release()
    # Nothing is left that could still write.
    pair.server.wait_until("read -r reads writes < /sys/block/vda/inflight && [ $reads$writes = 00 ]")
    after = client.name(disk.block(0))
    print(f"\nmainline's server, {client_stack.name}'s client: \"new\" was answered, and there was {before!r}; "
          f"when the first attempt of \"old\" had ended there was {after!r}")
    assert before == "new"
    assert client.name(disk.block(1)) == "other"
