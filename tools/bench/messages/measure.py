# SPDX-License-Identifier: GPL-2.0
"""Runs the loads of targets, in guests whose instructions are counted.

Together: both programs are in one guest, whose clock counts, so that there are times. Soft-RoCE hands packets to its
own receiver there, and TCP uses the loopback interface. Apart: each is in a guest of its own, with a wire between
virtual network cards, for all transports alike; only counts are right there (see ../apart.py)."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import tracing
from bench.apart import TracedPair
from bench.counts import Counting, Traced, keep
from bench.measure import FAILURES
from bench.plan import CPUS
from bench.results import Figure, Results
from testbed.guest import Guest
from testbed.lab import Solo

from . import loads, program
from .loads import Load
from .targets import Target

# Guests by side, and those that are traced.
Lab = Callable[[], AbstractContextManager[tuple[dict, list]]]
# What counts packets and their bytes: of soft-RoCE that hands them to itself, of TCP to the same machine, and of the
# virtual network card, which has both.
COUNTERS = {"packets": ("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "/sys/class/net/lo/statistics/tx_packets",
                        "/sys/class/net/eth0/statistics/tx_packets"),
            "bytes": ("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_bytes", "/sys/class/net/lo/statistics/tx_bytes",
                      "/sys/class/net/eth0/statistics/tx_bytes")}


def groups(targets: list[Target]) -> list[list[Target]]:
    """Those that share a guest."""
    found: dict[str, list[Target]] = {}
    for target in targets:
        found.setdefault(target.group, []).append(target)
    return list(found.values())


@contextmanager
def _alone(flavour: str, folder: Path) -> Iterator[tuple[dict, list]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as where:
        trace = tracing.Trace(Path(where))
        with Solo(flavour, how=trace.how(), cpus=CPUS, our_modules=folder) as lab:
            yield {side: lab.guest for side in tracing.SIDES}, [(lab.guest, trace)]


@contextmanager
def _apart(flavour: str, folder: Path) -> Iterator[tuple[dict, list]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as where, TracedPair(flavour, Path(where), folder) as pair:
        yield dict(pair.guests), [(pair.guests[side], pair.traces[side]) for side in tracing.SIDES]


def _ready(guests: dict, target: Target, traced: list) -> list[Traced]:
    """Loads what the target's group needs; only then are the modules' symbols known."""
    for guest in {id(guest): guest for guest in guests.values()}.values():
        program.push(guest)
    target.join(guests["server"], guests["client"])
    return [Traced(guest, trace) for guest, trace in traced]


def sent(guest: Guest) -> dict[str, int]:
    """Packets and bytes so far."""
    is_alone = guest.name == "solo"
    found = {}
    for name, files in COUNTERS.items():
        chosen = files[:2] if is_alone else files[2:]
        found[name] = sum(map(int, guest.run(f"cat {' '.join(chosen)}").split()))
    return found


@dataclass(frozen=True)
class Scope:
    """What is measured of targets, and where that goes."""

    # Loads with this in their name.
    only: str
    # Of the number of messages.
    scale: float
    results: Results
    file: Path

    def count(self, load: Load) -> int:
        """Messages; each of several threads has some."""
        return max(int(load.count * self.scale), 4 * load.in_flight)

    def chosen(self, of: list[Load], target: Target) -> list[Load]:
        return [load for load in of if self.only in load.name and target.can(load)]

    def has(self, target: Target, load: Load, is_apart: bool) -> bool:
        """Whether it was measured before."""
        counted = self.results.counts.get(target.name, {})
        if is_apart:
            return all(f"{load.name}, {side}" in counted for side in tracing.SIDES)
        has_figure = self.results.value(target.name, load.name) is not None
        return has_figure and (load not in loads.COUNTED or load.name in counted)


def times(guests: dict, target: Target, load: Load, scope: Scope) -> None:
    count = scope.count(load)
    ns = target.run(guests["server"], guests["client"], load, count)
    figure = Figure(target.name, load.name, round(load.value(count, ns), 2), load.unit)
    scope.results.put(figure)
    print(f"{target.name:18} {load.name:28} {figure.value:12,.1f} {load.unit}", flush=True)


def counts(guests: dict, traced: list[Traced], target: Target, load: Load, scope: Scope) -> None:
    counting = Counting(traced, lambda count: target.run(guests["server"], guests["client"], load, count), sent)
    labels = [load.name] if len(traced) == 1 else [f"{load.name}, {side}" for side in tracing.SIDES]
    for label, found in zip(labels, counting.count(scope.count(load))):
        keep(scope.results, target.name, label, found)


def missing(targets: list[Target], scope: Scope, of: list[Load], is_apart: bool) -> list[tuple[Target, Load]]:
    """What the targets can do, and was not measured."""
    return [(target, load) for target in targets for load in scope.chosen(of, target) if not scope.has(target, load, is_apart)]


def group(todo: list[tuple[Target, Load]], lab: Lab, scope: Scope,
          do: Callable[[dict, list[Traced], Target, Load], None]) -> list[Exception]:
    """Calls do(guests, traced, target, load) for targets of a group and their loads; returns what went wrong."""
    failed: list[Exception] = []
    if not todo:
        return failed
    first, _ = todo[0]
    try:
        with lab() as (guests, found):
            traced = _ready(guests, first, found)
            for target, load in todo:
                try:
                    do(guests, traced, target, load)
                    scope.results.save(scope.file)
                except FAILURES as error:
                    print(f"*** {target.name}, {load.name}: {error}", flush=True)
                    failed.append(error)
    except FAILURES as error:
        print(f"*** {first.group}: {error}", flush=True)
        failed.append(error)
    return failed


def together(flavour: str, folder: Path, targets: list[Target], scope: Scope) -> list[Exception]:
    """Times of all loads, and counts of some."""
    def do(guests: dict, traced: list[Traced], target: Target, load: Load) -> None:
        times(guests, target, load, scope)
        if load in loads.COUNTED:
            counts(guests, traced, target, load, scope)

    return group(missing(targets, scope, loads.LOADS, False), partial(_alone, flavour, folder), scope, do)


def apart(flavour: str, folder: Path, targets: list[Target], scope: Scope) -> list[Exception]:
    """Counts of either side, of what can be in two guests."""
    def do(guests: dict, traced: list[Traced], target: Target, load: Load) -> None:
        counts(guests, traced, target, load, scope)

    return group(missing(targets, scope, loads.COUNTED, True), partial(_apart, flavour, folder), scope, do)
