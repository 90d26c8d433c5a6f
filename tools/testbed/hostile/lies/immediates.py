# SPDX-License-Identifier: GPL-2.0
"""Immediates of every kind, and messages that no client expects."""

from pyverbs.pyverbs_error import PyverbsError

from .. import wire
from ..server import Honest, Server
from ..verbs import Closed, Failed
from ..victim import Victim
from .table import comes_back, goes_on, lie


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


# Immediates that a server may send on the service connection, or anywhere, and those that only a client sends.
SERVICE = (wire.IMM_FENCE_DONE, wire.IMM_NOTICE, wire.IMM_DURABLE, wire.IMM_HEARTBEAT, wire.IMM_HEARTBEAT_ACK)
# A client without slots ignores it as well.
ANYWHERE = (wire.IMM_NOP,)
UNKNOWN = range(13, 16)
CLIENTS = (wire.IMM_REQUEST, wire.IMM_FENCE, wire.IMM_DURABLE_SEEN)


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
lie("immediates of servers, on any connection", Honest, orders_and_goes_on, sends_immediates(ANYWHERE))
lie("unknown immediates", Honest, orders_and_goes_on, sends_immediates(UNKNOWN))
for kind in CLIENTS:
    for cid in (0, 1):
        lie(f"immediate of type {kind}, connection {cid}", Honest, orders_and_recovers, sends_immediates((kind,), (cid,)))
for kind in SERVICE:
    lie(f"immediate of type {kind}, connection 1", Honest, orders_and_recovers, sends_immediates((kind,), (1,)))
lie("flood of heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT))
lie("flood of answers to heartbeats", Honest, orders_and_goes_on, flood(wire.IMM_HEARTBEAT_ACK))
lie("flood of answers to fences", Honest, orders_and_goes_on, flood(wire.IMM_FENCE_DONE))
lie("flood of notices", Honest, orders_and_goes_on, flood(wire.IMM_NOTICE))
lie("flood of unknown immediates", Honest, orders_and_goes_on, flood(UNKNOWN[0]))
lie("flood of immediates that mean nothing", Honest, orders_and_goes_on, flood(wire.IMM_NOP))


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
