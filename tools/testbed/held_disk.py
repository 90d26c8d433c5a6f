# SPDX-License-Identifier: GPL-2.0
"""A disk of the server that holds chosen writes back while it executes all others.

QEMU's blkdebug holds the writes, so nothing in the guest takes part. dm-delay cannot do the same: it would
also delay the retry of a write over another path."""

import itertools
from contextlib import contextmanager
from pathlib import Path

from .guest import Guest, wait_for

BLOCK = 4096
DEVICE = "/dev/vda"
# A tag is used once, as QEMU's log of a guest may outlive the object here.
_numbers = itertools.count(1)


class HeldDisk:
    """The first disk of a guest, made of `image`, see `drive`."""

    def __init__(self, guest: Guest, image: Path):
        self._guest, self._image = guest, image
        # The writes that are held, by the tags of their breakpoints.
        self._tags: list[str] = []

    @staticmethod
    def create(image: Path, size_mb: int = 16) -> Path:
        """Makes the image; returns the drive to boot the guest with."""
        with open(image, "wb") as file:
            file.truncate(size_mb << 20)
        return Path(f"blkdebug::{image}")

    def _debug(self, command: str) -> None:
        self._guest.qmp("human-monitor-command", **{"command-line": f'qemu-io disk0 "{command}"'})

    def _has_arrived(self, tag: str) -> bool:
        # QEMU says so on its standard output.
        return f"Suspended request '{tag}'" in (self._guest.folder / "qemu.log").read_text()

    @contextmanager
    def holding_a_write(self):
        """The next write reaches the disk before the end of the context, and is held there."""
        tag = f"held{next(_numbers)}"
        self._debug(f"break pwritev {tag}")
        yield
        wait_for(lambda: self._has_arrived(tag), 60, "the write has reached the disk")
        self._tags.append(tag)

    def release(self) -> None:
        """Executes the writes that are held, in the order in which they arrived."""
        while self._tags:
            self._debug(f"resume {self._tags.pop(0)}")

    def block(self, number: int) -> bytes:
        """What the disk holds now, as seen from the host."""
        with open(self._image, "rb") as file:
            file.seek(number * BLOCK)
            return file.read(BLOCK)
