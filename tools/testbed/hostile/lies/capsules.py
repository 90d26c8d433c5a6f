# SPDX-License-Identifier: GPL-2.0
"""Capsules: what the client sends in them, and how many requests it has in flight."""

import os
import threading

from .. import aio, wire
from ..server import Honest, Server
from ..victim import SPOT, Victim
from .table import expect, goes_on, lie, like, writes_and_reads

# Enough that one connection has no window for all of them, and few enough for two.
MANY = 20


class Capsules(Honest):
    """An honest server that takes capsules."""

    window_units = 1


def writes(v: Victim) -> None:
    """Writes and reads of all sizes have the right data, and the path goes on."""
    writes_and_reads(v, 512, 4096, 8192, 61440)
    v.tell("order 0")


def then_asked(v: Victim) -> None:
    expect("OK")(v)
    v.tell("order 0")


def has_asked(server: Server) -> str | None:
    """Small writes and all reads came in capsules, larger writes in their chunks, and messages as well."""
    for request in server.requests:
        wanted = request.kind == wire.IO and (not request.is_io_write or request.io["bytes"] <= 4096)
        if request.in_capsule != wanted:
            return f"a request of kind {request.kind}, {request.header} is {'' if request.in_capsule else 'not '}in a capsule"
    return None


def has_fetched(server: Server) -> str | None:
    """All requests for the disk came in capsules, and only larger writes are fetched."""
    others = server.requests_that(lambda r: r.kind == wire.IO and not r.in_capsule)
    fetched = {r.io["bytes"] for r in server.requests_that(lambda r: r.header["type"] == wire.FETCH_HDR)}
    if others or fetched != {8192, 61440}:
        return f"{len(others)} requests not in capsules; writes of {fetched} bytes are to be fetched"
    return None


def has_none(server: Server) -> str | None:
    return "there are capsules" if server.requests_that(lambda r: r.in_capsule) else None


lie("capsules", Capsules, writes, has_asked)
lie("capsules beside slots", like(Capsules, slot_size=4096, flags=wire.NEW_RKEY), writes, has_fetched)
lie("capsules without extensions", like(Capsules, acceptance={"ext": 0}), then_asked, has_none)
lie("capsules without a window", like(Capsules, window_units=0), then_asked, has_none)


class Holds(Capsules):
    """Answers reads of the user once there are many, and none is to come on the same connection."""

    depth = 32

    def __init__(self):
        super().__init__()
        self.held = []

    def spot(self, server, request):
        self.held.append(request)
        if len(self.held) >= MANY:
            for each in self.held if len(self.held) == MANY else [request]:
                self.serve(server, each)


def many(v: Victim) -> None:
    """Many reads of one processor at once."""
    v.must_map()
    fd = os.open("/dev/" + os.path.basename(v.disk), os.O_RDONLY | os.O_DIRECT)
    v.attribute("queue/nomerges", "2")
    failed = []

    def read(number: int) -> None:
        os.sched_setaffinity(0, {0})
        buffer = memoryview(v.page)[number * 4096:][:4096]
        try:
            os.preadv(fd, [buffer], SPOT)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(MANY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    os.close(fd)
    assert not failed and not any(thread.is_alive() for thread in threads), failed or "reads do not end"
    v.tell("order 0")
    goes_on(v)


def at_once(v: Victim) -> None:
    """The same reads, submitted together: the block layer rings for the last of them alone."""
    v.must_map()
    v.attribute("queue/nomerges", "2")
    fd = os.open("/dev/" + os.path.basename(v.disk), os.O_RDONLY | os.O_DIRECT)
    os.sched_setaffinity(0, {0})
    ended = aio.read(fd, [(SPOT, memoryview(v.page)[number * 4096:][:4096]) for number in range(MANY)], 60)
    os.close(fd)
    assert ended == [4096] * MANY, ended
    v.tell("order 0")
    goes_on(v)


def kept_window(server: Server) -> str | None:
    held = server.behaviour.held[:MANY]
    each = {cid: sum(request.by is connection for request in held) for cid, connection in server.cons.items()}
    if max(each.values()) > 13:
        return f"a connection has more requests in flight than 13: {each}"
    return None if max(each.values()) == 13 else f"no connection has 13 requests: {each}"


lie("capsules: window of 13", Holds, many, kept_window)
# The first one counts.
lie("capsules: windows that differ", like(Holds, different=True), many, kept_window)
lie("capsules: a batch of more than the window", Holds, at_once, kept_window)
