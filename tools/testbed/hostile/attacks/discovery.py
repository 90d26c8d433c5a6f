# SPDX-License-Identifier: GPL-2.0
"""Questions for a list of exports.  The server has none, but a directory of devices."""

from .. import wire
from ..client import Party
from .table import DISK, code, named, opened

ROOM = wire.DISCOVER_ROOM


def knows_extensions() -> Party:
    return Party(epoch=1).set_up()


def says(party: Party, wanted: str, message: bytes, want: int = ROOM) -> None:
    said = code(party.ask(message, want)[0])
    assert said == wanted, f"{said} for {wanted}: {message[:16].hex()}, {len(message)} bytes, room for {want}"


@named("DISCOVER without extensions")
def _():
    with Party().set_up() as party:
        says(party, "EINVAL", wire.DISCOVER_REQ.pack())
        assert party.sess_info()[0] == 0


@named("DISCOVER that is short, or has no room for its answer")
def _():
    with knows_extensions() as party:
        message = wire.DISCOVER_REQ.pack()
        for length in (2, 4, 6, 7, 260, 263):
            says(party, "EINVAL", message[:length])
        for want in (1, 15):
            says(party, "EMSGSIZE", message, want)
        says(party, "OK", message, wire.DISCOVER_HEAD.length)
        says(party, "OK", message + bytes(248), ROOM)
        says(party, "OK", message, 2 * ROOM)
        says(party, "OK", wire.DISCOVER_REQ.pack(pad=0xFFFF, reserved=0xFFFF, rest=0xFFFFFF))


@named("DISCOVER after any name")
def _():
    with knows_extensions() as party:
        # One that is there is answered as one that is not.
        for name, wanted in ((b"nothing", "OK"), (DISK.encode(), "OK"), (b"/" + DISK.encode(), "OK"),
                             (b"..", "OK"), (b"A" * 254, "OK"), (b"A" * 255, "EINVAL"), (b"a b", "EINVAL"),
                             (b"a\nb", "EINVAL"), (b"\xff", "EINVAL")):
            says(party, wanted, wire.DISCOVER_REQ.pack(after=name))


@named("DISCOVER as a write")
def _():
    with knows_extensions() as party:
        party.post_write(party.service, 0, wire.DISCOVER_REQ.pack())
        assert code(party.answer(party.service, 0)) == "EINVAL"


@named("DISCOVER in a chunk that was used")
def _():
    """Remains of earlier requests in a chunk must not be revealed."""
    with knows_extensions() as party:
        device = opened(party, DISK)
        party.submit(device, wire.WRITE, data=b"secret!!" * 512, chunk=2)
        party.home.memory.put(0, b"\x55" * ROOM)
        party.post_read(party.io, 2, wire.DISCOVER_REQ.pack(), ROOM)
        assert party.answer(party.io, 2) == 0
        answer = party.returned(ROOM)
        assert wire.DISCOVER_HEAD.unpack(answer)["flags"] == wire.UNLISTED
        assert answer[wire.DISCOVER_HEAD.length:] == bytes(ROOM - wire.DISCOVER_HEAD.length)


@named("DISCOVER in any number at once")
def _():
    with knows_extensions() as party:
        message = wire.DISCOVER_REQ.pack()
        for _ in range(4):
            for chunk in range(party.depth):
                party.post_read(party.service, chunk, message, ROOM)
            for chunk in range(party.depth):
                assert party.answer_any(party.service) == 0
        # The last ones are not waited for.
        for chunk in range(party.depth):
            party.post_read(party.service, chunk, message, ROOM)
