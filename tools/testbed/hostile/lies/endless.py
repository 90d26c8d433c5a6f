# SPDX-License-Identifier: GPL-2.0
"""Misbehaviour that a server could repeat without end."""

import os
import threading
import time

from .. import wire
from ..server import SECTORS, Honest, Server
from ..victim import TIME_LIMIT, Victim
from .answers import other
from .silence import FORCED_S
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
    v.must_map().fail_fast()
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


class ClosesEachTime(Honest):
    """Closes the connection of each request of the user, until it is told to serve them."""

    def __init__(self):
        super().__init__()
        self.is_closing = True
        self.closed: float | None = None
        # How long the client took from there to its next attempt, in seconds.
        self.pauses: list[float] = []

    def connect(self, server, connection, asked):
        if asked["cid"] == 0 and self.closed is not None:
            self.pauses.append(time.monotonic() - self.closed)
            self.closed = None
        super().connect(server, connection, asked)

    def spot(self, server, request):
        if not self.is_closing:
            return super().spot(server, request)
        if self.closed is None:
            self.closed = time.monotonic()
        request.by.disconnect()


# Half of reconnect_delay_ms, which is 1000 unless set; the clocks of two guests differ a little.
SHORTEST_PAUSE_S = 0.5 * 0.95
# Number of times that the server closes the connection before the user gives up, and number of
# requests in flight each time.
CLOSES, WRITES = 6, 8
# Of the path: that it is connected, and why it no longer is. Of the session: that no path is left,
# and to the disk that it is disconnected and connected again. None of a request.
LINES_A_PATH = 5


def serves_from_now_on(server: Server) -> str | None:
    server.behaviour.is_closing = False
    shortest = min(server.behaviour.pauses)
    return None if shortest >= SHORTEST_PAUSE_S else f"connected again {shortest:.3f} s after it was closed"


class Writes:
    """Writes of the same data to the same place, all at once."""

    def __init__(self, v: Victim):
        self.victim, self.said = v, []
        # Opens the disk.
        assert v.read(at=0) == "OK"
        v.page[:4096] = os.urandom(4096)
        self.data = v.page[:4096]
        self.threads = [threading.Thread(target=self._write, daemon=True) for _ in range(WRITES)]
        for thread in self.threads:
            thread.start()

    def _write(self) -> None:
        self.said.append(self.victim.write(seconds=3 * TIME_LIMIT))

    def end(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        assert len(self.said) == WRITES, f"{WRITES - len(self.said)} of {WRITES} writes do not end"
        return self.said


def count_paths(v: Victim) -> int:
    return int(v.tell("paths").split()[0])


def closed_so_often(v: Victim, times: int) -> None:
    deadline = time.monotonic() + 2 * TIME_LIMIT
    while count_paths(v) <= times:
        assert time.monotonic() < deadline, "the client does not connect again"
        time.sleep(0.2)


def log_lines(name: str) -> list[str]:
    """The kernel's log lines about a session."""
    lines = []
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                lines.append(os.read(fd, 8192).decode(errors="replace"))
            except BlockingIOError:
                return [line for line in lines if f": {name}: " in line]
            except BrokenPipeError:
                # Older lines were overwritten meanwhile.
                continue
    finally:
        os.close(fd)


def closed_for_a_while(v: Victim) -> None:
    """Requests wait, the client pauses before each attempt and says little; nothing is lost."""
    v.must_map()
    writes = Writes(v)
    closed_so_often(v, CLOSES)
    assert not writes.said, f"writes ended while the server closed each connection: {writes.said}"
    v.tell("order 0")
    said = writes.end(TIME_LIMIT)
    assert set(said) == {"OK"}, f"writes: {said}"
    v.fill()
    assert v.read(4096) == "OK" and v.page[:4096] == writes.data, "what was written is not what is read"
    paths, lines = count_paths(v), log_lines(v.name)
    print(f"{paths} paths, {len(lines)} lines in the log", flush=True)
    assert len(lines) <= LINES_A_PATH * paths, f"{len(lines)} lines in the log about {paths} paths: {lines}"


def closed_for_ever(v: Victim) -> None:
    """The user can be rid of the disk, and of what waits for it."""
    v.must_map()
    writes = Writes(v)
    closed_so_often(v, 2)
    v.unmap_disk(FORCED_S)
    said = writes.end(5)
    assert "OK" not in said, f"writes that the server never carried out: {said}"


lie("closed at each request", ClosesEachTime, closed_for_a_while, serves_from_now_on)
lie("closed until the disk is unmapped by force", ClosesEachTime, closed_for_ever)
