# SPDX-License-Identifier: GPL-2.0
"""Requests that ask for the server's times: which clients may, and what the answers end with."""

from .. import wire
from ..checksum import sealed, trailer
from ..client import Party
from .checksums import CHUNK, SECTOR, SIZES, fields, session
from .table import SLOW, SLOW_SECONDS, attack, code, opened

TIMED_READ, TIMED_WRITE = wire.READ_HDR | wire.TIMED, wire.WRITE_HDR | wire.TIMED
# Answers of one message, with and without.
FLAGS = (0, wire.EXT_SAME_KEY)


def told(party: Party, error: str = "OK", upper: int = 0) -> tuple[int, int]:
    """The times of the next answer, in nanoseconds."""
    said = code(party.answer(party.io, CHUNK))
    assert said == error, f"{said} for {error}"
    assert len(party.trailer) == upper + 4, f"trailer {party.trailer.hex(' ')}"
    return wire.times(party.trailer[upper:])


def is_short(queue: int, disk: int) -> None:
    assert queue < 60_000_000_000 and 0 < disk < 60_000_000_000, (queue, disk)


def reads(size: int):
    def run(party: Party, device: int) -> None:
        party.post_read(party.io, CHUNK, party.io_header(device, wire.READ, SECTOR, size), size, type=TIMED_READ)
        is_short(*told(party))
        # Only the request itself has asked.
        assert party.submit(device, wire.READ, chunk=CHUNK) == "OK" and party.trailer == b""
    return run


def writes(size: int):
    def run(party: Party, device: int) -> None:
        party.post_write(party.io, CHUNK, party.io_header(device, wire.WRITE, SECTOR, size), bytes(size),
                         type=TIMED_WRITE)
        is_short(*told(party))
        assert party.submit(device, wire.WRITE, chunk=CHUNK) == "OK" and party.trailer == b""
    return run


def flushes(party: Party, device: int) -> None:
    party.post_read(party.io, CHUNK, party.io_header(device, wire.FLUSH, length=0), 0, type=TIMED_READ)
    told(party)


def fails(party: Party, device: int) -> None:
    """A request that the disk does not get still has a time on the server, however short."""
    party.post_read(party.io, CHUNK, party.io_header(device, wire.READ, 1 << 40), 4096, type=TIMED_READ)
    queue, disk = told(party, "EIO")
    assert queue > 0 and disk == 0, (queue, disk)


def many(party: Party, device: int) -> None:
    """Answers that could travel in one message have times nevertheless."""
    for chunk in range(1, 9):
        party.post_write(party.io, chunk, party.io_header(device, wire.WRITE, SECTOR), bytes(4096), type=TIMED_WRITE)
    for _ in range(8):
        assert party.answer_any(party.io) == 0 and len(party.trailer) == 4, party.trailer


def with_checksum(size: int):
    def run(party: Party, device: int) -> None:
        user = sealed(**fields(device, wire.READ, size))
        party.post_read(party.io, CHUNK, user, size, type=TIMED_READ)
        is_short(*told(party, upper=4))
        assert party.trailer[:4] == trailer(user, party.returned(size)), "the checksum is another one"
        # Writes have no checksum in their answers.
        data = b"\x33" * size
        party.post_write(party.io, CHUNK, sealed(data, **fields(device, wire.WRITE, size)), data, type=TIMED_WRITE)
        is_short(*told(party))
    return run


def slow() -> None:
    with Party(name="slow", epoch=1).set_up() as party:
        device = opened(party, SLOW)
        party.post_read(party.io, CHUNK, party.io_header(device, wire.READ), 4096, type=TIMED_READ)
        _, disk = told(party)
        assert disk > 0.9 * SLOW_SECONDS * 1e9, disk


def is_offered() -> None:
    for epoch, wanted in ((1, wire.RSP_TIMES), (0, 0)):
        with Party(name="offered", epoch=epoch) as party:
            party.connect(0)
            said = party.accepted["more_flags"]
            assert said == wanted, f"{said:#x} for {wanted:#x}"


attack("times are offered to clients with extensions", is_offered)
for flags in FLAGS:
    name = ", answers of one message" if flags else ""
    for size in SIZES:
        attack(f"read of {size} bytes with times{name}", session(reads(size), flags, checksums=0))
        attack(f"write of {size} bytes with times{name}", session(writes(size), flags, checksums=0))
        attack(f"times and checksums of {size} bytes{name}", session(with_checksum(size), flags))
    attack(f"flush with times{name}", session(flushes, flags, checksums=0))
    attack(f"read beyond the end with times{name}", session(fails, flags, checksums=0))
attack("writes with times that are answered together",
       session(many, wire.EXT_SAME_KEY | wire.EXT_MORE_ANSWERS, checksums=0))
attack("read with times from a slow disk", slow)


def is_unknown(party: Party) -> None:
    """The next answer is that to a request of an unknown type."""
    said = code(party.answer(party.io, CHUNK))
    assert said == "EINVAL" and party.trailer == b"", (said, party.trailer)


def refused(kind: str, post):
    """Without extensions, and so without the offer, no type has times."""
    def run(party: Party, device: int) -> None:
        post(party, device)
        is_unknown(party)
    attack(f"{kind} with times, without extensions", session(run, epoch=0, checksums=0))


refused("read", lambda p, d: p.post_read(p.io, CHUNK, p.io_header(d, wire.READ), 4096, type=TIMED_READ))
refused("write", lambda p, d: p.post_write(p.io, CHUNK, p.io_header(d, wire.WRITE), bytes(4096), type=TIMED_WRITE))


def bad(party: Party, device: int, kind: int) -> None:
    party.post_read(party.io, CHUNK, party.io_header(device, wire.READ), 4096, type=kind | wire.TIMED)
    is_unknown(party)


for kind in (0, 1, 4, 5, 0x7FFF):
    attack(f"request of type {kind} with times", session(lambda p, d, kind=kind: bad(p, d, kind), checksums=0))
