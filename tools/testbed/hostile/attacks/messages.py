# SPDX-License-Identifier: GPL-2.0
"""Message connections: which paths have one, and frames that are none. The server has the module `ibmsg`."""

import errno
import random
import struct

from .. import wire
from ..client import Party
from ..verbs import Closed
from .table import attack, comes_in, named

# Bits of the request's byte 44, and of the acceptance's byte 22.
FIRST, ASKS, HAS = 1, 4, 4
FRAME, RECEIVES = 8192, 11
(MESSAGE, SKIP, ACK, OPEN, ACCEPT, REJECT, REDIRECT, CLOSE, CLOSED, RESUME, RESUMED, LIVE) = range(1, 13)
# Where numbers begin, and a state that promises nothing.
START = 0xFFFFFF00
STATE = struct.pack("<4I", START, START, START + 16, START + 65536 & 0xFFFFFFFF)


def record(kind: int, body: bytes = b"", channel: int = 0, number: int = 0, flags: int = 0, length: int | None = None,
           detail: int = 0) -> bytes:
    whole = struct.pack("<BBHIII", kind, flags, detail, 16 + len(body) if length is None else length, channel, number) + body
    return whole.ljust(-(-len(whole) // 8) * 8, b"\0")


def frame(*records: bytes, limit: int = RECEIVES, form: int = 1) -> bytes:
    return struct.pack("<B3xI", form, limit) + b"".join(records)


def open_record(name: bytes = b"kv", channel: int = 1, messages: int = 16, room: int = 65536, longest: int = 1000,
                calls: int = 4, data: bytes = b"") -> bytes:
    return record(OPEN, struct.pack("<3IHHB7x", messages, room, longest, calls, len(data), len(name)) + name + data, channel)


def live(*epochs: int, newest: int = 1, flags: int = 0) -> bytes:
    return record(LIVE, struct.pack(f"<{len(epochs)}I", *epochs), 0, newest, flags)


def state(following: int = 0, taken: int = 0, messages: int = 16, room: int = 65536) -> bytes:
    """What the client's receiving half is said to have got, and the credits beyond that."""
    return struct.pack("<4I", *(START + place & 0xFFFFFFFF for place in (following, taken, messages, room)))


def message(number: int = 0, content: bytes = b"abc", total: int | None = None, offset: int = 0, kind: int = 0, call: int = 0,
            ack: bytes = STATE) -> bytes:
    total = len(content) if total is None else total
    fields = struct.pack("<2IQQH6x", total, offset, call, 0, 0)
    return record(MESSAGE, ack + fields + content, 1, START + number & 0xFFFFFFFF, detail=kind)


def close(end: int | None = None, ack: bytes = STATE) -> bytes:
    number = 0 if end is None else START + end & 0xFFFFFFFF
    return record(CLOSE, ack + bytes(8), 1, number, 0 if end is None else 1)


def resume(moves: int, flags: int = 0, ack: bytes = STATE) -> bytes:
    return record(RESUME, struct.pack("<4I", 1, moves, flags, 0) + ack)


def records(data: bytes) -> list[tuple[int, int, bytes]]:
    """Type, channel and what follows the header, of each record in a frame."""
    found, at = [], 8
    while at + 16 <= len(data):
        kind, _, _, length, channel, _ = struct.unpack_from("<BBHIII", data, at)
        found.append((kind, channel, data[at + 16:at + length]))
        at += -(-length // 8) * 8
    return found


class Messages(Party):
    """A session with a message connection."""

    def __init__(self, **options):
        super().__init__(**{"name": "messages", "epoch": 1, **options})
        self.extensions["first_conn"] = FIRST | ASKS
        # Frames of the server that have arrived.
        self.heard = 0

    def connect_all(self) -> None:
        super().connect_all()
        self.connect(self.cid_num)

    @property
    def conn(self):
        return self.connections[self.cid_num]

    def put(self, *all_of_it: bytes, **how) -> None:
        self.conn.pair.send(frame(*all_of_it, **{"limit": self.heard + RECEIVES, **how}))

    def get(self, kind: int) -> bytes:
        """Waits for a record of this kind."""
        while True:
            data = self.conn.next().data
            self.heard += 1
            for found, _, body in records(data):
                if found == kind:
                    return body

    def goes_on(self) -> None:
        """The path is there, and its message connection answers."""
        self.heartbeat()
        self.put(record(RESUME, struct.pack("<4I", 99, 1, 0, 0) + STATE))
        channel, _, flags, _ = struct.unpack_from("<4I", self.get(RESUMED))
        assert (channel, flags) == (99, 1), (channel, flags)


@named("message connection of one that asks for it")
def _() -> None:
    with Messages().set_up() as party:
        assert all(one["more_flags"] & HAS for one in party.acceptances), party.acceptances
        party.put(live(1))
        party.goes_on()


@named("message connection of one that does not ask")
def _() -> None:
    with Party(name="messages", epoch=1) as party:
        party.connect_all()
        assert not party.acceptances[0]["more_flags"] & HAS
        # Without the bit it is a number out of range; with it, the path has none.
        assert party.refused(2) == errno.ECONNRESET
        assert party.refused(2, first_conn=FIRST | ASKS) == errno.EPROTO
    with Party(name="messages") as party:
        party.connect_all()
        assert party.refused(2, first_conn=FIRST | ASKS) == errno.ECONNRESET


@named("message connection that is there")
def _() -> None:
    with Messages() as party:
        party.connect_all()
        assert party.refused(party.cid_num) == errno.ECONNRESET
        assert party.refused(party.cid_num + 1) == errno.ECONNRESET


@named("path without its message connection")
def _() -> None:
    with Messages() as party:
        Party.connect_all(party)
        party.service.pair.send(party.info_req())
        party.wait_closed()
    comes_in()


@named("frame before the path is complete")
def _() -> None:
    with Messages() as party:
        party.connect_all()
        party.put(live(1))
        party.wait_closed()
    comes_in()


def ends(*what: bytes, **how):
    """A frame that ends the path."""
    def run() -> None:
        with Messages().set_up() as party:
            party.goes_on()
            party.put(*what, **how)
            party.wait_closed()
    return run


def ignored(*what: bytes, **how):
    """A frame that changes nothing."""
    def run() -> None:
        with Messages().set_up() as party:
            for _ in range(100):
                party.put(*what, **how)
                party.goes_on()
    return run


GARBAGE = bytes(range(1, 200))
for name, what, how in (
    ("of another format", (), {"form": 2}),
    ("with more credits than there are", (), {"limit": 1 << 20}),
    ("with an unknown record", (record(13),), {}),
    ("with a record shorter than its header", (record(ACK, length=8),), {}),
    ("with a record longer than the frame", (record(ACK, STATE, 1, length=4000),), {}),
    ("of garbage", (GARBAGE,), {}),
    ("with ACK of channel 0", (record(ACK, STATE),), {}),
    ("with ACCEPT from a client", (record(ACCEPT, bytes(24), 1),), {}),
    ("with RESUMED from a client", (record(RESUMED, struct.pack("<4I", 1, 0, 0, 0) + STATE),), {}),
    ("with RESUME of nothing", (record(RESUME),), {}),
    ("with LIVE of nothing", (live(),), {}),
    ("with LIVE that leaves its own attempt out", (live(7, newest=9),), {}),
    ("with OPEN of a window of nothing", (open_record(messages=0),), {}),
    ("with OPEN of a window too large", (open_record(messages=65537),), {}),
    ("with OPEN of a long name", (open_record(bytes([97]) * 65),), {}),
    ("with OPEN of a strange name", (open_record(b"../x"),), {}),
):
    attack(f"frame {name}", ends(*what, **how))

attack("frame that takes credits back", ignored(limit=0))
for name, what in (
    ("for a channel that does not exist", (record(ACK, STATE, 5), record(CLOSED, channel=6))),
    ("with a message for nobody", (record(MESSAGE, STATE + struct.pack("<2IQQH6x", 3, 0, 0, 0, 0) + b"abc", 5, START),)),
    ("with LIVE of many attempts", (live(*range(1, 129), newest=128),)),
):
    attack(f"frame {name}", ignored(*what))


@named("frame longer than a receive")
def _() -> None:
    with Messages().set_up() as party:
        party.conn.pair.send(frame().ljust(FRAME + 1, b"\0"))
        party.wait_closed()


@named("frame with an immediate")
def _() -> None:
    with Messages().set_up() as party:
        party.conn.pair.send_imm(frame(live(1)), 7)
        party.wait_closed()


@named("frame that invalidates a key")
def _() -> None:
    with Messages().set_up() as party:
        party.conn.pair.send_inv(party.chunks[0][1], frame(live(1)))
        party.wait_closed()


@named("write with an immediate by the message connection")
def _() -> None:
    with Messages().set_up() as party:
        party.conn.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT, 0))
        party.wait_closed()


@named("portal that nobody has bound")
def _() -> None:
    with Messages().set_up() as party:
        party.put(live(1))
        # Each number once; a channel that was refused is gone when that was confirmed.
        for channel in range(1, 300):
            party.put(open_record(channel=channel))
            assert struct.unpack_from("<H", party.get(REJECT))[0] == errno.ENOENT
            party.put(record(CLOSED, channel=channel))
        party.goes_on()


@named("portals that nobody has bound, and no confirmation")
def _() -> None:
    with Messages().set_up() as party:
        party.put(live(1))
        for channel in range(1, 300):
            party.put(open_record(channel=channel))
            party.get(REJECT)
        party.goes_on()


class Talk(Messages):
    """A session with a channel to a program: one that writes what it reads, or one that reads nothing."""

    def opened(self, name: bytes = b"echo") -> "Talk":
        self.set_up()
        self.put(live(1))
        self.put(open_record(name, longest=4000))
        self.get(ACCEPT)
        return self


@named("on a channel: what is right")
def _() -> None:
    with Talk().opened() as party:
        for number in range(8):
            party.put(message(number, bytes([number]) * 100, ack=state(number, number)))
            assert party.get(MESSAGE)[48:] == bytes([number]) * 100
        pieces = [message(8, bytes(600), 3000, offset, ack=state(8, 8)) for offset in range(0, 3000, 600)]
        for piece in pieces:
            party.put(piece)
        assert len(party.get(MESSAGE)[48:]) == 3000
        party.put(message(9, b"q", kind=1, call=3 | 1 << 16, ack=state(9, 9)))
        assert party.get(MESSAGE)[-1:] == b"q"
        party.put(close(10, state(10, 10)))
        party.get(CLOSED)
        party.goes_on()


def after_hello(*what: bytes, name: bytes = b"echo", closes: bool = True):
    """Records for a channel by which a message has come and gone; they end the path, or change nothing."""
    def run() -> None:
        with Talk().opened(name) as party:
            if name == b"echo":
                party.put(message(0))
                party.get(MESSAGE)
            for one in what:
                party.put(one)
            if closes:
                party.wait_closed()
            else:
                party.goes_on()
                party.put(message(1, b"still there", ack=state(1, 1)))
                assert party.get(MESSAGE)[48:] == b"still there"
        comes_in()
    return run


HELLO = state(1, 1)
for name, what in (
    ("acknowledgement of what was not sent", (record(ACK, state(2, 1), 1),)),
    ("message taken that was not sent", (record(ACK, state(2, 2), 1),)),
    ("message taken before it has arrived", (record(ACK, state(1, 2), 1),)),
    ("credits for too many messages", (record(ACK, state(1, 1, 1 << 17), 1),)),
    ("credits for too many bytes", (record(ACK, state(1, 1, 16, 1 << 31), 1),)),
    ("message after a gap", (message(2, ack=HELLO),)),
    ("message after many", (message(1 << 30, ack=HELLO),)),
    ("message longer than agreed", (message(1, bytes(600), 4097, ack=HELLO),)),
    ("message longer than any", (message(1, bytes(600), 65537, ack=HELLO),)),
    ("piece of one byte", (message(1, b"x", 2, ack=HELLO),)),
    ("piece that is a bit short", (message(1, bytes(511), 1023, ack=HELLO),)),
    ("piece beyond the message", (message(1, bytes(700), 600, ack=HELLO),)),
    ("piece before the first one", (message(1, bytes(600), 1200, 600, ack=HELLO),)),
    ("piece that comes twice", (message(1, bytes(600), 2000, ack=HELLO), message(1, bytes(600), 2000, ack=HELLO))),
    ("pieces of different messages", (message(1, bytes(600), 2000, ack=HELLO), message(1, bytes(600), 1999, 600, ack=HELLO))),
    ("request in a slot that there is not", (message(1, kind=1, call=4, ack=HELLO),)),
    ("reply to no call", (message(1, kind=2, call=1 << 16, ack=HELLO),)),
    ("reply in a slot that there is not", (message(1, kind=2, call=65535, ack=HELLO),)),
    ("skip of what was not skipped", (record(SKIP, HELLO + struct.pack("<2I", 10, 0), 1, START + 2),)),
    ("end before the last message", (close(5, HELLO),)),
    ("end of a message in pieces", (message(1, bytes(600), 2000, ack=HELLO), close(1, HELLO))),
    # In one frame: the program closes when it has read the end, and then there is no such channel.
    ("messages after the end", (close(1, HELLO) + message(1, ack=HELLO),)),
    ("answer to an end that nobody has sent", (record(CLOSED, channel=1),)),
    ("channel resumed before what it had", (record(ACK, HELLO, 1), resume(1, 0, state(0, 0)))),
    ("channel resumed with what was not sent", (resume(1, 0, state(2, 2)),)),
    ("channel resumed with an end that nobody has sent", (resume(1, 2, HELLO),)),
    ("channel resumed with unknown flags", (resume(1, 4, HELLO),)),
    ("channel opened again after it was open", (record(ACK, HELLO, 1), record(
        OPEN, struct.pack("<3IHHB7x", 16, 65536, 1000, 4, 0, 4) + b"echo", 1, 1))),
):
    attack(f"on a channel: {name}", after_hello(*what))

for name, what in (
    ("message that comes twice", (message(0, ack=HELLO),)),
    ("message to another channel", (record(MESSAGE, HELLO + struct.pack("<2IQQH6x", 3, 0, 0, 0, 0) + b"abc", 2, START + 1),)),
    ("acknowledgement that is old", (record(ACK, state(0, 0, 0, 0), 1),)),
    ("channel resumed by an old move", (resume(0, 0, state(0, 0)), resume(0xFFFFFFFF, 0, state(9, 9)))),
    ("channel opened twice", (open_record(b"echo"),)),
):
    attack(f"on a channel, ignored: {name}", after_hello(*what, closes=False))

for name, what in (
    ("more messages than credits", tuple(message(number, b"") for number in range(5))),
    ("more bytes than credits", tuple(message(number, bytes(2700)) for number in range(3))),
    ("two requests in one slot", (message(0, kind=1, call=1), message(1, kind=1, call=1))),
):
    attack(f"on a channel: {name} to a program that does not read", after_hello(*what, name=b"deaf"))


@named("on a channel: many that are left behind")
def _() -> None:
    with Talk().opened() as party:
        for channel in range(200, 260):
            party.put(open_record(b"echo", channel))
            party.get(ACCEPT)
        party.goes_on()
    comes_in()


@named("more frames than credits")
def _() -> None:
    with Messages().set_up() as party:
        try:
            for _ in range(500):
                party.conn.pair.send(frame(record(ACK, STATE, 5)))
            # Nobody promises that the server was too slow.
            party.heartbeat()
        except (Closed, TimeoutError):
            pass
    comes_in()


@named("frames by chance")
def _() -> None:
    rng = random.Random(4711)
    good = (open_record(), live(1), record(ACK, STATE, 1), record(CLOSE, STATE + bytes(8), 1, START, 1), record(CLOSED, channel=1),
            record(RESUME, struct.pack("<4I", 1, 1, 0, 0) + STATE), record(SKIP, STATE + struct.pack("<2I", 10, 0), 1, START),
            record(MESSAGE, STATE + struct.pack("<2IQQH6x", 3, 0, 0, 0, 0) + b"abc", 1, START))
    for _ in range(30):
        with Messages().set_up() as party:
            try:
                for _ in range(20):
                    data = bytearray(frame(*rng.choices(good, k=rng.randrange(1, 6))))
                    for _ in range(rng.randrange(3)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    party.conn.pair.send(bytes(data[:rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data))
                party.heartbeat()
            except (Closed, TimeoutError):
                pass
    comes_in()
