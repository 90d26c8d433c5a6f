# SPDX-License-Identifier: GPL-2.0
"""Runs the steps of a plan, in guests whose clocks count instructions."""

import dataclasses
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import accel, fio, paths
from testbed.channel import CommandFailed
from testbed.guest import DidNotBoot, Guest
from testbed.lab import Solo

from . import devices, jobs
from .plan import Step
from .results import Figure

TIME_LIMIT = 3600
FAILURES = (AssertionError, CommandFailed, DidNotBoot)


def floor_module(flavour: str) -> Path:
    """Builds the module of targets.Floor."""
    done = subprocess.run([paths.TOP / "scripts/build-floor.sh", flavour], stdout=subprocess.PIPE,
                          text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


@contextmanager
def modules(flavour: str, ours: Path):
    """A folder with the modules to be measured, and the floor's."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for module in [floor_module(flavour), *ours.glob("*.ko")]:
            shutil.copy(module, folder)
        yield Path(folder)


def each(flavour: str, folder: Path, boot: list[Step], do: Callable[[Guest, list[str], Step], None],
         how: accel.Accel | None = None, device: devices.Device = devices.RXE) -> list[Exception]:
    """Boots a guest, connects the steps' targets one after the other, and calls
    do(guest, disks, step) for each.  One that cannot be measured keeps nobody from seeing
    the others: returns what went wrong."""
    failed: list[Exception] = []
    first = boot[0]
    try:
        with Solo(flavour, links=first.target.links, how=how or accel.counting(), cpus=first.cpus,
                  our_modules=folder, rdma=device.name, kernel_arguments=device.kernel_arguments) as lab:
            guest = lab.guest
            guest.run(f"modprobe null_blk nr_devices={first.disks} gb=1 bs=512 submit_queues={first.cpus}")
            exported = [f"/dev/nullb{number}" for number in range(first.disks)]
            for step in boot:
                try:
                    do(guest, step.target.connect(guest, exported, step.cpus), step)
                    step.target.leave(guest)
                except FAILURES as error:
                    print(f"*** {step.target.name}: {error}", flush=True)
                    failed.append(error)
    except FAILURES as error:
        print(f"*** {', '.join(step.target.name for step in boot)}: {error}", flush=True)
        failed.append(error)
    return failed


def _value(figures: fio.Figures, unit: str) -> float:
    sides = [side for side in (figures.read, figures.write) if side.bytes]
    if unit == "us":
        return sum(side.mean_us for side in sides) / len(sides)
    return sum(side.iops for side in sides)


def figures(guest: Guest, disks: list[str], step: Step, scale: float) -> Iterator[Figure]:
    """Measures a step."""
    def load(job: jobs.Job, scale: float) -> fio.Figures:
        return fio.run(guest, job.arguments(disks, step.workers, scale, step.target.polled), TIME_LIMIT)

    # Work that is done once, and not for each I/O, is done before.
    for job in jobs.BASIC[-2:]:
        load(dataclasses.replace(job, ios=600), 1)
    for job in step.jobs:
        value = round(_value(load(job, scale), job.unit), 2)
        print(f"{step.target.name:22} {step.label(job):32} {value:12,.1f} {job.unit}", flush=True)
        yield Figure(step.target.name, step.label(job), value, job.unit)
