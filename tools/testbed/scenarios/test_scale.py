# SPDX-License-Identifier: GPL-2.0
"""Many sessions from many network namespaces to one server, and hundreds of paths that come and go,
under I/O."""

import errno
import os

import pytest

from testbed import blockdev, fio, netns

pytestmark = pytest.mark.fast

# IBTRS_LONG=1 runs the larger numbers.
LONG = bool(os.environ.get("IBTRS_LONG"))
NAMESPACES = 8
SESSIONS = 64 if LONG else 24
PATHS = 300 if LONG else 40
CHANGES = 1000 if LONG else 40

# Small, because there are many paths and each has chunks of its own.
SERVER_PARAMETERS = "max_chunk_size=16384 sess_queue_depth=16"


def load(guest, stack):
    guest.run(f"modprobe ibtrs_server {SERVER_PARAMETERS} && {stack.load_server()} && {stack.load_client()}")


@pytest.mark.thorough
def test_sessions_from_many_namespaces(solo, stack):
    device = solo.null_blk(size_mb=16)
    solo.run(f"dd if=/dev/urandom of={device} bs=1M count=1 oflag=direct status=none")
    load(solo, stack)
    for number in range(1, NAMESPACES + 1):
        netns.add(solo, number)
    for session in range(SESSIONS):
        number = 1 + session % NAMESPACES
        line = f"sessname=s{session} path=ip:10.1.{number}.1 device_path={device} access_mode=ro"
        solo.run(netns.inside(number, f'echo "{line}" > {stack.map_file}'))
    assert len(solo.run("ls /sys/class/ibtrs-server").split()) >= SESSIONS
    right = blockdev.checksum(solo, device, 1)
    for disk in sorted(blockdev.disks(solo, stack)):
        assert blockdev.checksum(solo, f"/dev/{disk}", 1) == right

    # The address is not known in another namespace, whatever session asks.
    stray = "sessname=stray path=ip:10.1.2.1 device_path=" + device
    refused = solo.run(netns.inside(1, f'echo "{stray}" > {stack.map_file}'), check=False)
    assert os.strerror(errno.ENETUNREACH) in refused
    for module in ("ibtrs_client", "ibtrs_server", "ibtrs_core"):
        assert not solo.ok(f"rmmod {module}")

    solo.run("for f in /sys/block/ibnbd*/ibnbd/unmap_device; do echo normal > $f || exit 1; done", timeout=300)
    assert blockdev.disks(solo, stack) == []
    for number in range(1, NAMESPACES + 1):
        netns.drop(solo, number)


@pytest.mark.links(2)
def test_paths_come_and_go_under_load(pair, stack):
    server, client = pair
    device = server.null_blk(size_mb=32)
    server.run(f"modprobe ibtrs_server {SERVER_PARAMETERS}")
    blockdev.load(pair, stack)
    client.run(stack.map_device(device))
    session = "/sys/class/ibtrs-client/demo"
    job = client.start(f"fio --name=load --filename={stack.disk} --rw=randrw --bs=4k --iodepth=4 --direct=1 "
                       "--rate_iops=50 --ioengine=io_uring --verify=crc32c --verify_backlog=32 --time_based "
                       "--runtime=3000 --size=16m")
    blockdev.wait_for_reads(client, stack)
    path = "ip:10.0.2.2@ip:10.0.2.1"
    client.run(f"cd {session} && for i in $(seq {CHANGES}); do"
               f" echo ip:10.0.2.2,ip:10.0.2.1 > add_path && echo 1 > paths/{path}/remove_path || exit 1;"
               " ! rmmod ibtrs_client 2> /dev/null || exit 2; done", timeout=3000)
    fio.end(client, job)
    assert len(client.run(f"ls {session}/paths").split()) == 1


@pytest.mark.links(2)
def test_hundreds_of_paths(pair, stack):
    """Each path of a session needs a pair of addresses of its own."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(f"modprobe ibtrs_server {SERVER_PARAMETERS}")
    blockdev.load(pair, stack)
    for guest, side in ((server, 1), (client, 2)):
        guest.run("for i in $(seq 1 40); do ip addr add 10.2.$i.%d/24 dev eth0 || exit 1; done" % side)
    client.run(stack.map_device(device))
    session = "/sys/class/ibtrs-client/demo"
    client.run(f"echo round-robin > {session}/mp_policy")
    made = 0
    while made < PATHS:
        client.run(f"cd {session} && for i in $(seq 1 40); do echo ip:10.2.$i.2,ip:10.2.$i.1 > add_path || exit 1; done",
                   timeout=600)
        assert blockdev.connected(client) == 41
        # Each of them has its part in this; what it does not do right is found.
        fio.run(client, f"--name=all --filename={stack.disk} --rw=randwrite --bs=4k --size=4m --iodepth=32 --direct=1 "
                        "--ioengine=io_uring --verify=crc32c --verify_fatal=1")
        served = client.run(f"cd {session}/paths && for path in *; do read reads _ writes _ < $path/stats/rdma && "
                            "echo $path $reads $writes; done").splitlines()
        idle = [line for line in served if int(line.split()[1]) == 0 or int(line.split()[2]) == 0]
        assert len(served) == 41 and not idle, idle
        client.run(f"cd {session} && for i in $(seq 1 40); do echo 1 > paths/ip:10.2.$i.2@ip:10.2.$i.1/remove_path || exit 1; done",
                   timeout=600)
        made += 40
    assert blockdev.connected(client) == 1
    assert blockdev.same_on_both(pair, device, stack.disk, 4)
