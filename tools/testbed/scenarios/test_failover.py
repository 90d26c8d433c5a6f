# SPDX-License-Identifier: GPL-2.0
"""Paths fail and come back under load: no I/O fails, every byte is right."""

import time
from contextlib import contextmanager

import pytest

from testbed import blockdev
from testbed.lab import CLIENT_ADDRESS, MTU, SERVER_ADDRESS, wait_for

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

# Written, and read back soon after that, for as long as the scenario goes on.
LOAD = ("fio --name=load --filename={disk} --rw=randwrite --bsrange=4k-64k --size=24m --iodepth=16 "
        "--direct=1 --ioengine=io_uring --time_based --runtime=900 --verify=crc32c "
        "--verify_fatal=1 --verify_backlog=64 --verify_backlog_batch=64")
# How much of the disk has been read and written, some ten times a second.
WATCH = ("while :; do read up rest < /proc/uptime; read r a b c w rest < /sys/block/{name}/stat; "
         "echo $up $((r + w)); sleep 0.1; done > /tmp/progress")


def map_two_paths(pair, stack, size_mb: int = 32, session: str = "demo") -> str:
    """A disk of the server, mapped by both links; returns the server's path of it."""
    device = pair.server.null_blk(size_mb=size_mb)
    blockdev.load(pair, stack)
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    pair.client.run(f'echo "sessname={session} {paths} device_path={device}" > {stack.map_file}')
    return device


def said(guest, words: str) -> int:
    """How many lines of the kernel log have these words."""
    return sum(words in line for line in guest.log.lines())


class Load:
    """fio on the disk, and what it has got done."""

    def __init__(self, client, stack):
        self.client, self.name = client, stack.disk.removeprefix("/dev/")
        self.fio = client.start(LOAD.format(disk=stack.disk))
        self.watch = client.start(WATCH.format(name=self.name))
        self.goes_on()

    def done(self) -> int:
        words = self.client.run(f"cat /sys/block/{self.name}/stat").split()
        return int(words[0]) + int(words[4])

    def goes_on(self, timeout: float = 60) -> None:
        """I/O is done, and nothing has failed."""
        before = self.done()
        wait_for(lambda: self.done() > before + 100, timeout, "I/O goes on")
        assert self.client.ok("pgrep -x fio"), "fio has ended"

    def gap(self, since: float) -> float:
        """The longest time without any I/O since the guest's clock showed `since`."""
        times = [tuple(map(float, line.split()))
                 for line in self.client.run("cat /tmp/progress").splitlines()
                 if len(line.split()) == 2]
        times = [(up, done) for up, done in times if up >= since]
        longest, last = 0.0, times[0]
        for up, done in times:
            if done != last[1]:
                longest, last = max(longest, up - last[0]), (up, done)
        return max(longest, times[-1][0] - last[0])

    def end(self) -> None:
        """Ends fio as it ends by itself, which reads the rest back."""
        assert self.client.ok("pgrep -x fio"), "fio has ended"
        self.client.run("pkill -INT -x fio")
        assert self.fio.wait(120, check=False).status in (0, 128, 130), "fio met an error"
        self.watch.kill()
        self.watch.wait(20, check=False)


@pytest.fixture
def load(pair, stack):
    map_two_paths(pair, stack)
    wait_for(lambda: said(pair.client, ": connected") >= 2, 60, "both paths are connected")
    return Load(pair.client, stack)


def plugged(guest, link: int, side: int) -> str:
    """Sets up again what goes with `ip link set down`."""
    nic, peer = f"eth{link - 1}", 3 - side
    there = (SERVER_ADDRESS if peer == 1 else CLIENT_ADDRESS).format(link=link)
    return (f"ip link set {nic} mtu {MTU} up && ip neigh replace {there} "
            f"lladdr 52:54:00:00:{link:02x}:{peer:02x} dev {nic} nud permanent")


@contextmanager
def link_down(pair, link):
    pair.client.run(f"ip link set eth{link - 1} down")
    yield
    pair.client.run(plugged(pair.client, link, 2))


@contextmanager
def cable_out(pair, link):
    pair.client.cable(link, False)
    yield
    pair.client.cable(link, True)


@contextmanager
def one_way(pair, link):
    """The server's packets get lost, the client's arrive."""
    pair.server.run(f"modprobe sch_netem && tc qdisc replace dev eth{link - 1} root netem loss 100%")
    yield
    pair.server.run(f"tc qdisc del dev eth{link - 1} root")


@contextmanager
def device_gone(pair, link):
    pair.client.run(f"rdma link del rxe{link - 1}", timeout=120)
    yield
    pair.client.run(f"rdma link add rxe{link - 1} type rxe netdev eth{link - 1}")


@contextmanager
def lossy(pair, link):
    pair.client.run(f"modprobe sch_netem && tc qdisc replace dev eth{link - 1} root netem loss 3%")
    yield
    pair.client.run(f"tc qdisc del dev eth{link - 1} root")


CAUSES = {"ip link": link_down, "cable": cable_out, "one way": one_way, "rdma link del": device_gone,
          "3 % loss": lossy}


@pytest.mark.parametrize("cause", CAUSES)
def test_one_of_two_paths_fails_and_comes_back(pair, stack, load, cause):
    client = pair.client
    gaps = []
    for link in (2, 1):
        connected = said(client, ": connected")
        start = float(client.run("cat /proc/uptime").split()[0])
        with CAUSES[cause](pair, link):
            load.goes_on(timeout=150)
            if cause != "3 % loss":
                # Nobody has noticed a loss that costs nothing.
                wait_for(lambda: said(client, ": connected") > connected or path_is_down(client), 150,
                         "the path is given up")
        gaps.append(load.gap(start))
        wait_for(lambda: not path_is_down(client), 120, "the path is back")
        load.goes_on()
    print(f"\nlongest time without I/O, {cause}: " + ", ".join(f"{gap:.1f} s" for gap in gaps))
    load.end()


def path_is_down(client) -> bool:
    """Whether the last word about some path is not that it was connected."""
    state = {}
    for line in client.log.lines():
        _, mark, words = line.partition("ibtrs_client: demo: ip:")
        address, _, what = words.partition(": ")
        if mark:
            state[address] = what.startswith("connected")
    return not all(state.values())


def test_no_path_for_45_seconds(pair, stack, load):
    client = pair.client
    start = float(client.run("cat /proc/uptime").split()[0])
    for link in (1, 2):
        client.cable(link, False)
    time.sleep(45)
    for link in (1, 2):
        client.cable(link, True)
    load.goes_on(timeout=120)
    print(f"\nlongest time without I/O: {load.gap(start):.1f} s")
    load.end()


def test_no_path_for_too_long(pair, stack):
    client = pair.client
    map_two_paths(pair, stack)
    read = f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none"
    client.run(read)
    for link in (1, 2):
        client.cable(link, False)
    # The path is given up some time after that, and 60 s later all that waits fails.
    assert not client.ok(read, timeout=240)
    for link in (1, 2):
        client.cable(link, True)
    client.wait_until(read, timeout=120)


@pytest.mark.fresh
def test_the_server_is_killed_and_comes_back(pair, stack):
    client = pair.client
    device = map_two_paths(pair, stack)
    reader = client.start(f"dd if={stack.disk} of=/dev/null bs=4k count=200000 iflag=direct status=none")
    time.sleep(2)
    pair.server.kill()
    time.sleep(5)
    pair.reboot("server")
    assert pair.server.null_blk(size_mb=32) == device
    blockdev.load(pair, stack)
    client.wait_until(f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none", timeout=180)
    reader.kill()
    reader.wait(60, check=False)
