# SPDX-License-Identifier: GPL-2.0
"""Answers that never come."""

import os
import time

from .. import wire
from ..server import Honest
from ..victim import Victim
from .connecting import LeavesAtRead
from .keys import HoldsReads
from .table import REFUSED, lie, like


class Silent(Honest):
    """Answers nothing from a step on."""

    def __init__(self):
        super().__init__()
        if self.at == "OPEN":
            self.open = lambda server, request: None
        elif self.at == "SESS_INFO":
            self.introduce = lambda server, request: None
        elif self.at == "INFO":
            self.info = lambda server, connection: None
        elif self.at == "connection":
            self.connect = lambda server, connection, asked: None

    at = ""


def killed(v: Victim) -> None:
    """A user who has waited for his disk is killed, and comes back."""
    said = v.map(3)
    assert said in ("KILLED", *REFUSED), f"map_device: {said}"


for step in ("connection", "INFO", "SESS_INFO", "OPEN"):
    lie(f"no answer to {step}", like(Silent, at=step), killed)


def read_times_out(v: Victim) -> None:
    """Nobody answers a read: it ends in time, if not by another path.  The request itself is kept
    until the server answers, or the disk goes."""
    v.must_map().fail_fast()
    said = v.read()
    assert said in ("ETIMEDOUT", "OK"), f"a read that nobody answers: {said}"


lie("no answer to a read", HoldsReads, read_times_out)
# The connection is silent from then on, and nobody tells.
lie("broken off at a read", like(LeavesAtRead, quietly=True), read_times_out)


class Keeps(Honest):
    """Has two disks, and answers nothing that a user wants of the first; heartbeats go on."""

    ids = {"/dev/lie": 7, "/dev/other": 8}

    def open(self, server, request):
        name = wire.OPEN_REQ.unpack(request.user)["dev_name"].rstrip(b"\0").decode()
        self.opened = {"device_id": self.ids[name]}
        super().open(server, request)

    def spot(self, server, request):
        if request.io["device_id"] != self.ids["/dev/lie"]:
            super().spot(server, request)


# Its requests have 10 s, and closing the path takes a moment.
FORCED_S = 25


def forced(v: Victim) -> None:
    """The disk goes although its request is kept; the other one of the session has lost nothing."""
    other = Victim(v.name, v.port, v.tell, "/dev/other").must_map()
    v.must_map()
    other.page[:4096] = os.urandom(4096)
    written = other.page[:4096]
    assert other.write() == "OK"
    ended = v.beside(v.read)
    v.tell("wait read")
    began = time.monotonic()
    v.unmap_disk(FORCED_S)
    ended.join(5)
    assert not ended.is_alive(), "the read of a disk that has gone does not end"
    print(f"unmapped after {time.monotonic() - began:.1f} s", flush=True)
    other.fill()
    assert other.read() == "OK" and other.page[:4096] == written, "the other disk has lost what was written"
    other.unmap_disk()


lie("disk unmapped by force whose request is kept", Keeps, forced)
