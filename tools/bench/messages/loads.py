# SPDX-License-Identifier: GPL-2.0
"""The loads: round trips and calls of one message at a time, many messages, and connecting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    name: str
    # As in explain() of harness/main.c.
    kind: str
    bytes: int
    count: int
    depth: int = 1
    channels: int = 1

    @property
    def unit(self) -> str:
        """Of one message at a time, the time until its answer; of many, how many there are in a second."""
        return "us" if self.in_flight == 1 else "per second"

    @property
    def in_flight(self) -> int:
        return self.depth * self.channels

    def value(self, messages: int, ns: int) -> float:
        return ns / messages / 1000 if self.unit == "us" else messages * 1e9 / ns

    def arguments(self, count: int) -> str:
        return (f"--load {self.kind} --bytes {self.bytes} --depth {self.depth} --channels {self.channels} "
                f"--count {count}")


SIZES = (8, 64, 512, 4096, 65536)


def _count(size: int) -> int:
    # What a guest does between runs is counted with them, and weighs less where there are more messages.
    return 4000 if size <= 512 else 200 if size == 65536 else 1000


def _one_at_a_time(what: str, kind: str) -> list[Load]:
    return [Load(f"{what} of {size} B", kind, size, _count(size)) for size in SIZES]


CALLS = _one_at_a_time("call", "calls")
ROUNDS = _one_at_a_time("round trip", "round")
MANY = [Load("calls of 64 B, depth 32", "calls", 64, 8000, depth=32),
        Load("calls of 64 B, 16 channels", "calls", 64, 8000, channels=16),
        Load("one-way of 64 B, depth 32", "oneway", 64, 8000, depth=32)]
# A channel over a session that is there, or a connection.
CONNECT = Load("connect", "connects", 64, 500)
LOADS = [*CALLS, *ROUNDS, *MANY, CONNECT]
BY_NAME = {load.name: load for load in LOADS}
# What goals are about, and what is counted.
CALL = BY_NAME["call of 64 B"]
COUNTED = [CALL, BY_NAME["call of 4096 B"], BY_NAME["call of 65536 B"], BY_NAME["round trip of 64 B"], *MANY, CONNECT]
