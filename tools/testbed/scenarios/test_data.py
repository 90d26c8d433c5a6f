# SPDX-License-Identifier: GPL-2.0
"""Data that the client writes is what both the mapped disk and the server's own disk return."""

import os

import pytest

from testbed import blockdev, fio
from testbed.blocktrace import Bio, BlockTrace

# 64 MiB with IBTRS_LONG=1; sizes from one block to the largest request and beyond it; two jobs of
# each engine.
SIZE_MB = 16 if os.environ.get("IBTRS_LONG") else 5
VERIFY = ("--filename={disk} --rw=randrw --bsrange=512-1m --size={size}m --offset_increment=16m "
          "--numjobs=2 --iodepth=32 --direct=1 --verify=crc32c --verify_fatal=1 --group_reporting "
          "--name=uring --ioengine=io_uring --name=libaio --ioengine=libaio --offset=32m")


@pytest.mark.quiet
@pytest.mark.long
def test_every_byte_is_right(pair, stack):
    # As many requests at once as there are by default.
    pair.server.run(f"modprobe {stack.transport('server')} sess_queue_depth=512")
    device = blockdev.map_new(pair, stack)
    figures = fio.run(pair.client, VERIFY.format(disk=stack.disk, size=SIZE_MB), timeout=1500)
    assert figures.read.bytes >= 4 * SIZE_MB << 20
    # Where jobs of both engines wrote.
    for start_mb in (0, 32):
        assert blockdev.same_on_both(pair, device, stack.disk, 2, start_mb)


@pytest.mark.fast
def test_a_file_system_lives_on(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack, size_mb=32)
    sums = "cd /mnt/disk && find . -type f | sort | xargs sha256sum"
    client.run(f"mkfs.ext4 -q {stack.disk} && mkdir -p /mnt/disk && mount {stack.disk} /mnt/disk")
    client.run("mkdir /mnt/disk/etc && cp -r /etc/default /etc/security /mnt/disk/etc/ && "
               "dd if=/dev/urandom of=/mnt/disk/random bs=64k count=64 status=none", timeout=600)
    before = client.run(sums)
    client.run("umount /mnt/disk")
    client.run(stack.unmap())

    client.run(stack.map_device(device))
    client.run(f"fsck.ext4 -fn {stack.disk}", timeout=300)
    client.run(f"mount -o ro {stack.disk} /mnt/disk")
    assert client.run(sums) == before
    client.run("umount /mnt/disk")
    client.run(stack.unmap())

    # The same tree, on the server's own disk.
    server.run(f"mkdir -p /mnt/disk && mount -o ro {device} /mnt/disk")
    assert server.run(sums) == before


@pytest.mark.fast
def test_several_disks_share_a_session(pair, stack):
    server, client = pair
    for number in range(3):
        blockdev.map_new(pair, stack, f"nullb{number}", size_mb=16)
    names = blockdev.disks(client, stack)
    assert len(names) == 3
    for number, name in enumerate(names):
        client.run(f"head -c 1M /dev/zero | tr '\\0' {number} | "
                   f"dd of=/dev/{name} bs=64k iflag=fullblock oflag=direct status=none")
    for number in range(3):
        assert server.run(f"head -c 1 /dev/nullb{number}") == str(number)


@pytest.mark.fast
def test_size_and_block_size_are_the_servers(pair, stack):
    client = pair.client
    blockdev.map_new(pair, stack, size_mb=24, block_size=4096)
    assert client.run(f"blockdev --getsize64 --getss {stack.disk}").split() == [str(24 << 20), "4096"]


@pytest.mark.fast
def test_partitions(pair, stack):
    server, client = pair
    device = blockdev.map_new(pair, stack)
    client.run(f"echo 'start=2048, size=16384' | sfdisk --quiet {stack.disk}")
    client.wait_until(f"[ -b {stack.disk}p1 ]")
    client.run(f"echo in the partition | dd of={stack.disk}p1 bs=512 conv=sync oflag=direct")
    assert server.run(f"dd if={device} bs=512 skip=2048 count=1 iflag=direct status=none "
                      "| head -c 16") == "in the partition"


@pytest.mark.fast
def test_flush_and_fua(pair, stack):
    """Both get to the server's disk, and neither where nobody has asked for it."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    # With a cache that may be lost, past which single writes can go.
    server.run("cd /sys/kernel/config/nullb/nullb0 && echo 0 > power && echo 4 > cache_size && "
               "echo 1 > fua && echo 1 > power")
    blockdev.load(pair, stack)
    client.run(stack.map_device(device))

    def asked_for(write: str) -> list[Bio]:
        trace = BlockTrace(server, device)
        client.run(f"dd if=/dev/urandom of={stack.disk} bs=4k count=64 status=none {write}")
        trace.stop()
        return [bio for bio in trace.bios() if bio.what.lstrip("F")[:1] != "R"]

    bios = asked_for("oflag=direct")
    assert [(bio.what[0], bio.sectors) for bio in bios] == [("W", 8)] * 64
    assert not any("F" in bio.what for bio in bios), bios

    *writes, flush = asked_for("conv=fsync")
    assert {bio.what[0] for bio in writes} == {"W"} and sum(bio.sectors for bio in writes) == 512
    assert not any("F" in bio.what for bio in writes), writes
    assert flush.what.startswith("F") and flush.sectors == 0

    writes = [bio for bio in asked_for("oflag=direct,dsync") if bio.sectors]
    assert len(writes) == 64 and all(bio.what[0] == "W" and "F" in bio.what[1:] for bio in writes), writes
