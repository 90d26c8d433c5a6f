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
        """Of one message at a time, the time until its answer, or until all subscribers have it; of many, how many there
        are in a second; of copies of memory, how many bytes."""
        if self.depth == 1 and (self.channels == 1 or self.kind == "publish"):
            return "us"
        return "MiB/s" if self.kind in ("get", "put") else "per second"

    @property
    def in_flight(self) -> int:
        return self.depth * self.channels

    def value(self, messages: int, ns: int) -> float:
        if self.unit == "us":
            return ns / messages / 1000
        return messages * 1e9 / ns * (self.bytes / (1 << 20) if self.unit == "MiB/s" else 1)

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
COPIED = {4096: "4 KiB", 65536: "64 KiB", 1 << 20: "1 MiB"}
COPIES = [Load(f"{kind.upper()} of {name}{', depth 8' if depth > 1 else ''}", kind, size, {4096: 1000, 65536: 200}.get(size, 40), depth)
          for kind in ("get", "put") for depth in (1, 8) for size, name in COPIED.items()]
SUBSCRIBERS = (1, 8, 64)
# The next one when all subscribers have one; and as fast as they read.
PUBLISHED = [Load(f"publish 64 B to {count}{', many' if depth > 1 else ''}", "publish", 64, 4000 // count + 100, depth, count)
             for depth in (1, 2) for count in SUBSCRIBERS]
LOADS = [*CALLS, *ROUNDS, *MANY, CONNECT, *COPIES, *PUBLISHED]
BY_NAME = {load.name: load for load in LOADS}
# What goals are about, and what is counted.
CALL = BY_NAME["call of 64 B"]
COUNTED = [CALL, BY_NAME["call of 4096 B"], BY_NAME["call of 65536 B"], BY_NAME["round trip of 64 B"], *MANY, CONNECT,
           BY_NAME["GET of 4 KiB"], BY_NAME["PUT of 4 KiB"], *PUBLISHED[:len(SUBSCRIBERS)]]
