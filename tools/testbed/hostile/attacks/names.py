# SPDX-License-Identifier: GPL-2.0
"""Session names, and other bytes in their place."""

from collections.abc import Callable

from .. import wire
from ..client import Party
from .table import attack, named


def introduces(message: bytes | Callable[[Party], bytes], closed: bool = True, cid: int = 0, connections: int = 2):
    def run():
        with Party(cid_num=2) as party:
            for number in range(connections):
                party.connect(number)
            data = message(party) if callable(message) else message
            by = party.connections[cid]
            by.pair.send(data)
            if closed:
                return party.wait_closed()
            party._message(by)
            party.heartbeat()
    return run


def info(**fields) -> bytes:
    return wire.INFO_REQUEST.pack(**{"name": b"raw", **fields})


for kind in (1, 2, 4, 0x7FFF, 0xFFFF):
    attack(f"INFO_REQ of type {kind}", introduces(info(type=kind)))
for length in (0, 1, 2, 271):
    attack(f"INFO_REQ of {length} bytes", introduces(info()[:length]))
attack("INFO_REQ of 273 bytes", introduces(info() + b"x"))
attack("INFO_REQ of 16 KiB", introduces(info().ljust(16384, b"x")))
for name in (b"", b"A" * 255, b"a/b", b"a.b", b"..", b"a b", b"a\tb", b"a\x7fb", b"a\nb", b"\xff\xfe", b"\xc3",
             b"\xed\xa0\x80", "a\u2028b".encode()):
    attack(f"session named {name[:8]!r}", introduces(info(name=name)))
attack("session named 254 bytes", introduces(info(name=b"B" * 254), closed=False))
attack("INFO_REQ with reserved bytes", introduces(info(reserved=b"\xff" * 15), closed=False))
attack("INFO_REQ before all connections", introduces(info(), connections=1))
attack("INFO_REQ on a connection for I/O", introduces(info(), cid=1))


@named("INFO_REQ twice")
def _():
    with Party().set_up() as party:
        party.service.pair.send(party.info_req())
        party.wait_closed()


@named("INFO_REQ twice at once")
def _():
    with Party() as party:
        party.connect_all()
        party.service.pair.send(party.info_req())
        party.service.pair.send(party.info_req())
        party.wait_closed()


@named("name of a session that is there")
def _():
    with Party(name="mine").set_up() as party, Party(name="mine") as thief:
        thief.connect_all()
        thief.service.pair.send(thief.info_req())
        thief.wait_closed()
        party.heartbeat()


@named("requests before INFO_REQ")
def _():
    with Party() as party:
        party.connect_all()
        party.io.pair.write_imm(b"", wire.request_imm(party.depth, 0, 8))
        party.wait_closed()


@named("heartbeats before INFO_REQ")
def _():
    """They are answered.  As they take the receive for the name, that ends the path."""
    with Party() as party:
        party.connect_all()
        party.heartbeat()
        party.service.pair.send(party.info_req())
        party.wait_closed()
