# SPDX-License-Identifier: GPL-2.0
"""The setup that many scenarios share: a disk of the server, mapped on the client."""

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor

from .guest import Guest
from .lab import SERVER_ADDRESS, Pair
from .stack import Stack


DMSETUP = "dmsetup --noudevrules --noudevsync"


class StuckDisk:
    """A disk of a guest above another one, `below`.  Its requests can be made to get stuck."""

    device = "/dev/dm-0"

    def __init__(self, guest: Guest, below: str, size_mb: int = 16):
        self._guest = guest
        guest.run(f"modprobe dm_mod && {DMSETUP} create stuck --table '0 {size_mb << 11} linear {below} 0' "
                  f"&& [ -b {self.device} ]")

    def suspend(self) -> None:
        self._guest.run(f"{DMSETUP} suspend --noflush --nolockfs stuck")

    def resume(self) -> None:
        """Lets the requests go on; safe to call if the disk is not suspended."""
        self._guest.run(f"{DMSETUP} resume stuck")

    @contextlib.contextmanager
    def suspended(self):
        """While this lasts, none of its requests ends."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    def remove(self) -> None:
        """Removes the disk as soon as nobody has it open."""
        self._guest.wait_until(f"{DMSETUP} remove stuck")


def load(pair: Pair, stack: Stack) -> None:
    """Both sides are ready to export and to map; safe to call again."""
    loading = pair.server.start(stack.load_server())
    pair.client.run(stack.load_client())
    loading.wait(120)


def map_new(pair: Pair, stack: Stack, name: str = "nullb0", size_mb: int = 128,
            block_size: int = 512) -> str:
    """Makes a disk on the server and maps it; returns the server's path of it.
    The first one that is mapped is `stack.disk` on the client."""
    device = pair.server.null_blk(name, size_mb, block_size)
    load(pair, stack)
    pair.client.run(stack.map_device(device))
    return device


def fail_fast(client: Guest) -> None:
    """Sets every session of ours to detect the loss of its server within seconds, and to fail I/O
    soon afterwards.  Mainline's fails it at once anyway."""
    client.run("for session in /sys/class/ibtrs-client/*/hb_interval_ms; do "
               "[ ! -e $session ] || { cd ${session%/*} && echo 1000 > hb_interval_ms && "
               "echo 3 > hb_missed_max && echo 2 > queue_timeout_s; } || exit 1; done")


def map_two_paths(pair: Pair, stack: Stack, size_mb: int = 32, session: str = "demo") -> str:
    """Maps a new disk by both links, and waits until both paths are connected, as a path has its
    full name from then on; returns the server's path of the disk."""
    device = pair.server.null_blk(size_mb=size_mb)
    load(pair, stack)
    paths = " ".join(f"path=ip:{SERVER_ADDRESS.format(link=link)}" for link in (1, 2))
    pair.client.run(f'echo "sessname={session} {paths} device_path={device}" > {stack.map_file}')
    states = f"{stack.sessions('client')}/{session}/paths/*/state"
    pair.client.wait_until(f"[ $(cat {states} | grep -c '^connected') = 2 ]")
    return device


def connected(client: Guest, session: str = "demo") -> int:
    """How many paths of a session of ours are connected.  A path that is about to be
    may change its name meanwhile."""
    return int(client.run(f"cat /sys/class/ibtrs-client/{session}/paths/*/state 2> /dev/null | "
                          "grep -c '^connected' || true"))


def queue_pairs(guest: Guest) -> int:
    """How many connected queue pairs the guest has."""
    return int(guest.run("rdma resource show qp | grep -c 'type RC' || true"))


def checksum(guest: Guest, path: str, size_mb: int, start_mb: int = 0) -> str:
    """Of a part of a disk, past the page cache of the guest."""
    return guest.run(f"dd if={path} bs=1M count={size_mb} skip={start_mb} iflag=direct status=none | sha256sum",
                     timeout=600)


def same_on_both(pair: Pair, device: str, disk: str, size_mb: int, start_mb: int = 0) -> bool:
    """Whether the server's disk and the mapped one hold the same bytes there."""
    with ThreadPoolExecutor() as pool:
        sums = pool.map(lambda where: checksum(*where, size_mb, start_mb),
                        ((pair.server, device), (pair.client, disk)))
    return len(set(sums)) == 1


def is_taken(guest: Guest, device: str) -> bool:
    """Whether nobody else can have the disk for himself, as one who mounts it has to.
    What mount says then depends on its version."""
    answer = guest.run(f"python3 -c 'import os; os.open(\"{device}\", os.O_RDWR | os.O_EXCL)'", check=False)
    return os.strerror(errno.EBUSY) in answer


def disks(guest: Guest, stack: Stack) -> list[str]:
    """The mapped disks that the guest has."""
    return guest.run(f"cd /sys/block; for disk in {stack.family}*; do [ ! -e $disk ] || echo $disk; done").split()


def wait_for_reads(guest: Guest, stack: Stack, count: int = 20) -> None:
    """Waits until `count` further reads of the first disk have ended.  If a disk is unmapped before a
    program has opened it, the program may create a file in its place."""
    reads = f"read -r reads _ < /sys/block/{stack.family}0/stat"
    before = int(guest.run(f"{reads} && echo $reads"))
    guest.wait_until(f"{reads} && [ $reads -gt {before + count} ]")
