# SPDX-License-Identifier: GPL-2.0
"""Requests whose header or data do not match their checksum: they are answered, change nothing,
and the path goes on."""

from .. import wire
from ..checksum import sealed, trailer
from ..client import Party
from .table import COMMON, OTHER, attack, code, named, opened

CHUNK, SECTOR = 1, 4096
# Through the server's private memory, and in a chunk whose key is invalidated.
SIZES = (4096, 20480)
OLD, NEW = b"\x11", b"\x22"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def fields(device: int, op: int, size: int) -> dict:
    return {"device_id": device, "sector": SECTOR, "rw": op, "bytes": size}


def session(run, flags: int = 0, epoch: int = 1, checksums: int = wire.CHECKSUMS, before=lambda party: None):
    """Has run(party, device) use a session, whose device has checksums unless said otherwise; both
    are to go on after that.  What before(party) does comes before there are checksums."""
    def whole() -> None:
        with Party(name="checksums", epoch=epoch) as party:
            for cid in range(party.cid_num):
                party.connect(cid, **({"ext_flags": flags} if flags else {}))
            party.introduce()
            before(party)
            device = opened(party, COMMON, flags=checksums)
            run(party, device)
            if checksums and epoch:
                written(party, device, 4096)
            else:
                assert party.submit(device, wire.READ) == "OK"
    return whole


def put(party: Party, device: int, data: bytes) -> None:
    party.post_write(party.io, CHUNK, sealed(data, **fields(device, wire.WRITE, len(data))), data)
    said = code(party.answer(party.io, CHUNK))
    assert said == "OK", f"write: {said}"


def written(party: Party, device: int, size: int) -> bytes:
    """The disk's data at this place."""
    party.post_read(party.io, CHUNK + 1, sealed(**fields(device, wire.READ, size)), size)
    said = code(party.answer(party.io, CHUNK + 1))
    assert said == "OK", f"read: {said}"
    return party.returned(size)


def writes(wanted: str, size: int, change, **header):
    """Writes what `change` makes of a header and data that match, with these fields in the
    header of the transport."""
    def run(party: Party, device: int) -> None:
        put(party, device, OLD * size)
        user, data = change(sealed(NEW * size, **fields(device, wire.WRITE, size)), NEW * size)
        party.post_write(party.io, CHUNK, user, data, **header)
        said = code(party.answer(party.io, CHUNK))
        assert said == wanted, f"{said} for {wanted}"
        there = written(party, device, size)
        assert there == (NEW if wanted == "OK" else OLD) * size, "the disk has something else"
    return run


def reads(wanted: str, size: int, change=lambda user: user):
    def run(party: Party, device: int) -> None:
        put(party, device, NEW * size)
        user = change(sealed(**fields(device, wire.READ, size)))
        party.home.memory.put(0, bytes(size))
        party.post_read(party.io, CHUNK, user, size)
        said = code(party.answer(party.io, CHUNK))
        assert said == wanted, f"{said} for {wanted}"
        due = trailer(user, NEW * size) if wanted == "OK" else b""
        assert party.trailer == due, f"trailer {party.trailer.hex(' ')} for {due.hex(' ')}"
        assert party.returned(size) == (NEW * size if wanted == "OK" else bytes(size))
    return run


for size in SIZES:
    attack(f"write of {size} with a checksum", session(writes("OK", size, lambda user, data: (user, data))))
    for bit in (0, 8 * size // 2 + 3, 8 * size - 1):
        attack(f"write of {size} with bit {bit} flipped", session(writes(
            "EBADMSG", size, lambda user, data, bit=bit: (user, flipped(data, bit)))))
    attack(f"write of {size} with other data", session(writes("EBADMSG", size, lambda user, data: (user, OLD * len(data)))))
    for flags in (0, wire.EXT_SAME_KEY):
        attack(f"read of {size} with a checksum, flags {flags:#x} of extensions", session(reads("OK", size), flags))
    attack(f"read of {size} with a wrong checksum", session(reads("EBADMSG", size, lambda user: flipped(user, 8 * 28))))
# Of the header; bit 0 of the first byte makes a CLOSE of it.
BITS = {"type, to CLOSE": 0, "type, to none": 3, "device": 8 * 4, "sector": 8 * 8 + 5, "operation": 8 * 16,
        "operation, to none": 8 * 16 + 7, "flag": 8 * 17, "flag, to none": 8 * 19, "flag of the checksum": 8 * 17 + 4,
        "length": 8 * 20 + 9, "priority": 8 * 24, "padding": 8 * 26, "checksum": 8 * 31 + 7}
for name, bit in BITS.items():
    attack(f"write with another {name}", session(writes(
        "EBADMSG", 4096, lambda user, data, bit=bit: (flipped(user, bit), data))))
for length in (0, 8, 24, 28, 31):
    attack(f"write with a checksum, header of {length} bytes", session(writes(
        "EBADMSG", 4096, lambda user, data, length=length: (user[:length], data))))
attack("write with a checksum, longer header", session(writes("EBADMSG", 4096, lambda user, data: (user + bytes(4), data))))


def same(user: bytes, data: bytes) -> tuple[bytes, bytes]:
    return user, data


for length in (0, 8, 24, 31, 33, 36, 264, 4000, 65535):
    attack(f"write with a checksum, header said to have {length} bytes", session(writes("EBADMSG", 4096, same,
                                                                                         usr_len=length)))
for kind in (0, 1, 3, 0x102):
    attack(f"write with a checksum, transport type {kind:#x}", session(writes("EBADMSG", 4096, same, type=kind)))


def in_plain(said: str):
    """A checksum that no OPEN has announced: a flag like any other that is unknown."""
    def run(party: Party, device: int) -> None:
        party.post_write(party.io, CHUNK, sealed(NEW * 4096, **fields(device, wire.WRITE, 4096)), NEW * 4096)
        answer = code(party.answer(party.io, CHUNK))
        assert answer == said, f"{answer} for {said}"
    return run


attack("write with a checksum, without extensions", session(in_plain("ENOTSUP"), epoch=0))
attack("write with a checksum, not announced", session(in_plain("ENOTSUP"), checksums=0))


@named("requests without checksum")
def _():
    """To a device that has them, and to another one of the session."""
    def run(party: Party, device: int) -> None:
        put(party, device, OLD * 4096)
        for op in (wire.READ, wire.WRITE, wire.FLUSH, wire.DISCARD, wire.WRITE_ZEROES):
            assert party.submit(device, op, SECTOR, 0 if op == wire.FLUSH else 4096) == "EBADMSG", op
        other = opened(party, OTHER)
        assert party.submit(other, wire.READ) == party.submit(other, wire.WRITE) == "OK"
        # One of a sealed request, but for the device and the flag.
        user = flipped(sealed(**fields(other, wire.READ, 4096)), 8 * 17 + 4)
        party.post_read(party.io, CHUNK, user, 4096)
        assert code(party.answer(party.io, CHUNK)) == "EBADMSG"
        assert party.close_device(other) == 0
        assert party.submit(other, wire.READ) == "ENOTCONN"
        assert written(party, device, 4096) == OLD * 4096
    session(run)()


@named("OPEN again of a device with checksums")
def _():
    """The last one that opens it counts."""
    def run(party: Party, device: int) -> None:
        assert opened(party, COMMON, flags=wire.ONLY_KNOWN) == device
        assert party.submit(device, wire.READ) == "EBADMSG"
        assert opened(party, COMMON) == device
        assert party.submit(device, wire.READ) == "OK"
        assert opened(party, COMMON, flags=wire.CHECKSUMS) == device
        assert party.submit(device, wire.READ) == "EBADMSG"
    session(run)()


def confirmed(party: Party, flags: int) -> int:
    """Whether the answer to an OPEN with these flags confirms checksums."""
    message = wire.OPEN_REQ.pack(dev_name=COMMON.encode(), access_mode=wire.RW, flags=flags)
    error, answer = party.ask(message, wire.OPEN_ANSWER.length)
    assert error == 0, f"open: {code(error)}"
    return wire.OPEN_ANSWER.unpack(answer)["details_flags"] & 4


@named("OPEN, and what its answer says about checksums")
def _():
    """It confirms what the server has understood: a client whose OPEN was damaged on the way would
    otherwise have no request succeed."""
    def run(party: Party, device: int) -> None:
        on = confirmed(party, wire.ONLY_KNOWN)
        for flags in (wire.ONLY_KNOWN, 0, wire.ONLY_KNOWN | wire.CHECKSUMS, wire.CHECKSUMS, wire.ONLY_KNOWN):
            on = on if flags & wire.ONLY_KNOWN else 4 * bool(flags)
            said = confirmed(party, flags)
            assert said == on, f"{said} for {on}, flags {flags}"
        assert on
    session(run)()


def nothing_confirmed(party: Party, device: int) -> None:
    assert confirmed(party, wire.CHECKSUMS) == 0


attack("OPEN, and what its answer says about checksums, without extensions", session(nothing_confirmed, epoch=0))


def message(wanted: str, user: bytes, want: int = 0):
    def run(party: Party, device: int) -> None:
        raw = user.replace(b"DEV.", device.to_bytes(4, "little"))
        (party.post_read(party.io, CHUNK, raw, want) if want else party.post_write(party.io, CHUNK, raw))
        said = code(party.answer(party.io, CHUNK))
        assert said == wanted, f"{said} for {wanted}"
    return run


CLOSE = bytes([wire.CLOSE, 0, 0, 0]) + b"DEV."
for length in (1, 24, 28):
    attack(f"CLOSE that is longer by {length}", session(message("EINVAL", CLOSE + bytes(length)), checksums=0))
    attack(f"CLOSE that is longer by {length}, checksums", session(message("EBADMSG", CLOSE + bytes(length))))
for name, user in (("SESS_INFO", wire.SESS_INFO_REQ.pack()), ("OPEN", wire.OPEN_REQ.pack(dev_name=COMMON.encode(),
                                                                                          access_mode=1, flags=4))):
    attack(f"{name} with checksums", session(message("OK", user, 88)))
    attack(f"{name} that is longer, with checksums", session(message("EBADMSG", user + b"\0", 88)))
    attack(f"{name} with other bytes, with checksums", session(message("EBADMSG", user[:30] + b"x" + user[31:], 88)))


def nothing(said: str, length: int, want: int = 0, **header):
    """An empty request, with a user header of this length."""
    def run(party: Party, device: int) -> None:
        party.post_read(party.io, CHUNK, bytes(length), want, **header)
        answer = code(party.answer(party.io, CHUNK))
        assert answer == said, f"{answer} for {said}"
    return run


# Clients send it in place of a request that was cancelled, and it is not damaged.
attack("a read of nothing with an empty header, checksums", session(nothing("EINVAL", 0)))
attack("a read of nothing with a header, checksums", session(nothing("EBADMSG", 1)))
attack("a read with an empty header, checksums", session(nothing("EBADMSG", 0, 4096)))
attack("a read of nothing with a header said to be empty, checksums", session(nothing("EBADMSG", 32, usr_len=0)))


@named("a request that does not arrive, but for its immediate")
def _():
    """The one before it in the chunk is not executed once more."""
    def run(party: Party, device: int) -> None:
        for size in SIZES:
            put(party, device, NEW * size)
            does_not_arrive(party, party.io, CHUNK, size + wire.IO_REQ.length)
    session(run)()


def does_not_arrive(party: Party, by, chunk: int, offset: int, said: str = "EBADMSG") -> None:
    party.write_chunk(by, chunk, 0, b"", offset)
    answer = code(party.answer(by, chunk))
    assert answer == said, f"{answer} for {said}: the request before it is executed again"


@named("a request that does not arrive, after one from before there were checksums")
def _():
    """Neither a request to a device without them is executed once more, nor the OPEN that is the
    first with checksums."""
    def before(party: Party) -> None:
        for size in SIZES:
            assert party.submit(opened(party, OTHER), wire.WRITE, SECTOR, size, OLD * size, CHUNK) == "OK"

    def run(party: Party, device: int) -> None:
        does_not_arrive(party, party.service, 0, wire.OPEN_ANSWER_SHORT + wire.OPEN_REQ.length)
        for size in SIZES:
            does_not_arrive(party, party.io, CHUNK, size + wire.IO_REQ.length)
    session(run, before=before)()


@named("a request that does not arrive, without checksums")
def _():
    def run(party: Party, device: int) -> None:
        assert party.submit(device, wire.WRITE, SECTOR, 4096, OLD * 4096, CHUNK) == "OK"
        does_not_arrive(party, party.io, CHUNK, 4096 + wire.IO_REQ.length, "EINVAL")
    session(run, checksums=0)()


def without_data(wanted: str, op: int, length: int, change=lambda user: user):
    def run(party: Party, device: int) -> None:
        user = change(sealed(**{**fields(device, op, length), **({"sector": 0} if op == wire.FLUSH else {})}))
        post = party.post_read if op == wire.FLUSH else party.post_write
        post(party.io, CHUNK, user, *([0] if op == wire.FLUSH else []))
        said = code(party.answer(party.io, CHUNK))
        assert said == wanted and not party.trailer, f"{said} for {wanted}, trailer {party.trailer.hex(' ')}"
    return run


# The disk has neither discards nor zeroes, and says so of a header that is right.  A client would
# stop using them if it got that for a damaged one.
for name, op, length, said in (("flush", wire.FLUSH, 0, "OK"), ("discard", wire.DISCARD, 4096, "ENOTSUP"),
                               ("zeroes", wire.WRITE_ZEROES, 4096, "ENOTSUP")):
    attack(f"{name} with a checksum", session(without_data(said, op, length)))
    attack(f"{name} with a wrong checksum", session(without_data("EBADMSG", op, length, lambda user: flipped(user, 250))))
    for what, bit in BITS.items():
        attack(f"{name} with another {what}", session(without_data(
            "EBADMSG", op, length, lambda user, bit=bit: flipped(user, bit))))
