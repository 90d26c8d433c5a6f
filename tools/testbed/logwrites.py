# SPDX-License-Identifier: GPL-2.0
"""Reads a log of dm-log-writes: everything that was written to a disk, in the order in which it
would have survived a power cut.

A write without FUA stands before the first flush that began after its end.  A mark stands where
it was made, after the writes that would have lasted by then and no others."""

import struct
from dataclasses import dataclass
from typing import BinaryIO, Iterator

SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
MAGIC, VERSION = 0x6A736677736872, 1
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
# The kernel's own, when the disk is taken down.
END = b"dm-log-writes-end"


@dataclass(frozen=True)
class Entry:
    # Bytes from the start of the disk.
    offset: int
    flags: int
    # The written data, or the text of a mark.
    data: bytes


def entries(log: BinaryIO) -> Iterator[Entry]:
    """All of a log, which begins where the file does."""
    magic, version, count, size = SUPER.unpack(log.read(SUPER.size))
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError("no log of dm-log-writes")
    log.seek(size)
    for _ in range(count):
        head = log.read(size)
        sector, sectors, flags, length = ENTRY.unpack_from(head)
        if flags & MARK:
            data = head[ENTRY.size:ENTRY.size + length]
        elif flags & DISCARD:
            data = b""
        else:
            data = log.read(sectors * size)
        yield Entry(sector * size, flags, data)
