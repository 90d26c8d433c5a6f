# SPDX-License-Identifier: GPL-2.0
"""Never an answer."""

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


def read_is_given_up(v: Victim) -> None:
    """Nobody answers a read: it ends in time, if not by another path.  To be rid of the disk the
    user disconnects the server, as the request itself is kept until that answers."""
    v.must_map().impatient()
    said = v.read()
    assert said in ("ETIMEDOUT", "OK"), f"a read that nobody answers: {said}"
    v.disconnect()


lie("no answer to a read", HoldsReads, read_is_given_up)
# The connection is silent from then on, and nobody tells.
lie("broken off at a read", like(LeavesAtRead, quietly=True), read_is_given_up)
