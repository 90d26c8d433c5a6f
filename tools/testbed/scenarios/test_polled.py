# SPDX-License-Identifier: GPL-2.0
"""Polled I/O: queues whose completions raise no interrupts."""

import errno
import os
import re
import time

import pytest

from testbed import blockdev, fio, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.stack import STACKS

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

LONG = bool(os.environ.get("IBTRS_LONG"))
SESSION = "/sys/class/ibtrs-client/demo"
POLLED = "--ioengine=io_uring --hipri=1 --direct=1"
VERIFY = "--verify=crc32c --verify_fatal=1 --verify_backlog=32"


def map_polled(pair, stack, queues: int, links: int = 1, size_mb: int = 32) -> str:
    device = pair.server.null_blk(size_mb=size_mb)
    blockdev.load(pair, stack)
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link + 1)}" for link in range(links))
    pair.client.run(f'echo "sessname=demo {paths} device_path={device} nr_poll_queues={queues}" > {stack.map_file}')
    return device


def softirqs(guest) -> int:
    """How often completions were handled in a softirq."""
    words = guest.run("grep IRQ_POLL /proc/softirqs").split()
    return sum(map(int, words[1:]))


def in_flight(guest) -> int:
    return sum(map(int, guest.run("cat /sys/block/ibnbd0/inflight").split()))


def test_polled_io_completes_without_softirq(pair, stack):
    client = pair.client
    device = map_polled(pair, stack, -1)
    cpus = int(client.run("nproc"))
    assert client.run("cat /sys/block/ibnbd0/ibnbd/nr_poll_queues").split() == [str(cpus)]
    assert client.run("cat /sys/block/ibnbd0/queue/io_poll").split() == ["1"]
    assert len(client.run("ls /sys/block/ibnbd0/mq").split()) == 2 * cpus

    size = "--filename=/dev/ibnbd0 --size=4m --bs=4k --iodepth=1 --name=x"
    before = softirqs(client)
    fio.run(client, f"{POLLED} {size} --rw=randread")
    polled = softirqs(client) - before
    before = softirqs(client)
    fio.run(client, f"--ioengine=io_uring --direct=1 {size} --rw=randread")
    ordinary = softirqs(client) - before
    print(f"\n1024 reads: {polled} softirqs when polled, {ordinary} when not")
    # Heartbeats have theirs.
    assert polled < 40 and ordinary > 800

    # Both at once, by one disk, of all sizes.
    both = "--filename=/dev/ibnbd0 --rw=randrw --bsrange=4k-128k --iodepth=8 --size=12m --direct=1"
    fio.run(client, f"--ioengine=io_uring {both} {VERIFY} --name=polled --hipri=1 --name=plain --offset=12m")
    fio.run(client, f"{POLLED} --filename=/dev/ibnbd0 --rw=randwrite --bs=4k --iodepth=64 --size=2m --sync=1 --name=x")
    assert blockdev.same_on_both(pair, device, stack.disk, 32)


def test_paths_fail_while_they_are_polled(pair, stack):
    client = pair.client
    mishaps.make_ready(pair)
    device = map_polled(pair, stack, 2, links=2)
    client.run(f"cd {SESSION} && echo round-robin > mp_policy && echo 1000 > hb_interval_ms &&"
               " echo 3 > hb_missed_max && echo 100 > reconnect_delay_ms")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    job = client.start(f"fio --name=x --filename=/dev/ibnbd0 {POLLED} --rw=randwrite --bsrange=4k-64k --size=24m"
                       f" --iodepth=16 --numjobs=1 --time_based --runtime=900 {VERIFY}")
    done = "awk '{ print $1 + $5 }' /sys/block/ibnbd0/stat"

    def goes_on():
        before = int(client.run(done))
        wait_for(lambda: int(client.run(done)) > before + 100, 60, "I/O goes on")
        assert client.ok("pgrep -x fio"), "fio has ended"

    goes_on()
    for link in (2, 1) if LONG else (2,):
        path = f"{SESSION}/paths/*ip:{SERVER_ADDRESS.format(link=link)}"
        # The server's side goes away without a word.
        with mishaps.losing(pair.server, link, 100):
            wait_for(lambda: blockdev.connected(client) == 1, 60, "the path fails")
            goes_on()
        wait_for(lambda: blockdev.connected(client) == 2, 120, "the path is back")
        begin = time.monotonic()
        client.run(f"cd {path} && echo 1 > disconnect")
        print(f"\ndisconnected in {time.monotonic() - begin:.1f} s")
        goes_on()
        client.run(f"cd {path} && echo 1 > reconnect")
    # A path that is added later is polled like the others.
    path = f"{SESSION}/paths/*ip:{SERVER_ADDRESS.format(link=1)}"
    client.run(f"echo 1 > {path}/remove_path")
    client.run(f"echo ip:{SERVER_ADDRESS.format(link=1)} > {SESSION}/add_path")
    goes_on()

    # Nobody polls any more: what is in flight ends nevertheless, also by another path.
    client.run("pkill -STOP -x fio")
    client.run(f"cd {SESSION}/paths/*ip:{SERVER_ADDRESS.format(link=2)} && echo 1 > disconnect")
    wait_for(lambda: in_flight(client) == 0, 20, "requests end without a poller")
    client.run("pkill -CONT -x fio")
    goes_on()
    fio.end(client, job)
    assert blockdev.same_on_both(pair, device, stack.disk, 24)

    # Unmapped under a poller, by force.  A disk that is gone has no size: a program that only
    # reads is told of the end of a file, after which fio reads on.
    client.start(f"fio --name=x --filename=/dev/ibnbd0 {POLLED} --rw=randrw --bs=4k --size=24m --iodepth=64"
                 " --time_based --runtime=900")
    blockdev.wait_for_reads(client, stack)
    client.run("echo force > /sys/block/ibnbd0/ibnbd/unmap_device", timeout=60)
    client.wait_until("! pgrep -x fio", 30)


TRACING = "/sys/kernel/tracing"
EVENTS = " ".join(f"events/kmem/{event}" for event in ("kmalloc", "kmem_cache_alloc", "mm_page_alloc"))
ALLOCATION = re.compile(r"\s(kmalloc|kmem_cache_alloc|mm_page_alloc): ")
# Memory for which a task may wait, and the function that tears paths down and begins to connect them (`Path::events`).
MAY_WAIT = re.compile(r"gfp_flags=\S*(GFP_KERNEL|GFP_USER|GFP_NOIO|GFP_NOFS|__GFP_DIRECT_RECLAIM|__GFP_RECLAIM)")
STATE_CHANGES = re.compile(r"ibtrs_client4path5state\w*WorkItem3run")


def waiting_allocations(client, command: str) -> list[str]:
    """Allocations that may wait, made by state changes of paths while a command runs: events with their stacks."""
    client.run(f"cd {TRACING} && echo 8192 > buffer_size_kb && echo > trace && echo 1 > options/stacktrace && "
               f"for event in {EVENTS}; do echo 'COMM ~ \"kworker*\"' > $event/filter && echo 1 > $event/enable || exit 1; done")
    client.run(command)
    text = client.run(f"cd {TRACING} && for event in {EVENTS}; do echo 0 > $event/enable; echo 0 > $event/filter; done; "
                      "echo 0 > options/stacktrace; cat trace; echo > trace")
    found: list[str] = []
    for line in text.splitlines():
        if ALLOCATION.search(line):
            found.append(line)
        elif found and line.startswith(" => "):
            found[-1] += "\n" + line
    return [event for event in found if MAY_WAIT.search(event) and STATE_CHANGES.search(event)]


def test_a_path_fails_over_without_waiting_for_memory(pair, stack):
    """Only the disk whose requests are to fail over may be able to free some."""
    client = pair.client
    map_polled(pair, stack, 2, links=2)
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    path = f"{SESSION}/paths/*ip:{SERVER_ADDRESS.format(link=2)}"
    torn_down = waiting_allocations(client, f"cd {path} && echo 1 > disconnect")
    assert not torn_down, "\n".join(torn_down)
    # The memory for the next teardown comes with the next attempt.
    assert waiting_allocations(client, f"cd {path} && echo 1 > reconnect")


def test_poll_queues_have_rules(pair, stack):
    server, client = pair
    map_polled(pair, stack, 1)
    other = server.null_blk("nullb1", size_mb=16)
    line = f"device_path={other} path=ip:10.0.1.1"
    refused = os.strerror(errno.EINVAL)
    for words in ("sessname=demo", "sessname=demo nr_poll_queues=1", "sessname=x nr_poll_queues=3",
                  "sessname=x nr_poll_queues=-2"):
        said = client.run(f"bash -c 'echo \"{words} {line}\" > {stack.map_file}'", check=False)
        assert refused in said, words
    client.run(f'echo "sessname=plain {line}" > {stack.map_file}')
    assert client.run("cat /sys/block/ibnbd1/ibnbd/nr_poll_queues /sys/block/ibnbd1/queue/io_poll").split() == ["0", "0"]
    said = client.run(f"fio --name=x --filename=/dev/ibnbd1 {POLLED} --rw=randread --bs=4k --size=1m", check=False)
    assert not said.ok and "not supported" in said.lower()


@pytest.mark.quiet
def test_mainlines_server_is_polled(pair, stack):
    server, client = pair
    theirs = STACKS["mainline"]
    device = server.null_blk(size_mb=16)
    server.run(f"{theirs.load_server()}")
    client.run(stack.load_client())
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 device_path={device.removeprefix("/")} nr_poll_queues=1"'
               f" > {stack.map_file}")
    before = softirqs(client)
    fio.run(client, f"--name=x --filename=/dev/ibnbd0 {POLLED} --rw=randrw --bsrange=4k-64k --iodepth=4 --size=4m {VERIFY}")
    assert softirqs(client) - before < 40
    assert blockdev.same_on_both(pair, device, stack.disk, 4)
    client.run(stack.unmap())
    client.wait_until(f"[ ! -e {stack.disk} ]")
