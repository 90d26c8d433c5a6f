# SPDX-License-Identifier: GPL-2.0
"""The plan: the loads, the number of processors and the number of disks for each target."""

from dataclasses import dataclass

from . import jobs, targets
from .jobs import Job
from .targets import Target

CPUS = 2
SCALED = ("null_blk", "floor, process", "RNBD Y", "NVMe-oF", "ibnbd Y", "ibnbd N")
# On one processor, on which the figures were measured that the goals come from.
ONE_CPU = ("floor, one connection", "RNBD Y", "NVMe-oF", "ibnbd Y", "ibnbd to RNBD Y", "RNBD to ibnbd Y",
           "RNBD to ibnbd Y, client invalidates")
SHORT = ("floor, process", "ibnbd Y")


@dataclass(frozen=True)
class Step:
    """A target with its loads."""

    target: Target
    jobs: tuple[Job, ...]
    cpus: int = CPUS
    # Workers of fio.
    workers: int = 1
    disks: int = 1

    def label(self, job: Job) -> str:
        """The name of the figure of a job."""
        extra = "" if self.disks == 1 else f", {self.disks} disks"
        if (self.cpus, self.workers) != (CPUS, 1):
            extra += f", {self.cpus} CPU{'s' * (self.cpus > 1)}"
        return job.name + extra


def full() -> list[Step]:
    steps = []
    for target in targets.TARGETS:
        # Polled I/O, two paths and keys are about single requests and many of them, not about sizes.
        special = target.polled or target.links > 1 or target.keys
        steps.append(Step(target, tuple(jobs.BASIC if special else jobs.JOBS)))
    for name in SCALED:
        target = targets.BY_NAME[name]
        if name != "null_blk":
            steps.append(Step(target, (jobs.BY_NAME["ionos"],), disks=16))
    for name in ONE_CPU:
        target = targets.BY_NAME[name]
        steps.append(Step(target, tuple(jobs.JOBS), cpus=1))
        steps.append(Step(target, (jobs.BY_NAME["ionos"],), cpus=1, disks=16))
    for name in SCALED:
        steps += [Step(targets.BY_NAME[name], tuple(jobs.DEEP), cpus=cpus, workers=cpus) for cpus in (1, 2, 4, 8)
                  if cpus > 1 or name not in ONE_CPU]
    return steps


def short() -> list[Step]:
    """The measurements before each change is taken."""
    return [Step(targets.BY_NAME[name], tuple(jobs.BASIC)) for name in SHORT]


def possible(steps: list[Step], has_mainline: bool, has_ours: bool, only: str = "") -> list[Step]:
    """Those that the kernel and the modules at hand allow, and whose name is asked for."""
    return [step for step in steps if only in step.target.name
            and (has_mainline or not step.target.mainline) and (has_ours or not step.target.ours)]


def boots(steps: list[Step]) -> list[list[Step]]:
    """Those that can share a guest, one after the other: booting takes as long as measuring.
    What was measured stays connected, and idle, unless it leaves."""
    groups: list[list[Step]] = []
    for step in steps:
        for group in groups:
            if _together(group, step):
                group.append(step)
                break
        else:
            groups.append([step])
    return groups


def _together(group: list[Step], step: Step) -> bool:
    def guest(of: Step):
        return of.cpus, of.disks, of.target.links

    return guest(group[0]) == guest(step) and (
        step.target.leaves or not any(type(other.target) is type(step.target) for other in group))
