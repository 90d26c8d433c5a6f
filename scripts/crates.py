#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""crates.py: prints our crates in the order of Kbuild, one per line: name,
folder, crates that it uses."""

import re
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
LINE = re.compile(r"^\$\(eval \$\(call crate,(\w+),(\S+)/lib\.o,([\w ]*)\)\)$", re.M)


def crates() -> list[tuple[str, str, list[str]]]:
    """Name, folder and crates used, in an order in which each comes after those."""
    return [(name, folder, uses.split()) for name, folder, uses in LINE.findall((TOP / "Kbuild").read_text())]


if __name__ == "__main__":
    for name, folder, uses in crates():
        print(name, folder, *uses)
