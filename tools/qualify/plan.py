# SPDX-License-Identifier: GPL-2.0
"""What a run would do, how long it takes, and how far it is."""

import time
from dataclasses import dataclass, field

from . import causes, changes, loads
from .links import Link
from .options import Options
from .probe import Facts
from .results import Step

# Seconds of steps that end by themselves, on hardware.
SET_UP, CHECK, DATA, OPERATION, CONNECT = 8, 3, 3, 3, 3
# Beside the load of a failover: until paths are back, and contents are compared.
AROUND = 9


@dataclass
class Clock:
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Planned:
    part: str
    name: str
    seconds: float
    skipped: str = ""


@dataclass
class Plan:
    steps: list[Planned]
    changes: list[str]
    clock: Clock = field(default_factory=Clock)
    # The number of the last step that has ended.
    done: int = 0

    @classmethod
    def of(cls, options: Options, server: Facts, client: Facts, links: list[Link]) -> "Plan":
        steps = [Planned("set-up", "export and map", SET_UP)]
        steps += [Planned("check", f"ibnbd check on the {side}", CHECK) for side in ("server", "client")]
        jobs = loads.DATA[1:4] if options.short else loads.DATA
        disks = ["scratch disk"] + ["named disk"] * bool(options.disk)
        for disk in disks:
            steps += [Planned("data", f"{disk}, {job.name}", DATA) for job in jobs]
            steps.append(Planned("data", f"{disk}, the same on the server", DATA))
        steps += [Planned("operations", name, OPERATION)
                  for name in ("flush", "discard", "write zeroes", "resize", "unmap and map again")]
        for cause in causes.all_of(server, client, links, {changes.DATA: ""}):
            seconds = 0 if cause.skipped else options.seconds.load + AROUND
            steps.append(Planned("failover", cause.name, seconds, cause.skipped))
        others = [("NVMe-oF", "nvmet_rdma", "nvme_rdma"), ("RNBD", "rnbd_server", "rnbd_client")]
        possible = [name for name, far, near in others if far in server.modules and near in client.modules
                    and far not in server.words("loaded") and near not in client.words("loaded")]
        steps += [Planned("bench", f"connect {name}", CONNECT * (name in possible),
                          "" if name in possible else "a kernel lacks the modules, or others use them")
                  for name, _, _ in others]
        targets = ["ibnbd", *["ibnbd, named disk", "named disk on the server"] * bool(options.disk), "on the server",
                   *possible]
        steps += [Planned("bench", f"{job.name}, {target}", options.seconds.bench + 1.5)
                  for job in loads.BENCH for target in targets]
        steps = [step for step in steps if step.part in ("set-up", *options.only)]
        steps += [Planned("kernel log", side, 1) for side in ("server", "client")]
        return cls(steps, _made(options, server, client, links, possible))

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def lines(self) -> list[str]:
        """For a dry run."""
        minutes = f"{self.seconds / 60:.0f} minutes on hardware"
        found = [f"{len(self.steps)} steps, about {minutes}. What would be made, and removed at the end:"]
        found += [f"  {line}" for line in self.changes]
        found.append("Steps:")
        for step in self.steps:
            rest = f"left out: {step.skipped}" if step.skipped else f"{step.seconds:.0f} s"
            found.append(f"  {step.part}: {step.name} ({rest})")
        return found

    def progress(self, step: Step) -> str:
        """A line for a step that has ended. Steps take in proportion to those before as long as planned. One that was
        not planned has the number of the last one that was."""
        names = [(one.part, one.name) for one in self.steps]
        if (step.part, step.name) in names:
            self.done = names.index((step.part, step.name)) + 1
        index = self.done
        planned = sum(one.seconds for one in self.steps[:index])
        pace = min(max(self.clock.seconds / planned, 0.5), 20) if planned else 1
        left = sum(one.seconds for one in self.steps[index:]) * pace
        return (f"[{index:3}/{len(self.steps)}] {step.status:7} {step.part}: {step.name}"
                f"{f' ({step.said.splitlines()[0]})' if step.said and step.status != 'failed' else ''}, {step.seconds:.1f} s; "
                f"about {left / 60:.1f} min left")


def _made(options: Options, server: Facts, client: Facts, links: list[Link], possible: list[str]) -> list[str]:
    found = [f"path: {link.path} (client {link.client.port.interface}, server {link.server.port.interface})"
             for link in links]
    found += [f"server: {changes.IMAGE}, {options.size_mib} MiB of memory as a disk",
              f"server: /dev/{changes.NULL_DISK}, a disk that keeps nothing",
              f"server and client: a key of the session {changes.SESSION}, in the kernel only",
              f"server: the host {changes.SESSION} and its exports, which nobody else may open",
              "client: disks mapped from them"]
    if options.disk:
        found.append(f"server: THE FIRST {loads.WORKING_SET_MIB} MiB AND MORE OF {options.disk} ARE OVERWRITTEN, by data and "
                     "by the bench, and are not restored")
    if "NVMe-oF" in possible:
        found.append(f"server: an NVMe-oF subsystem of the disk that keeps nothing, on port {changes.NVME_PORT}")
    if "RNBD" in possible:
        found.append(f"server: rnbd_server for the disk that keeps nothing, on port {changes.RNBD_PORT}")
    for facts in (server, client):
        new = [name for name in changes.LOADED if name not in facts.words("loaded")]
        found.append(f"{facts.name}: of these modules, those that it takes: {', '.join(new)}")
    return found
