# SPDX-License-Identifier: GPL-2.0
"""Immediates of every kind, and messages that no client expects."""

from pyverbs.pyverbs_error import PyverbsError

from .. import wire
from ..server import Honest, Server
from ..verbs import Closed, Failed
from ..victim import Victim
from .table import comes_back, expect, goes_on, lie, like, reads_and_recovers


def sends_immediates(kinds, cids=None):
    def order(server: Server) -> None:
        for cid, connection in server.cons.items():
            for kind in kinds if cids is None or cid in cids else ():
                for payload in (0, 1, (1 << 27) - 1, 1 << 27, (1 << 28) - 1):
                    try:
                        # The client may leave at once; waiting for that could miss that it comes back.
                        connection.pair.write_imm(b"", wire.imm(kind, payload))
                        server.step()
                    except (Closed, Failed, PyverbsError):
                        return
    return order


# Immediates that a server may send unasked on the service connection, those that only a client sends, and those of
# extensions.
SERVICE = (wire.IMM_NOTICE, wire.IMM_DURABLE, wire.IMM_HEARTBEAT, wire.IMM_HEARTBEAT_ACK)
UNKNOWN = range(13, 16)
CLIENTS = (wire.IMM_REQUEST, wire.IMM_FENCE, wire.IMM_DURABLE_SEEN)
EXTENSIONS = (wire.IMM_FENCE_DONE, wire.IMM_NOTICE, wire.IMM_ANSWER_SAME_KEY, wire.IMM_DURABLE, wire.IMM_ANSWERS,
              wire.IMM_NOP)
Mainline = like(extensions=False)
Slots = like(slot_size=8192, flags=wire.NEW_RKEY)


def orders_and_goes_on(v: Victim) -> None:
    v.must_map().fail_fast()
    v.read()
    v.tell("order 0")
    assert v.tell("paths") == "1 path", "the client has connected again"
    goes_on(v)


def orders_and_recovers(v: Victim) -> None:
    """The path breaks, and comes back."""
    v.must_map()
    v.read()
    v.tell("order 0")
    comes_back(v)


def flood(kind: int, count: int = 1000):
    def order(server: Server) -> None:
        pair = server.cons[0].pair
        for number in range(count):
            last = pair.write_imm(b"", wire.imm(kind, number))
            server.step()
        pair.wait_sent(last, 60)
    return order


lie("immediates of servers", Honest, orders_and_goes_on, sends_immediates(SERVICE, (0,)))
lie("immediates of servers with slots, on any connection", Slots, orders_and_goes_on, sends_immediates((wire.IMM_NOP,)))
for kind in (*CLIENTS, *UNKNOWN):
    for cid in (0, 1):
        lie(f"immediate of type {kind}, connection {cid}", Honest, orders_and_recovers, sends_immediates((kind,), (cid,)))
for kind in SERVICE:
    lie(f"immediate of type {kind}, connection 1", Honest, orders_and_recovers, sends_immediates((kind,), (1,)))
lie("answer to a fence that was not sent", Honest, orders_and_recovers, sends_immediates((wire.IMM_FENCE_DONE,), (0,)))
lie("NOP without slots", Honest, orders_and_recovers, sends_immediates((wire.IMM_NOP,), (1,)))
for kind in EXTENSIONS:
    lie(f"immediate of type {kind} without extensions", Mainline, orders_and_recovers, sends_immediates((kind,), (0,)))


def in_a_message(server: Server) -> None:
    server.cons[0].pair.send_imm(b"more", wire.imm(wire.IMM_HEARTBEAT, 0))


lie("heartbeat in a message with content", Honest, orders_and_recovers, in_a_message)


class NoAnswer(Honest):
    """Sends a number that is no answer in the place of an answer, and heartbeats."""

    def open(self, server, request):
        server.imm(request.by, 0xFFFFFFFF)


class NoAnswerOnce(Honest):
    """The same for the first read of the user."""

    lied = False

    def spot(self, server, request):
        if self.lied:
            return super().spot(server, request)
        self.lied = True
        return server.imm(request.by, 0xFFFFFFFF)


lie("unknown immediate in the place of the answer to OPEN", NoAnswer, expect("ECONNABORTED"))
lie("unknown immediate in the place of the answer to a read", NoAnswerOnce, reads_and_recovers("OK"))
lie("flood of heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT))
lie("flood of answers to heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT_ACK))
lie("flood of notices", Honest, orders_and_goes_on, flood(wire.IMM_NOTICE))
lie("flood of immediates that mean nothing", Slots, orders_and_goes_on, flood(wire.IMM_NOP))


def known_notices(server: Server) -> None:
    pair = server.cons[0].pair
    for _ in range(200):
        last = pair.write_imm(b"", wire.imm(wire.IMM_NOTICE, server.behaviour.device_id))
        server.step()
    pair.wait_sent(last, 60)


lie("flood of notices of the disk", Honest, orders_and_goes_on, known_notices)


def sends(data: bytes, cid: int = 1, count: int = 1):
    def order(server: Server) -> None:
        for _ in range(count):
            server.cons[cid].pair.send(data)
    return order


for cid in (0, 1):
    lie(f"message that is too long, connection {cid}", Honest, orders_and_recovers, sends(b"x" * 9000, cid))
    lie(f"messages without immediate, connection {cid}", Honest, orders_and_recovers, sends(b"", cid, 100))
lie("session information again", Honest, orders_and_recovers,
    lambda server: server.cons[0].pair.send(server.info_rsp()) and None)
