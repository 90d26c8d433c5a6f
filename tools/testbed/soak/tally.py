# SPDX-License-Identifier: GPL-2.0
"""The figures of a soak test."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    requests: int = 0
    verified: int = 0
    failovers: int = 0
    faults: int = 0
    events: dict[str, int] = field(default_factory=dict)
    # The last values of counters that begin again with their path, disk or program.
    last: dict[str, int] = field(default_factory=dict)

    def follow(self, name: str, value: int) -> int:
        """The increase of a counter since the last call."""
        before = self.last.get(name, 0)
        self.last[name] = value
        return value - before if value >= before else value

    def note(self, event: str) -> None:
        self.events[event] = self.events.get(event, 0) + 1
