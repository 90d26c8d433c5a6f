# SPDX-License-Identifier: GPL-2.0
"""Flushed data, and data written with FUA, survives when a server loses its power: checked in the log
of the server's disk, and after a power cut."""

import errno
import os

import cached_disks
import durable
import pytest
from cached_disks import BLOCKS, SIZE_MB, all_flushed, start_writer

from testbed import blockdev, logwrites, uevents
from testbed.lab import wait_for

pytestmark = pytest.mark.fast

SESSION = "/sys/class/ibtrs-client/demo"


@pytest.mark.links(2)
def test_the_disk_has_what_was_flushed(pair, stack):
    """The log of the server's disk has everything in the order in which it would
    last.  Whenever the client knows that something will, it stands there, while
    requests are sent again by other paths."""
    server, client = pair
    server.null_blk("nullb0", SIZE_MB)
    server.null_blk("nullb1", 2 * SIZE_MB)
    table = f"0 {SIZE_MB << 11} log-writes /dev/nullb0 /dev/nullb1"
    server.run(f"modprobe dm-log-writes && dmsetup --noudevrules --noudevsync create logged --table '{table}'")
    blockdev.load(pair, stack)
    client.run(f'echo "sessname=demo path=ip:10.0.1.1 path=ip:10.0.2.1 device_path=/dev/dm-0" > {stack.map_file}; '
               f"echo 100 > {SESSION}/reconnect_delay_ms")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    assert client.run(f"cat /sys/block/{stack.family}0/queue/{{write_cache,fua}}").split("\n") == ["write back", "1"]

    # In a file that has all its blocks: where the disk itself is written to with
    # O_DSYNC, the kernel sends a flush after what has FUA.
    client.run(f"mkfs.ext4 -q -O ^has_journal {stack.disk} && mkdir -p /mnt/disk && "
               f"mount -o lazytime {stack.disk} /mnt/disk && mkfifo /tmp/go-on && "
               "dd if=/dev/zero of=/mnt/disk/file bs=1M count=4 conv=fsync status=none")
    writer = start_writer(client, "/mnt/disk/file", "/tmp/go-on")
    paths = client.run(f"ls -d {SESSION}/paths/*").split()
    marks, pauses = [], 0
    wait_for(lambda: "known" in writer.text, 60, "the writer has begun")
    while writer.running:
        # All blocks known by now stand before the mark, whatever comes later.
        pausing = writer.text.count("pause\n") > pauses
        marks.append(durable.known(writer.text))
        server.run(f"dmsetup message logged 0 mark {len(marks) - 1}")
        if pausing:
            client.run("echo > /tmp/go-on")
            pauses += 1
        path = paths[len(marks) % 2]
        client.run(f"echo 1 > {path}/disconnect && echo 1 > {path}/reconnect")
    writer.wait(10)
    assert all_flushed(writer)
    assert pauses == BLOCKS // (2 * durable.WHILE)
    client.run(f"umount /mnt/disk && {stack.unmap()}")
    server.run("dmsetup --noudevrules --noudevsync remove logged && "
               "dd if=/dev/nullb1 of=/mnt/share/log bs=1M conv=sparse status=none")

    there = [set() for _ in range(durable.THREADS)]
    flags = set()
    with open(server.share / "log", "rb") as log:
        for entry in logwrites.entries(log):
            flags.add(entry.flags)
            if entry.flags & logwrites.MARK:
                if entry.data != logwrites.END:
                    assert marks[int(entry.data)].missing(there) == [], f"mark {entry.data}"
                continue
            new = list(durable.blocks(entry.data))
            for thread, number, before in new:
                assert before.missing(there) == [], f"when block {number} of thread {thread} was written"
            for thread, number, _ in new:
                there[thread].add(number)
    assert {logwrites.FLUSH, logwrites.FUA} <= flags
    assert there == [set(range(BLOCKS))] * durable.THREADS


@pytest.mark.kills
def test_what_was_flushed_survives_the_server(pair, stack):
    image, export = cached_disks.make(pair.server)
    blockdev.load(pair, stack)
    for device in ("/dev/loop0", "/dev/loop1"):
        pair.client.run(stack.map_device(device))
    lost = f"{stack.family}1"
    pair.client.run(f"cd {SESSION} && echo 600 > queue_timeout_s && echo 1000 > hb_interval_ms && "
                    "echo 2 > hb_missed_max && "
                    f"dd if=/dev/urandom of=/dev/{lost} bs=64k count=16 oflag=direct status=none")
    holder = pair.client.start(f"{{ echo open; sleep 3000; }} < /dev/{lost}")
    wait_for(lambda: "open" in holder.text, 30, "the disk is open")
    events = uevents.listen(pair.client)
    writer = start_writer(pair.client, stack.disk)
    wait_for(lambda: min(durable.known(writer.text).flushed) > BLOCKS // 2, 300, "half is written")
    pair.server.kill()

    pair.reboot("server", [image])
    pair.server.run(export.format("/dev/vda"))
    assert writer.running
    assert durable.known(writer.text).missing(there_on(pair.server)) == []
    # These were not flushed: it was a power cut indeed.
    assert pair.server.run("tr -d '\\0' < /dev/loop1 | head -c 1") == ""
    # No flush may report them durable until the loss is acknowledged.
    pair.server.run(stack.load_server())
    said = f"/sys/block/{lost}/{stack.family}/cache_lost"
    pair.client.wait_until(f"grep -qx 1 {said}", 240)
    pair.client.wait_for_log(f"{lost}: the server has lost its write cache: unflushed writes to /dev/loop1 may be gone")
    flush = f"dd if=/dev/zero of=/dev/{lost} bs=4k count=1 oflag=direct conv=notrunc,fsync"
    for _ in range(2):
        assert os.strerror(errno.EIO) in pair.client.run(flush, check=False)
    pair.client.run(f"echo 0 > {said} && {flush} && cat {said} | grep -qx 0")
    holder.kill()
    events.kill()
    assert "IBNBD_CACHE_LOST=1" in events.wait(20, check=False)

    # The writer was told, if it had lost anything; whatever it takes to be safe is there.
    assert writer.wait(300, check=False).ok or os.strerror(errno.EIO) in writer.text
    assert durable.known(writer.text).missing(there_on(pair.server)) == []
    # A program that opens the disk again has lost nothing, and can write as before.
    writer = start_writer(pair.client, stack.disk)
    writer.wait(300)
    assert all_flushed(writer)
    assert there_on(pair.server) == [set(range(BLOCKS))] * durable.THREADS
    for number in (0, 1):
        pair.client.run(stack.unmap(number))
    pair.server.run("rmmod ibnbd_server && losetup -D && umount /mnt/disk")


def there_on(server) -> list[set[int]]:
    """The numbers of each thread's blocks on the server's disk."""
    server.run("dd if=/dev/loop0 of=/mnt/share/disk bs=1M iflag=direct status=none")
    there = [set() for _ in range(durable.THREADS)]
    for thread, number, _ in durable.blocks((server.share / "disk").read_bytes()):
        there[thread].add(number)
    return there
