# SPDX-License-Identifier: GPL-2.0
"""Memory that only the mapped disk can free: the client's memory is full of data to be written
there, with and without a path; the server's is full of its page cache."""

import time

import pytest

from testbed import blockdev, fio, mishaps
from testbed.lab import wait_for
from testbed.load import OPEN_PAUSE

pytestmark = [pytest.mark.links(2), pytest.mark.fast]

SESSION = "/sys/class/ibtrs-client/demo"
SETTINGS = (f"cd {SESSION} && echo 500 > hb_interval_ms && echo 3 > hb_missed_max && "
            "echo 100 > reconnect_delay_ms && echo 120 > queue_timeout_s")
DISK_MB, FILE_MB = 256, 80
# The rest of the client's memory.  Two thirds of that may wait to be written, more than what the
# kernel allows unless told otherwise; in bytes, as a share is exceeded while memory gets less, until
# the kernel kills the writer.  What may not sleep, as the network's packets, has a reserve.
LEFT_MB, DIRTY_MB, RESERVE_MB = 96, 64, 16
EXHAUST = (f"echo {DIRTY_MB << 20} > /proc/sys/vm/dirty_bytes && "
           f"echo {DIRTY_MB << 19} > /proc/sys/vm/dirty_background_bytes && "
           f"echo {RESERVE_MB << 10} > /proc/sys/vm/min_free_kbytes && "
           "mkdir -p /mnt/hog && mount -t tmpfs -o size=100% hog /mnt/hog && "
           "while read -r what kib _; do [ $what = MemAvailable: ] && break; done < /proc/meminfo && "
           f"dd if=/dev/zero of=/mnt/hog/memory bs=1M count=$((kib / 1024 - {LEFT_MB})) status=none")
FIO = ("fio --name=writer --directory=/mnt/disk --rw=randwrite --bsrange=4k-64k --ioengine=psync --numjobs=2 "
       f"--size={FILE_MB}m --fallocate=none --verify=crc32c --verify_fatal=1 --group_reporting")


# Free, to be written and being written, in MiB, twice a second; no program is started for it.
WATCH = (OPEN_PAUSE + " && while :; do declare -A is=() && "
         "while read -r what kib _; do is[$what]=$((kib / 1024)); done < /proc/meminfo && "
         "echo ${is[MemFree:]} ${is[Dirty:]} ${is[Writeback:]}; read -t 0.5 -u 8; done")


class Client:
    """A client with a file system on the mapped disk, and hardly any memory."""

    def __init__(self, pair, stack):
        self.guest, self.stack = pair.client, stack
        blockdev.map_two_paths(pair, stack, size_mb=DISK_MB)
        self.guest.run(SETTINGS)
        self.guest.run(f"mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 {stack.disk} && mkdir -p /mnt/disk && "
                       f"mount {stack.disk} /mnt/disk")
        self.before = self.guest.run("cd /proc/sys/vm && cat dirty_ratio dirty_background_ratio min_free_kbytes")
        self.guest.run(EXHAUST)
        self.watch = self.guest.start(WATCH)
        self.writer = self.guest.start(f"{FIO} --do_verify=0")
        wait_for(lambda: any(dirty + writeback for _, dirty, writeback in self.memory()), 120, "the writer writes")

    def read(self) -> None:
        """Starts a reader, which needs memory all the time, sleeps for it and gives it back."""
        self.reader = self.guest.start("while :; do cat /usr/lib/x86_64-linux-gnu/lib*.so* > /dev/null; done")

    def memory(self) -> list[tuple[int, ...]]:
        """The output so far."""
        return [tuple(map(int, line.split())) for line in self.watch.text.splitlines()[:-1]]

    def is_exhausted(self) -> bool:
        return any(free < 2 * RESERVE_MB and dirty + writeback > DIRTY_MB // 2
                   for free, dirty, writeback in self.memory())

    def says(self, words: str, count: int = 1) -> bool:
        """Whether it stands in the log, which needs no command."""
        return sum(words in line for line in self.guest.log.new_lines()) >= count

    def end(self) -> None:
        """All written data is there, and nothing has failed."""
        self.writer.wait(300)
        for job in (self.reader, self.watch):
            job.kill()
            job.wait(30, check=False)
        for name, value in zip(("dirty_ratio", "dirty_background_ratio", "min_free_kbytes"), self.before.split()):
            self.guest.run(f"echo {value} > /proc/sys/vm/{name}")
        self.guest.run("umount /mnt/hog && sync && echo 3 > /proc/sys/vm/drop_caches && "
                       f"{FIO} --verify_only && umount /mnt/disk && fsck.ext4 -fn {self.stack.disk}", timeout=300)
        assert not self.says("I/O error")


@pytest.mark.thorough
def test_written_back_while_memory_is_exhausted(pair, stack):
    """Also while there is no path, for longer than memory lasts; a path is added meanwhile."""
    server = pair.server
    mishaps.make_ready(pair)
    client = Client(pair, stack)
    # The links go before all is written, however slow the guest is: then nothing leaves its memory.
    with mishaps.losing(server, 1, 100), mishaps.losing(server, 2, 100):
        client.read()
        wait_for(lambda: client.says("no path to the server is left"), 60, "both paths are lost")
        without = len(client.memory())
        wait_for(client.is_exhausted, 120, "memory is full of what is to be written")
        # Nothing else is asked of the client until the links are back: it may have no memory for it.
        adding = client.guest.start(f"echo ip:10.0.2.2,ip:10.0.1.1 > {SESSION}/add_path")
        time.sleep(8)
    start = time.monotonic()
    wait_for(lambda: client.says(": connected", 4), 120, "both paths are connected again")
    connected = time.monotonic() - start
    client.writer.wait(300)
    adding.wait(120, check=False)
    least = min(client.memory()[without:])
    print(f"\nno path: {least[0]} MiB free, {least[1]} to be written, {least[2]} being written; "
          f"connected {connected:.1f} s after the links were back, all written after {time.monotonic() - start:.1f} s")
    client.end()


# More than the server has memory.
LARGE_MB = 2048
LOSSES = 50


@pytest.mark.parametrize("slots", [pytest.param("N", id="chunks"), pytest.param("Y", id="slots")])
def test_a_server_with_a_full_page_cache(pair, stack, slots):
    """It has no memory but what it takes from its cache, and serves; paths that are lost come
    back however often, and none is refused for want of memory. With slots, the data of each request
    takes memory as well."""
    server, client = pair
    for guest, side in ((server, "server"), (client, "client")):
        guest.run(f"modprobe {stack.transport(side)} slots_over_rxe={slots}")
    # Also for what may not wait until the cache gives memory back: the messages of the network.
    before = server.run("cat /proc/sys/vm/min_free_kbytes").strip()
    server.run(f"echo {RESERVE_MB << 10} > /proc/sys/vm/min_free_kbytes")
    image = server.folder / f"large-{slots}.img"
    with open(image, "wb") as file:
        file.truncate(LARGE_MB << 20)
    large = server.add_disk(image)
    blockdev.map_two_paths(pair, stack)
    client.run(SETTINGS)
    # The last close of a disk drops its cache.
    reader = server.start(f"exec 7< {large}; while dd if={large} of=/dev/null bs=1M status=none; do echo full; done")
    wait_for(lambda: "full" in reader.text, 120, "the disk was read")
    free = int(server.run("while read -r what kib _; do [ $what = MemFree: ] && break; done < /proc/meminfo; echo $kib"))
    assert free >> 10 < 100
    load = client.start(f"fio --name=load --filename={stack.disk} --rw=randrw --bs=64k --size=24m --iodepth=16 --direct=1 "
                        "--ioengine=io_uring --time_based --runtime=3000 --verify=crc32c --verify_backlog=64 "
                        f"--verify_fatal=1 {fio.IN_BURSTS}")
    blockdev.wait_for_reads(client, stack)
    for loss in range(LOSSES):
        client.run(f"cd {SESSION}/paths/*@ip:10.0.{loss % 2 + 1}.1 && echo 1 > disconnect && echo 1 > reconnect",
                   timeout=60)
        wait_for(lambda: blockdev.connected(client) == 2, 30, "the path is connected again")
        blockdev.wait_for_reads(client, stack)
    assert not [line for guest in pair for line in guest.log.new_lines() if "ENOMEM" in line]
    fio.end(client, load)
    reader.kill()
    server.run(f"echo {before} > /proc/sys/vm/min_free_kbytes")
    assert "ENOMEM" not in server.run("dmesg")
