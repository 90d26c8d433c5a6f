# SPDX-License-Identifier: GPL-2.0
"""What many scenarios begin with: a disk of the server, mapped on the client."""

from .guest import Guest
from .lab import Pair
from .stack import Stack


def load(pair: Pair, stack: Stack) -> None:
    """Both sides are ready to export and to map; safe to call again."""
    pair.server.run(stack.load_server())
    pair.client.run(stack.load_client())


def map_new(pair: Pair, stack: Stack, name: str = "nullb0", size_mb: int = 128,
            block_size: int = 512) -> str:
    """Makes a disk on the server and maps it; returns the server's path of it.
    The first one that is mapped is `stack.disk` on the client."""
    device = pair.server.null_blk(name, size_mb, block_size)
    load(pair, stack)
    pair.client.run(stack.map_device(device))
    return device


def checksum(guest: Guest, path: str, size_mb: int) -> str:
    """Of the first part of a disk, past the page cache of the guest."""
    return guest.run(f"dd if={path} bs=1M count={size_mb} iflag=direct status=none | sha256sum",
                     timeout=600)


def disks(guest: Guest, stack: Stack) -> list[str]:
    """The mapped disks that the guest has."""
    return guest.run(f"ls /sys/block | grep '^{stack.family}' || true").split()
