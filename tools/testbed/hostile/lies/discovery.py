# SPDX-License-Identifier: GPL-2.0
"""False lists of exports and portals."""

from .. import wire
from ..server import Honest, Server
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
    """Whatever becomes of the list, the session's disk goes on."""
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
    lie(f"export in mode {mode}", lists([wire.listed(b"x", access_mode=mode)]), asks("EPROTO"))
for size in (1, 511, 513, 65535):
    lie(f"export with blocks of {size}", lists([wire.listed(b"x", logical_block_size=size)]), asks("EPROTO"))
for size in (1 << 54, (1 << 64) - 1):
    lie(f"export of {size:#x} sectors", lists([wire.listed(b"x", nsectors=size)]), asks("EPROTO"))
lie("export with everything unknown", lists([wire.listed(b"x", logical_block_size=0)], flags=0xFE, reserved=1 << 63),
    sees("x rw 0 0"))
for family, addr in ((0, b"\x0A\0\1\1"), (4, b"\x0A\0\1\1"), (1, bytes(4)), (1, b"\x7F\0\0\1"), (1, b"\xE0\0\0\1"),
                     (2, bytes(16)), (2, b"\xFE\x80" + bytes(13) + b"\1"), (3, bytes(16))):
    lie(f"portal of family {family}, {addr[:4].hex()}", lists([], [wire.PORTAL.pack(family=family, addr=addr)]),
        asks("EPROTO"))
lie("portal with port 0", lists([], [wire.PORTAL.pack(addr=b"\x0A\0\1\1", port=0)]), asks("EPROTO"))
# 64 lines of the longest kind fit in a file.
lie("as many portals as there can be", lists([GOOD], [wire.PORTAL.pack(family=3, addr=b"\xFD" * 16, port=65535)] * 64),
    sees("lie rw 8 512"))
lie("list beside a disk", lists([GOOD], exports=9), beside_a_disk)
lie("list that never ends", lists([wire.listed(b"x" * 254)] * 15, flags=wire.MORE), asks("EFBIG", seconds=240))


def fails_with(error: int) -> type[Honest]:
    return like(discover=lambda _, server, request: server.answer(request, error=error))


for error, wanted in ((5, "EIO"), (13, "EACCES"), (22, "ENOTSUP")):
    lie(f"list, error {error}", fails_with(error), asks(wanted))
lie("list, nothing is known of the name that it ended with", fails_with(2), asks("EAGAIN"))
lie("list that does not come", like(discover=lambda *_: None), asks("KILLED", seconds=3))


def was_not_asked(server: Server) -> str | None:
    asked = server.requests_that(lambda request: request.kind == wire.DISCOVER)
    return "a server without extensions was asked for a list" if asked else None


def asks_in_vain(v: Victim) -> None:
    asks("ENOTSUP")(v)
    v.tell("order 0")


lie("list of a server of mainline", like(extensions=False), asks_in_vain, was_not_asked)
