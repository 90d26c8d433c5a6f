# SPDX-License-Identifier: GPL-2.0
"""Two links go down and come back in random order, under fio with verification, while the policy
changes: no error, every byte right, no request stuck.  Prints the pauses in I/O for each cause.

IBTRS_SEED=<number> repeats a run, IBTRS_LONG=1 makes one of 200 failures."""

import os
import random
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from testbed import blockdev, mishaps
from testbed.lab import wait_for
from testbed.load import Load, longest_gap

pytestmark = [pytest.mark.links(2), pytest.mark.fast, pytest.mark.long]

CHANGES = 200 if os.environ.get("IBTRS_LONG") else 6
SESSION = "/sys/class/ibtrs-client/demo"
# Silence is noticed after a second and a half.
SETTINGS = {"hb_interval_ms": 500, "hb_missed_max": 2, "reconnect_delay_ms": 100}
POLICIES = ("round-robin", "min-inflight", "min-latency")

# The disturbances of a link, at the client's end or the server's.
ENDS_PATHS = {
    "interface down": lambda pair, guest, link, dice: mishaps.interface_down(pair, guest, link),
    "cable pulled": lambda pair, guest, link, dice: mishaps.cable_out(pair, guest, link),
    "RDMA device removed": lambda pair, guest, link, dice: mishaps.device_gone(pair, guest, link),
    "all packets of one side lost": lambda pair, guest, link, dice: mishaps.losing(guest, link, 100),
}
CAUSES = ENDS_PATHS | {
    "1 to 10 % of the packets of one side lost":
        lambda pair, guest, link, dice: mishaps.losing(guest, link, dice.randint(1, 10)),
    "packets of one side 1 to 50 ms late":
        lambda pair, guest, link, dice: mishaps.late(guest, link, dice.randint(1, 50)),
}
# Does no harm, so that both links may have it.
MILD = "packets of one side 1 to 50 ms late"


@dataclass
class Change:
    """One cause that a link was under, by the client's clock."""

    cause: str
    link: int
    begin: float
    end: float = float("inf")
    undo: ExitStack = field(default_factory=ExitStack)


class Run:
    """Both links, and what was done to them."""

    def __init__(self, pair, load: Load, seed: int):
        self.pair, self.load, self.dice = pair, load, random.Random(seed)
        self.now: dict[int, Change] = {}
        self.done: list[Change] = []

    def state(self, link: int) -> str:
        return self.pair.client.run(f"cat {SESSION}/paths/*@ip:10.0.{link}.1/state", check=False)

    def connected(self, link: int) -> bool:
        return self.state(link) == "connected"

    def harm(self, link: int, cause: str) -> None:
        other = 3 - link
        if cause != MILD:
            self.mend(other)
            wait_for(lambda: self.connected(other), 120, f"the path of link {other} is back")
        guest = self.dice.choice((self.pair.client, self.pair.server))
        change = Change(cause, link, self.pair.client.uptime())
        print(f"{change.begin:.1f} link {link}, {guest.name}: {cause}", flush=True)
        change.undo.enter_context(CAUSES[cause](self.pair, guest, link, self.dice))
        self.now[link] = change
        self.done.append(change)

    def mend(self, link: int) -> None:
        if change := self.now.pop(link, None):
            change.undo.close()
            change.end = self.pair.client.uptime()
            print(f"{change.end:.1f} link {link} mended", flush=True)

    def linger(self, link: int) -> None:
        """For no time, for some, or until the path is lost or back."""
        how, cause = self.dice.random(), self.now[link].cause if link in self.now else None
        if how < 0.5 or cause and cause not in ENDS_PATHS:
            self.pair.client.run(f"sleep {max(0.0, how * 5 - 1):.2f}")
        else:
            settled = "disconnected" if cause else "connected"
            wait_for(lambda: self.state(link) == settled, 120, f"the path of link {link} is {settled}")

    def policy(self) -> None:
        self.pair.client.run(f"echo {self.dice.choice(POLICIES)} > {SESSION}/mp_policy")

    def go(self, changes: int) -> None:
        # Each of them, before chance decides alone.
        causes = self.dice.sample(list(CAUSES), len(CAUSES))
        while len(self.done) < changes:
            self.policy()
            link = self.dice.choice((1, 2))
            if link in self.now:
                self.mend(link)
            else:
                self.harm(link, causes.pop() if causes else self.dice.choice(list(CAUSES)))
            self.linger(link)
            self.load.goes_on()
        for link in (1, 2):
            self.mend(link)
        wait_for(lambda: self.connected(1) and self.connected(2), 120, "both paths are back")
        self.load.goes_on()

    def table(self) -> str:
        """For each cause how often it was, and the gaps until the next change."""
        progress, rows = self.load.progress(), []
        for cause in CAUSES:
            gaps = sorted(longest_gap(progress, change.begin, min(change.end, self.next(change)))
                          for change in self.done if change.cause == cause)
            if gaps:
                rows.append(f"| {cause} | {len(gaps)} | {gaps[len(gaps) // 2]:.1f} s | {gaps[-1]:.1f} s |")
        return "\n".join(["| what happens to one link | times | median | longest |",
                          "| --- | --- | --- | --- |", *rows])

    def next(self, change: Change) -> float:
        """When something else began."""
        return min((other.begin for other in self.done if other.begin > change.begin), default=float("inf"))


def test_links_go_and_come_in_any_order(pair, stack):
    seed = int(os.environ.get("IBTRS_SEED") or random.randrange(1 << 32))
    print(f"\nIBTRS_SEED={seed}", flush=True)
    mishaps.make_ready(pair)
    device = blockdev.map_two_paths(pair, stack)
    pair.client.run(f"cd {SESSION} && " + " && ".join(f"echo {value} > {name}" for name, value in SETTINGS.items()))
    load = Load(pair.client, stack)
    run = Run(pair, load, seed)
    wait_for(lambda: run.connected(1) and run.connected(2), 60, "both paths are connected")
    run.go(CHANGES)
    print(run.table(), flush=True)
    load.end()
    assert blockdev.same_on_both(pair, device, stack.disk, 24)
