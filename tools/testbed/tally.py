# SPDX-License-Identifier: GPL-2.0
"""Counts the tests of all suites together.

    tally.py cargo LOG RESULT       counts a log of `cargo test`
    tally.py junit XML RESULT       counts pytest's XML report
    tally.py sum RESULT...          prints a line for each suite, the boots, and the closing line
"""

import dataclasses
import re
import sys
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

from . import boots


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    # Guests that were booted, and those of them that had not come up before.
    booted: int = 0
    again: int = 0

    def add(self, passed: bool) -> None:
        if passed:
            self.passed += 1
        else:
            self.failed += 1

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def save(self, path: Path) -> None:
        path.write_text(" ".join(map(str, dataclasses.astuple(self))) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tally":
        """A suite that left no counts, or in which no test ran, has failed: a
        test that did not run must not look like one that passed."""
        try:
            tally = cls(*map(int, path.read_text().split()))
        except (OSError, TypeError, ValueError):
            tally = cls()
        if not tally.passed and not tally.failed:
            tally.failed = 1
        return tally


def cargo(log: str) -> Tally:
    tally = Tally()
    for found in re.finditer(r"^test result: .*?(\d+) passed; (\d+) failed(?:; (\d+) ignored)?", log, re.M):
        tally += Tally(*map(int, found.groups(default="0")))
    # A test that does not compile has no result line.
    if re.search(r"^error(\[|:)", log, re.M) and not tally.failed:
        tally.failed = 1
    return tally


def junit(text: str) -> Tally:
    tally = Tally()
    for case in xml.fromstring(text).iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" in outcomes:
            tally.skipped += 1
        else:
            tally.add(not outcomes & {"failure", "error"})
        # The scenarios' conftest.py leaves these.
        for noted in case.iter("property"):
            if noted.get("name") == "booted":
                tally.booted += int(noted.get("value"))
            elif noted.get("name") == "booted again":
                tally.again += 1
    return tally


def total(results: list[Path]) -> Tally:
    everything = Tally()
    for path in results:
        suite = Tally.load(path)
        print(f"    {path.name:14} {suite}")
        everything += suite
    return everything


def main(verb: str, *arguments: str) -> int:
    paths = [Path(argument) for argument in arguments]
    if verb == "sum":
        everything = total(paths)
        if everything.booted:
            print(boots.summary(everything.booted, everything.again))
        print(everything)
        return 1 if everything.failed or not everything.passed else 0
    count = {"cargo": cargo, "junit": junit}[verb]
    if paths[0].exists():
        count(paths[0].read_text(errors="replace")).save(paths[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
