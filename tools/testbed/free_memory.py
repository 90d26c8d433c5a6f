# SPDX-License-Identifier: GPL-2.0
"""Measures a guest's free memory, to see what an operation takes, and takes it away."""

import re

from . import slab
from .channel import Job
from .guest import Guest, wait_for

PAGE = 4096
# What caches hold without using it becomes free first: those of files, and those of objects, where
# packets were. What is freed after a grace period takes up to a second.
SETTLE = f"sync; echo 3 > /proc/sys/vm/drop_caches; {slab.shrink('*')}; sleep 1"


def free_bytes(guest: Guest) -> int:
    """Free memory, when nothing that was freed is still to come."""
    return count(guest.run(f"{SETTLE}; cat /proc/meminfo /proc/zoneinfo"))


def count(said: str) -> int:
    """Free bytes by the text of meminfo and zoneinfo. MemFree does not count the free pages that each
    processor keeps for itself, which are some MiB after a load."""
    free, = re.findall(r"^MemFree: +(\d+) kB$", said, re.MULTILINE)
    kept = re.findall(r"^ +count: +(\d+)$", said, re.MULTILINE)
    return (int(free) << 10) + PAGE * sum(map(int, kept))


# Takes all free memory but some MiB. With holes, it gives back every second run of four pages.
HOG = """
import mmap, sys, time
left_mib, holes = map(int, sys.argv[1:])
with open("/proc/meminfo") as file:
    free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemFree"))
page = mmap.PAGESIZE
size = (free - (left_mib << 20)) // page * page
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, page):
    memory[at] = 1
run = 4 * page
for at in range(0, size - run, 2 * run) if holes else ():
    memory.madvise(mmap.MADV_DONTNEED, at, run)
print("taken", flush=True)
time.sleep(3600)
"""


def take(guest: Guest, left_mib: int, holes: bool = False) -> Job:
    """Takes all of a guest's free memory but `left_mib`, until the job that is returned is killed. With
    holes, half of what it takes is free in blocks of 16 KiB."""
    guest.push("/tmp/hog.py", HOG)
    hog = guest.start(f"exec python3 /tmp/hog.py {left_mib} {holes:d}")
    wait_for(lambda: "taken" in hog.text, 900, "the memory is taken")
    return hog
