# SPDX-License-Identifier: GPL-2.0
"""Immediates of every kind, and messages that no client expects."""

import errno
import time

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
UNKNOWN = range(14, 16)
CLIENTS = (wire.IMM_REQUEST, wire.IMM_FENCE, wire.IMM_DURABLE_SEEN)
EXTENSIONS = (wire.IMM_FENCE_DONE, wire.IMM_NOTICE, wire.IMM_ANSWER_SAME_KEY, wire.IMM_DURABLE, wire.IMM_ANSWERS,
              wire.IMM_NOP, wire.IMM_DOWNTIME)
# Of the type DOWNTIME: a day, and all that is longer; the client shows no more than a day.
DAY, LONGEST = 86_400, wire.DOWNTIME_SEEN - 1
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
for kind in (*SERVICE, wire.IMM_DOWNTIME):
    lie(f"immediate of type {kind}, connection 1", Honest, orders_and_recovers, sends_immediates((kind,), (1,)))
lie("answer to a fence that was not sent", Honest, orders_and_recovers, sends_immediates((wire.IMM_FENCE_DONE,), (0,)))
lie("NOP without slots", Honest, orders_and_recovers, sends_immediates((wire.IMM_NOP,), (1,)))
for kind in EXTENSIONS:
    lie(f"immediate of type {kind} without extensions", Mainline, orders_and_recovers, sends_immediates((kind,), (0,)))


def in_a_message(number: int):
    return lambda server: server.cons[0].pair.send_imm(b"more", number) and None


for name, number in (("heartbeat", wire.imm(wire.IMM_HEARTBEAT, 0)), ("DOWNTIME", wire.downtime_imm(1))):
    lie(f"{name} in a message with content", Honest, orders_and_recovers, in_a_message(number))


class Announces(Honest):
    """Remembers what the client has confirmed."""

    def __init__(self):
        super().__init__()
        self.confirmed = []

    def downtime_seen(self, server, payload):
        assert payload & wire.DOWNTIME_SEEN, f"payload {payload:#x}"
        self.confirmed.append(payload - wire.DOWNTIME_SEEN)


def says(*seconds: int):
    def order(server: Server) -> None:
        for number in seconds:
            server.cons[0].pair.write_imm(b"", wire.downtime_imm(number))
    return order


def confirmed(*seconds: int):
    def order(server: Server) -> str | None:
        heard, deadline = server.behaviour.confirmed, time.monotonic() + 20
        while len(heard) < len(seconds) and time.monotonic() < deadline:
            server.step()
        return None if heard == list(seconds) else f"confirmed: {heard}"
    return order


# More than the client has room for in its queue of notices.
TIMES = [*range(200), LONGEST, DAY, DAY + 1]


def is_told_again_and_again(v: Victim) -> None:
    """All of it is confirmed, and what counts is the last."""
    v.must_map()
    v.tell("order 0")
    v.read()
    deadline = time.monotonic() + 20
    while not DAY - 30 < int(v.shown("server_back_in_s") or 0) <= DAY:
        assert time.monotonic() < deadline, f"back in {v.shown('server_back_in_s')} s"
        time.sleep(0.1)
    v.tell("order 1")
    # It has changed its mind.
    v.tell("order 2")
    while v.shown("server_back_in_s"):
        assert time.monotonic() < deadline, "the server is expected back"
        time.sleep(0.1)
    assert v.tell("paths") == "1 path", "the client has connected again"
    goes_on(v)


lie("DOWNTIME again and again", Announces, is_told_again_and_again, says(*TIMES), confirmed(*TIMES), says(0))


class GoesAway(Honest):
    """Refuses connections while it is away."""

    away = False

    def connect(self, server, connection, asked):
        if self.away:
            return connection.reject(wire.CONN_RSP.pack(errno=-errno.ECONNREFUSED))
        return super().connect(server, connection, asked)


def goes(server: Server) -> None:
    server.behaviour.away = True
    for connection in server.cons.values():
        connection.disconnect()


def returns(server: Server) -> None:
    server.behaviour.away = False


def waits_as_the_operator_says(v: Victim) -> None:
    """A server that announces a day, and goes, holds I/O up for as long as the operator has said, and no longer."""
    v.must_map().fail_fast()
    v.tell("order 0")
    goes_on(v)
    v.tell("order 1")
    said = v.read(seconds=30)
    assert said in ("ETIMEDOUT", "EIO"), f"read: {said}"
    assert DAY - 60 < int(v.shown("server_back_in_s")) <= DAY
    v.tell("order 2")
    deadline = time.monotonic() + 60
    while v.read() != "OK":
        assert time.monotonic() < deadline, "the client does not come back"
        time.sleep(0.5)
    assert v.shown("server_back_in_s") == "", "the server is back, and the client waits for it"


lie("DOWNTIME of a day", GoesAway, waits_as_the_operator_says, says(LONGEST), goes, returns)
lie("DOWNTIME_SEEN of a server", Honest, orders_and_recovers,
    lambda server: server.cons[0].pair.write_imm(b"", wire.downtime_imm(1, seen=True)) and None)


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
lie("flood of DOWNTIME", Honest, orders_and_goes_on, flood(wire.IMM_DOWNTIME))
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
