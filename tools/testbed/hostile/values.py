# SPDX-License-Identifier: GPL-2.0
"""Values that the tests put into the fields of messages."""

import argparse
import re

from .wire import Field

# Around the limits of the protocol and of what numbers are kept in.
SPECIAL = (0, 1, 2, 3, 4, 7, 8, 23, 24, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 131072, 1 << 27, (1 << 28) - 1,
           (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 55) - 1, 1 << 55, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def around(limit: int) -> tuple[int, ...]:
    """The last value that is in range, and its neighbours."""
    return (limit - 1, limit, limit + 1)


def numbers(size: int) -> tuple[int, ...]:
    """The values of SPECIAL that fit this number of bytes, and the greatest ones that do."""
    top = 1 << 8 * size
    return tuple(sorted({*(value for value in SPECIAL if value < top), top // 2 - 1, top // 2, top - 2, top - 1}))


def boundaries(item: Field) -> tuple[int | bytes, ...]:
    if item.is_number:
        return numbers(item.size)
    return bytes(item.size), b"\xff" * item.size, b"A" * item.size, b"A" * (item.size - 1)


def representatives(names: list[str]) -> set[str]:
    """Some of each kind: of names that differ after a number, a comma, an "=" or an "of", the first
    and the last one, and one between of more than eight."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(re.split(r", |=|\b\d| of ", name)[0], []).append(name)
    chosen = set()
    for family in families.values():
        count = len(family)
        chosen |= {family[0], family[-1], *family[count // 2:][:count > 8]}
    return chosen


def chosen(names: list[str], arguments: list[str] | None = None) -> set[str]:
    """The cases of a table that the command line of its program, or the rest of it, asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--all", action="store_true", help="not only some of each kind")
    parser.add_argument("--part", default="1/1", help="the n-th of m parts of these, as in 2/4")
    options = parser.parse_args(arguments)
    names = [name for name in names if options.only in name]
    wanted = set(names) if options.all else representatives(names)
    return part([name for name in names if name in wanted], options.part)


def part(names: list[str], which: str) -> set[str]:
    """Every m-th name, from the n-th on, of the part n/m."""
    number, count = map(int, which.split("/"))
    assert 1 <= number <= count, f"there is no part {which}"
    return set(names[number - 1::count])
