# SPDX-License-Identifier: GPL-2.0
"""Counts what one I/O costs, instead of timing it.

The guest's clock advances one nanosecond with each instruction that any of its
processors executes, so fio's microseconds are thousands of instructions.  They
do not depend on the host or its load: two runs of one build agree within a
percent.  Server and client are one guest with soft-RoCE on a dummy interface."""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testbed import accel, fio, paths
from testbed.guest import Guest
from testbed.lab import Solo
from testbed.stack import STACKS, Stack

# Pattern, depth, I/Os: enough for a steady mean.
JOBS = [("randread", 1, 2000), ("randread", 32, 16000), ("randwrite", 1, 2000), ("randwrite", 32, 16000)]


@dataclass(frozen=True)
class Target:
    name: str
    stack: Stack | None
    # For the server's transport module.
    parameters: str = ""
    # Paths of the session, each with an interface of its own.
    paths: int = 1


TARGETS = [
    Target("null_blk itself", None),
    Target("mainline RNBD, always_invalidate=Y", STACKS["mainline"], "always_invalidate=Y"),
    Target("mainline RNBD, always_invalidate=N", STACKS["mainline"], "always_invalidate=N"),
    Target("ibnbd, always_invalidate=Y", STACKS["ibtrs"], "always_invalidate=Y"),
    Target("ibnbd, always_invalidate=N", STACKS["ibtrs"], "always_invalidate=N"),
    Target("ibnbd, N, two paths", STACKS["ibtrs"], "always_invalidate=N", paths=2),
]


def prepare(guest: Guest, target: Target) -> str:
    """Returns the disk to measure."""
    guest.run("modprobe null_blk nr_devices=1 gb=1 bs=4096")
    stack = target.stack
    if stack is None:
        return "/dev/nullb0"
    transport = stack.server_module.replace("nbd", "trs")
    guest.run(f"modprobe {transport} {target.parameters}")
    guest.run(stack.load_server())
    guest.run(stack.load_client())
    guest.run(stack.map_device("/dev/nullb0"))
    for link in range(2, target.paths + 1):
        guest.run(f"echo ip:10.0.{link}.1 > /sys/class/{stack.transport('client').replace('_', '-')}/demo/add_path")
    return stack.disk


def measure(target: Target, scale: float) -> list[float]:
    """Microseconds of an I/O at depth 1, I/Os a second at depth 32."""
    with Solo("fast", links=target.paths, how=accel.counting()) as lab:
        disk = prepare(lab.guest, target)
        row = []
        for pattern, depth, count in JOBS:
            figures = fio.run(lab.guest, (
                f"--name=count --filename={disk} --rw={pattern} --bs=4k --iodepth={depth} "
                f"--number_ios={int(count * scale)} --size=512m --direct=1 --ioengine=io_uring "
                "--randseed=1 --norandommap"), timeout=1800)
            side = figures.read if pattern == "randread" else figures.write
            row.append(side.mean_us if depth == 1 else side.iops)
    return row


def available(target: Target) -> bool:
    modules = paths.kernel("fast").our_modules
    return target.stack is not STACKS["ibtrs"] or (modules / "ibnbd_client.ko").exists()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few I/Os: whether it works at all")
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--json", type=Path, help="where to leave the figures")
    options = parser.parse_args()
    print(f"{'4 KiB, one job, counted':36}" + "".join(
        f"{pattern} QD{depth}, {'us' if depth == 1 else 'IOPS'}".rjust(22) for pattern, depth, _ in JOBS),
        flush=True)
    rows = {}
    for target in TARGETS:
        if options.only not in target.name or not available(target):
            continue
        started = time.monotonic()
        rows[target.name] = measure(target, 0.05 if options.smoke else 1)
        print(f"{target.name:36}" + "".join(f"{value:22,.1f}" for value in rows[target.name])
              + f"   ({time.monotonic() - started:.0f} s)", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
