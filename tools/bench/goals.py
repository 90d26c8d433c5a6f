# SPDX-License-Identifier: GPL-2.0
"""The goals of this project: our figures by those of the floor and of other transports in the same run."""

from dataclasses import dataclass

from .results import Results

FLOOR = "floor, one connection"
SECURE, INSECURE = "ibnbd Y", "ibnbd N"


@dataclass(frozen=True)
class Goals:
    """Figures of a target by those of another one: at most the bound for a latency, at least the bound
    for a rate."""

    target: str
    by: str
    bounds: dict[str, float]

    def is_reached(self, run: Results, job: str) -> bool | None:
        """Whether the figure keeps the bound."""
        ratio, bound = run.ratio(self.target, self.by, job), self.bounds[job]
        if ratio is None:
            return None
        return ratio <= bound if run.unit(job) == "us" else ratio >= bound


def _one_cpu(bounds: dict[str, float]) -> dict[str, float]:
    """For figures of one processor, as those were that the goals come from."""
    return {f"{job}, 1 CPU": bound for job, bound in bounds.items()}


# Beside mainline, small reads gain 15 %, and nothing loses.
_MIXED = _one_cpu({
    "read 4k QD1": 0.87, "read 4k QD32": 1.15, "read 4k QD128": 1.15, "read 512 QD1": 0.87, "write 4k QD1": 1.00,
    "write 4k QD32": 1.00, "write 4k QD128": 1.00, "write 512 QD1": 1.00, "read 16k QD8": 1.00, "write 16k QD8": 1.00,
    "read 128k QD4": 1.00, "write 128k QD4": 1.00, "read 1m QD4": 1.00, "write 1m QD4": 1.00, "ionos": 1.00})

FAST = (
    Goals(SECURE, FLOOR, _one_cpu({
        "read 4k QD1": 1.12, "read 4k QD32": 0.92, "write 4k QD1": 1.06, "write 4k QD32": 1.08, "read 512 QD1": 1.15,
        "read 128k QD4": 0.90, "write 128k QD4": 0.90})),
    Goals(SECURE, "RNBD Y", _one_cpu({
        "read 4k QD1": 0.74, "read 4k QD32": 1.45, "write 4k QD1": 0.81, "write 4k QD32": 1.30, "read 512 QD1": 0.72,
        "read 128k QD4": 1.20, "write 128k QD4": 1.20, "ionos, 16 disks": 1.40})),
    Goals(SECURE, "NVMe-oF", _one_cpu({
        "read 4k QD1": 0.80, "read 4k QD32": 1.95, "write 4k QD1": 0.88, "write 4k QD32": 2.05, "read 512 QD1": 0.80,
        "read 128k QD4": 1.20, "write 128k QD4": 1.20, "ionos, 16 disks": 1.40})),
    Goals(SECURE, INSECURE, {"read 4k QD1": 1.01, "read 4k QD32": 0.99, "write 4k QD1": 1.01, "write 4k QD32": 0.99,
                             "read 128k QD4": 0.97, "write 128k QD4": 0.97}),
    Goals("ibnbd to RNBD Y", "RNBD Y", _MIXED),
    Goals("RNBD to ibnbd Y", "RNBD Y", _MIXED),
    Goals("RNBD to ibnbd Y, client invalidates", "RNBD Y", _MIXED),
)
STOCK = (
    Goals(SECURE, "NVMe-oF", {"read 4k QD1": 0.92, "read 4k QD32": 1.20, "write 4k QD1": 0.97, "write 4k QD32": 1.15}),
)


def of(run: Results) -> list[Goals]:
    """The goals for the kernel of a run, as far as both targets were measured."""
    goals = FAST if run.flavour == "fast" else STOCK
    return [goal for goal in goals if any(run.ratio(goal.target, goal.by, job) for job in goal.bounds)]
