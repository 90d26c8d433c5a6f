# SPDX-License-Identifier: GPL-2.0
"""Failovers: fio writes while something is lost, and what it has written is compared afterwards."""

import time

from . import causes, changes, data, links, loads, undo, users
from .changes import DATA, SESSION
from .machine import Machine
from .results import Step
from .run import Run, Skip
from .undo import Change

# In seconds. Heartbeats notice a silent loss within four of them at default settings.
NOTICED, LOAD_ENDS = 30, 240
# For how long queue pairs may stay that a lost path has left.
GONE = 10


def failovers(run: Run) -> None:
    for number, planned in enumerate(causes.all_of(run.facts["server"], run.facts["client"], run.links, run.devices)):
        with run.step("failover", planned.name) as step:
            run.all_connected()
            cause = present(run, number)
            if cause.skipped:
                raise Skip(cause.skipped)
            fail_over(run, cause, step)


def present(run: Run, number: int) -> causes.Cause:
    """A cause by what the machines say now: others may have come, or gone, since the run began. A path that has just
    been lost leaves queue pairs for a moment."""
    deadline = time.monotonic() + GONE
    while True:
        server, client = run.now()
        own = users.queue_pairs(client, SESSION, len(run.links))
        cause = causes.all_of(server, client, run.links, run.devices, own)[number]
        if not cause.skipped or time.monotonic() > deadline or links.OTHERS not in cause.skipped:
            return cause
        time.sleep(1)


def fail_over(run: Run, cause: causes.Cause, step: Step) -> None:
    engine, seconds = run.facts["client"].engine, run.options.seconds.load
    load = changes.load(loads.around_failure(run.disks[DATA], engine, seconds, data.working_set_mib(run)))
    try:
        began = start(run, load)
        disturb(run, cause, step, began)
        run.client.wait(f"[ -e {undo.FOLDER}/fio.status ]", LOAD_ENDS, "fio ends", pause=1)
        text = run.client.run(f"cat {undo.FOLDER}/fio.out").text
        data.good(text, run.client.run(f"cat {undo.FOLDER}/fio.err").text)
        step.values["longest_ms"] = round(loads.longest_ms(text), 1)
        step.values["rates"] = loads.rates(run.client.run(f"cat {undo.FOLDER}/fio_iops*.log").text)
    finally:
        run.take_back(run.client, load)
    data.same(run, DATA, "after the failover")
    step.said = f"longest write {step.values['longest_ms']:.0f} ms"


def start(run: Run, load: Change) -> float:
    """Has fio write for a moment; returns when it began."""
    written = f"awk '{{print $5}}' /sys/block/{run.disks[DATA].rpartition('/')[2]}/stat"
    before = int(run.client.run(written).text)
    run.make(run.client, load)
    began = time.monotonic()
    run.client.wait(f"[ $({written}) -gt {before + 10} ]", 60, "fio writes", pause=0.2)
    time.sleep(1.5)
    return began


def disturb(run: Run, cause: causes.Cause, step: Step, began: float) -> None:
    """Makes something fail, and undoes it; returns when all paths are connected again."""
    made = []
    try:
        step.values["marks"] = {"begins": round(time.monotonic() - began, 1)}
        for change, machine in places(run, cause):
            made.append((change, machine))
            run.make(machine, change)
        observe(run, cause, step)
    finally:
        for change, machine in reversed(made):
            run.take_back(machine, change)
    step.values["marks"]["undone"] = round(time.monotonic() - began, 1)
    step.values["back_s"] = round(run.all_connected(), 1)


def places(run: Run, cause: causes.Cause) -> list[tuple[Change, Machine]]:
    found = [(cause.change, run.machine(cause.side))]
    if cause.also:
        found.append((cause.also, run.machine("server" if cause.side == "client" else "client")))
    return found


def observe(run: Run, cause: causes.Cause, step: Step) -> None:
    """Waits until the client has noticed what was lost, and lets it be for a moment."""
    lost = run.links[-1].folder
    if cause.loses == "path":
        noticed = run.until(lambda: lost not in run.connected(), NOTICED, "the client notices that the path is lost")
        step.values["noticed_s"] = round(noticed, 1)
    elif cause.loses == "all":
        noticed = run.until(lambda: not run.connected(), NOTICED, "the client notices that its server is away")
        step.values["noticed_s"] = round(noticed, 1)
    time.sleep(1)
