# SPDX-License-Identifier: GPL-2.0
"""The format in which the programs in the guests report to the scenario: a line for each case."""

import os
import sys
import time
import traceback
from dataclasses import dataclass

OK, FAILED = "ok", "FAILED"
# The line that tells a running program that it may end.
ENOUGH = "/tmp/hostile-enough"


@dataclass(frozen=True)
class Result:
    name: str
    ok: bool
    what: str = ""


def line(result: Result) -> str:
    words = " ".join(result.what.split())
    return f"{OK if result.ok else FAILED} {result.name}" + (f": {words}" if words else "")


def parse(text: str) -> list[Result]:
    """The results in what a tester printed; other lines are left out."""
    found = []
    for row in text.splitlines():
        word, _, rest = row.partition(" ")
        if word in (OK, FAILED):
            name, _, what = rest.partition(": ")
            found.append(Result(name, word == OK, what))
    return found


def failures(text: str) -> list[str]:
    return [f"{result.name}: {result.what}" for result in parse(text) if not result.ok]


def rounds(seconds: float):
    """As many as there is time for; it lasts until the scenario has seen enough, too, however
    slow that is."""
    if os.path.exists(ENOUGH):
        os.remove(ENOUGH)
    end = time.monotonic() + seconds
    while time.monotonic() < end or not os.path.exists(ENOUGH):
        yield


def run(name: str, case, *arguments) -> Result:
    """Runs one case and prints what came of it."""
    started = time.monotonic()
    try:
        case(*arguments)
        result = Result(name, True, f"{time.monotonic() - started:.1f} s")
    except Exception as error:  # noqa: BLE001: whatever it is, the next case is run
        place = traceback.extract_tb(error.__traceback__)[-1]
        result = Result(name, False, f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})")
        traceback.print_exc(file=sys.stderr)
    print(line(result), flush=True)
    return result
