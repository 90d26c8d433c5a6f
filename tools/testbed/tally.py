# SPDX-License-Identifier: GPL-2.0
"""Counts the tests of all suites together.

    tally.py cargo LOG RESULT       counts a log of `cargo test`
    tally.py junit XML RESULT       counts pytest's XML report
    tally.py sum RESULT...          prints a line for each suite and the closing line
"""

import re
import sys
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0

    def add(self, passed: bool) -> None:
        if passed:
            self.passed += 1
        else:
            self.failed += 1

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"

    def save(self, path: Path) -> None:
        path.write_text(f"{self.passed} {self.failed}\n")

    @classmethod
    def load(cls, path: Path) -> "Tally":
        """A suite that left no counts, or zero of them, has failed: a test
        that did not run must not look like one that passed."""
        try:
            passed, failed = map(int, path.read_text().split())
        except (OSError, ValueError):
            return cls(0, 1)
        return cls(passed, failed) if passed or failed else cls(0, 1)


def cargo(log: str) -> Tally:
    tally = Tally()
    for found in re.finditer(r"^test result: .*?(\d+) passed; (\d+) failed", log, re.M):
        tally.passed += int(found[1])
        tally.failed += int(found[2])
    # What does not compile has no result line.
    if re.search(r"^error(\[|:)", log, re.M) and not tally.failed:
        tally.failed = 1
    return tally


def junit(text: str) -> Tally:
    tally = Tally()
    for case in xml.fromstring(text).iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" not in outcomes:
            tally.add(not outcomes & {"failure", "error"})
    return tally


def total(results: list[Path]) -> Tally:
    everything = Tally()
    for path in results:
        suite = Tally.load(path)
        print(f"    {path.name:14} {suite}")
        everything.passed += suite.passed
        everything.failed += suite.failed
    return everything


def main(verb: str, *arguments: str) -> int:
    paths = [Path(argument) for argument in arguments]
    if verb == "sum":
        everything = total(paths)
        print(everything)
        return 1 if everything.failed or not everything.passed else 0
    count = {"cargo": cargo, "junit": junit}[verb]
    if paths[0].exists():
        count(paths[0].read_text(errors="replace")).save(paths[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
