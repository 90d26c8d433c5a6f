# SPDX-License-Identifier: GPL-2.0
"""The cost of checksums of data, in instructions of both sides together."""

import pytest

from bench import measure, plan, targets
from bench.jobs import Job
from testbed import accel
from testbed.lab import Solo

WITHOUT, WITH = targets.BY_NAME["ibnbd Y"], targets.BY_NAME["ibnbd Y, checksums"]
JOBS = tuple(Job(f"{what} {size} QD1", f"--rw=rand{what} --bs={size} --iodepth=1", ios, "us")
             for size, ios in (("4k", 1000), ("128k", 200)) for what in ("read", "write"))


def measured(flavour: str) -> dict[str, tuple[float, float]]:
    """Thousands of instructions of an I/O, with and without, of two disks of one session."""
    with Solo(flavour, how=accel.counting()) as lab:
        guest = lab.guest
        guest.run("modprobe null_blk nr_devices=2 gb=1 bs=512")
        WITH.load(guest, guest)
        for number, target in enumerate((WITH, WITHOUT)):
            target.map(guest, f"/dev/nullb{number}")
        found: dict[str, list[float]] = {}
        for number in range(2):
            step = plan.Step(WITH, JOBS)
            for figure in measure.figures(guest, [f"/dev/ibnbd{number}"], step, scale=1):
                found.setdefault(figure.job, []).append(figure.value)
    return {job: (ours[0], ours[1]) for job, ours in found.items()}


@pytest.mark.thorough
@pytest.mark.quiet
def test_checksums_cost_what_they_compute(unchecked):
    found = measured(unchecked)
    print({job: f"{without:.1f} us, with checksums {with_:.1f} us" for job, (with_, without) in found.items()})
    for job, (with_, without) in found.items():
        assert without < with_ <= 1.25 * without, job
