# SPDX-License-Identifier: GPL-2.0
"""Compares the speed of an honest client beside a hostile peer with its speed alone."""

import os
import random
import statistics
import time

from .. import blockdev
from ..channel import Job
from ..guest import Guest
from ..load import Load
from . import report

# Both are measured in turns, so that what else the machine does meanwhile falls on both.
TURNS, SECONDS = 3, 2.0


def seconds() -> int:
    """How long a fuzzer is there: half a minute each in CI, or as long as it takes to measure the
    honest client beside it."""
    return int(os.environ.get("IBTRS_FUZZ_SECONDS", 30))


def seed() -> str:
    """The fuzzers' seed, which they print."""
    return os.environ.get("IBTRS_SEED") or str(random.randrange(1 << 32))


# The part of the tables that is run, as in 2/4: on the debug kernel whole tables take long.
PART = os.environ.get("IBTRS_PART", "1/1")


def table() -> str:
    """The arguments of the programs that run the tables: CI has some cases of each kind."""
    return f"--part {PART}" + (" --all" if os.environ.get("IBTRS_LONG") else "")


def at_least(cases: int) -> int:
    """How many of that many cases are in the part that is run."""
    return cases // int(PART.split("/")[1])


def _rate(load: Load) -> float:
    """Requests in a second of the guest's time."""
    client = load.client
    before, start = load.done(), client.uptime()
    time.sleep(SECONDS)
    return (load.done() - before) / (client.uptime() - start)


class Beside:
    """A program in a guest, which stands still now and then."""

    def __init__(self, guest: Guest, program: str):
        self.guest, self.program = guest, program

    def pause(self) -> None:
        self.guest.run(f"pkill -STOP -f '{self.program}'")

    def resume(self) -> None:
        self.guest.run(f"pkill -CONT -f '{self.program}'")


def share(load: Load, hostile: Beside) -> float:
    """The honest client's speed beside the other program, as a part of that alone.  The
    program may end then."""
    alone, beside = [], []
    for _ in range(TURNS):
        hostile.pause()
        alone.append(_rate(load))
        hostile.resume()
        beside.append(_rate(load))
    hostile.guest.run(f"touch {report.ENOUGH}")
    return statistics.median(beside) / statistics.median(alone)


def ends_well(load: Load, fuzzer: Job, program: Beside) -> None:
    """Measures the honest client beside a fuzzer, and sees that both end as they should."""
    part = share(load, program)
    said = fuzzer.wait(seconds() + 600, check=False)
    print(said, f"and the honest client at {part:.2f} of its speed")
    assert report.parse(said) and not report.failures(said), said
    load.goes_on()
    load.end()
    assert blockdev.connected(load.client) == 1
    assert part >= 0.5, f"beside a hostile peer an honest client has {part:.2f} of its speed"
