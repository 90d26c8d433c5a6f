# SPDX-License-Identifier: GPL-2.0
"""How long a request waits when one of two paths is lost: not longer than the failover time of the session.

IBTRS_FAILOVERS=<number> measures each cause <number> times and prints the table of Documentation/failover.md."""

import errno
import os
import random
import re
import statistics
import time
from contextlib import contextmanager

import pytest

from testbed import blockdev, fio, mishaps, uevents
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.stack import STACKS

pytestmark = [pytest.mark.links(2), pytest.mark.fast, pytest.mark.long]

MAINLINE = STACKS["mainline"]
SESSION = "/sys/class/ibtrs-client/demo"
TIMES = int(os.environ.get("IBTRS_FAILOVERS", 0))
MEASURED = pytest.mark.skipif(not TIMES, reason="measures for hours: IBTRS_FAILOVERS=50")
DEFAULT_MS = 5000
# A time of two seconds leaves little for emulated guests that have others beside them.
SLACK = 1.0
# Some requests on both paths at any time, and time for the rest of an emulated machine.
FIO = ("fio --name=load --filename={disk} --rw=randrw --bs=4k --size=16m --iodepth=16 --direct=1 --ioengine=io_uring "
       "--time_based --runtime=7200 --rate_iops=300,300")


@contextmanager
def silent(pair, link: int):
    """The switch loses all packets of both sides, and the links stay up."""
    with mishaps.losing(pair.client, link, 100), mishaps.losing(pair.server, link, 100):
        yield


@contextmanager
def drained(pair, link: int):
    drain = f"{path(link)}/drain"
    pair.client.run(f"echo 1 > {drain}")
    yield
    pair.client.run(f"echo 0 > {drain}")


@contextmanager
def disconnected(pair, link: int):
    pair.client.run(f"echo 1 > {path(link)}/disconnect")
    yield
    pair.client.run(f"echo 1 > {path(link)}/reconnect")


# What happens to one of two paths.
CAUSES = {
    "silent switch": silent,
    "link pulled at the client": lambda pair, link: mishaps.cable_out(pair, pair.client, link),
    "link pulled at the server": lambda pair, link: mishaps.cable_out(pair, pair.server, link),
    "port down at the client": lambda pair, link: mishaps.interface_down(pair, pair.client, link),
    "port down at the server": lambda pair, link: mishaps.interface_down(pair, pair.server, link),
    "device removed at the client": lambda pair, link: mishaps.device_gone(pair, pair.client, link),
    "device removed at the server": lambda pair, link: mishaps.device_gone(pair, pair.server, link),
    "path disconnected by an operator": disconnected,
    "path drained": drained,
}


def path(link: int) -> str:
    return f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1"


def number(pair, file: str) -> int:
    return int(pair.client.run(f"cat {SESSION}/{file}"))


def plan(pair) -> dict[str, int]:
    lines = pair.client.run(f"cat {SESSION}/failover_plan").splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def last(pair) -> dict[str, str]:
    lines = pair.client.run(f"cat {SESSION}/last_failover").splitlines()
    return dict(line.split(" ", 1) for line in lines)


class Traffic:
    """I/O over both paths, and the longest time that a request of it has taken: without a failover, some
    milliseconds. That requests go on over the other path does not hide those that wait."""

    def __init__(self, pair, stack):
        self.client = pair.client
        self.longest = f"/sys/block/{stack.disk.removeprefix('/dev/')}/ibnbd/latency_us"
        self.fio = self.client.start(FIO.format(disk=stack.disk))
        blockdev.wait_for_reads(self.client, stack)

    def reset(self) -> None:
        self.client.run(f"echo 0 > {self.longest}")

    def seconds(self) -> float:
        line = self.client.run(f"tail -n 1 {self.longest}")
        return max(map(int, line.removeprefix("maximum us: ").split())) / 1e6

    def end(self) -> None:
        assert self.fio.running, self.fio.text
        fio.end(self.client, self.fio)


def noticed_by_server(pair) -> float:
    """After how long the server has closed both paths of a client that answers nothing."""
    server = pair.server
    server.run("dmesg --clear")
    pair.client.freeze()
    begin = server.uptime()
    try:
        lines = "dmesg | grep 'demo: ip:10.*: no heartbeat from the client'"
        server.wait_until(f"[ $({lines} | wc -l) = 2 ]", 40)
        took = max(map(float, re.findall(r"^\[\s*([\d.]+)\]", server.run(lines), re.MULTILINE))) - begin
    finally:
        pair.client.thaw()
    print(f"the server has noticed a silent client after {took:.2f} s")
    return took


def both(pair) -> None:
    wait_for(lambda: blockdev.connected(pair.client) == 2, 120, "both paths are connected")


def pause(pair, traffic: Traffic, cause, link: int) -> float:
    """How long the request that waits longest takes because of that."""
    both(pair)
    client = pair.client
    # At any time between two heartbeats.
    client.run(f"sleep {1 + random.random():.3f}")
    traffic.reset()
    with cause(pair, link):
        client.run("sleep 0.5")
        if cause is not drained:
            wait_for(lambda: "disconnected" in client.run(f"cat {path(link)}/state"), 60, "the path is lost", pause=0.1)
        client.run("sleep 1")
        wait_for(lambda: client.run(f"cat {path(link)}/stats/rdma").split()[4] == "0", 20, "no request is left")
        return traffic.seconds()


@pytest.fixture
def mapped(pair, stack):
    mishaps.make_ready(pair)
    blockdev.map_two_paths(pair, stack, size_mb=32)
    pair.client.run(f"cd {SESSION} && echo 100 > reconnect_delay_ms")
    both(pair)
    return pair


def test_a_silent_loss_at_default_settings(mapped, stack):
    """The client moves its requests in time, and the server closes its end in the same time."""
    pair = mapped
    assert number(pair, "failover_time_ms") == DEFAULT_MS and plan(pair)["total_ms"] <= DEFAULT_MS
    traffic = Traffic(pair, stack)
    for link in (1, 2):
        took = pause(pair, traffic, silent, link)
        print(f"\nlink {link} lost silently: a request took {took:.2f} s")
        # Not at once either: the heartbeats tolerate a short silence.
        assert 1 < took <= DEFAULT_MS / 1000
    traffic.end()
    both(pair)
    assert noticed_by_server(pair) <= DEFAULT_MS / 1000


def test_the_last_failover_is_told(mapped, stack):
    """In sysfs, in the histogram and by a uevent; the time is that of the request that waited longest."""
    pair, client = mapped, mapped.client
    assert client.run(f"cat {SESSION}/last_failover") == ""
    events = uevents.listen(client)
    # Without a request in flight, there is nothing to move.
    client.run(f"echo 1 > {path(2)}/disconnect")
    told = last(pair)
    assert told["requests"] == "0" and "total_ms" not in told and told["cause"] == "disconnected by the client"
    wait_for(lambda: "IBTRS_FAILOVER_REQUESTS=0" in events.text, 20, "an event")
    assert "IBTRS_FAILOVER_MS" not in events.text
    client.run(f"echo 1 > {path(2)}/reconnect")
    traffic = Traffic(pair, stack)
    took = pause(pair, traffic, silent, 1)
    traffic.end()
    told = last(pair)
    print(f"\na request took {took:.2f} s; told: {told}")
    assert told["path"].endswith("ip:10.0.1.1") and told["cause"] == "no heartbeat from the server (ETIMEDOUT)"
    assert abs(float(told["time"]) - float(client.run("date +%s.%N"))) < 120
    total = int(told["total_ms"])
    assert total == int(told["detect_ms"]) + int(told["move_ms"]) and int(told["requests"]) >= 1
    assert abs(total / 1000 - took) < 0.7, (total, took)
    wait_for(lambda: f"IBTRS_FAILOVER_MS={total}" in events.text, 20, "an event")
    assert f"IBTRS_FAILOVER_CAUSE={told['cause']}" in events.text
    events.kill()
    times = dict(line.split(": ") for line in client.run(f"cat {SESSION}/failover_times_ms").splitlines())
    assert int(times.pop("maximum ms")) == total and sum(map(int, times.values())) == 1
    client.run(f"echo 0 > {SESSION}/failover_times_ms")
    assert client.run(f"tail -n 1 {SESSION}/failover_times_ms") == "maximum ms: 0"


def test_a_time_that_is_set(pair, stack):
    """As an option, while it runs, and both ends follow."""
    mishaps.make_ready(pair)
    device = pair.server.null_blk(size_mb=32)
    blockdev.load(pair, stack)
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    line = f"sessname=demo {paths} device_path={device}"
    client = pair.client
    refused = client.run(f'echo "{line} failover_time_ms=999" > {stack.map_file}', check=False)
    assert os.strerror(errno.EINVAL) in refused
    client.run(f'echo "{line} failover_time_ms=2000" > {stack.map_file}')
    both(pair)
    client.run(f"cd {SESSION} && echo 100 > reconnect_delay_ms")
    assert number(pair, "failover_time_ms") == 2000
    parts = plan(pair)
    assert parts["total_ms"] <= 2000 and parts["hb_interval_ms"] * 6 == parts["detect_ms"]
    # A further disk may repeat the time of the session, and no other.
    second = pair.server.null_blk("nullb1", size_mb=8)
    line = f"sessname=demo device_path={second} failover_time_ms="
    assert os.strerror(errno.EINVAL) in client.run(f'echo "{line}3000" > {stack.map_file}', check=False)
    client.run(f'echo "{line}2000" > {stack.map_file}')
    traffic = Traffic(pair, stack)
    took = pause(pair, traffic, silent, 1)
    print(f"\na time of 2000 ms: a request took {took:.2f} s")
    assert took <= 2.0 + SLACK
    traffic.end()
    both(pair)
    # The server was told.
    assert noticed_by_server(pair) <= 2.0 + SLACK


def test_settings_that_contradict_each_other(mapped):
    """An explicit interval overrides; a time that cannot be is refused, with the shortest that can."""
    client = mapped.client

    def set_to(**settings):
        return client.run(f"cd {SESSION}" + "".join(f" && echo {value} > {name}" for name, value in settings.items()),
                          check=False)

    assert set_to(hb_missed_max=20).ok and plan(mapped)["total_ms"] <= DEFAULT_MS
    client.run("dmesg --clear")
    assert os.strerror(errno.EINVAL) in set_to(failover_time_ms=2000)
    client.wait_for_log("failover_time_ms=2000: too short with hb_missed_max=20: .* the shortest possible time is 2799")
    assert set_to(failover_time_ms=2799).ok and plan(mapped)["total_ms"] <= 2799
    assert set_to(hb_interval_ms=10000, hb_missed_max=2).ok
    assert plan(mapped)["detect_ms"] == 30_000 and plan(mapped)["total_ms"] > 30_000
    assert set_to(failover_time_ms=1000, hb_interval_ms=0).ok
    assert plan(mapped)["total_ms"] == 1000
    assert os.strerror(errno.ERANGE) in set_to(failover_time_ms=300001)


def test_mainlines_server_has_fixed_heartbeats(pair, stack):
    """The client does not notice a loss before such a server does, and says so once."""
    device = MAINLINE.exported(pair.server.null_blk(size_mb=32))
    pair.server.run(MAINLINE.load_server())
    pair.client.run(stack.load_client())
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    pair.client.run(f'echo "sessname=demo {paths} device_path={device}" > {stack.map_file}')
    both(pair)
    parts = plan(pair)
    assert (parts["hb_interval_ms"], parts["total_ms"]) == (5000, 35_000)
    said = "demo: the server has the fixed heartbeats of the mainline kernel: .* up to 35000 ms, not 5000"
    pair.client.wait_for_log(said, 5)
    pair.client.run(f"echo 1 > {path(1)}/disconnect && echo 1 > {path(1)}/reconnect", timeout=60)
    assert int(pair.client.run(f"dmesg | grep -c '{said}'")) == 1


# As much as there is, but for some MiB, touched again and again, so that nothing is left for anybody else.
HOG = """
import mmap
free = {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/meminfo")}["MemAvailable"] >> 10
size = max(free - 32, 1) << 20
memory = mmap.mmap(-1, size)
print(size >> 20, flush=True)
while True:
    for page in range(0, size, 4096):
        memory[page] = 1
"""


@pytest.mark.thorough
@pytest.mark.fresh
def test_busy_machines_lose_no_path(mapped, stack):
    """All processors of both machines are busy, all of their memory is in use, and both paths stay as they are.
    IBTRS_MINUTES says for how long."""
    minutes = float(os.environ.get("IBTRS_MINUTES", 2))
    pair = mapped
    traffic = Traffic(pair, stack)
    hogs = [guest.start(f"exec python3 -c '{HOG}'") for guest in pair]
    for guest in pair:
        # Four times as many as there are processors.
        hogs += [guest.start("while :; do :; done") for _ in range(8)]
    wait_for(lambda: all(job.text.strip() for job in hogs[:2]), 300, "the memory is taken")
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(15)
        assert blockdev.connected(pair.client) == 2
    latencies = pair.client.run(f"cat {SESSION}/paths/*/cur_latency").split("\n")
    print(f"\n{minutes:.0f} minutes; the longest request took {traffic.seconds():.2f} s; last heartbeats {latencies}")
    assert pair.client.run(f"cat {SESSION}/last_failover {SESSION}/paths/*/last_error").strip() == ""
    assert pair.client.run(f"cat {SESSION}/paths/*/stats/reconnects").split() == ["0", "0"] * 2
    assert not pair.server.ok("dmesg | grep 'demo: .*no heartbeat'")
    for job in hogs:
        job.kill()
    for job in hogs:
        # It takes a busy machine minutes to free so much memory.
        job.wait(600, check=False)
    traffic.end()


def chosen(causes: dict) -> dict:
    """The causes that IBTRS_CAUSES names, between commas; all without it."""
    wanted = os.environ.get("IBTRS_CAUSES")
    return {name: cause for name, cause in causes.items() if not wanted or name in wanted.split(",")}


def table(head: str, found: dict[str, list[float]]) -> str:
    rows = [f"| {name} | {len(times)} | {statistics.median(times):.2f} s | {max(times):.2f} s |"
            for name, times in found.items()]
    return "\n".join([f"| {head} | times | median | longest |", "| --- | --- | --- | --- |", *rows])


@MEASURED
def test_measure_by_cause(mapped, stack):
    """How long a request waits when one of two paths is lost."""
    traffic = Traffic(mapped, stack)
    found: dict[str, list[float]] = {}
    for turn in range(TIMES):
        for name, cause in chosen(CAUSES).items():
            took = pause(mapped, traffic, cause, 1 + turn % 2)
            found.setdefault(name, []).append(took)
            told = last(mapped)
            parts = f"{told.get('detect_ms')} + {told.get('move_ms')} ms, {told['requests']} requests" if told else ""
            print(f"{time.strftime('%H:%M:%S')} {turn + 1}/{TIMES} {name}: {took:.2f} s ({parts})", flush=True)
    traffic.end()
    print("\n" + table("what happens to one of two paths", found))
    assert max(map(max, found.values())) <= DEFAULT_MS / 1000


ENDS_OF_SERVERS = {
    "power off": (lambda pair, stack: pair.server.freeze(), lambda pair, stack: pair.server.thaw()),
    "module unloaded": (lambda pair, stack: pair.server.run(stack.unload("server"), timeout=120), blockdev.load),
    "server drained": (lambda pair, stack: pair.server.run("echo 1 > /sys/class/ibnbd-server/ctl/drain", timeout=120),
                       lambda pair, stack: pair.server.run("echo 0 > /sys/class/ibnbd-server/ctl/drain")),
}


@MEASURED
def test_measure_the_end_of_a_server(mapped, stack):
    """How long the client takes to notice that, by its log."""
    pair, client = mapped, mapped.client
    traffic = Traffic(pair, stack)
    found: dict[str, list[float]] = {}
    gone = "demo: no path to the server is left"
    for turn in range(TIMES):
        for name, (end, begin_again) in chosen(ENDS_OF_SERVERS).items():
            both(pair)
            client.run(f"dmesg --clear; sleep {1 + random.random():.3f}")
            begin = client.uptime()
            end(pair, stack)
            client.wait_for_log(gone, 60)
            at = re.search(rf"^\[\s*([\d.]+)\].*{gone}", client.run("dmesg"), re.MULTILINE)
            begin_again(pair, stack)
            found.setdefault(name, []).append(float(at[1]) - begin)
            print(f"{time.strftime('%H:%M:%S')} {turn + 1}/{TIMES} {name}: {found[name][-1]:.2f} s", flush=True)
    traffic.end()
    print("\n" + table("what happens to the server", found))
