# SPDX-License-Identifier: GPL-2.0
"""Answers without a request, or with wrong contents, and the keys of chunks that come with them."""

from .. import wire
from ..server import Honest, Server
from ..values import around
from ..victim import Victim
from .keys import owns_its_memory, write_to_last
from .table import ANY, lie, like, once, reads, reads_and_goes_on, reads_and_recovers


def extra(what, before: bool = False) -> type[Honest]:
    """An honest server that also does `what` with the first request of the user, which the path
    does not survive."""
    def once_more(server, request):
        if before:
            what(server, request)
        Honest.spot(server.behaviour, server, request)
        if not before:
            what(server, request)
    return once(once_more)


def other(server: Server, request):
    """Another connection of the path than the one that the request came by."""
    return next(con for cid, con in sorted(server.cons.items()) if con is not request.by and cid > 0)


lie("answered twice", extra(lambda s, r: s.end(r)), reads_and_recovers("OK"))
lie("answered twice, another error", extra(lambda s, r: s.end(r, 5)), reads_and_recovers("OK"))
lie("answer to a chunk not asked for", extra(lambda s, r: s.end(r, chunk=(r.chunk + 1) % s.behaviour.depth), before=True),
    reads_and_recovers("OK"))
for number in (*around(Honest.depth)[1:], 0x7FFFF):
    lie(f"answer to chunk {number}", extra(lambda s, r, n=number: s.end(r, chunk=n, kind=wire.IMM_ANSWER), before=True),
        reads(*ANY))


class OnAnother(Honest):
    """Answers the first read on another connection, before anything of the request's own one is
    known."""

    lied = False

    def spot(self, server, request):
        if self.lied:
            return super().spot(server, request)
        self.lied = True
        if request.is_io_read:
            server.put_data(request, b"\x11" * request.desc[2])
        server.end(request, kind=self.kind, by=other(server, request))

    kind = wire.IMM_ANSWER


lie("answer on another connection", OnAnother, owns_its_memory(), write_to_last)
lie("answer on another connection, key invalidated", like(OnAnother, kind=wire.IMM_ANSWER_INV), owns_its_memory(),
    write_to_last)


class OnService(OnAnother):
    """The same, on the service connection."""

    def spot(self, server, request):
        if self.lied:
            return super().spot(server, request)
        self.lied = True
        server.end(request, kind=wire.IMM_ANSWER, by=server.cons[0])


lie("answer on the service connection", OnService, owns_its_memory(), write_to_last)
lie("answer on another connection, the path fails", OnAnother, reads_and_recovers("OK"))


def fails_with(error: int) -> type[Honest]:
    class Fails(Honest):
        def spot(self, server, request):
            server.answer(request, error=error)
    return Fails


def some_error(v: Victim) -> None:
    v.must_map().fail_fast()
    said = v.read()
    assert said not in ("OK",), "a read that the server has ended with an error has succeeded"


for number in (1, 5, 11, 116, 255, 256, 511):
    lie(f"error {number}", fails_with(number), some_error)

lie("answered twice, key invalidated", extra(lambda s, r: s.end(r, kind=wire.IMM_ANSWER_INV)), reads_and_recovers("OK"))

# Keys of chunks that come with the answers.


def with_keys(**fields) -> type[Honest]:
    def what(server, request):
        server.put_data(request, b"")
        server.invalidate(request)
        kind = wire.IMM_ANSWER_INV if request.wants_invalidation else wire.IMM_ANSWER
        server.imm(request.by, wire.answer_imm(request.chunk, 0, kind), server.rkey(request.chunk, **fields))
    return like(once(what), flags=wire.NEW_RKEY)


lie("keys with the answers", with_keys(), reads_and_goes_on("OK"))
for kind in (0, 3, 5, 65535):
    lie(f"key message of type {kind}", with_keys(type=kind), reads(*ANY, times=2))
for number in (15, 16, 65535):
    lie(f"key of chunk {number}", with_keys(chunk=number), reads(*ANY, times=2))
for number in (0, 1, 0xFFFFFFFF):
    lie(f"key {number:#x}", with_keys(key=number), reads(*ANY, times=3))


def keys_cut(length: int) -> type[Honest]:
    def what(server, request):
        message, number = server.rkey(request.chunk)[:length], wire.answer_imm(request.chunk)
        if message:
            request.by.pair.send_imm(message, number)
        else:
            request.by.pair.write_imm(b"", number)
    return like(once(what), flags=wire.NEW_RKEY)


for length in (0, 1, 7):
    lie(f"key message of {length} bytes", keys_cut(length), reads(*ANY, times=2))

# Several answers in a message.


def together(body, first: int = 0) -> type[Honest]:
    """Answers with type 11: the chunk of the request, or one further on, and what `body` makes of
    that number."""
    def what(server, request):
        number = wire.answer_imm(request.chunk + first, kind=wire.IMM_ANSWERS)
        server.imm(request.by, number, body(request.chunk))
    return once(what)


def entries(*answers: int) -> bytes:
    return b"".join(answer.to_bytes(4, "little") for answer in answers)


def same_key(chunk: int) -> int:
    return wire.answer_imm(chunk, kind=wire.IMM_ANSWER_SAME_KEY)


TOGETHER = {
    "one of them twice": lambda chunk: entries(same_key(chunk)),
    "one not asked for": lambda chunk: entries(same_key(chunk + 1)),
    "all not asked for": lambda chunk: entries(*(same_key(chunk + n) for n in range(1, 8))),
    "a chunk that does not exist": lambda chunk: entries(same_key(0x7FFFF)),
    "one of another type": lambda chunk: entries(wire.answer_imm(chunk)),
    "one more than there can be": lambda chunk: entries(*[same_key(chunk)] * 8),
}
for name, body in TOGETHER.items():
    lie(f"several answers, {name}", together(body), reads_and_recovers("OK"))
for length in (0, 1, 3, 5, 27):
    lie(f"several answers, {length} bytes of them", together(lambda chunk, n=length: (entries(same_key(chunk)) * 7)[:n]),
        reads_and_recovers("OK"))
lie("several answers, the first not asked for", together(lambda chunk: entries(same_key(chunk)), first=1),
    reads_and_recovers("OK"))
