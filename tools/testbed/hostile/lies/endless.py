# SPDX-License-Identifier: GPL-2.0
"""What a server could go on with for ever."""

import time

from .. import wire
from ..server import SECTORS, Honest, Server
from ..victim import Victim
from .answers import other
from .table import goes_on, lie, like


class Resizes(Honest):
    """Has another size each time that it is asked, and says at once that it has changed again."""

    asked = 0

    def open(self, server, request):
        self.asked += 1
        self.opened = {"nsectors": SECTORS + 8 * (self.asked % 2)}
        super().open(server, request)
        notice = wire.imm(wire.IMM_NOTICE, self.device_id)
        # One that comes before the client knows the disk tells it nothing.
        for seconds in (0, 0.3, 3):
            server.later(seconds, lambda: server.imm(server.cons[0], notice))


# Once for the map, and then once a second.
RESIZING_S, RESIZES = 10, 15


def was_asked_now_and_then(server: Server) -> str | None:
    asked = server.behaviour.asked
    return None if 3 < asked <= RESIZES else f"asked {asked} times in {RESIZING_S} s"


def resized_over_and_over(v: Victim) -> None:
    v.must_map().impatient()
    time.sleep(RESIZING_S)
    v.tell("order 0")
    goes_on(v)


lie("sizes without end", Resizes, resized_over_and_over, was_asked_now_and_then)


def always(what) -> type[Honest]:
    """Does `what` with each request of the user; others are served."""
    return like(spot=lambda self, server, request: what(server, request))


# It is sent five times, and connecting again takes a little longer each time.
NEVER_S = 60


def fails_at_last(v: Victim) -> None:
    """Both a read and a write end with an error; other requests of the disk go on."""
    v.must_map()
    for call in (v.read, v.write):
        said = call(seconds=NEVER_S)
        assert said == "EIO", f"{call.__name__}: {said}"
    paths = int(v.tell("paths").split()[0])
    assert 10 <= paths <= 14, f"connected {paths} times"
    said = v.read(at=0)
    assert said == "OK", f"read beside it: {said}"


lie("each answer, on another connection", always(lambda s, r: s.end(r, by=other(s, r))), fails_at_last)
lie("each answer, to another chunk", always(lambda s, r: s.end(r, chunk=(r.chunk + 1) % s.behaviour.depth)), fails_at_last)
lie("each answer, too long", always(lambda s, r: r.by.pair.send(b"x" * 9000)), fails_at_last)
