# SPDX-License-Identifier: GPL-2.0
"""Immediates without the message or the state that they need."""

from .. import wire
from ..client import Party
from .table import attack, named


def imms(closed: bool, *numbers: int, cid: int = 0, epoch: int = 0, message: bytes | None = None, first_conn: int = 0):
    def run():
        party = Party(epoch=epoch)
        if first_conn:
            party.extensions["first_conn"] = first_conn
        with party.set_up():
            for number in numbers:
                pair = party.connections[cid].pair
                pair.write_imm(b"", number) if message is None else pair.send_imm(message, number)
            party.wait_closed() if closed else party.heartbeat()
    return run


HEARTBEATS = (wire.IMM_HEARTBEAT, wire.IMM_HEARTBEAT_ACK)
for kind in range(16):
    if kind in (wire.IMM_REQUEST, wire.IMM_FENCE, *HEARTBEATS):
        continue
    for cid in (0, 1):
        attack(f"immediate of type {kind}, connection {cid}", imms(True, wire.imm(kind, 1), cid=cid))
    attack(f"immediate of type {kind} in a message", imms(True, wire.imm(kind, 1), message=b""))
for kind in HEARTBEATS:
    attack(f"immediate of type {kind}", imms(False, wire.imm(kind, 1), wire.imm(kind, (1 << 28) - 1)))
    attack(f"immediate of type {kind}, connection 1", imms(True, wire.imm(kind, 0), cid=1))
    attack(f"immediate of type {kind}, with content", imms(True, wire.imm(kind, 0), message=b"x"))
attack("DURABLE_SEEN, not negotiated", imms(True, wire.imm(wire.IMM_DURABLE_SEEN, 1), epoch=5))
SEEN = wire.downtime_imm(1, seen=True)
TAKES_DOWNTIME = wire.FIRST_CONN | wire.EXT_DOWNTIME
attack("DOWNTIME_SEEN, not negotiated", imms(True, SEEN, epoch=5))
attack("DOWNTIME_SEEN without extensions", imms(True, SEEN, first_conn=TAKES_DOWNTIME))
attack("DOWNTIME_SEEN unasked", imms(False, *[SEEN, wire.downtime_imm(wire.DOWNTIME_SEEN - 1, seen=True)] * 100,
                                      epoch=5, first_conn=TAKES_DOWNTIME))
attack("DOWNTIME_SEEN, connection 1", imms(True, SEEN, cid=1, epoch=5, first_conn=TAKES_DOWNTIME))
attack("DOWNTIME_SEEN with content", imms(True, SEEN, message=b"x", epoch=5, first_conn=TAKES_DOWNTIME))
attack("DOWNTIME of a client", imms(True, wire.downtime_imm(1), epoch=5, first_conn=TAKES_DOWNTIME))
attack("immediate in a message that is too long", imms(True, wire.imm(12, 0), message=b"x" * 64))
attack("fence without extensions", imms(True, wire.fence_imm(1)))
attack("fence on a connection for I/O", imms(True, wire.fence_imm(1), cid=1, epoch=5))
attack("fence about the path that carries it", imms(True, wire.fence_imm(5), epoch=5))
attack("fence of attempt 0, which there is none of", imms(False, wire.fence_imm(0), epoch=5))
attack("fences in any number", imms(True, *[wire.fence_imm(1, True)] * 2000, epoch=5))


@named("fences with drain, answered")
def _():
    with Party(epoch=9).set_up() as party:
        party.service.pair.write_imm(b"", wire.fence_imm(8, True))
        while (imm := wire.Immediate.of(party.service.next().imm)).kind != wire.IMM_FENCE_DONE:
            pass
        assert imm.payload == 1 << 27 | 8


def request_at(chunk, offset):
    """A request immediate without a request, for any chunk and offset."""
    def run():
        with Party().set_up() as party:
            party.io.pair.write_imm(b"", wire.request_imm(party.depth, chunk(party), offset(party)))
            party.wait_closed()
    return run


attack("request at the end of a chunk", request_at(lambda p: 0, lambda p: p.chunk_size))
attack("request beyond a chunk", request_at(lambda p: 0, lambda p: (1 << 28 - wire.chunk_bits(p.depth)) - 1))


@named("request for a chunk beyond the last one")
def _():
    with Party().set_up() as party:
        # Where the number of chunks is a power of two there is none that fits.
        if party.depth & party.depth - 1:
            party.io.pair.write_imm(b"", wire.request_imm(party.depth, party.depth, 8))
            party.wait_closed()
