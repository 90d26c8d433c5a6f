# SPDX-License-Identifier: GPL-2.0
"""Answers in the message that invalidates the key of a read."""

from .. import wire
from ..server import Honest, Server
from ..victim import LONG, SHORT, Victim
from .answers import other
from .keys import owns_its_memory, twice_owns, write_to_last
from .table import comes_back, goes_on, lie, like, once, reads_and_recovers

DATA = b"\x11" * LONG


def body(chunk: int, error: int = 0, kind: int = wire.IMM_ANSWER_SAME_KEY, more: bytes = b"") -> bytes:
    return wire.answer_imm(chunk, error, kind).to_bytes(4, "little") + more


def sends(message, by=lambda server, request: request.by, **behaviour) -> type[Honest]:
    """Ends the first read with what `message` makes of server and request, and invalidates its key."""
    def what(server: Server, request) -> None:
        server.put_data(request, DATA)
        by(server, request).pair.send_inv(request.desc[1], message(server, request))
    return like(once(what), **behaviour)


def reads_once(*wanted: str):
    """Reads, with one of these outcomes, and the path goes on."""
    def victim(v: Victim) -> None:
        v.must_map().fail_fast()
        v.fill()
        said = v.read(LONG)
        assert said in wanted, f"read: {said} for {' or '.join(wanted)}"
        assert said != "OK" or v.page[:LONG] == DATA, "a read has got other data"
        assert v.tell("paths") == "1 path", "the client has connected again"
        goes_on(v)
    return victim


def own(server: Server, request) -> bytes:
    return body(request.chunk)


def with_key(server: Server, request, **fields) -> bytes:
    return body(request.chunk, kind=wire.IMM_ANSWER_INV, more=server.rkey(request.chunk, **fields))


class Asked(sends(own)):
    """Makes sure that the client has asked for such answers."""

    def connect(self, server, connection, asked):
        assert asked["ext_flags"] & wire.EXT_INV_ANSWERS, f"flags {asked['ext_flags']:#x}"
        super().connect(server, connection, asked)


lie("answer that invalidates", Asked, reads_once("OK"))
lie("answer that invalidates, with a key", sends(with_key, flags=wire.NEW_RKEY), reads_once("OK"))
lie("answer that invalidates, without a key in a session with keys", sends(own, flags=wire.NEW_RKEY),
    reads_once("OK"))
for number in (1, 5, 116, 511):
    lie(f"answer that invalidates, error {number}", once(lambda server, request, n=number: (
        request.by.pair.send_inv(request.desc[1], body(request.chunk, n)) and None)),
        reads_once("EIO"))

# Answers that the path does not survive.
# Receives have no room for it, or that of a key.
for name, flags in (("", 0), (" and with keys", wire.NEW_RKEY)):
    lie(f"answer that invalidates, without extensions{name}", sends(own, extensions=False, flags=flags),
        reads_and_recovers("OK"))
lie("answer that invalidates, key in a session without", sends(
    lambda s, r: body(r.chunk, kind=wire.IMM_ANSWER_INV, more=wire.RKEY.pack(chunk=r.chunk, key=s.home.memory.rkey))),
    reads_and_recovers("OK"))
for kind in (kind for kind in range(16) if kind != wire.IMM_ANSWER_SAME_KEY):
    lie(f"answer that invalidates, of type {kind}", sends(lambda s, r, kind=kind: body(r.chunk, kind=kind)),
        reads_and_recovers("OK"))
for length in (1, 3, 5, 7, 9, 11, 13, 16, 28, 29):
    lie(f"answer that invalidates, {length} bytes", sends(lambda s, r, n=length: (own(s, r) * 8)[:n]),
        reads_and_recovers("OK"))
for length in (4, 8, 11, 13, 15, 17, 19, 21, 24):
    lie(f"answer that invalidates, with a key, {length} bytes",
        sends(lambda s, r, n=length: (with_key(s, r) * 2)[:n], flags=wire.NEW_RKEY), reads_and_recovers("OK"))
for name, fields in (("another type", {"type": 3}), ("another chunk", {"chunk": 15}), ("no chunk", {"chunk": 65535})):
    # The chunk of the first read is not the last one.
    lie(f"answer that invalidates, with a key of {name}",
        sends(lambda s, r, fields=fields: with_key(s, r, **fields), flags=wire.NEW_RKEY), reads_and_recovers("OK"))
for number in (Honest.depth, 0x7FFFF):
    lie(f"answer that invalidates, to chunk {number}", sends(lambda s, r, n=number: body(n)), reads_and_recovers("OK"))
lie("answer that invalidates, to a chunk not asked for",
    sends(lambda s, r: body((r.chunk + 1) % s.behaviour.depth)), reads_and_recovers("OK"))
lie("answer that invalidates, on another connection", sends(own, by=other), reads_and_recovers("OK"))
lie("answer that invalidates, on the service connection", sends(own, by=lambda server, request: server.cons[0]),
    reads_and_recovers("OK"))


def then(*steps) -> type[Honest]:
    """Does several things with the first read."""
    def what(server: Server, request) -> None:
        server.put_data(request, b"")
        for step in steps:
            step(server, request)
    return once(what)


def answers(server: Server, request) -> None:
    request.by.pair.send_inv(request.desc[1], own(server, request))


lie("answer that invalidates, and an immediate", then(answers, Server.end), reads_and_recovers("OK"))
lie("answer that invalidates, twice", then(answers, answers), reads_and_recovers("OK"))
lie("answer that invalidates, after an invalidation", then(Server.invalidate, answers), reads_and_recovers("OK"))

# The memory of a read whose key lives on.


class SaysSo(Honest):
    """Answers in a message that could invalidate the key, and does not."""

    def spot(self, server, request):
        if not request.is_io_read:
            return super().spot(server, request)
        server.put_data(request, b"\x11" * request.desc[2])
        request.by.pair.send(own(server, request))


lie("answer that invalidates, but not so", SaysSo, owns_its_memory(), write_to_last)
lie("answer that invalidates, but not so, the path fails", once(SaysSo().spot), reads_and_recovers("OK"))


class KeyOfAnother(Honest):
    """Invalidates the key of the read before, which the client has invalidated."""

    last = None

    def spot(self, server, request):
        if not request.is_io_read:
            return super().spot(server, request)
        server.put_data(request, b"")
        if self.last is None:
            self.last = request.desc[1]
            return server.end(request, kind=wire.IMM_ANSWER)
        request.by.pair.send_inv(self.last, own(server, request))


def second_recovers(v: Victim) -> None:
    v.must_map()
    said = v.read(), v.read()
    assert said == ("OK", "OK"), said
    comes_back(v)


class KeyOfAnotherOnce(KeyOfAnother):
    """Is honest when the client has come back."""

    def spot(self, server, request):
        (super().spot if server.paths == 1 else self.serve)(server, request)


lie("answer that invalidates another key", KeyOfAnother, twice_owns, write_to_last)
lie("answer that invalidates another key, the path fails", KeyOfAnotherOnce, second_recovers)


class KeyInUse(Honest):
    """Answers a read with the key of another one, which has not ended."""

    held = None

    def spot(self, server, request):
        if not request.is_io_read or server.paths > 1:
            return self.serve(server, request)
        if self.held is None:
            self.held = request
            return
        self.held.by.pair.send_inv(request.desc[1], own(server, self.held))


def two_reads(v: Victim) -> None:
    v.must_map()
    beside = v.beside(v.read)
    v.tell("wait read")
    said = v.read()
    assert said == "OK", said
    comes_back(v)
    beside.join(60)
    assert not beside.is_alive(), "the read that was answered with another's key does not end"
    v.tell("order 0")


def both_came_again(server: Server) -> str | None:
    count = len(server.requests_that(lambda r: r.is_io_read and r.at_spot))
    # And the one after that.
    return None if count >= 5 else f"two reads that were not answered were sent {count - 1} times"


lie("answer that invalidates the key of a read in flight", KeyInUse, two_reads, both_came_again)


class Buffer(Honest):
    """Invalidates the buffer of a small read, which has not asked for that."""

    def spot(self, server, request):
        if not request.is_io_read or server.paths > 1:
            return self.serve(server, request)
        server.put_data(request, b"")
        answers(server, request)


def small_recovers(v: Victim) -> None:
    v.must_map()
    said = v.read(SHORT)
    assert said == "OK", said
    comes_back(v)


lie("answer that invalidates a buffer", Buffer, small_recovers)


class Write(Honest):
    """Answers a write with the key of a read in flight."""

    held = None

    def spot(self, server, request):
        if server.paths > 1:
            return self.serve(server, request)
        if request.is_io_read:
            self.held = request
        else:
            request.by.pair.send_inv(self.held.desc[1], own(server, request))


def writes_beside(v: Victim) -> None:
    v.must_map()
    beside = v.beside(v.read)
    v.tell("wait read")
    said = v.write(SHORT)
    assert said == "OK", said
    comes_back(v)
    beside.join(60)
    assert not beside.is_alive(), "the read whose key was invalidated does not end"


lie("answer that invalidates, to a write", Write, writes_beside)
