# SPDX-License-Identifier: GPL-2.0
"""Our client with the kernel's own server, and the reverse: with one path and with two, with and
without invalidation of the server's keys.

IBTRS_LONG=1 runs all combinations, otherwise each pair of choices runs once.
test_mainline_selfcheck.py has mainline on both ends."""

import errno
import os
from contextlib import contextmanager

import pytest

from testbed import blockdev, fio, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.stack import STACKS

# On the fast kernel: time limits of mainline are fixed, and too short for emulated guests.
# Nor can it do without immediates, which soft-iWARP has none of.
pytestmark = [pytest.mark.fast, pytest.mark.quiet, pytest.mark.links(2), pytest.mark.rdma("rxe")]

LONG = bool(os.environ.get("IBTRS_LONG"))
OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
VERIFY = ("--name=verify --filename={disk} --rw=randrw --bsrange=4k-128k --size=6m --iodepth=4 "
          "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1")
# Little at a time, for the same reason.
LOAD = ("fio --name=load --filename={disk} --rw=randrw --bs=8k --iodepth=4 --direct=1 "
        "--ioengine=io_uring --time_based --runtime=600 --size=6m --rate_iops=100 "
        "--verify=crc32c --verify_fatal=1")

MATRIX = [pytest.param(ours, theirs, invalidate, links, id=f"{name}-{invalidate}-{links}",
                       marks=pytest.mark.skipif(not (LONG or often), reason="IBTRS_LONG=1 has it"))
          for name, ours, theirs, turn in (("to-mainline", OURS, MAINLINE, 0), ("from-mainline", MAINLINE, OURS, 1),
                                           ("ours", OURS, OURS, None))
          for invalidate in "YN" for links in (1, 2)
          for often in [turn is not None and ("YN".index(invalidate) + links + turn) % 2 == 0]]


class Session:
    """A session of the client, with a disk."""

    def __init__(self, pair, client_stack, server_stack, invalidate: str, links: int, options: str = ""):
        self.server, self.client = self.pair = pair
        self.client_stack, self.server_stack = client_stack, server_stack
        self.folder = f"{client_stack.sessions('client')}/s"
        self.disk = client_stack.disk
        mishaps.make_ready(pair)
        self.device = self.server.null_blk(size_mb=16)
        # Four seconds until silence is noticed, where that can be set.
        timing = "hb_interval_ms=1000 hb_missed_max=3" if server_stack is OURS else ""
        self.server.run(f"dmesg -C; modprobe {server_stack.transport('server')} always_invalidate={invalidate} {timing} {options}")
        self.server.run(server_stack.load_server())
        self.client.run(client_stack.load_client())
        # Below /dev for our server; mainline's puts its folder and the name together.
        name = self.device.removeprefix("/dev/" if server_stack is OURS else "/")
        paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in range(1, links + 1))
        self.client.run(f'echo "sessname=s {paths} device_path={name}" > {client_stack.map_file}')
        if client_stack is OURS:
            self.client.run(f"cd {self.folder} && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max")
        for link in range(1, links + 1):
            self.connect(link)

    def path(self, link: int) -> str:
        return f"{self.folder}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1"

    def connect(self, link: int) -> None:
        """It is tried again by itself, after half a minute with mainline, and may
        be refused as long as the server has not noticed that it was lost."""
        state = f"grep -qx connected {self.path(link)}/state"
        self.client.wait_until(f"{state} || {{ echo 1 > {self.path(link)}/reconnect; {state}; }}", 120)

    def add(self, link: int) -> None:
        # Mainline's server may not be done with the one before.
        self.client.wait_until(f"echo ip:{SERVER_ADDRESS.format(link=link)} > {self.folder}/add_path", 60)
        assert self.client.run(f"cat {self.path(link)}/state") == "connected"

    def remove(self, link: int) -> None:
        self.client.run(f"echo 1 > {self.path(link)}/remove_path")

    def refuses_a_path_twice(self) -> None:
        """Addresses are taken as long as their path lives."""
        refused = self.client.run(f"echo ip:10.0.1.1 > {self.folder}/add_path", check=False)
        assert os.strerror(errno.EEXIST) in refused
        if self.client_stack is MAINLINE:
            assert "another path of the session has the same addresses" in self.server.run("dmesg")

    def verify(self) -> None:
        fio.run(self.client, VERIFY.format(disk=self.disk), timeout=600)
        assert blockdev.same_on_both(self.pair, self.device, self.disk, 6)

    def ios(self) -> int:
        fields = self.client.run(f"cat /sys/block/{self.disk.removeprefix('/dev/')}/stat").split()
        return int(fields[0]) + int(fields[4])

    def goes_on(self, load) -> None:
        wanted = self.ios() + 30
        wait_for(lambda: self.ios() >= wanted, 60, "I/O goes on")
        assert load.running, load.text

    @contextmanager
    def lost(self, link: int):
        """A link loses all that the client sends, which loses the path; after that
        the path is back."""
        with mishaps.losing(self.client, link, 100):
            self.client.wait_until(f"grep -qx disconnected {self.path(link)}/state", 120)
            yield
        if self.server_stack is MAINLINE and not LONG:
            # Without anything to send, the loss takes half a minute to detect; so the path is disconnected.
            files = f"{MAINLINE.sessions('server')}/s/paths/*10.0.{link}.2*/disconnect"
            self.server.run(f"for file in {files}; do [ ! -e $file ] || echo 1 > $file; done")
        self.connect(link)

    def unmap(self) -> None:
        self.client.run(self.client_stack.unmap())
        self.client.wait_until(f"[ ! -e {self.disk} ]")
        if self.server_stack is OURS:
            self.server.wait_for_log("s: session closed")
            assert self.server.run("dmesg | grep -c 's: session closed'") == "1"


@pytest.mark.parametrize("client_stack, server_stack, invalidate, links", MATRIX)
def test_each_with_each(pair, client_stack, server_stack, invalidate, links):
    session = Session(pair, client_stack, server_stack, invalidate, links)
    session.verify()
    for link in range(1, links + 1):
        reads, _, writes, *_ = pair.client.run(f"cat {session.path(link)}/stats/rdma").split()
        assert int(reads) and int(writes)

    load = pair.client.start(LOAD.format(disk=session.disk))
    session.goes_on(load)
    if links == 2:
        session.remove(2)
        session.goes_on(load)
    for _ in range(2):
        session.add(2)
        session.goes_on(load)
        session.remove(2)
        session.goes_on(load)
    session.refuses_a_path_twice()
    if links == 2:
        session.add(2)
        for link in (2, 1):
            with session.lost(link):
                session.goes_on(load)
            session.goes_on(load)
    fio.end(pair.client, load)

    if links == 1 and LONG:
        # Without another one mainline's client fails what comes meanwhile, so nothing does.
        with session.lost(1):
            pass
        # With its only path our server closes the session, and the client opens it again.
        pair.server.run("dmesg -C")
        pair.client.wait_until(f"dd if={session.disk} of=/dev/null bs=64k count=1 iflag=direct status=none", 60)
    session.verify()
    session.unmap()


def test_a_server_of_mainline_that_restarts_unnoticed(pair):
    """It forgets its sessions, and nobody tells the client, whose paths count as connected.  One that is connected again
    must not belong to another session than the rest, in which no disk is open: it waits until they are lost."""
    server, client = pair
    session = Session(pair, OURS, MAINLINE, "Y", 2)
    client.run(f"cd {session.folder} && echo 100 > hb_missed_max && echo round-robin > mp_policy")
    with mishaps.losing(server, 1, 100), mishaps.losing(server, 2, 100):
        server.run(MAINLINE.unload("server"), timeout=120)
    server.run(MAINLINE.load_server())
    assert client.run(f"cat {session.path(2)}/state") == "connected"
    client.run(f"echo 1 > {session.path(1)}/disconnect")
    assert not client.ok(f"echo 1 > {session.path(1)}/reconnect")
    assert client.run(f"cat {session.path(2)}/state") == "connected"
    # I/O is what the loss is noticed by.
    session.verify()
    wait_for(lambda: blockdev.connected(client, "s") == 2, 60, "both paths are connected")
    session.unmap()


READS = 200


def packets_of_a_read(session: Session) -> float:
    """Packets that the client sends for a read of 16 KiB: the request, and the acknowledgement of each message of
    the answer. Heartbeats and whatever opens the disk add some."""
    def sent() -> int:
        counters = session.client.run("cat /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts")
        return sum(map(int, counters.split()))

    before = sent()
    fio.run(session.client, f"--name=reads --filename={session.disk} --rw=read --bs=16k --size={READS * 16}k --direct=1 "
                            "--ioengine=psync", timeout=120)
    return (sent() - before) / READS


@pytest.mark.parametrize("client_stack, server_stack, messages", [
    pytest.param(OURS, OURS, 2, id="ours"), pytest.param(OURS, MAINLINE, 3, id="to-mainline"),
    pytest.param(MAINLINE, OURS, 3, id="from-mainline")])
def test_messages_of_a_read(pair, client_stack, server_stack, messages):
    """The answer to a read whose memory is registered: the data, and the invalidation of the key; mainline has the
    answer in a third message."""
    session = Session(pair, client_stack, server_stack, "Y", 1)
    each = packets_of_a_read(session)
    assert messages + 1 <= each < messages + 1.5, f"the client has sent {each} packets for each read"
    session.unmap()


@pytest.mark.parametrize("invalidate, options, messages", [
    ("Y", "", 3), ("Y", "remote_invalidation=N", 2), ("N", "remote_invalidation=N", 1)])
def test_clients_of_mainline_can_invalidate_their_keys(pair, invalidate, options, messages):
    """Then a read takes a message less, and two less if the server does not invalidate the keys of chunks either;
    also when a path is lost."""
    session = Session(pair, MAINLINE, OURS, invalidate, 1, options)
    assert messages + 0.95 < packets_of_a_read(session) < messages + 1.2
    session.verify()
    session.add(2)
    load = pair.client.start(LOAD.format(disk=session.disk))
    session.goes_on(load)
    with session.lost(2):
        session.goes_on(load)
    fio.end(pair.client, load)
    session.verify()
    session.unmap()
