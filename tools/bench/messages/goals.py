# SPDX-License-Identifier: GPL-2.0
"""The goals: what a call of 64 bytes takes, by what others take."""

from dataclasses import dataclass

from bench import tables
from bench.results import Results
from bench.tracing import SIDES

from .loads import CALL

FLOOR = "floor, process"


@dataclass(frozen=True)
class Goal:
    """At most this share of what the other one takes: in time in one guest, or in instructions of two."""

    target: str
    by: str
    bound: float
    apart: bool = False

    def ratio(self, run: Results) -> float | None:
        if not self.apart:
            return run.ratio(self.target, self.by, CALL.name)
        ours, other = (both_sides(run, target, CALL.name).get("instructions") for target in (self.target, self.by))
        return ours / other if ours and other else None


GOALS = (
    Goal("ibmsg", FLOOR, 1.25),
    Goal("ibmsg, CALL", FLOOR, 1.25),
    Goal("ibmsg, io_uring", FLOOR, 1.15),
    *(Goal(target, by, bound, apart=True) for target in ("ibmsg", "ibmsg, CALL", "ibmsg, io_uring")
      for by, bound in (("SMC-R", 0.8), ("TCP", 0.6))),
)


def both_sides(run: Results, target: str, load: str) -> dict[str, float]:
    """The counts of client and server together, where each has a guest; none if it was not measured."""
    found = [run.counts.get(target, {}).get(f"{load}, {side}") for side in SIDES]
    if not all(found):
        return {}
    return {name: sum(side.get(name, 0) for side in found) for name in found[0]}


def table(run: Results) -> str:
    rows = []
    for goal in GOALS:
        ratio = goal.ratio(run)
        if ratio is not None:
            what = "instructions of both sides, apart" if goal.apart else "time, together"
            rows.append((f"{goal.target} by {goal.by}, {what}",
                         [f"at most {goal.bound:.2f}", f"{ratio:.2f}", "yes" if ratio <= goal.bound else "no"]))
    return tables.table(f"{CALL.name}", ["goal", "figure", "reached"], rows)
