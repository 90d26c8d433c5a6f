# SPDX-License-Identifier: GPL-2.0
"""Counts the tests of all suites together.

    tally.py cargo LOG RESULT       counts a log of `cargo test`
    tally.py junit XML RESULT       counts pytest's XML report
    tally.py sum RESULT...          prints a line for each suite, what failed, the boots, and the closing line
"""

import dataclasses
import json
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
    # What failed, and why: a line each.
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, passed: bool, what: str = "") -> None:
        if passed:
            self.passed += 1
            return
        self.failed += 1
        if what:
            self.failures.append(what)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def __add__(self, other: "Tally") -> "Tally":
        fields = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return Tally(*(one + another for one, another in fields))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tally":
        """A suite that left no counts, or in which no test ran, has failed: a
        test that did not run must not look like one that passed."""
        try:
            tally = cls(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError):
            tally = cls()
        if not tally.passed and not tally.failed:
            tally.add(False, f"{path.name}: no test ran")
        return tally


def cargo(log: str) -> Tally:
    tally = Tally()
    for found in re.finditer(r"^test result: .*?(\d+) passed; (\d+) failed(?:; (\d+) ignored)?", log, re.M):
        tally += Tally(*map(int, found.groups(default="0")))
    tally.failures = re.findall(r"^test (.*) \.\.\. FAILED$", log, re.M)
    # A test that does not compile has no result line.
    if (error := re.search(r"^error(\[|:).*", log, re.M)) and not tally.failed:
        tally.add(False, error[0])
    return tally


def why(case: xml.Element) -> str:
    """The name of a test that failed, and the first line of the reason."""
    fault = next(child for child in case if child.tag in ("failure", "error"))
    reason = (fault.get("message") or "").partition("\n")[0]
    return f"{case.get('classname', '')}::{case.get('name')}: {reason[:300]}"


def junit(text: str) -> Tally:
    tally = Tally()
    for case in xml.fromstring(text).iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" in outcomes:
            tally.skipped += 1
        else:
            failed = outcomes & {"failure", "error"}
            tally.add(not failed, why(case) if failed else "")
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
        for failure in everything.failures:
            print(f"FAILED {failure}")
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
