# SPDX-License-Identifier: GPL-2.0
"""Judges the history of a block (register.py): whether it behaved like one disk that executes each write once.

A block has one writer, which writes a version after the former one was acknowledged.  So a read must find the last
version, and so must who reads the disk after all has ended."""

import dataclasses
import json

from . import register


@dataclasses.dataclass(frozen=True)
class Judgement:
    # Seconds until the first write was acknowledged; None if it was not.
    first_write_s: float | None
    acknowledged: int
    # The versions that reads found, and that they should have found.
    wrong_reads: list[tuple[int | None, int]]
    # The same for the disk at the end, if it is wrong.
    wrong_end: tuple[int | None, int] | None
    errors: list[int]

    @property
    def is_right(self) -> bool:
        return not self.wrong_reads and self.wrong_end is None


def judge(history: str, block: int, at_the_end: bytes) -> Judgement:
    """`history` is the output of register.py, `at_the_end` the content of the block after it."""
    entries = [json.loads(line) for line in history.splitlines()]
    last, wrong_reads = 0, []
    # A version whose write failed may be on the disk, or get there later.
    possible = {0}
    for entry in entries:
        failed, version = "errno" in entry, entry["version"]
        if entry["what"] == "write":
            if failed:
                possible = possible | {version}
            else:
                last, possible = version, {version}
        elif not failed and version not in possible:
            wrong_reads.append((version, last))
    writes = [entry for entry in entries if entry["what"] == "write"]
    first = writes[0] if writes and "errno" not in writes[0] else None
    end = register.version_of(at_the_end, block)
    return Judgement(
        first_write_s=first["ended"] - first["began"] if first else None,
        acknowledged=sum("errno" not in entry for entry in writes),
        wrong_reads=wrong_reads,
        wrong_end=None if end in possible else (end, last),
        errors=[entry["errno"] for entry in entries if "errno" in entry])
