# SPDX-License-Identifier: GPL-2.0
"""Reads KUnit's results out of a kernel log."""

import re
from dataclasses import dataclass

from .klog import STAMP

# A test case is indented once below its suite; deeper are its parameters.
CASE = re.compile(r"^ {4}(?P<bad>not )?ok \d+ (?P<name>[^#]*?)\s*(?P<skip># SKIP.*)?$")
SUITE = re.compile(r"^ {4}# Subtest: (?P<name>\S+)")


@dataclass
class Result:
    suite: str
    name: str
    passed: bool
    skipped: bool
    # The test's output, for a failure.
    words: list[str]


def parse(lines: list[str]) -> list[Result]:
    results, suite, words = [], "?", []
    for line in lines:
        text = STAMP.sub("", line)
        if started := SUITE.match(text):
            suite, words = started["name"], []
        elif case := CASE.match(text):
            results.append(Result(suite, case["name"], not case["bad"], bool(case["skip"]), words))
            words = []
        else:
            words.append(text)
    return results
