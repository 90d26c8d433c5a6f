# SPDX-License-Identifier: GPL-2.0
"""What a server could go on with for ever."""

import time

from ..server import SECTORS, Honest, Server
from ..victim import Victim
from .immediates import known_notices
from .table import goes_on, lie


class Resizes(Honest):
    """Has another size each time that it is asked, and says at once that it has changed again."""

    asked = 0

    def open(self, server, request):
        self.asked += 1
        self.opened = {"nsectors": SECTORS + 8 * (self.asked % 2)}
        super().open(server, request)
        known_notices(server)


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
