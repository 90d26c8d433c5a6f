# SPDX-License-Identifier: GPL-2.0
"""The queues of the disks: several disks of one session, processors that come and go."""

import json
import time

import pytest

from testbed import blockdev, blocktrace, fio
from testbed.lab import SERVER_ADDRESS, wait_for

pytestmark = pytest.mark.fast

DISKS = 32
VERIFY = "--verify=crc32c --verify_fatal=1 --verify_backlog=16"


def map_disks(pair, stack, count: int, size_mb: int, session: str = "demo", more: str = "") -> list[str]:
    """Disks of the server, all on one session; returns the server's paths of them."""
    devices = [pair.server.null_blk(f"nullb{number}", size_mb=size_mb) for number in range(count)]
    blockdev.load(pair, stack)
    for device in devices:
        pair.client.run(f'echo "sessname={session} path=ip:{SERVER_ADDRESS.format(link=1)} device_path={device} {more}"'
                        f" > {stack.map_file}")
    return devices


def done(guest, disk: int) -> int:
    words = guest.run(f"cat /sys/block/ibnbd{disk}/stat").split()
    return int(words[0]) + int(words[4])


@pytest.mark.quiet
def test_a_busy_disk_does_not_starve_another(pair, stack):
    client = pair.client
    map_disks(pair, stack, 2, 64)
    read = "--rw=randread --bs=4k --direct=1 --ioengine=io_uring --time_based --size=48m"
    one = f"--name=one --filename=/dev/ibnbd0 --iodepth=1 --runtime=4 {read}"
    alone = fio.run(client, one).read
    busy = client.start(f"fio --name=busy --filename=/dev/ibnbd1 --iodepth=512 --runtime=900 {read}")
    wait_for(lambda: done(client, 1) > 500, 60, "the other disk is busy")
    before, begin = done(client, 1), time.monotonic()
    beside = fio.run(client, one).read
    others = (done(client, 1) - before) / (time.monotonic() - begin)
    fio.end(client, busy)
    print(f"\ndepth 1 alone: {alone.iops:.0f} IOPS, {alone.mean_us:.0f} us; beside depth 512 ({others:.0f} IOPS):"
          f" {beside.iops:.0f} IOPS, {beside.mean_us:.0f} us")
    assert beside.iops > alone.iops / 4


def test_requests_reach_the_servers_disk_in_batches(pair, stack):
    blockdev.map_new(pair, stack, size_mb=16)
    read = f"--name=x --filename={stack.disk} --rw=randread --bs=4k --iodepth=64 --direct=1 --ioengine=io_uring --size=8m"
    sizes = blocktrace.batches(pair.server, lambda: fio.run(pair.client, read))
    print(f"\n{sum(sizes)} of 2,048 requests went in {len(sizes)} batches of up to {max(sizes, default=0)}")
    assert max(sizes, default=0) > 1


def test_disks_are_unmapped_while_others_are_busy(pair, stack):
    client = pair.client
    devices = map_disks(pair, stack, DISKS, 4)
    halves = range(DISKS // 2), range(DISKS // 2, DISKS)
    assert len(client.run("ls /sys/class/ibtrs-client/").split()) == 1

    def busy(half):
        names = ":".join(f"/dev/ibnbd{number}" for number in half)
        return client.start(f"fio --name=x --filename={names} --rw=randrw --bs=4k --iodepth=32 --direct=1 {VERIFY}"
                            f" --ioengine=io_uring --time_based --runtime=900 {fio.IN_BURSTS}")

    for mine, others in (halves, halves[::-1]):
        job = busy(others)
        wait_for(lambda: all(done(client, disk) > 4 for disk in others),
                 240 if client.spec.kernel.slow else 60, "the others are busy")
        for disk in mine:
            client.run(f"dd if=/dev/zero of=/dev/ibnbd{disk} bs=64k count=4 oflag=direct status=none &&"
                       f" echo normal > /sys/block/ibnbd{disk}/ibnbd/unmap_device")
        assert len(blockdev.disks(client, stack)) == DISKS // 2
        for disk in mine:
            client.run(f'echo "sessname=demo device_path={devices[disk]}" > {stack.map_file}')
        fio.end(client, job)
    assert len(blockdev.disks(client, stack)) == DISKS


@pytest.mark.links(2)
@pytest.mark.parametrize("polled", [0, -1], ids=["ordinary", "polled"])
def test_processors_go_and_come(pair, stack, polled):
    server, client = pair
    device = map_disks(pair, stack, 1, 32, more=f"path=ip:10.0.2.1 nr_poll_queues={polled}")[0]
    client.run("echo round-robin > /sys/class/ibtrs-client/demo/mp_policy")
    cpus = int(client.run("nproc"))
    job = client.start("fio --name=x --filename=/dev/ibnbd0 --rw=randwrite --bsrange=4k-32k --iodepth=8 --direct=1"
                       f" --ioengine=io_uring --hipri={-polled} --time_based --runtime=900 --size=8m {VERIFY}"
                       f" --numjobs={cpus} --offset_increment=8m --cpus_allowed=0-{cpus - 1} --cpus_allowed_policy=split"
                       f" {fio.IN_BURSTS}")
    blockdev.wait_for_reads(client, stack)
    for guest in (client, server):
        before = done(client, 0)
        guest.run("echo 0 > /sys/devices/system/cpu/cpu1/online", timeout=60)
        wait_for(lambda: done(client, 0) > before + 50, 60, "I/O goes on with a processor less")
        before = done(client, 0)
        guest.run("echo 1 > /sys/devices/system/cpu/cpu1/online", timeout=60)
        wait_for(lambda: done(client, 0) > before + 50, 60, "I/O goes on with the processor back")
    # It is used again.
    fio.run(client, f"--name=y --filename=/dev/ibnbd0 --rw=randread --bs=4k --size=1m --direct=1 --cpus_allowed=1"
                    f" --ioengine=io_uring --hipri={-polled}")
    fio.end(client, job)
    assert blockdev.same_on_both(pair, device, stack.disk, 32)


def test_control_groups_limit_a_disk(pair, stack):
    client = pair.client
    map_disks(pair, stack, 1, 16, more="nr_poll_queues=1")
    read = ("--filename=/dev/ibnbd0 --rw=randread --bs=4k --direct=1 --ioengine=io_uring --iodepth=8 --size=12m"
            " --time_based --runtime=3")
    client.run("mkdir -p /mnt/groups && mount -t cgroup2 none /mnt/groups && cd /mnt/groups &&"
               " echo +io > cgroup.subtree_control && mkdir slow &&"
               " echo $(cat /sys/block/ibnbd0/dev) riops=20 > slow/io.max")
    free = fio.run(client, f"--name=free {read}").read
    slow = [client.start(f"echo $$ > /mnt/groups/slow/cgroup.procs && exec fio --name=slow {read} --hipri={hipri}"
                         " --output-format=json --output=/tmp/slow.{hipri}".replace("{hipri}", str(hipri)))
            for hipri in (0, 1)]
    beside = fio.run(client, f"--name=beside {read}").read
    for job in slow:
        job.wait(60)
    each = [json.loads(client.run(f"cat /tmp/slow.{hipri}"))["jobs"][0]["read"]["iops"] for hipri in (0, 1)]
    client.run("rmdir /mnt/groups/slow")
    print(f"\nreads a second: free {free.iops:.0f}, limited {each}, beside these {beside.iops:.0f}")
    # Both together.
    assert 10 < sum(each) < 30 and min(free.iops, beside.iops) > (40 if client.spec.kernel.slow else 60)
