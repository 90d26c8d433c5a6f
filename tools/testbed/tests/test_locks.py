# SPDX-License-Identifier: GPL-2.0
"""The locks that comments and pages put in order are locks of the source."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
CRATES = {
    "ibtrs_client": "ibtrs-client",
    "ibtrs_server": "ibtrs-server",
    "ibnbd_client": "ibnbd/client",
    "ibnbd_server": "ibnbd/server",
    "ibmsg": "ibmsg",
}
# Those whose order is in the source only.
NOT_IN_PAGE = {"ibmsg"}
# What makes a lock, with the name of its class at the end.
MADE = re.compile(r'\b(?:new_mutex|new_spinlock|new_spinlock_irq|new_rwsem)!\s*\(')
NAME = re.compile(r"(?<!\[)`([A-Z]\w*::[a-z]\w*)`")


def classes_in(text: str) -> set[str]:
    """The classes of the locks that a source makes."""
    found = set()
    for made in MADE.finditer(text):
        depth, at = 1, made.end()
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        found.update(re.findall(r'"(\w+::\w+)"', text[made.end():at])[-1:])
    return found


def classes(crate: str) -> set[str]:
    """The classes of the locks of a crate."""
    return set().union(*(classes_in(path.read_text()) for path in (TOP / CRATES[crate]).rglob("*.rs")))


def unknown(crate: str, text: str) -> list[str]:
    """The locks in a text about a crate that neither it nor another crate in the text has."""
    known = set().union(*(classes(name) for name in CRATES if name == crate or f"`{name}`" in text))
    return sorted(set(NAME.findall(text)) - known)


def order_in_source(crate: str) -> str:
    """The comment about the order of the locks of a crate, without line breaks."""
    lines = (TOP / CRATES[crate] / "lib.rs").read_text().split("//! # Lock order\n")[1].splitlines()
    text = []
    for line in lines:
        if not line.startswith("//!") or line.startswith("//! #"):
            break
        text.append(line[3:].strip())
    return " ".join(text)


def orders_in_page() -> dict[str, str]:
    """The rows about each crate in architecture.md."""
    page = (TOP / "Documentation/architecture.md").read_text().split("\n## Locks\n")[1].split("\n## ")[0]
    rows, crate = {}, ""
    for name, text in re.findall(r"^\| (?:`(\w+)` )?\| (.*) \|$", page, re.M):
        crate = name or crate
        rows[crate] = rows.get(crate, "") + text
    return rows


@pytest.mark.parametrize("crate", CRATES)
def test_locks_in_the_source_exist(crate):
    text = order_in_source(crate)
    assert NAME.search(text)
    assert unknown(crate, text) == []


@pytest.mark.parametrize("crate", sorted(CRATES.keys() - NOT_IN_PAGE))
def test_locks_in_the_page_exist(crate):
    text = orders_in_page()[crate]
    assert NAME.search(text)
    assert unknown(crate, text) == []


def test_a_lock_that_does_not_exist_is_found():
    assert unknown("ibtrs_server", "`ChunkSlot::idle`, then `ChunkSlot::inner`") == ["ChunkSlot::idle"]
    assert unknown("ibtrs_server", "`Config::inner`") == ["Config::inner"]
    assert unknown("ibtrs_server", "`Config::inner` of `ibnbd_server`") == []
    assert classes_in('x <- new_mutex!(\n    Y { z: f("A::b") },\n    "X::y"\n)') == {"X::y"}
