# SPDX-License-Identifier: GPL-2.0
"""Memory of programs on a channel: what a client asks of the memory of the server's program, how it answers when that
asks for memory of its own, and what it does with keys by RDMA."""

import errno
import os
import struct
import time

import pyverbs.enums as e

from ..verbs import Closed, Failed
from .messages import ACCEPT, CLOSE, CLOSED, MESSAGE, OPEN, SKIP, START, Talk, live, record, state
from .table import attack, comes_in, named

NOTE, ASK, KEY, RETURN, REVOKE, GET, GOT = range(14, 21)
ALL = 1
# The kind of a note.
RELEASE = 1
PIECE, PAGE = 2 << 20, 4096
# What the program of the server publishes: `prey` of message_memory.py.
OFFSET, SIZE = PAGE, PIECE + PAGE
# Of the terms of the server's kernel.
KEYS, PUSHES = 16, 4
# In OPEN: we have memory, and take messages with a body. In MESSAGE: it has one.
MEMORY, BODIES = 1, 8
BODY = 2
# What the program can be told to do.
UNMAP, PULL, PUSH, LOOK, LEND = range(1, 6)
LAST = (1 << 64) - 1


def ask(handle: int, piece: int = 0) -> bytes:
    return record(ASK, struct.pack("<2Q", handle, piece), 1)


def key(handle: int, piece: int = 0, rkey: int = 0, addr: int = 0, start: int = 0, length: int = PIECE, rights: int = 3,
        error: int = 0) -> bytes:
    return record(KEY, struct.pack("<5QB7x", handle, piece, addr, start, length, rights), 1, rkey, detail=error)


def back(handle: int, piece: int | None = None) -> bytes:
    return record(RETURN, struct.pack("<2Q", handle, piece or 0), 1, flags=ALL if piece is None else 0)


def revoke(handle: int) -> bytes:
    return record(REVOKE, struct.pack("<Q", handle), 1)


def pull(handle: int, offset: int = OFFSET, length: int = 8, addr: int = 0x1000, rkey: int = 1, number: int = 7) -> bytes:
    return record(GET, struct.pack("<3Q2I8x", handle, offset, addr, length, rkey), 1, number)


def got(number: int, error: int = 0) -> bytes:
    return record(GOT, bytes(8), 1, number, detail=error)


class Hunter(Talk):
    """A session with a channel to a program that publishes memory."""

    def opened(self, name: bytes = b"prey") -> "Hunter":
        # Records that have arrived, and numbers of messages in both directions.
        self.kept: list[tuple[int, int, int, bytes]] = []
        self.said = self.following = 0
        self.set_up()
        self.put(live(1))
        window = struct.pack("<3IHHBBHH2x", 64, 1 << 20, 4000, 4, 0, len(name), MEMORY | BODIES, KEYS, PUSHES)
        self.put(record(OPEN, window + name, 1))
        self.get(ACCEPT)
        self.both, self.written, self.readable = self.hears()
        return self

    def _take(self) -> None:
        data, at = self.conn.next().data, 8
        self.heard += 1
        while at + 16 <= len(data):
            kind, _, detail, length, channel, number = struct.unpack_from("<BBHIII", data, at)
            self.kept.append((kind, detail, number, data[at + 16:at + length]))
            if channel == 1 and kind in (MESSAGE, SKIP, NOTE):
                self.following += 1
            at += -(-length // 8) * 8

    def one(self, kind: int) -> tuple[int, int, bytes]:
        """Waits for a record of this kind: what is at 2, its number, and what follows."""
        while True:
            for at, found in enumerate(self.kept):
                if found[0] == kind:
                    del self.kept[at]
                    return found[1:]
            self._take()

    def get(self, kind: int) -> bytes:
        return self.one(kind)[2]

    def ack(self) -> bytes:
        return state(self.following, self.following, 64 + self.following, 1 << 20)

    def hears(self) -> tuple[int, ...]:
        """What the program says: numbers."""
        content = self.get(MESSAGE)[48:]
        return struct.unpack(f"<{len(content) // 8}Q", content)

    def tell(self, *numbers: int) -> None:
        """Has the program do something."""
        self.put(self.message(struct.pack(f"<{len(numbers)}Q", *numbers)))

    def message(self, content: bytes, flags: int = 0, kind: int = 0) -> bytes:
        fields = struct.pack("<2IQQH6x", len(content), 0, 0, 0, 0)
        said = START + self.said & 0xFFFFFFFF
        self.said += 1
        return record(MESSAGE, self.ack() + fields + content, 1, said, flags, detail=kind)

    def with_body(self, handle: int, offset: int = 0, length: int = 8, **how) -> bytes:
        return self.message(struct.pack("<3Q", handle, offset, length), BODY, **how)

    def note(self, kind: int, handle: int) -> bytes:
        said = START + self.said & 0xFFFFFFFF
        self.said += 1
        return record(NOTE, self.ack() + struct.pack("<2Q", handle, 0), 1, said, detail=kind)

    def lent(self) -> int:
        """Has the program send a message with a body: the handle of that."""
        self.tell(LEND, 0)
        handle, offset, length = self.hears()
        assert (offset, length) == (0, PAGE), (offset, length)
        return handle

    def key(self, handle: int, piece: int = 0) -> tuple[int, int]:
        """The key of a piece, and its address."""
        self.put(ask(handle, piece))
        error, rkey, body = self.one(KEY)
        assert error == 0, errno.errorcode.get(error, error)
        return rkey, struct.unpack_from("<Q", body, 16)[0]

    def refusal(self, handle: int, piece: int = 0) -> int:
        self.put(ask(handle, piece))
        return self.one(KEY)[0]

    def pulled(self, handle: int, offset: int, length: int, number: int = 7) -> int:
        """Has memory written here: the errno."""
        memory = self.home.memory
        self.put(pull(handle, offset, length, memory.base, memory.rkey, number))
        error, told, _ = self.one(GOT)
        assert told == number, told
        return error

    def looks(self, offset: int = OFFSET) -> int:
        """What the program has in its memory, 8 bytes."""
        self.tell(LOOK, offset)
        what, word = self.hears()
        assert what == LOOK
        return word

    def fails(self, number: int) -> None:
        """A request of ours is refused by the server's device."""
        try:
            self.conn.pair.wait_sent(number)
        except Failed as failed:
            assert failed.status in (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_OP_ERR, e.IBV_WC_REM_INV_REQ_ERR,
                                     e.IBV_WC_WR_FLUSH_ERR), failed
            return
        except Closed:
            return
        raise AssertionError("the device of the server has carried it out")


def survives() -> None:
    """An honest program has its channel, and its memory."""
    comes_in()
    with Hunter().opened() as party:
        rkey, addr = party.key(party.both)
        party.conn.pair.wait_sent(party.conn.pair.write(b"12345678", addr, rkey))
        assert party.looks() == int.from_bytes(b"12345678", "little")
        party.put(back(party.both, 0))
        assert party.pulled(party.both, OFFSET, 8) == 0
        party.goes_on()


attack("on memory: what is right", survives)


# --- what is refused ---


def asks(name: str, run) -> None:
    """A request that is refused, and changes nothing: run(party) returns the errno."""
    wanted = {"ESTALE": errno.ESTALE, "EACCES": errno.EACCES, "ERANGE": errno.ERANGE}[name.rsplit(" ", 1)[1]]

    def whole() -> None:
        with Hunter().opened() as party:
            for _ in range(3):
                error = run(party)
                assert error == wanted, errno.errorcode.get(error, error)
            party.goes_on()
            assert party.looks() == 0
    attack(f"on memory: {name}", whole)


for where, handle in (
    ("of the next generation", lambda party: party.both + (1 << 16)),
    ("of the last generation", lambda party: party.both | LAST << 16 & LAST),
    ("of a slot without memory", lambda party: (party.both & ~0xFFFF) | 40),
    ("of a slot that there is not", lambda party: (party.both & ~0xFFFF) | 0xFFFF),
    ("of another generation in its slot", lambda party: (party.written & ~0xFFFF) | (party.both & 0xFFFF)),
):
    asks(f"a key for a handle {where}: ESTALE", lambda party, handle=handle: party.refusal(handle(party)))
    asks(f"a GET with a handle {where}: ESTALE", lambda party, handle=handle: party.pulled(handle(party), OFFSET, 8))
for piece in (2, 1 << 42, (1 << 43) - 1, 1 << 43, 1 << 63, LAST):
    asks(f"a key for the piece {piece:#x}: ERANGE", lambda party, piece=piece: party.refusal(party.both, piece))
for offset, length in ((0, 8), (OFFSET - 1, 1), (OFFSET + SIZE - 7, 8), (OFFSET + SIZE, 1), (PIECE * 4, PIECE), (0, PIECE),
                       (LAST - 8, 8), (1 << 63, 1)):
    asks(f"a GET of {length} bytes at {offset:#x}: ERANGE",
         lambda party, offset=offset, length=length: party.pulled(party.both, offset, length))
asks("a GET of memory for PUT only: EACCES", lambda party: party.pulled(party.written, 0, 8))


# --- what ends the path ---


def ends(name: str, *steps, before=None) -> None:
    """Records that end the path; each is made with the party."""
    def whole() -> None:
        with Hunter().opened() as party:
            if before is not None:
                before(party)
            for step in steps:
                party.put(*step(party))
            party.wait_closed()
        survives()
    attack(f"on memory: {name}", whole)


def has_key(party: Hunter) -> None:
    party.key(party.both)


NOBODY = 9 << 16
for name, what in (
    ("handle 0", (ask(0),)), ("handle of generation 0", (ask(5),)),
    ("GET of generation 0", (pull(5),)), ("RETURN of generation 0", (back(5),)),
    ("answer KEY to nothing", (key(NOBODY),)), ("refusal KEY of nothing", (key(NOBODY, error=errno.ESTALE),)),
    ("KEY with a range that wraps", (key(NOBODY, start=LAST, length=2),)),
    ("KEY with an empty range", (key(NOBODY, length=0),)), ("KEY with unknown rights", (key(NOBODY, rights=4),)),
    ("GOT of nothing", (got(0),)), ("refusal GOT of nothing", (got(LAST & 0xFFFFFFFF, errno.ESTALE),)),
    ("RETURN of a slot that there is not", (back(NOBODY | 0xFFFF),)),
    ("RETURN of a piece of a slot that there is not", (back(NOBODY | 0xFFFF, 3),)),
    ("records that are too short", (record(ASK, bytes(8), 1),)), ("records that are too long", (record(REVOKE, bytes(24), 1),)),
    ("ASK with flags", (record(ASK, struct.pack("<2Q", NOBODY, 0), 1, flags=1),)),
    ("more handles revoked than there are keys", tuple(revoke(number << 16) for number in range(1, 60))),
):
    ends(name, lambda party, what=what: what)
for name, what in (
    ("GET of nothing", lambda party: (pull(party.both, length=0),)),
    ("GET of more than a piece", lambda party: (pull(party.both, length=PIECE + 1),)),
    ("GET of 4 GiB", lambda party: (pull(party.both, length=0xFFFFFFFF),)),
    ("GET whose offset wraps", lambda party: (pull(party.both, LAST, 2),)),
    ("GET whose address wraps", lambda party: (pull(party.both, addr=LAST, length=2),)),
    ("more GETs than agreed", lambda party: tuple(pull(party.both, number=number) for number in range(PUSHES + 1))),
    ("RETURN of a key that was not given", lambda party: (back(party.both, 1),)),
    ("release of memory that is no body", lambda party: (party.note(RELEASE, party.both),)),
    ("release of a slot that there is not", lambda party: (party.note(RELEASE, NOBODY | 0xFFFF),)),
    ("release of a body twice", lambda party: [party.note(RELEASE, handle) for handle in [party.lent()] * 2]),
    ("release of the next generation of a body", lambda party: (party.note(RELEASE, party.lent() + (1 << 16)),)),
    ("a body with handle 0", lambda party: (party.with_body(0),)),
    ("a body of generation 0", lambda party: (party.with_body(5),)),
    ("a body without a byte", lambda party: (party.with_body(NOBODY, length=0),)),
    ("a body whose range wraps", lambda party: (party.with_body(NOBODY, LAST, 2),)),
    ("a body of a reply", lambda party: (party.with_body(NOBODY, kind=2),)),
    ("a body that is not described", lambda party: (party.message(bytes(23), BODY),)),
    ("a body that is sent twice", lambda party: (party.with_body(NOBODY), party.with_body(NOBODY))),
    ("NOTE of an unknown kind", lambda party: (party.note(3, party.both),)),
    ("NOTE after a gap",
     lambda party: (record(NOTE, party.ack() + struct.pack("<2Q", party.both, 8), 1, START + 5 & 0xFFFFFFFF),)),
):
    ends(name, what)
ends("a key asked for twice", lambda party: (ask(party.both),), before=has_key)
ends("a key returned twice", lambda party: (back(party.both, 0), back(party.both, 0)), before=has_key)


def with_bodies(party: Hunter) -> None:
    """As many bodies as there may be."""
    for number in range(64):
        party.put(party.with_body(NOBODY + (number << 16)))
        party.goes_on()


ends("more bodies than there may be", lambda party: (party.with_body(NOBODY + (64 << 16)),), before=with_bodies)


@named("on memory: a body is for GET, until it is released")
def _() -> None:
    with Hunter().opened() as party:
        handle = party.lent()
        assert party.pulled(handle, 0, PAGE) == 0
        assert party.pulled(handle, 0, PAGE + 1) == errno.ERANGE
        rkey, _ = party.key(handle)
        party.put(party.note(RELEASE, handle))
        assert struct.unpack("<Q", party.get(REVOKE))[0] == handle and rkey
        assert party.refusal(handle) == errno.ESTALE
        party.put(back(handle))
        # What the program is told: it has its memory again.
        assert party.hears() == (LEND, 0)
        assert party.pulled(handle, 0, 8) == errno.ESTALE
        party.goes_on()


@named("on memory: a body is released after the end of its message, which was queued and not taken")
def _() -> None:
    with Hunter().opened() as party:
        handle = party.lent()
        # As an honest kernel does whose program has seen the message, and closes its end: RELEASE waits for a credit.
        seen = state(party.following, party.following - 1, 64 + party.following, 1 << 20)
        party.put(record(CLOSE, seen + bytes(8), 1))
        party.put(party.note(RELEASE, handle))
        party.put(record(CLOSE, seen + bytes(8), 1, START + party.said & 0xFFFFFFFF, 1))
        party.get(CLOSED)
    survives()


@named("on memory: a body is released twice after the end of its message")
def _() -> None:
    with Hunter().opened() as party:
        handle = party.lent()
        party.put(record(CLOSE, state(party.following, party.following - 1, 64 + party.following, 1 << 20) + bytes(8), 1))
        party.put(party.note(RELEASE, handle), party.note(RELEASE, handle))
        party.wait_closed()
    survives()


@named("on memory: a WRITE to a body")
def _() -> None:
    with Hunter().opened() as party:
        rkey, addr = party.key(party.lent())
        party.fails(party.conn.pair.write(b"readonly", addr, rkey))
        party.wait_closed()
    survives()


@named("on memory: bodies that are never released")
def _() -> None:
    with Hunter().opened() as party:
        # Three of the 64 ranges are published already.
        for _ in range(61):
            party.lent()
        party.tell(LEND, 0)
        assert party.hears() == (LEND, errno.ENOBUFS)
        party.goes_on()
    survives()


@named("on memory: a flood of requests whose answers are not taken")
def _() -> None:
    with Hunter().opened() as party:
        try:
            # The server gets no more credits for frames.
            for _ in range(20):
                party.conn.pair.send(struct.pack("<B3xI", 1, party.heard) + ask(NOBODY) * 50)
            party.wait_closed()
        except (Closed, TimeoutError):
            pass
    survives()


@named("on memory: a flood of requests whose answers are taken")
def _() -> None:
    with Hunter().opened() as party:
        for _ in range(300):
            party.put(*(ask(NOBODY) for _ in range(20)))
            for _ in range(20):
                assert party.one(KEY)[0] == errno.ESTALE
        for _ in range(300):
            rkey, _ = party.key(party.both)
            assert rkey
            party.put(back(party.both, 0))
        party.goes_on()


# --- what a device is told to do ---


def writes(name: str, run, takes_part: bool = True) -> None:
    """RDMA that the device of the server refuses: run(party, key, address) posts it. The memory of the program is as it was."""
    def whole() -> None:
        with Hunter().opened() as party:
            rkey, addr = party.key(party.both) if takes_part else (0, 0)
            party.fails(run(party, rkey, addr))
            party.wait_closed()
        survives()
    attack(f"on memory: {name}", whole)


def taken_back(party: Hunter, rkey: int, addr: int) -> int:
    """PUT after revocation: the key was returned, and is invalid when the program has its memory back."""
    party.tell(UNMAP, party.both)
    assert struct.unpack("<Q", party.get(REVOKE))[0] == party.both
    party.put(back(party.both))
    assert party.hears() == (UNMAP, 0)
    return party.conn.pair.write(b"too late", addr, rkey)


def given_back(party: Hunter, rkey: int, addr: int) -> int:
    """The next KEY shows that the return of this one was seen; its invalidation was posted then."""
    party.put(back(party.both, 0))
    party.key(party.both, 1)
    time.sleep(0.2)
    return party.conn.pair.write(b"too late", addr, rkey)


def closed(party: Hunter, rkey: int, addr: int) -> int:
    party.put(record(CLOSE, party.ack() + bytes(8), 1, START + party.said & 0xFFFFFFFF, 1))
    party.get(CLOSED)
    party.put(back(party.both))
    time.sleep(0.2)
    return party.conn.pair.write(b"too late", addr, rkey)


writes("WRITE after the memory was taken back", taken_back)
writes("WRITE with a key that was returned", given_back)
writes("WRITE before the piece", lambda party, rkey, addr: party.conn.pair.write(bytes(16), addr - 8, rkey))
writes("WRITE behind the piece",
       lambda party, rkey, addr: party.conn.pair.write(bytes(16), addr + PIECE - OFFSET - 8, rkey))
writes("WRITE far behind the piece", lambda party, rkey, addr: party.conn.pair.write(bytes(16), addr + (1 << 40), rkey))
writes("WRITE to an address that wraps", lambda party, rkey, addr: party.conn.pair.write(bytes(16), LAST - 7, rkey))
for step in (1, 2, 255, 256, -256, 1 << 16):
    writes(f"WRITE with a guessed key, {step:+}",
           lambda party, rkey, addr, step=step: party.conn.pair.write(bytes(16), addr, rkey + step & 0xFFFFFFFF))
writes("READ with a guessed key", lambda party, rkey, addr: party.conn.pair.read(addr, rkey + 1 & 0xFFFFFFFF, 16))


def of_another(right: str, how: str):
    def run(party: Hunter, _rkey: int, _addr: int) -> int:
        rkey, addr = party.key(getattr(party, right))
        pair = party.conn.pair
        return pair.read(addr, rkey, 8) if how == "READ" else pair.write(b"readonly", addr, rkey)
    return run


writes("READ of memory for PUT only", of_another("written", "READ"), takes_part=False)
writes("WRITE to memory for GET only", of_another("readable", "WRITE"), takes_part=False)
writes("WRITE after the channel was closed", closed)


@named("on memory: a key of a channel by another connection")
def _() -> None:
    with Hunter().opened() as party:
        rkey, addr = party.key(party.both)
        # The path has one domain; what a key of it may do, each of its connections may. Other paths may not.
        with Hunter(name="second").opened() as other:
            other.fails(other.conn.pair.write(b"stranger", addr, rkey))
            other.wait_closed()
        assert party.looks() == 0
        party.goes_on()
    survives()


# --- taking memory back ---


@named("on memory: taken back, and the answer comes twice")
def _() -> None:
    with Hunter().opened() as party:
        party.key(party.both)
        party.tell(UNMAP, party.both)
        party.get(REVOKE)
        party.put(back(party.both), back(party.both))
        assert party.hears() == (UNMAP, 0)
        party.put(back(party.both), back(party.both, 0))
        assert party.refusal(party.both) == errno.ESTALE
        assert party.pulled(party.both, OFFSET, 8) == errno.ESTALE
        # An answer that nobody has asked for takes nothing back.
        party.put(back(party.readable))
        assert party.pulled(party.readable, 0, 8) == 0
        party.goes_on()
    survives()


@named("on memory: taken back, and the answer never comes")
def _() -> None:
    with Hunter().opened() as party:
        rkey, addr = party.key(party.both)
        party.tell(UNMAP, party.both)
        party.get(REVOKE)
        begun = time.monotonic()
        while time.monotonic() - begun < 36:
            party.heartbeat()
            time.sleep(1)
        assert party.hears() == (UNMAP, 0)
        party.fails(party.conn.pair.write(b"too late", addr, rkey))
        party.wait_closed()
    survives()


# --- the program of the server asks ---


MINE = 77 << 16 | 3


def answers(name: str, what: int, run, *wanted: str) -> None:
    """The program gets, or puts: run(party) answers; the program is told one of these errnos, or, with none, the path ends."""
    def whole() -> None:
        with Hunter().opened() as party:
            party.tell(what, MINE, 8, 64)
            told = None
            try:
                run(party)
                if wanted:
                    while told is None or told[0] != what:
                        told = party.hears()
            except Closed:
                assert not wanted
            if wanted:
                # An errno may have several names.
                assert told[1] in [getattr(errno, name, 0) for name in wanted], told
                party.goes_on()
            else:
                party.wait_closed()
        survives()
    attack(f"on memory: {name}", whole)


def with_key(**fields):
    def run(party: Hunter) -> None:
        _, _, body = party.one(ASK)
        handle, piece = struct.unpack("<2Q", body)
        assert (handle, piece) == (MINE, 0), (handle, piece)
        memory = party.home.memory
        mine = {"handle": handle, "piece": piece, "rkey": memory.rkey, "addr": memory.base, "length": 1024}
        party.put(key(**{**mine, **fields}))
    return run


for error in ("ESTALE", "EACCES", "ERANGE", "EOPNOTSUPP"):
    answers(f"a PUT that is refused with {error}", PUSH, with_key(error=getattr(errno, error)), error)
answers("a PUT to a range that is too short", PUSH, with_key(length=71), "ERANGE")
answers("a PUT to a range elsewhere", PUSH, with_key(start=PIECE), "ERANGE")
answers("a PUT without the right", PUSH, with_key(rights=1), "EACCES")
answers("a PUT to an address that wraps", PUSH, with_key(addr=LAST), "ERANGE")
answers("KEY of another handle", PUSH, with_key(handle=MINE + (1 << 16)))
answers("KEY of another piece", PUSH, with_key(piece=1))
answers("a PUT to a key that there is not", PUSH, with_key(rkey=0x12345678))


def twice(party: Hunter) -> None:
    with_key(error=errno.ESTALE)(party)
    party.put(key(MINE, error=errno.ESTALE), key(MINE, error=errno.ESTALE))


answers("KEY that comes twice", PUSH, twice)


def revoked(party: Hunter) -> None:
    """Before the answer: the handle is revoked, and what was asked for is refused."""
    party.one(ASK)
    party.put(revoke(MINE), revoke(MINE))
    party.one(RETURN)
    party.put(key(MINE, error=errno.ESTALE))


answers("a PUT to memory that is revoked", PUSH, revoked, "ESTALE")


def landing(then):
    """GET has arrived: its number, the address and key of the landing zone, and its length."""
    def run(party: Hunter) -> None:
        _, number, body = party.one(GET)
        handle, offset, addr, length, rkey = struct.unpack_from("<3Q2I", body)
        assert (handle, offset, length) == (MINE, 8, 64), (handle, offset, length)
        then(party, number, addr, rkey)
    return run


def late(party: Hunter, number: int, addr: int, rkey: int) -> None:
    party.put(got(number))
    told = party.hears()
    assert told[:2] == (PULL, 0), told
    # The buffer is the program's again.
    party.fails(party.conn.pair.write(os.urandom(64), addr, rkey))
    raise Closed("as it must")


for error in ("ESTALE", "EACCES", "ERANGE", "ENOBUFS"):
    answers(f"a GET that is refused with {error}", PULL, landing(
        lambda party, number, addr, rkey, error=error: party.put(got(number, getattr(errno, error)))), error)
answers("a GET that is refused with an errno that there is not", PULL, landing(
    lambda party, number, addr, rkey: party.put(got(number, 4000))), "ENOBUFS")
answers("a GET that nobody writes", PULL, landing(lambda party, number, addr, rkey: party.put(got(number))), "OK")
answers("GOT of another GET", PULL, landing(lambda party, number, addr, rkey: party.put(got(number + 1))))
answers("GOT that comes twice", PULL, landing(lambda party, number, addr, rkey: party.put(got(number), got(number))))
answers("a GET that is written too late", PULL, landing(late))
answers("a GET that is written beyond its buffer", PULL, landing(
    lambda party, number, addr, rkey: party.fails(party.conn.pair.write(bytes(65), addr, rkey))))
answers("a GET that is written before its buffer", PULL, landing(
    lambda party, number, addr, rkey: party.fails(party.conn.pair.write(bytes(8), addr - 8, rkey))))
answers("a GET whose buffer is read", PULL, landing(
    lambda party, number, addr, rkey: party.fails(party.conn.pair.read(addr, rkey, 64))))


@named("on memory: GETs and PUTs that are never answered")
def _() -> None:
    with Hunter().opened() as party:
        for number in range(1, 20):
            party.tell(PULL if number % 2 else PUSH, MINE + (number << 16), 8, 64)
        party.one(GET)
        party.goes_on()
    survives()
