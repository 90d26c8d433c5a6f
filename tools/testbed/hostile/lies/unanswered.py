# SPDX-License-Identifier: GPL-2.0
"""OPEN is executed, but answered too late: the client has the device closed once it can.  CLOSE does not reach a later
session."""

import contextlib
import errno
import os
import subprocess
import time

from .. import wire
from ..server import Honest, Server
from ..victim import ADDRESS, SESSIONS, TIME_LIMIT, Victim, error_of
from .endless import log_lines
from .table import lie, like

LIE, OTHER = "/dev/lie", "/dev/other"
MORE = [f"/dev/more{number}" for number in range(6)]
IDS = {name: number for number, name in enumerate((LIE, OTHER, *MORE), 7)}
# An administrative message has 30 s; this answer comes later.
LATE_S, UNANSWERED_S = 33, 45
ROUNDS = 10
# In which the client has noticed that a path is lost.
NOTICED_S = 0.03
FIRST, SECOND = "10.0.1.2", "10.0.1.102"
# Until the client asks, after a late answer as well.
CLOSED_S = 10


class Late(Honest):
    """Has some disks; answers the next OPENs of the first, or questions for it, too late."""

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


def _until(server: Server, holds, seconds: float, otherwise: str) -> str | None:
    """Serves until holds()."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return f"{otherwise} after {seconds} s"
        if not server.step():
            time.sleep(0.01)
    return None


def closed(server: Server) -> str | None:
    return _until(server, lambda: IDS[LIE] not in server.behaviour.has_open, CLOSED_S, "the disk is open")


def opened(server: Server) -> str | None:
    return _until(server, lambda: IDS[LIE] in server.behaviour.has_open, UNANSWERED_S, "the disk is not open")


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


class Forgetful(Late):
    """Answers no question for its exports, holds back the last message that connects a path if it is told to, and
    looks whether devices that it has not open are closed."""

    # So short that the client sends one administrative message at a time.
    depth = 8

    def __init__(self):
        super().__init__()
        self.wrongly_closed: list[int] = []
        self.holds, self.held = False, None

    def request(self, server, request):
        if request.kind == wire.CLOSE:
            number = wire.CLOSE_REQ.unpack(request.user)["device_id"]
            if number not in self.has_open:
                self.wrongly_closed.append(number)
        super().request(server, request)

    def discover(self, server, request):
        pass

    def info(self, server, connection):
        if self.holds:
            self.held = connection
        else:
            super().info(server, connection)


def holds_another_path(server: Server) -> None:
    """Its server was started later, and knows no session."""
    server.behaviour.holds = True
    server.run = os.urandom(16)


def another_is_held(server: Server) -> str | None:
    return _until(server, lambda: server.behaviour.held is not None, UNANSWERED_S, "no other path is being connected")


def takes_over(server: Server) -> None:
    """The other path is connected as soon as the client has lost the former one."""
    behaviour = server.behaviour
    behaviour.has_open.clear()
    for connection in server.former:
        connection.disconnect()
    held, behaviour.holds, behaviour.held = behaviour.held, False, None
    server.later(NOTICED_S, lambda: behaviour.info(server, held))


def none_closed_wrongly(server: Server) -> str | None:
    wrong = server.behaviour.wrongly_closed
    return f"devices of the former session were closed in the new one: {wrong}" if wrong else None


def is_connected(v: Victim) -> bool:
    with open(f"{SESSIONS}/{v.name}/paths/ip:{FIRST}@ip:{ADDRESS}/state") as file:
        return file.read().strip() == "connected"


def closed_in_another_session(v: Victim) -> bool:
    """CLOSEs wait behind a message without answer, while the server is replaced by another one.  Returns whether one
    has found the other session: each looks every 100 ms whether its time has come, and one that looks while no path is
    connected is not sent anyway."""
    deadline = time.monotonic() + TIME_LIMIT
    while not is_connected(v):
        assert time.monotonic() < deadline, "the client does not connect again"
        time.sleep(0.05)
    disks = [Victim(v.name, v.port, v.tell, name).must_map() for name in MORE]
    v.tell("order 0")
    adding = v.beside(lambda: v.session("add_path", f"ip:{SECOND},ip:{ADDRESS}"))
    v.tell("order 1")
    assert v.discover(0.5) == "KILLED"
    closing = [v.beside(disk.unmap_disk) for disk in disks]
    time.sleep(0.5)
    v.tell("order 2")
    for thread in (adding, *closing):
        thread.join(TIME_LIMIT)
    v.tell("order 3")
    assert not any(disk.disk for disk in disks), "a disk is not unmapped"
    return any("closing device" in line and "ESTALE" in line for line in log_lines(v.name))


def waits_to_be_closed(v: Victim) -> None:
    subprocess.run(["ip", "address", "replace", f"{SECOND}/24", "dev", "eth0"], check=True)
    for _ in range(ROUNDS):
        if closed_in_another_session(v):
            return
        with contextlib.suppress(FileNotFoundError):
            v.session(f"paths/ip:{SECOND}@ip:{ADDRESS}/remove_path", "1")
    raise AssertionError("no CLOSE has waited until the next session")


lie("session is lost while disks wait to be closed", Forgetful, with_other(waits_to_be_closed), holds_another_path,
    another_is_held, takes_over, none_closed_wrongly)
