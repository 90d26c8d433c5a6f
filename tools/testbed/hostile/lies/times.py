# SPDX-License-Identifier: GPL-2.0
"""Servers that tell their share of a request's time, or something else."""

import os
import re

from .. import wire
from ..server import Honest, Server
from ..victim import LONG, SHORT, Victim
from .checksums import ON, Checks
from .table import lie, like

# A buffer of its own, so that nobody else's traces are disturbed.
BUFFER = "/sys/kernel/tracing/instances/lies"
EVENT = f"{BUFFER}/events/ibtrs/ibtrs_client_complete/enable"
NONE = (-1, -1)
# 20 us, and almost 1.5 ms.
SOME, SOME_NS = bytes.fromhex("e224b855"), (20_000, 1_499_136)
MOST, MOST_NS = b"\xff" * 4, (2047 << 31, 2047 << 31)
NUMBER = b"\x11\x22\x33\x44"


class Tells(Honest):
    """Ends its answers with a number for those that ask for times, and for no others."""

    times = True
    more = SOME

    def end_of_answer(self, request, more):
        return more + self.more if request.timed else more


class ChecksAndTells(Tells, Checks):
    """Both; of the two, the checksum comes first."""


class Traces:
    """The client's event while there is one of these."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> "Traces":
        os.mkdir(BUFFER)
        self.switch("1")
        return self

    def switch(self, value: str) -> None:
        with open(EVENT, "w") as file:
            file.write(value)

    def of_io(self) -> list[tuple[int, int]]:
        """The times of each request that has ended; there may be none."""
        with open(f"{BUFFER}/trace") as file:
            lines = [line for line in file if f" session={self.name} " in line]
        found = [re.search(r" ns=\d+ queue_ns=(-?\d+) disk_ns=(-?\d+)$", line) for line in lines]
        assert all(found), lines
        return [(int(each[1]), int(each[2])) for each in found]

    def __exit__(self, *_) -> None:
        self.switch("0")
        os.rmdir(BUFFER)


def traced(*wanted: tuple[int, int], options: str = ""):
    """Reads and writes while somebody traces: the data is right, the path goes on, and all requests
    have one of these times."""
    def victim(v: Victim) -> None:
        v.options = options
        v.must_map().fail_fast()
        with Traces(v.name) as traces:
            for length in (LONG, SHORT):
                said = v.write(length), v.read(length)
                assert said == ("OK", "OK"), said
            shown = traces.of_io()
        assert len(shown) >= 4 and set(shown) <= set(wanted), shown
        if options:
            count = v.attribute("ibnbd/checksum_errors")
            assert count == "0 0", f"checksum_errors: {count}"
        # And when nobody does so any more.
        said = v.write(SHORT), v.read(SHORT)
        assert said == ("OK", "OK"), said
        assert v.tell("paths") == "1 path", "the client has connected again"
        v.tell("order 0")
    return victim


def some_asked(server: Server) -> str | None:
    asked = [request.timed for request in server.requests_that(lambda r: r.at_spot)]
    if len(asked) != 6 or not all(asked[:4]) or any(asked[4:]):
        return f"who has asked for times: {asked}"
    return None


def none_asked(server: Server) -> str | None:
    asked = server.requests_that(lambda r: r.timed)
    return f"{len(asked)} requests ask for times" if asked else None


def telling(more: bytes, base: type[Honest] = Tells, **changes) -> type[Honest]:
    return like(base, more=more, **changes)


for flags, name in ((0, ""), (wire.NEW_RKEY, ", with keys")):
    lie(f"times{name}", telling(SOME, flags=flags), traced(SOME_NS), some_asked)
    lie(f"times longer than the request{name}", telling(MOST, flags=flags), traced(MOST_NS), some_asked)
    lie(f"times and checksums{name}", telling(SOME, ChecksAndTells, flags=flags), traced(SOME_NS, options=ON),
        some_asked)
    # A request that has asked for times knows what to make of a number that nobody has asked for.
    lie(f"times and a number{name}", telling(NUMBER + SOME, flags=flags), traced(SOME_NS), some_asked)
    for length in (0, 1, 3, 5, 7):
        lie(f"times of {length} bytes{name}", telling(bytes(length), flags=flags), traced(NONE), some_asked)


class TellsAll(Tells):
    """Even those that have not asked."""

    def end_of_answer(self, request, more):
        return more + self.more


lie("times for those that do not want them", telling(SOME, TellsAll), traced(SOME_NS), some_asked)
lie("two numbers for those that want none", telling(NUMBER + SOME, TellsAll), traced(SOME_NS), some_asked)
lie("times that were not offered", telling(SOME, TellsAll, times=False), traced(NONE), none_asked)
lie("times are not offered", like(Honest), traced(NONE), none_asked)
lie("times are not offered, checksums", like(Checks), traced(NONE, options=ON), none_asked)
lie("times are offered without extensions", telling(SOME, extensions=False), traced(NONE), none_asked)
