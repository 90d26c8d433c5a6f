# SPDX-License-Identifier: GPL-2.0
"""The cost of an I/O on either side: client and server in guests of their own, each traced.

Each guest has a clock of its own, which counts its instructions and, while it has nothing to do, follows
the host's. So there are no times, only counts."""

import tempfile
from pathlib import Path

from testbed import accel
from testbed.lab import Pair

from . import jobs, measure, targets, tracing
from .counts import Traced, count_job, keep
from .plan import CPUS, Step
from .results import Results

MEASURED = ("NVMe-oF", "RNBD Y", "ibnbd Y")


class TracedPair(Pair):
    """A pair whose guests are traced."""

    def __init__(self, flavour: str, folder: Path, modules: Path):
        self.traces = {name: tracing.Trace(folder, name) for name in self.names}
        super().__init__(flavour, cpus=CPUS, how=accel.counting(sleep=True), our_modules=modules)

    def accel_of(self, name: str) -> accel.Accel:
        return self.traces[name].how(sleep=True)


def label(step: Step, job: jobs.Job, side: str) -> str:
    return f"{step.label(job)}, {side}"


def run(flavour: str, folder: Path, target: targets.Remote, results: Results) -> list[Exception]:
    """Adds counts, profiles and shared lines of either side; returns what went wrong."""
    step = Step(target, tuple(jobs.BASIC))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as where, \
                TracedPair(flavour, Path(where), folder) as pair:
            pair.server.run(f"modprobe null_blk nr_devices=1 gb=1 bs=512 submit_queues={CPUS}")
            disks = target.join(pair.server, pair.client, ["/dev/nullb0"], CPUS)
            sides = {name: Traced(pair.guests[name], pair.traces[name]) for name in ("client", "server")}
            for job in step.jobs:
                for side, found in zip(sides, count_job(list(sides.values()), disks, step, job)):
                    keep(results, target.name, label(step, job, side), found)
    except measure.FAILURES as error:
        print(f"*** {target.name}, apart: {error}", flush=True)
        return [error]
    return []
