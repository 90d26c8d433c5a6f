# SPDX-License-Identifier: GPL-2.0
"""Measures a guest's free memory, to see what an operation takes."""

import re

from .guest import Guest

PAGE = 4096
# What caches hold without using it becomes free first: those of files, and those of objects, where
# packets were. What is freed after a grace period takes up to a second.
SETTLE = ("sync; echo 3 > /proc/sys/vm/drop_caches; "
          "for cache in /sys/kernel/slab/*/shrink; do echo 1 > $cache; done; sleep 1")


def free_bytes(guest: Guest) -> int:
    """Free memory, when nothing that was freed is still to come."""
    return count(guest.run(f"{SETTLE}; cat /proc/meminfo /proc/zoneinfo"))


def count(said: str) -> int:
    """Free bytes by the text of meminfo and zoneinfo. MemFree does not count the free pages that each
    processor keeps for itself, which are some MiB after a load."""
    free, = re.findall(r"^MemFree: +(\d+) kB$", said, re.MULTILINE)
    kept = re.findall(r"^ +count: +(\d+)$", said, re.MULTILINE)
    return (int(free) << 10) + PAGE * sum(map(int, kept))
