# SPDX-License-Identifier: GPL-2.0
"""Counts the objects of a guest's kmalloc caches, to see whether repeating an operation uses more and
more of them."""

from .guest import Guest


def shrink(caches: str) -> str:
    """A command that has caches give back what is free but still counted: objects on their way through
    KASAN's quarantine, and those that processors keep for themselves."""
    return f"for cache in /sys/kernel/slab/{caches}/shrink; do echo 1 > $cache; done"


COUNT = shrink("kmalloc-*") + "; awk '/^kmalloc-/ { print $1, $2 }' /proc/slabinfo"


def used(guest: Guest) -> dict[str, int]:
    """Objects in use, for each cache."""
    lines = guest.run(COUNT).splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def grown(before: dict[str, int], after: dict[str, int], by: int) -> dict[str, int]:
    """The caches that have at least this number of objects more than before."""
    return {name: count - before.get(name, 0) for name, count in after.items()
            if count - before.get(name, 0) >= by}
