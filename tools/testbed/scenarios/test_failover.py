# SPDX-License-Identifier: GPL-2.0
"""Paths fail and come back under load: no I/O fails, every byte is right."""

import time
from contextlib import contextmanager

import pytest

from testbed import blockdev, fio
from testbed.lab import MTU, SERVER_ADDRESS, wait_for

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

# Written, and read back soon after that, for as long as the scenario goes on.
LOAD = ("fio --name=load --filename={disk} --rw=randwrite --bsrange=4k-64k --size=24m --iodepth=16 "
        "--direct=1 --ioengine=io_uring --time_based --runtime=900 --verify=crc32c "
        "--verify_fatal=1 --verify_backlog=64 --verify_backlog_batch=64")
SESSION = "/sys/class/ibtrs-client/demo"
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
        fio.end(self.client, self.fio)
        self.watch.kill()
        self.watch.wait(20, check=False)


@pytest.fixture
def load(pair, stack):
    map_two_paths(pair, stack)
    client = pair.client
    # Four seconds, and not thirty, until silence is noticed.
    client.run(f"cd {SESSION} && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max && "
               "echo 100 > reconnect_delay_ms")
    wait_for(lambda: connected(client) == 2, 60, "both paths are connected")
    return Load(client, stack)


def connected(client) -> int:
    """How many paths are connected."""
    return int(client.run(f"cat {SESSION}/paths/*/state | grep -c '^connected' || true"))


def clock(client) -> float:
    return float(client.run("cat /proc/uptime").split()[0])


def rxe_anew(client, link: int) -> None:
    """Makes the RDMA device of a link anew.  Soft-RoCE's queue pair for the
    messages of the connection manager stays broken when one of them could not
    be handed to the network."""
    client.run(f"rdma link del rxe{link - 1} && "
               f"rdma link add rxe{link - 1} type rxe netdev eth{link - 1}", timeout=120)


@contextmanager
def link_down(pair, link):
    nic, there = f"eth{link - 1}", SERVER_ADDRESS.format(link=link)
    pair.client.run(f"ip link set {nic} down")
    yield
    # What goes with `ip link set down`, see lab.Pair.network().
    pair.client.run(f"ip link set {nic} mtu {MTU} up && ip neigh replace {there} "
                    f"lladdr 52:54:00:00:{link:02x}:01 dev {nic} nud permanent")
    rxe_anew(pair.client, link)


@contextmanager
def cable_out(pair, link):
    pair.client.cable(link, False)
    yield
    pair.client.cable(link, True)
    rxe_anew(pair.client, link)


@contextmanager
def losing(guest, link, percent):
    """What the guest sends by a link gets lost."""
    nic = f"eth{link - 1}"
    guest.run(f"modprobe sch_netem && tc qdisc replace dev {nic} root netem loss {percent}%")
    yield
    guest.run(f"tc qdisc del dev {nic} root")


@contextmanager
def device_gone(pair, link):
    pair.client.run(f"rdma link del rxe{link - 1}", timeout=120)
    yield
    pair.client.run(f"rdma link add rxe{link - 1} type rxe netdev eth{link - 1}")


CAUSES = {
    "ip-link": link_down,
    "cable": cable_out,
    "deaf": lambda pair, link: losing(pair.server, link, 100),
    "mute": lambda pair, link: losing(pair.client, link, 100),
    "device": device_gone,
}


@pytest.mark.parametrize("cause", CAUSES)
def test_one_of_two_paths_fails_and_comes_back(pair, stack, load, cause):
    client = pair.client
    for link, policy in ((2, "round-robin"), (1, "min-latency")):
        client.run(f"echo {policy} > {SESSION}/mp_policy")
        start = clock(client)
        with CAUSES[cause](pair, link):
            wait_for(lambda: connected(client) == 1, 60, "the path is given up")
            noticed = clock(client)
            load.goes_on()
        print(f"\n{cause}, link {link}: given up after {noticed - start:.1f} s, "
              f"longest time without I/O {load.gap(start):.1f} s")
        wait_for(lambda: connected(client) == 2, 120, "the path is back")
        load.goes_on()
    load.end()


def test_packets_get_lost(pair, stack, load):
    client = pair.client
    start = clock(client)
    with losing(client, 1, 2), losing(pair.server, 2, 2):
        time.sleep(30)
        load.goes_on(timeout=120)
    wait_for(lambda: connected(client) == 2, 120, "both paths are there")
    print(f"\n2 % loss: longest time without I/O {load.gap(start):.1f} s")
    load.end()


def test_paths_are_added_and_removed(pair, stack, load):
    client = pair.client
    for link in (2, 1):
        path = f"{SESSION}/paths/*@ip:{SERVER_ADDRESS.format(link=link)}"
        client.run(f"cd {path} && echo 1 > disconnect && [ $(cat state) = disconnected ]")
        load.goes_on()
        client.run(f"cd {path} && echo 1 > reconnect && [ $(cat state) = connected ]")
        client.run(f"cd {path} && echo 1 > remove_path")
        assert connected(client) == 1
        load.goes_on()
        client.run(f"echo ip:{SERVER_ADDRESS.format(link=link)} > {SESSION}/add_path")
        assert connected(client) == 2
        load.goes_on()
    load.end()


def test_no_path_for_45_seconds(pair, stack, load):
    client = pair.client
    start = clock(client)
    with losing(client, 1, 100), losing(client, 2, 100):
        time.sleep(45)
        assert connected(client) == 0
    load.goes_on(timeout=120)
    print(f"\nno path for 45 s: longest time without I/O {load.gap(start):.1f} s")
    load.end()


def test_no_path_for_too_long(pair, stack):
    client = pair.client
    map_two_paths(pair, stack)
    read = f"dd if={stack.disk} of=/dev/null bs=64k count=16 iflag=direct status=none"
    client.run(f"cd {SESSION} && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max && "
               "echo 100 > reconnect_delay_ms && echo 5 > queue_timeout_s")
    client.run(read)
    with losing(client, 1, 100), losing(client, 2, 100):
        wait_for(lambda: connected(client) == 0, 60, "both paths are given up")
        started = time.monotonic()
        assert not client.ok(read)
        assert time.monotonic() - started < 30
        # And at once from then on.
        assert not client.ok(f"timeout 2 {read}")
    client.wait_until(read, timeout=120)


@pytest.mark.fresh
def test_the_server_is_killed_and_comes_back(pair, stack):
    client = pair.client
    device = map_two_paths(pair, stack)
    client.run(f"cd {SESSION} && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max && "
               "echo 100 > reconnect_delay_ms && echo 300 > queue_timeout_s")
    reader = client.start(f"dd if={stack.disk} of=/dev/null bs=64k count=4000 iflag=direct status=none; "
                          f"dd if={stack.disk} of=/dev/null bs=64k iflag=direct status=none")
    pair.server.kill()
    wait_for(lambda: connected(client) == 0, 60, "both paths are given up")
    pair.reboot("server")
    # The same disk again, for who looks at the server's size and name.
    assert pair.server.null_blk(size_mb=32) == device
    blockdev.load(pair, stack)
    assert reader.wait(240, check=False).ok
