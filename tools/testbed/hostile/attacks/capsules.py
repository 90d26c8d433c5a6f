# SPDX-License-Identifier: GPL-2.0
"""Capsules: which clients may send them, and such as are none."""

import errno

from .. import wire
from ..client import Party
from ..verbs import Closed
from .table import COMMON, DISK, SLOW, attack, code, named, opened

FLAGS = wire.EXT_SAME_KEY | wire.EXT_CAPSULES
SLOTS = FLAGS | wire.EXT_INV_ANSWERS | wire.EXT_SLOTS
PATTERN = bytes(range(256)) * 16


class Capsules(Party):
    """A session that sends its I/O in capsules."""

    def __init__(self, flags: int = FLAGS, **options):
        super().__init__(**{"name": "capsules", "epoch": 1, **options})
        self.extensions["ext_flags"] = flags
        self.reads = 4 if flags & wire.EXT_SLOTS else 0

    def post_capsule(self, by, chunk: int, headers: bytes, data: bytes = b"", offset: int | None = None) -> int:
        if data:
            headers = headers.ljust(wire.CAPSULE_HEADERS, b"\0")
        number = wire.request_imm(self.depth, chunk, wire.IO_REQ.length if offset is None else offset)
        return by.pair.send_imm(headers + data, number)

    def writes(self, device: int, data: bytes = PATTERN, sector: int = 0, chunk: int = 1, length: int | None = None) -> None:
        user = self.io_header(device, wire.WRITE, sector, len(data) if length is None else length)
        self.post_capsule(self.io, chunk, user + wire.WRITE_REQUEST.pack(usr_len=len(user)), data)

    def wants(self, device: int, length: int = 4096, chunk: int = 1) -> None:
        user = self.io_header(device, wire.READ, 0, length)
        self.post_capsule(self.io, chunk, user + self.read_header(length, user))


def gets(window: bool, flags: int = FLAGS, **options):
    """Connects; may send capsules or not, and is served."""
    def run() -> None:
        with Capsules(flags, **options).set_up() as party:
            # The smallest there is, as sessions of this server are small.
            assert party.window == (61 if window else 0), party.accepted
            device = opened(party, COMMON)
            # In a chunk or slot.
            assert party.submit(device, wire.WRITE, length=512) == "OK"
            assert party.submit(device, wire.READ, length=4096) == "OK"
    return run


attack("capsules for one that sends them", gets(True))
attack("capsules beside slots", gets(True, SLOTS))
for flags in (0, wire.EXT_SAME_KEY, wire.EXT_CAPSULES):
    attack(f"capsules, flags {flags:#x} of extensions", gets(False, flags))


def joins(first: int, then: int, window: bool):
    """The further connection of a path sends other things than the first, and hears what the path has."""
    def run() -> None:
        with Capsules(first) as party:
            party.connect(0)
            party.extensions["ext_flags"] = then
            party.connect(1)
            assert bool(party.window) == window, party.accepted
            said = [(one["flags"], one["queue_depth"]) for one in party.acceptances]
            assert said[0] == said[1], said
    return run


attack("connection of a path with capsules that sends none", joins(FLAGS, wire.EXT_SAME_KEY, True))
attack("connection of a path without capsules that sends some", joins(wire.EXT_SAME_KEY, FLAGS, False))


def served(flags: int):
    """The data of writes and reads is right, in capsules and in chunks, one after the other."""
    def run() -> None:
        with Capsules(flags).set_up() as party:
            device = opened(party, COMMON)
            for length in (512, 4096):
                for again in range(40):
                    data = bytes([again % 255 + 1]) * length
                    party.writes(device, data)
                    assert code(party.answer(party.io, 1)) == "OK"
                    party.home.memory.put(0, bytes(length))
                    party.wants(device, length, chunk=2)
                    assert code(party.answer(party.io, 2)) == "OK"
                    assert party.returned(length) == data, f"write {again} of {length} bytes"
            assert party.submit(device, wire.READ) == "OK"
            assert party.returned(512) == data[:512]
    return run


attack("writes and reads in capsules", served(FLAGS))
attack("writes and reads in capsules beside slots", served(SLOTS))


def answers(wanted: str, post, flags: int = FLAGS):
    """A capsule that is answered, and the path goes on."""
    def run() -> None:
        with Capsules(flags).set_up() as party:
            device = opened(party, COMMON)
            post(party, device)
            said = code(party.answer(party.io, 1))
            assert said in wanted.split("/"), f"{said} for {wanted}"
            party.writes(device)
            assert code(party.answer(party.io, 1)) == "OK"
    return run


def headers(wanted: str, user_len: int = 32, data: bytes = b"", offset: int | None = None, cut: int | None = None, **fields):
    def post(party: Party, device: int) -> None:
        user = party.io_header(device, wire.FLUSH, 0, 0).ljust(user_len, b"\0")[:user_len]
        header = user + wire.WRITE_REQUEST.pack(**{"usr_len": user_len, **fields})
        party.post_capsule(party.io, 1, header[:cut], data, user_len if offset is None else offset)
    return answers(wanted, post)


attack("capsule of nothing", headers("EINVAL", cut=0))
for left in (1, 32, 35):
    attack(f"capsule of {left} bytes", headers("EINVAL", cut=left))
attack("capsule whose header is behind its end", headers("EINVAL", offset=64))
attack("capsule that begins behind its beginning", headers("EINVAL", offset=32, usr_len=31))
attack("capsule that begins before its beginning", headers("EINVAL", usr_len=33))
attack("capsule with 60 bytes of user header", headers("OK", user_len=60))
attack("capsule with headers that leave no room", headers("EINVAL", user_len=61))
for kind in (0, 1, 4, 5, 0xFF, 0x7FFF, 0xFFFF):
    attack(f"capsule of type {kind}", headers("EINVAL", type=kind))
attack("flush with data in its capsule", headers("EINVAL", data=PATTERN))
for length in (0, 512, 4095, 4097, 1 << 31):
    attack(f"capsule with 4096 bytes of data for {length}", answers(
        "EINVAL", lambda p, d, n=length: p.writes(d, length=n)))
attack("capsule without the data of its write", answers("EINVAL", lambda p, d: p.writes(d, b"", length=4096)))


def read_with_data(party: Party, device: int) -> None:
    user = party.io_header(device, wire.READ)
    party.post_capsule(party.io, 1, user + party.read_header(4096, user), PATTERN)


def long_read(party: Party, device: int) -> None:
    user = party.io_header(device, wire.READ)
    party.post_capsule(party.io, 1, user + party.read_header(1 << 27, user))


def fetch(party: Party, device: int) -> None:
    user = party.io_header(device, wire.WRITE)
    memory = party.home.memory
    header = wire.FETCH_REQUEST.pack(usr_len=len(user), addr=memory.base, key=memory.rkey, len=4096)
    party.post_capsule(party.io, 1, user + header)


attack("read with data in its capsule", answers("EINVAL", read_with_data))
attack("read of more than the server has memory for", answers("EINVAL", long_read))
attack("fetch in a capsule", answers("OK", fetch, SLOTS))
attack("fetch in a capsule of a session with chunks", answers("EINVAL", fetch))


def breaks(post, flags: int = FLAGS):
    """The path cannot go on, and that is all."""
    def run() -> None:
        with Capsules(flags).set_up() as party:
            post(party, opened(party, DISK))
            party.wait_closed(60)
    return run


attack("capsule that is too long", breaks(lambda p, d: p.writes(d, PATTERN + b"x")))
attack("message of 64 KiB", breaks(lambda p, d: p.io.pair.send_imm(bytes(1 << 16), wire.request_imm(p.depth, 1, 32))))
attack("capsule on the service connection", breaks(lambda p, d: p.post_capsule(p.service, 1, bytes(64))))
attack("capsule without an immediate", breaks(lambda p, d: p.io.pair.send(bytes(64))))
for kind in (wire.IMM_ANSWER, wire.IMM_FENCE, wire.IMM_HEARTBEAT, wire.IMM_NOP, 15):
    attack(f"message with an immediate of type {kind}", breaks(lambda p, d, k=kind: p.io.pair.send_imm(
        b"x", wire.imm(k, 1))))


def twice(party: Party, device: int) -> None:
    for _ in range(2):
        for chunk in range(1, 12):
            party.writes(device, chunk=chunk)


@named("capsule of a chunk that is in use")
def in_use() -> None:
    with Capsules().set_up() as party:
        twice(party, opened(party, SLOW))
        party.wait_closed(60)


@named("capsule before the session information")
def too_early() -> None:
    """Its connection has no receive for it until the path is set up, or is closed."""
    with Capsules() as party:
        party.connect_all()
        party.post_capsule(party.io, 1, bytes(64))
        try:
            party.introduce()
            said = code(party.answer(party.io, 1))
            assert said == "EINVAL", said
        except Closed:
            pass


@named("connection broken off while capsules are in service")
def leaves() -> None:
    for _ in range(10):
        with Capsules().set_up() as party:
            device = opened(party, SLOW)
            for chunk in range(1, 12):
                party.writes(device, chunk=chunk)
            party.io.pair.break_off()
            party.leave(quietly=True)


@named("window of capsules, again and again")
def all_of_them() -> None:
    """Each receive is used many times, by capsules whose answers come in any order, and by others; each request
    has data of its own."""
    with Capsules().set_up() as party:
        device = opened(party, COMMON)
        for again in range(1, 41):
            for chunk in range(1, 12):
                data = bytes([again, chunk]) * 2048
                if (again + chunk) % 3:
                    party.writes(device, data, 8 * chunk, chunk)
                else:
                    party.post_io(device, wire.WRITE, 8 * chunk, data=data, chunk=chunk)
            for _ in range(1, 12):
                assert errno.errorcode.get(party.answer_any(party.io), "OK") == "OK"
            for chunk in range(1, 12):
                assert party.submit(device, wire.READ, 8 * chunk) == "OK"
                assert party.returned(4096) == bytes([again, chunk]) * 2048, f"write {again} to {chunk}"
