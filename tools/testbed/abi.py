# SPDX-License-Identifier: GPL-2.0
"""Reads the descriptions of sysfs files in Documentation/ABI."""

import re
from dataclasses import dataclass

from .paths import TOP

FOLDER = TOP / "Documentation/ABI/testing"
NAME = re.compile(r"What:\s*(\S+)")
# The beginning of a description, such as `(RW, 0644)`.
MODE = re.compile(r"Description:\s*\((?:R|W|RO|WO|RW), (0[0-7]+)\)")


@dataclass(frozen=True)
class Entry:
    """A file or a folder: its name, with `<...>` for what differs; the mode,
    which folders and links do not have."""

    what: str
    mode: int | None

    def fits(self, path: str) -> bool:
        """Whether the entry is that of a file in a guest."""
        parts = re.split(r"<[^>]*>", self.what)
        return re.fullmatch("[^/]+".join(map(re.escape, parts)), path) is not None


def parse(text: str) -> list[Entry]:
    """The entries of one document."""
    found, names = [], []
    for line in text.splitlines():
        if name := NAME.match(line):
            names.append(name[1])
        elif line.startswith("Description:"):
            mode = MODE.match(line)
            found += [Entry(name, int(mode[1], 8) if mode else None) for name in names]
            names = []
    return found


def entries() -> list[Entry]:
    """All that is documented."""
    return [entry for document in sorted(FOLDER.iterdir()) for entry in parse(document.read_text())]
