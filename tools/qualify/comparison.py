# SPDX-License-Identifier: GPL-2.0
"""The bench: the same loads over ours, NVMe-oF and RNBD, and on the server itself."""

import uuid

from . import changes, data, loads
from .changes import DATA, NAMED, NULL
from .machine import Failed, Machine
from .run import Run, Skip
from .undo import Change


def compare(run: Run) -> None:
    targets: dict[str, tuple[Machine, str]] = {}
    disk = NULL if NULL in run.disks else DATA
    targets["ibnbd"] = (run.client, run.disks[disk])
    if NAMED in run.disks:
        targets["ibnbd, named disk"] = (run.client, run.disks[NAMED])
        targets["named disk on the server"] = (run.server, run.devices[NAMED])
    targets["on the server"] = (run.server, run.devices[disk])
    made: list[tuple[Machine, Change]] = []
    for name, connect in (("NVMe-oF", nvme), ("RNBD", rnbd)):
        with run.step("bench", f"connect {name}"):
            try:
                targets[name] = (run.client, connect(run, run.devices[disk], made))
            except Failed as error:
                # What others cannot do is no failure of ours.
                raise Skip(f"{name} could not be connected: {error}") from None
    for job in loads.BENCH:
        for name, (machine, device) in targets.items():
            measure(run, job, name, machine, device)
    for machine, change in reversed(made):
        with run.step("bench", f"disconnect {change.name}"):
            run.take_back(machine, change)


def measure(run: Run, job: loads.Bench, name: str, machine: Machine, device: str) -> None:
    with run.step("bench", f"{job.name}, {name}"):
        seconds = run.options.seconds.bench
        answer = machine.run(loads.bench(job, device, run.facts[machine.name].engine, seconds), timeout=120 + seconds,
                             check=False)
        data.good(answer.text, answer.errors)
        run.outcome.bench.setdefault(job.name, {})[name] = loads.figures(answer.text, job.what).json()


def possible(run: Run, server: str, client: str) -> None:
    """Whether both kernels have the modules, and nobody uses them yet."""
    for facts, module in zip(run.now(), (server, client)):
        if module not in facts.modules:
            raise Skip(f"the {facts.name}'s kernel has no {module}")
        if not facts.said("now") or module in facts.words("now"):
            raise Skip(f"{module} is loaded on the {facts.name}: others may use it")


def nvme(run: Run, device: str, made: list) -> str:
    possible(run, "nvmet_rdma", "nvme_rdma")
    address, host = run.links[0].server.address.ip, f"nqn.2014-08.org.nvmexpress:uuid:{uuid.uuid4()}"
    return beside(run, [(run.server, changes.nvme_export(device, address, host)),
                        (run.client, changes.nvme_connect(address, host))], made)


def rnbd(run: Run, device: str, made: list) -> str:
    possible(run, "rnbd_server", "rnbd_client")
    return beside(run, [(run.server, changes.rnbd_export(device)), (run.client, changes.rnbd_map(run.links[0]))], made)


def beside(run: Run, both: list[tuple[Machine, Change]], made: list) -> str:
    text = ""
    for machine, change in both:
        made.append((machine, change))
        text = run.make(machine, change)
    disk = text.splitlines()[-1] if text else ""
    if not disk.startswith("/dev/"):
        raise Failed(f"no disk has appeared: {text}")
    return disk
