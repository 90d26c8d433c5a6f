# SPDX-License-Identifier: GPL-2.0
"""Connection requests: each is refused with a given error, or accepted."""

import os

from .. import wire
from ..client import Party
from ..verbs import Rejected
from .table import ELSEWHERE, attack, code, named


def asks(wanted: str, private: bytes | None = None, cid: int = 0, **fields):
    def run():
        with Party() as party:
            said = code(party.refused(cid, private, **fields))
            assert said == wanted, f"{said} for {wanted}"
    return run


CONNECTS = [
    *[("magic", value, "ECONNRESET") for value in (0, 1, 0x1BBC, 0x1BBE, 0xBD1B, 0xFFFF)],
    *[("version", value, "ECONNRESET") for value in (0, 0x0100, 0x01FF, 0x0300, 0x0002, 0xFFFF)],
    ("version", 0x02FF, "OK"),
    *[("cid_num", value, "ECONNRESET") for value in (0, wire.MAX_CONNECTIONS + 1, 0x8000, 0xFFFF)],
    ("cid_num", 1, "OK"),
    *[("cid", value, "ECONNRESET") for value in (2, 3, 0x7FFF, 0xFFFF)],
    *[("recon_cnt", value, "OK") for value in (0, 0xFFFF)],
    *[("first_conn", value, "ENXIO") for value in (0, 2, 0xFE)],
    *[("first_conn", value, "OK") for value in (1, 3, 0xFF)],
    ("path", bytes(16), "OK"), ("path", b"\xff" * 16, "OK"), ("session", bytes(16), "OK"),
    ("cma", 0xFFFF, "OK"), ("rest", 0xFFFFFFFF, "OK"), ("reserved", 0xFF, "OK"),
    *[("ext", value, "OK") for value in (0, 1, 2, 0xFF)],
]
for name, value, wanted in CONNECTS:
    shown = value if isinstance(value, int) else value[:2].hex()
    attack(f"connect with {name}={shown}", asks(wanted, **{name: value}))
# Zeroes follow: with its numbers alone it is the first connection of no session.
for length, wanted in ((0, "ECONNRESET"), (1, "ECONNRESET"), (4, "ECONNRESET"), (8, "ECONNRESET"),
                       (12, "ENXIO"), (28, "ENXIO")):
    attack(f"connect with {length} bytes", asks(wanted, private=wire.CONN_REQ.pack(cid=0, cid_num=2)[:length]))


def extends(epoch: int, known: bool, **fields):
    def run():
        with Party() as party:
            assert party.refused(0, **{"ext": 1, "epoch": epoch, **fields}) == 0
            assert (party.accepted["ext"] == 1) == known, party.accepted
    return run


for epoch, known in ((0, False), (1, True), (wire.MAX_EPOCH, True), (wire.MAX_EPOCH + 1, False), (0xFFFFFFFF, False)):
    attack(f"connect with epoch {epoch:#x}", extends(epoch, known))
attack("connect with unknown flags of extensions", extends(1, True, ext_flags=0xFE))
attack("connect with another version of extensions", extends(1, False, ext=2))


@named("a connection from another address than its path")
def _():
    with Party(epoch=5) as party:
        party.connect(0)
        party.source = ELSEWHERE
        assert code(party.refused(1)) == "ECONNRESET"
        party.source = None
        party.connect(1)
        party.introduce()
        party.heartbeat()


@named("connections in any order")
def _():
    with Party(cid_num=4) as party:
        for cid in (3, 1, 0, 2):
            assert party.refused(cid) == 0
        party.introduce()
        party.heartbeat()


@named("connections that do not belong to their path")
def _():
    with Party(epoch=5) as party:
        party.connect(0)
        for wanted, fields in (("ECONNRESET", {"cid": 0}), ("ECONNRESET", {"cid": 1, "cid_num": 3}),
                               ("ECONNRESET", {"cid": 1, "ext": 0}), ("ECONNRESET", {"cid": 1, "epoch": 4}),
                               ("EEXIST", {"cid": 1, "path": os.urandom(16)})):
            said = code(party.refused(9, **fields))
            assert said == wanted, f"{fields}: {said} for {wanted}"
        party.connect(1)
        party.introduce()
        assert code(party.refused(9, cid=0)) == "ECONNRESET"
        party.heartbeat()
        # A newer attempt has the old one closed.
        assert code(party.refused(9, cid=0, epoch=6)) == "ECONNRESET"
        party.wait_closed()


@named("connect twice at once")
def _():
    with Party() as party:
        both = [party.resolve(), party.resolve()]
        for connection in both:
            connection.ask(party.request(0))
        answers = []
        for connection in both:
            try:
                connection.answered()
                answers.append(0)
            except Rejected:
                answers.append(1)
        assert sorted(answers) == [0, 1], answers
