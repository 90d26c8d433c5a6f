# SPDX-License-Identifier: GPL-2.0
"""Logs of dm-log-writes are read as the kernel writes them."""

import io

import pytest

from testbed.logwrites import DISCARD, ENTRY, FLUSH, FUA, MAGIC, MARK, SUPER, VERSION, Entry, entries


def log(*items: tuple[int, int, int, bytes, bytes], size: int = 512, count: int | None = None) -> io.BytesIO:
    """Of sector, sectors, flags, data inside and behind each entry."""
    number = len(items) if count is None else count
    out = SUPER.pack(MAGIC, VERSION, number, size).ljust(size, b"\0")
    for sector, sectors, flags, inside, behind in items:
        out += (ENTRY.pack(sector, sectors, flags, len(inside)) + inside).ljust(size, b"\0") + behind
    return io.BytesIO(out)


@pytest.mark.parametrize("size", [512, 4096])
def test_entries_of_all_kinds(size):
    first, second = b"a" * 2 * size, b"b" * size
    read = entries(log((8, 2, 0, b"", first), (0, 0, FLUSH, b"", b""), (16, 100, DISCARD, b"", b""),
                       (0, 0, MARK, b"7", b""), (3, 1, FUA, b"", second), size=size))
    assert list(read) == [Entry(8 * size, 0, first), Entry(0, FLUSH, b""), Entry(16 * size, DISCARD, b""),
                          Entry(0, MARK, b"7"), Entry(3 * size, FUA, second)]


def test_what_is_behind_the_end_is_none_of_it():
    assert list(entries(log((0, 0, FLUSH, b"", b""), (8, 1, 0, b"", b"a" * 512), count=1))) == [Entry(0, FLUSH, b"")]


def test_another_disk_is_refused():
    with pytest.raises(ValueError):
        list(entries(io.BytesIO(bytes(512))))
