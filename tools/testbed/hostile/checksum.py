# SPDX-License-Identifier: GPL-2.0
"""Checksums of I/O; see Documentation/protocol.md.

Pure: nothing here needs a device."""

from . import wire

# Bytes of an IO message that its checksum covers.
COVERED = 28


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checksum(user: bytes, data: bytes = b"") -> int:
    """Of a header and the data that belongs to it."""
    return crc32c(user[:COVERED] + data)


def sealed(data: bytes = b"", **fields) -> bytes:
    """An IO message with its checksum, for this data of a write."""
    user = wire.IO_REQ.pack(**{**fields, "rw": fields["rw"] | wire.CHECKSUM})
    return user[:COVERED] + trailer(user, data)


def trailer(user: bytes, data: bytes) -> bytes:
    """Of the answer to a read."""
    return checksum(user, data).to_bytes(4, "little")
