# SPDX-License-Identifier: GPL-2.0
"""Two disks of a server that are files, written through its page cache, which lose data in a power
cut and in a reboot that writes nothing back; and a client's program that writes numbered blocks
to one of them."""

import os
import subprocess
import tempfile
from pathlib import Path

import durable

BLOCKS = 256
SIZE_MB = 16


def make(server, size_mb: int = SIZE_MB // 2) -> tuple[Path, str]:
    """Makes a guest's disk with both files, the first one of that size, and gives its image, and the
    command that has the server's kernel serve them again, once that disk is there as {}.  The image is
    of its own: a guest that was rebooted by an earlier scenario has that one's disk still."""
    handle, name = tempfile.mkstemp(".img", "cached-", server.folder)
    image = Path(name)
    os.truncate(handle, (size_mb + size_mb // 8 + 24) << 20)
    os.close(handle)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    export = ("modprobe loop && mkdir -p /mnt/disk && mount {} /mnt/disk && losetup /dev/loop0 /mnt/disk/0 && "
              "losetup /dev/loop1 /mnt/disk/1")
    # Of zeroes that are there already, so that the journal has nothing to do with it.
    # Nor by age: after half a minute the kernel would write unflushed data back.
    device = server.add_disk(image)
    server.run("echo 0 > /proc/sys/vm/dirty_writeback_centisecs && "
               f"mkdir -p /mnt/disk && mount {device} /mnt/disk && cd /mnt/disk && "
               f"dd if=/dev/zero of=0 bs=1M count={size_mb} status=none && "
               "dd if=/dev/zero of=1 bs=1M count=1 status=none && cd / && umount /mnt/disk && "
               + export.format(device))
    return image, export


def start_writer(client, path: str, *fifo: str):
    client.push("/tmp/durable.py", Path(durable.__file__).read_text())
    return client.start(" ".join(["python3 /tmp/durable.py", path, str(BLOCKS), *fifo]))


def all_flushed(writer) -> bool:
    return durable.known(writer.text).flushed == [BLOCKS] * durable.THREADS
