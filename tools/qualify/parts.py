# SPDX-License-Identifier: GPL-2.0
"""The parts of a run, one after the other."""

import json

from testbed import klog

from . import comparison, data, failover
from .changes import NAMED
from .machine import Failed
from .results import PASSED
from .run import Run


def everything(run: Run) -> None:
    with run.step("set-up", "export and map") as step:
        run.set_up()
        step.said = f"{len(run.links)} path{'s' * (len(run.links) != 1)}"
    if step.status != PASSED:
        return
    for name, part in PARTS.items():
        if name in run.options.only:
            part(run)
    logs(run)


def check(run: Run) -> None:
    """`ibnbd check` on both machines, with the disk mapped: then it also measures packets."""
    for machine in run.machines:
        with run.step("check", f"ibnbd check on the {machine.name}") as step:
            answer = machine.run("ibnbd check --output json", check=False)
            found = json.loads(answer.text)["findings"]
            step.values["findings"] = found
            wrong = [f"{one['what']} ({one.get('remedy') or 'no remedy'})" for one in found if one["severity"] == "error"]
            run.outcome.warnings += [f"{machine.name}: {one['what']}" for one in found
                                     if one["severity"] == "warning" and not expected(run, one["what"])]
            if wrong:
                raise Failed("; ".join(wrong))
            step.said = f"{len(found)} remarks"


def expected(run: Run, what: str) -> bool:
    """Whether a warning is of what the run has made: its own disks have no identity, and nobody can help that."""
    own = [disk.rpartition("/")[2] for name, disk in run.disks.items() if name != NAMED]
    return any(what.startswith(f"{name} has no identity") for name in own)


def logs(run: Run) -> None:
    """What the kernels have reported since the run began."""
    for machine in run.machines:
        with run.step("kernel log", machine.name):
            since = float(run.facts[machine.name].text("uptime") or 0)
            lines = [line for line in machine.run("dmesg").text.splitlines() if stamp(line) >= since]
            found = klog.faults(lines)
            if found:
                raise Failed("\n".join(report.text[:2000] for report in found[:3]))


def stamp(line: str) -> float:
    """The time of a line of the kernel log; 0 for one without."""
    try:
        return float(line.partition("[")[2].partition("]")[0])
    except ValueError:
        return 0


# In the order in which they run; options.PARTS has their names.
PARTS = {"check": check, "data": data.all_data, "operations": data.operations, "failover": failover.failovers,
         "bench": comparison.compare}
