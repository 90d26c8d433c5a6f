# SPDX-License-Identifier: GPL-2.0
"""False lists of exports and portals."""

import time

from .. import wire
from ..server import Honest, Request, Server
from ..victim import TIME_LIMIT, Victim
from .table import lie, like

GOOD = wire.listed(b"lie", nsectors=8)


def lists(exports: list[bytes], portals: list[bytes] | None = None, /, **fields: int) -> type[Honest]:
    answer = wire.discovered(exports, portals or [], **fields)
    return like(discover=lambda _, server, request: server.answer(request, answer))


def asks(*wanted: str, seconds: float = TIME_LIMIT):
    """Asks for the list, with one of these outcomes."""
    def victim(v: Victim) -> None:
        said = v.discover(seconds)
        assert said in wanted, f"discover: {said} for {' or '.join(wanted)}"
        if said != "OK":
            assert v.listed() == [], "a list of a discovery that has failed"
    return victim


def sees(*lines: str):
    def victim(v: Victim) -> None:
        asks("OK")(v)
        assert v.listed() == list(lines), v.listed()
    return victim


def beside_a_disk(v: Victim) -> None:
    """The session's disk goes on, whatever happens to the list."""
    v.must_map()
    v.discover()
    assert v.read() == "OK"


lie("list of an honest server", Honest, sees("lie rw 4096 512"))
for kind in (0, 6, 65535):
    lie(f"list of type {kind}", lists([GOOD], type=kind), asks("EPROTO"))
for count in (2, 3, 65535):
    lie(f"list of {count} exports that has one", lists([GOOD], exports=count), asks("EPROTO"))
for count in (1, 65, 255):
    lie(f"list of {count} portals that has none", lists([GOOD], portals=count), asks("EPROTO"))
lie("list that goes on without an entry", lists([], flags=wire.MORE), asks("EPROTO"))
for name in (b"", b"a b", b"a\nb", b"a\x1bb", b"\xff", "a\u2028b".encode(), b"x" * 255):
    lie(f"export named {name[:8]!r}", lists([wire.listed(name)]), asks("EPROTO"))
lie("export whose name is longer than the list", lists([wire.listed(b"x", name_len=254)] * 14), asks("EPROTO"))
for mode in (3, 255):
    lie(f"export in mode {mode}", lists([wire.listed(b"x", access_mode=mode), wire.listed(b"y")]),
        sees("y rw 0 512"))
for names in ((b"a", b"a"), (b"b", b"a"), (b"a", b"b", b"B")):
    lie(f"list of {b', '.join(names)!r}", lists([wire.listed(name) for name in names]), asks("EPROTO"))
for size in (1, 511, 513, 65535):
    lie(f"export with blocks of {size}", lists([wire.listed(b"x", logical_block_size=size)]), asks("EPROTO"))
for size in (1 << 54, (1 << 64) - 1):
    lie(f"export of {size:#x} sectors", lists([wire.listed(b"x", nsectors=size)]), asks("EPROTO"))
lie("export with everything unknown", lists([wire.listed(b"x", logical_block_size=0)], flags=0xFE, reserved=1 << 63),
    sees("x rw 0 0"))
for family in (0, 4, 255):
    lie(f"portal of family {family}", lists([GOOD], [wire.PORTAL.pack(family=family, addr=b"\x0A\0\1\1")]),
        sees("lie rw 8 512"))
for family, addr in ((1, bytes(4)), (1, b"\0\0\0\1"), (1, b"\x7F\0\0\1"), (1, b"\xE0\0\0\1"), (1, b"\xF0\0\0\1"),
                     (2, bytes(16)), (2, b"\xFE\x80" + bytes(13) + b"\1"), (3, bytes(16))):
    lie(f"portal of family {family}, {addr[:4].hex()}", lists([], [wire.PORTAL.pack(family=family, addr=addr)]),
        asks("EPROTO"))
lie("portal with port 0", lists([], [wire.PORTAL.pack(addr=b"\x0A\0\1\1", port=0)]), asks("EPROTO"))
# 64 lines of the longest kind fit in a file.
lie("as many portals as there can be", lists([GOOD], [wire.PORTAL.pack(family=3, addr=b"\xFD" * 16, port=65535)] * 64),
    sees("lie rw 8 512"))
lie("list beside a disk", lists([GOOD], exports=9), beside_a_disk)
lie("list that begins again", lists([GOOD], flags=wire.MORE), asks("EPROTO"))


class Endless(Honest):
    """Answers that go on and on, each after a while, with names that increase."""

    exports, seconds, last = 15, 0.0, 0
    fields: dict = {}

    def discover(self, server: Server, request: Request) -> None:
        time.sleep(self.seconds)
        names = [f"{self.last + number:0250}".encode() for number in range(self.exports)]
        self.last += self.exports
        server.answer(request, wire.discovered([wire.listed(name, **self.fields) for name in names], flags=wire.MORE))


# A slow machine meets the limit of time first.
lie("list that never ends", Endless, asks("EFBIG", "ETIMEDOUT", seconds=120))
lie("list that never ends, of exports that are not shown", like(Endless, fields={"access_mode": 9}),
    asks("EFBIG", "ETIMEDOUT", seconds=120))
lie("list that takes for ever", like(Endless, exports=1, seconds=2.0), asks("ETIMEDOUT", seconds=120))


def fails_with(error: int) -> type[Honest]:
    return like(discover=lambda _, server, request: server.answer(request, error=error))


for error, wanted in ((2, "ENOENT"), (5, "EIO"), (13, "EACCES"), (22, "ENOTSUP")):
    lie(f"list, error {error}", fails_with(error), asks(wanted))
lie("list that does not come", like(discover=lambda *_: None), asks("KILLED", seconds=3))


def was_not_asked(server: Server) -> str | None:
    asked = server.requests_that(lambda request: request.kind == wire.DISCOVER)
    return "a server without extensions was asked for a list" if asked else None


def asks_in_vain(v: Victim) -> None:
    asks("ENOTSUP")(v)
    v.tell("order 0")


lie("list of a server of mainline", like(extensions=False), asks_in_vain, was_not_asked)
