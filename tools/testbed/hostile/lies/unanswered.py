# SPDX-License-Identifier: GPL-2.0
"""OPEN is executed, but answered too late: the client has the device closed once it can."""

import errno
import os
import time

from .. import wire
from ..server import Honest, Server
from ..victim import Victim, error_of
from .table import lie, like

LIE, OTHER = "/dev/lie", "/dev/other"
IDS = {LIE: 7, OTHER: 8}
# An administrative message has 30 s; this answer comes later.
LATE_S, UNANSWERED_S = 33, 45
# Until the client asks, after a late answer as well.
CLOSED_S = 10


class Late(Honest):
    """Has two disks; answers the next OPENs of the first, or questions for it, too late."""

    late_opens, late_questions = 0, 0

    def __init__(self):
        super().__init__()
        self.has_open: set[int] = set()

    def request(self, server, request):
        if request.kind == wire.CLOSE:
            self.has_open.discard(wire.CLOSE_REQ.unpack(request.user)["device_id"])
        super().request(server, request)

    def open(self, server, request):
        asked = wire.OPEN_REQ.unpack(request.user)
        number = IDS[asked["dev_name"].rstrip(b"\0").decode()]
        is_question = bool(asked["flags"] & wire.ONLY_KNOWN)
        if is_question and number not in self.has_open:
            return server.answer(request, error=errno.ENOENT)
        self.has_open.add(number)
        if number == IDS[LIE] and self._is_late(is_question):
            return server.later(LATE_S, lambda: self._describe(server, request, number))
        return self._describe(server, request, number)

    def _describe(self, server, request, number):
        self.opened = {"device_id": number}
        super().open(server, request)

    def _is_late(self, is_question: bool) -> bool:
        if is_question:
            self.late_questions -= 1
            return self.late_questions >= 0
        self.late_opens -= 1
        return self.late_opens >= 0


def _until(server: Server, is_open: bool, seconds: float) -> str | None:
    deadline = time.monotonic() + seconds
    while (IDS[LIE] in server.behaviour.has_open) != is_open:
        if time.monotonic() > deadline:
            return f"the disk is {'not ' if is_open else ''}open after {seconds} s"
        if not server.step():
            time.sleep(0.01)
    return None


def closed(server: Server) -> str | None:
    return _until(server, False, CLOSED_S)


def opened(server: Server) -> str | None:
    return _until(server, True, UNANSWERED_S)


def late(server: Server) -> None:
    server.behaviour.late_opens = 1


def restarts(server: Server) -> None:
    """Has lost the session, and the next answer comes too late."""
    late(server)
    server.run = os.urandom(16)
    server.behaviour.has_open.clear()
    for connection in server.cons.values():
        connection.disconnect()


def revokes(server: Server) -> None:
    server.behaviour.has_open.discard(IDS[LIE])
    server.imm(server.cons[0], wire.imm(wire.IMM_NOTICE, IDS[LIE]))


def late_map(v: Victim) -> None:
    said = v.map(UNANSWERED_S)
    assert said == "ETIMEDOUT", f"map_device: {said}"


def with_other(what):
    """With another disk of the session, which keeps that."""
    def victim(v: Victim) -> None:
        other = Victim(v.name, v.port, v.tell, OTHER).must_map()
        what(v)
        said = other.read()
        assert said == "OK", f"a read of the other disk: {said}"
        other.unmap_disk()
    return victim


def never_mapped(v: Victim) -> None:
    late_map(v)
    v.tell("order 0")
    v.must_map()
    v.unmap_disk()
    v.tell("order 0")


lie("late answer to the OPEN of a second disk", like(Late, late_opens=1), with_other(never_mapped), closed)


def mapped_once_more(v: Victim) -> None:
    """The first question is that of a user who maps the disk once more."""
    late_map(v)
    late_map(v)
    v.tell("order 0")


lie("late answers to OPEN and to a question", like(Late, late_opens=1, late_questions=1), with_other(mapped_once_more),
    closed)


def unmapped_meanwhile(v: Victim) -> None:
    v.must_map()
    v.tell("order 0")
    v.tell("order 1")
    v.unmap_disk(UNANSWERED_S)
    v.tell("order 2")


lie("late answer to the OPEN of a disk that is unmapped meanwhile", Late, with_other(unmapped_meanwhile),
    restarts, opened, closed)


def remapped(v: Victim) -> None:
    v.must_map()
    v.tell("order 0")
    deadline = time.monotonic() + CLOSED_S
    while v.attribute("ibnbd/state") != "closed":
        assert time.monotonic() < deadline, "the client does not know that its disk was closed"
        time.sleep(0.1)
    v.tell("order 1")
    # Once: a file of Python's would write it again when it is closed.
    file = os.open(f"{v.disk}/ibnbd/remap_device", os.O_WRONLY)
    said = error_of(lambda: os.write(file, b"1"))
    os.close(file)
    assert said == "ETIMEDOUT", f"remap_device: {said}"
    v.unmap_disk()
    v.tell("order 2")


lie("late answer to the OPEN of a disk that is remapped", Late, with_other(remapped), revokes, late, closed)
