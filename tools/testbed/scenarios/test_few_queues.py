# SPDX-License-Identifier: GPL-2.0
"""Sessions with fewer queues, and so fewer connections, than the client has processors."""

import errno
import os

import pytest

from testbed import blockdev, fio, mishaps
from testbed.lab import SERVER_ADDRESS, wait_for
from testbed.stack import STACKS

pytestmark = [pytest.mark.links(2), pytest.mark.cpus(4), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
VERIFY = "--verify=crc32c --verify_fatal=1 --verify_backlog=32"
# A job for each processor, each with its part of the disk.
EACH_CPU = ("--filename=/dev/ibnbd0 --direct=1 --ioengine=io_uring --bsrange=4k-64k --iodepth=8 --size=4m --numjobs=4"
            " --offset_increment=4m --cpus_allowed=0-3 --cpus_allowed_policy=split")


def line(device: str, options: str = "", session: str = "demo", links: int = 1) -> str:
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link + 1)}" for link in range(links))
    return f"sessname={session} {paths} device_path={device} {options}"


def map_disk(client, stack, *words, **more) -> None:
    client.run(f'echo "{line(*words, **more)}" > {stack.map_file}')


def refused(client, stack, *words, because: str, **more) -> None:
    client.run("dmesg -C")
    said = client.run(f"bash -c 'echo \"{line(*words, **more)}\" > {stack.map_file}'", check=False)
    assert not said.ok and os.strerror(errno.EINVAL) in said, said
    assert because in client.run("dmesg")


def cpus_of_queues(client) -> list[str]:
    return client.run("cat /sys/block/ibnbd0/mq/*/cpu_list").splitlines()


def migrations(client, row: str) -> list[int]:
    return [int(word) for word in client.run(f"cat {SESSION}/paths/*/stats/cpu_migration_{row}").split()]


def test_processors_share_connections(pair, stack):
    server, client = pair
    devices = [server.null_blk(f"nullb{number}", size_mb=16) for number in range(3)]
    blockdev.load(pair, stack)
    map_disk(client, stack, devices[0], "nr_queues=2")
    assert blockdev.queue_pairs(server) == blockdev.queue_pairs(client) == 1 + 2
    assert client.run("cat /sys/block/ibnbd0/ibnbd/nr_queues").split() == ["2"]
    assert cpus_of_queues(client) == ["0, 2", "1, 3"]
    fio.run(client, f"--name=x --rw=randrw {VERIFY} {EACH_CPU}")
    assert blockdev.same_on_both(pair, devices[0], stack.disk, 16)
    # An answer migrates between connections only; a connection's first processor stands for all of its.
    left, came = migrations(client, "from"), migrations(client, "to")
    assert left[2:] == [0, 0] and sum(left) == sum(came)

    # Other disks of the session have its queues.
    map_disk(client, stack, devices[1])
    refused(client, stack, devices[2], "nr_queues=3", because="the session has another number of queues")
    map_disk(client, stack, devices[2], "nr_queues=2")
    assert client.run("cat /sys/block/ibnbd[12]/ibnbd/nr_queues").split() == ["2", "2"]
    assert blockdev.queue_pairs(server) == 1 + 2
    fio.run(client, f"--name=x --rw=randread {EACH_CPU}".replace("ibnbd0", "ibnbd1"))
    for disk in range(3):
        client.run(stack.unmap(disk))
    client.wait_until(f"[ ! -e {SESSION} ]")

    because = "there are more queues than CPUs"
    refused(client, stack, devices[0], "nr_queues=5", because=because)
    for number in ("0", "-1", "two"):
        because = f"nr_queues={number}: number of queues is not 1 or more"
        refused(client, stack, devices[0], f"nr_queues={number}", because=because)
    # One for each without the option, as with the largest number.
    for options in ("", "nr_queues=4"):
        map_disk(client, stack, devices[0], options)
        assert client.run("cat /sys/block/ibnbd0/ibnbd/nr_queues").split() == ["4"]
        assert blockdev.queue_pairs(server) == 1 + 4
        client.run(stack.unmap())
        client.wait_until(f"[ ! -e {SESSION} ]")


def test_paths_fail_and_come_back(pair, stack):
    server, client = pair
    mishaps.make_ready(pair)
    device = server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    map_disk(client, stack, device, "nr_queues=2 nr_poll_queues=1", links=2)
    client.run(f"cd {SESSION} && echo round-robin > mp_policy && echo 1000 > hb_interval_ms &&"
               " echo 3 > hb_missed_max && echo 100 > reconnect_delay_ms")
    of_a_path = 1 + 2 + 1

    def wait_for_paths(count: int) -> None:
        wait_for(lambda: blockdev.connected(client) == count, 120, f"{count} paths are connected")

    wait_for_paths(2)
    assert blockdev.queue_pairs(server) == blockdev.queue_pairs(client) == 2 * of_a_path
    # All processors share the queue for polled I/O.
    assert len(client.run("ls /sys/block/ibnbd0/mq").split()) == 2 + 1
    for polled in (0, 1):
        fio.run(client, f"--name=x --rw=randrw {VERIFY} {EACH_CPU} --hipri={polled}")
    assert blockdev.same_on_both(pair, device, stack.disk, 16)

    jobs = [client.start(f"fio --name=x --rw=randwrite --time_based --runtime=900 {VERIFY} {fio.IN_BURSTS} {EACH_CPU}"
                         f" --hipri={polled} --size=2m --offset={2 * polled}m") for polled in (0, 1)]
    done = "awk '{ print $1 + $5 }' /sys/block/ibnbd0/stat"

    def goes_on():
        before = int(client.run(done))
        wait_for(lambda: int(client.run(done)) > before + 100, 60, "I/O goes on")

    goes_on()
    # The server's side goes away without a word.
    with mishaps.losing(server, 2, 100):
        wait_for_paths(1)
        goes_on()
    wait_for_paths(2)
    path = f"{SESSION}/paths/*ip:{SERVER_ADDRESS.format(link=1)}"
    client.run(f"echo 1 > {path}/disconnect")
    goes_on()
    assert blockdev.queue_pairs(client) == of_a_path
    client.run(f"echo 1 > {path}/reconnect")
    wait_for_paths(2)
    # A path that is added has as many.
    client.run(f"echo 1 > {path}/remove_path")
    client.run(f"echo ip:{SERVER_ADDRESS.format(link=1)} > {SESSION}/add_path")
    goes_on()
    assert blockdev.queue_pairs(client) == 2 * of_a_path
    client.run("pkill -INT -x fio")
    assert all(job.wait(120, check=False).status in (0, 128, 130) for job in jobs), "fio met an error"
    assert blockdev.same_on_both(pair, device, stack.disk, 16)


def test_a_server_with_few_connections(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(f"modprobe ibtrs_server max_connections=2 && {stack.load_server()}")
    client.run(stack.load_client())
    # One for messages, and one for I/O, which a discovery does not use.
    client.run('echo "sessname=demo path=ip:10.0.1.1" > /sys/class/ibnbd-client/ctl/discover')
    assert not client.run(f"bash -c 'echo \"{line(device)}\" > {stack.map_file}'", check=False).ok
    map_disk(client, stack, device, "nr_queues=1")
    assert blockdev.queue_pairs(server) == 1 + 1 and cpus_of_queues(client) == ["0, 1, 2, 3"]
    # Its session has a disk: a discovery uses it as it is.
    client.run("echo sessname=demo > /sys/class/ibnbd-client/ctl/discover")
    fio.run(client, f"--name=x --rw=randrw {VERIFY} {EACH_CPU}")
    assert blockdev.same_on_both(pair, device, stack.disk, 16)


@pytest.mark.quiet
def test_mainlines_server(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(STACKS["mainline"].load_server())
    client.run(stack.load_client())
    map_disk(client, stack, device.removeprefix("/"), "nr_queues=2 nr_poll_queues=1")
    assert blockdev.queue_pairs(server) == 1 + 2 + 1
    for polled in (0, 1):
        fio.run(client, f"--name=x --rw=randrw {VERIFY} {EACH_CPU} --hipri={polled}")
    assert blockdev.same_on_both(pair, device, stack.disk, 16)
    client.run(stack.unmap())
    client.wait_until(f"[ ! -e {stack.disk} ]")
