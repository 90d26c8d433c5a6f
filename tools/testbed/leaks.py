# SPDX-License-Identifier: GPL-2.0
"""Asks a guest's kmemleak for unreferenced memory."""

import re

from .guest import Guest
from .klog import Allowed, Report

FILE = "/sys/kernel/debug/kmemleak"

ALLOWED: list[Allowed] = []


def parse(text: str) -> list[Report]:
    """One report for each object, in the words of kmemleak."""
    parts = re.split(r"^(?=unreferenced object 0x)", text, flags=re.M)
    return [Report(part.rstrip().splitlines()) for part in parts
            if part.startswith("unreferenced object")]


def find(guest: Guest) -> list[Report]:
    """Scans twice: an object is reported when two scans in a row found it lost
    and the same, and if it is older than five seconds when the second one
    begins.  What is reported once is not reported again."""
    if not guest.ok(f"[ -w {FILE} ]"):
        return []
    guest.run(f"SECONDS=0; echo scan > {FILE}; [ $SECONDS -ge 7 ] || sleep $((7 - SECONDS)); "
              f"echo scan > {FILE}", timeout=600)
    text = guest.run(f"cat {FILE} && echo clear > {FILE}", timeout=300)
    return [report for report in parse(text)
            if not any(re.search(entry.pattern, report.text) for entry in ALLOWED)]
