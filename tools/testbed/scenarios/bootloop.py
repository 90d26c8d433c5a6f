# SPDX-License-Identifier: GPL-2.0
"""`--boots N`: boots the guests that the selected scenarios would use, N times, and runs nothing on
them.  The summary has the number of guests that did not come up at first."""

from pathlib import Path

import pytest

from testbed import judge


class Boot(pytest.Item):
    """Boots guests of a kind."""

    def __init__(self, *, key: tuple, **others):
        super().__init__(**others)
        self.key = key

    def runtest(self):
        lab = self.config.bench.take(self.key, fresh=True)
        judge.check(lab)

    def reportinfo(self):
        return self.path, None, self.name

    def repr_failure(self, excinfo):
        return str(excinfo.value)


def in_place_of(items: list, session, rounds: int, kind, fresh) -> list[Boot]:
    """kind(item) is the kind of guests that a scenario asks for; fresh(item) is whether it shares
    its guests with no scenario before it, or with none after it."""
    wanted = {}
    for item in items:
        if key := kind(item):
            batch = item.get_closest_marker("xdist_group").args[0]
            wanted[f"{batch}-{item.name}" if fresh(item) else batch] = key
    # The hooks of this directory count for files in it only.
    return [Boot.from_parent(session, name=f"{number}-{name}", key=key, path=Path(__file__))
            for number in range(1, rounds + 1) for name, key in wanted.items()]
