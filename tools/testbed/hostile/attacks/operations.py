# SPDX-License-Identifier: GPL-2.0
"""I/O of the block device."""

from .. import wire
from ..client import Party
from .requests import answered
from .table import attack


def io(wanted: str, op: int, *, sector: int = 0, length: int = 4096, want: int = 0, data: bytes | None = None, **fields):
    """An I/O as a read of `want` bytes, or with data as a write."""
    def post(party: Party, device: int) -> None:
        header = party.io_header(device, op, sector, length, **fields)
        if data is None:
            party.post_read(party.io, 1, header, want)
        else:
            party.post_write(party.io, 1, header, data)
    return answered(wanted, post)


for op in (6, 7, 9, 127, 128, 255):
    attack(f"operation {op}", io("ENOTSUP", op, want=4096))
for flag in range(12, 32):
    attack(f"operation with flag {flag}", io("ENOTSUP", wire.WRITE | 1 << flag, data=bytes(4096)))
for name, op in (("write", wire.WRITE), ("discard", wire.DISCARD), ("secure erase", wire.SECURE_ERASE),
                 ("zeroes", wire.WRITE_ZEROES)):
    attack(f"{name} as a read", io("EINVAL", op, want=4096))
attack("read as a write", io("EINVAL", wire.READ, data=bytes(4096)))
attack("flush with data", io("EINVAL", wire.FLUSH, length=0, want=4096))
attack("flush with a length", io("EINVAL", wire.FLUSH))
attack("discard with data", io("EINVAL", wire.DISCARD, data=bytes(4096)))
for flag in (wire.FUA, wire.PREFLUSH, wire.FUA | wire.PREFLUSH):
    for op in (wire.READ, wire.DISCARD):
        attack(f"operation {op} with flags {flag:#x}", io("EINVAL", op | flag, want=4096 if op == wire.READ else 0,
                                                         data=b"" if op == wire.DISCARD else None))
for length in (0, 1, 511, 513, 4095, 4097, 8192, 1 << 31, 0xFFFFFFFF, 0xFFFFFE00):
    attack(f"write of 4096 that says {length:#x}", io("EINVAL", wire.WRITE, length=length, data=bytes(4096)))
    attack(f"read of 4096 that says {length:#x}", io("EINVAL", wire.READ, length=length, want=4096))
for sector in (1 << 24, (1 << 31) - 1, 1 << 32, (1 << 55) - 1, (1 << 63) - 8, (1 << 64) - 8, (1 << 64) - 1):
    attack(f"read at sector {sector:#x}", io("EIO", wire.READ, sector=sector, want=4096))
    attack(f"discard at sector {sector:#x}", io("EIO", wire.DISCARD, sector=sector, data=b""))
for length in (0, 1, 0xFFFFFFFF):
    attack(f"discard of {length:#x} bytes", io("EINVAL", wire.DISCARD, length=length, data=b""))
attack("zeroes of all that fits 32 bits", io("EIO", wire.WRITE_ZEROES, length=0xFFFFFE00, data=b""))
for prio in (1, 0x2000, 0x4007, 0x6000, 0x7FFF, 0x8000, 0xFFFF):
    attack(f"write with priority {prio:#x}", io("OK/EINVAL", wire.WRITE, data=bytes(4096), prio=prio))
