# SPDX-License-Identifier: GPL-2.0
"""More messages than a server expects, or fewer than it waits for."""

import errno
import time

from .. import wire
from ..client import Party
from ..verbs import Closed
from .connecting import asks
from .names import info, introduces
from .table import DISK, OTHER, code, comes_in, named, opened


@named("flood of heartbeats")
def _():
    """More than are answered end the path."""
    with Party().set_up() as party:
        try:
            for _ in range(1000):
                party.service.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT, 0))
                party.service.pair.poll()
                party.service.pair.messages.clear()
            party.heartbeat()
        except Closed:
            pass
    comes_in()


# The receives of the server's service connection, one of them for the INFO request, and its send queue.
RECEIVES, SENDS = 513, 1026


@named("deaf while it is set up")
def _():
    """What the server sends stays in its send queue, in which it then finds no place to register chunks.  It does not wait
    for that for ever, although it hears from the client."""
    with Party() as party:
        deaf = party.resolve()
        deaf.pair.receive = lambda number: None
        deaf.ask(party.request(0))
        deaf.answered()
        deaf.establish()
        party.connections[0] = deaf
        party.connect(1)
        # The next receive is that for the INFO request again.
        for number in range(2 * RECEIVES):
            kind = wire.IMM_HEARTBEAT if number < SENDS - 10 else wire.IMM_HEARTBEAT_ACK
            deaf.pair.write_imm(b"", wire.imm(kind, 0))
        deaf.pair.send(party.info_req())
        began = time.monotonic()
        while not deaf.is_ended():
            assert time.monotonic() < began + 30, "the server waits for ever"
            deaf.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT_ACK, 0))
            time.sleep(1)
        assert time.monotonic() > began + 5, "ended for another reason"
    comes_in()


@named("flood of requests that make no sense")
def _():
    with Party().set_up() as party:
        for _ in range(20):
            for chunk in range(1, party.depth):
                party.write_chunk(party.io, chunk, 0, bytes(16), 0)
            for _ in range(1, party.depth):
                assert party.answer_any(party.io) == errno.EINVAL
        party.heartbeat()


@named("flood of connections that are refused")
def _():
    for _ in range(30):
        asks("ECONNRESET", magic=1)()


@named("flood of names that are refused")
def _():
    for _ in range(15):
        introduces(info(name=b"a.b"))()


@named("flood of devices that are not there")
def _():
    with Party().set_up() as party:
        for _ in range(50):
            assert code(party.try_open("nothing")[0]) == "ENOENT"


@named("answers are not taken")
def _():
    """A client without receives: the server waits, and the others do not."""
    with Party(name="deaf") as party:
        party.cid_num = 2
        party.set_up()
        device = opened(party, DISK)
        pair = party.io.pair
        pair.receive = lambda number: None
        for round in range(pair.receives // (party.depth - 2) + 2):
            for chunk in range(2, party.depth):
                party.post_io(device, wire.READ, chunk=chunk)
            try:
                for _ in range(2, party.depth):
                    party.answer_any(party.io, 0.5)
            except TimeoutError:
                break
        with Party(name="honest").set_up() as honest:
            assert honest.submit(opened(honest, OTHER), wire.READ) == "OK"


@named("queue pair that does not acknowledge")
def _():
    """The queue pair is gone, the connection is not."""
    with Party(name="mute").set_up() as party:
        device = opened(party, DISK)
        party.post_io(device, wire.READ)
        party.io.pair.break_off()
        with Party(name="honest").set_up() as honest:
            assert honest.submit(opened(honest, OTHER), wire.READ) == "OK"
