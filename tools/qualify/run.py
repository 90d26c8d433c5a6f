# SPDX-License-Identifier: GPL-2.0
"""The state of a run on two machines, and what all of its parts do: look, make, take back, note."""

import contextlib
import json
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from . import changes, checks, links, probe, undo, users
from .changes import DATA, NAMED, NULL, SESSION
from .links import Link
from .machine import Answer, Failed, Machine
from .options import Options
from .plan import Plan
from .probe import Facts
from .results import FAILED, PASSED, SKIPPED, Outcome, Step
from .terminal import say
from .undo import Change

# Seconds for all paths to be connected.
BACK = 90


class Refused(Exception):
    """The machines cannot be tried; each reason says what to do."""

    def __init__(self, reasons: list[str]):
        super().__init__("\n".join(reasons))
        self.reasons = reasons


class Skip(Exception):
    """A step is left out, for this reason."""


@dataclass
class Run:
    options: Options
    server: Machine
    client: Machine
    outcome: Outcome = field(default_factory=Outcome)
    # The path of the disk that was named.
    named: str = ""
    facts: dict[str, Facts] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    # What was begun on a machine, and has to be cleaned up.
    begun: list[Machine] = field(default_factory=list)
    # Of exports on the server, and of the disks on the client.
    devices: dict[str, str] = field(default_factory=dict)
    disks: dict[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    # What asked the run to end.
    stopped: BaseException | None = None

    @property
    def machines(self) -> list[Machine]:
        return [self.server, self.client]

    def machine(self, side: str) -> Machine:
        return self.server if side == "server" else self.client

    # Before anything is changed.

    def ask(self, script: str) -> list[Answer]:
        """Has both machines answer at the same time."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda machine: machine.run(script), self.machines))

    def look(self) -> None:
        """Asks both machines, and refuses those that cannot be tried."""
        before = time.time()
        answers = self.ask(probe.SCRIPT)
        after = time.time()
        for machine, answer in zip(self.machines, answers):
            self.facts[machine.name] = probe.parse(machine.name, answer.text)
        server, client = self.facts["server"], self.facts["client"]
        reasons = checks.machine(server, self.options.size_mib) + checks.machine(client, 0)
        reasons = reasons or users.before(server, client)
        if not reasons:
            try:
                self.links = (links.named(server, client, list(self.options.paths)) if self.options.paths
                              else links.find(server, client))
            except ValueError as error:
                reasons.append(str(error))
        if not reasons:
            found = checks.together(server, client, self.links, checks.offset(before, server, client, after))
            reasons, self.outcome.warnings = found.errors, found.warnings
        if not reasons and self.options.disk:
            reasons = self.look_at_disk()
        if reasons:
            raise Refused(reasons)
        self.describe()
        self.plan = Plan.of(self.options, server, client, self.links)

    def now(self) -> list[Facts]:
        """What both machines say now; what was there before the run, such as modules, is kept."""
        found = []
        for machine, answer in zip(self.machines, self.ask(probe.NOW)):
            facts, later = self.facts[machine.name], probe.parse(machine.name, answer.text)
            if not later.whole:
                raise Failed(f"{machine.name}: the machine has not answered all questions: {answer.text[-200:]}")
            if later.text("boot") != facts.text("boot"):
                raise Failed(f"{machine.name}: the machine was restarted during the run")
            found.append(facts.now(later))
        return found

    def look_at_disk(self) -> list[str]:
        answer = self.server.run(checks.DISK_SCRIPT.format(disk=shlex.quote(self.options.disk)))
        facts = probe.parse("server", answer.text)
        # A name may stand for another disk the next time.
        self.named = self.named or facts.text("path")
        if facts.text("path") != self.named:
            return [f"DISK: {self.options.disk} was {self.named}, and is {facts.text('path')} now"]
        return checks.disk(facts, self.options.disk, self.options.erase)

    def describe(self) -> None:
        """What the report says of the machines."""
        out = self.outcome
        out.named_disk, out.short = bool(self.options.disk), self.options.short
        for name, facts in self.facts.items():
            out.machines[name] = {
                "system": facts.text("os"), "kernel": facts.text("kernel"), "processor": facts.text("processor"),
                "processors": facts.text("processors"), "free memory, MiB": facts.free_mib,
                "modules": facts.modules.get(probe.OURS[name][-1], ""),
                "programs": ", ".join(facts.text("versions").splitlines()), "fio's engine": facts.engine}
        out.version = self.facts["client"].modules.get("ibnbd_client", "")
        for link in self.links:
            out.links[link.name] = {
                f"{side}: {what}": value for side in ("client", "server")
                for what, value in (("driver", link.end(side).port.driver), ("firmware", link.end(side).port.firmware),
                                    ("board", link.end(side).port.board), ("rate", link.end(side).port.rate),
                                    ("MTU", link.end(side).port.mtu))}

    # Changes.

    def make(self, machine: Machine, change: Change, stdin: str = "", timeout: float = 120) -> str:
        return machine.run(undo.make(change), stdin, timeout, shown=change.do).text

    def take_back(self, machine: Machine, change: Change) -> None:
        # It waits for a command that was interrupted, and goes on over there.
        machine.run(undo.take_back(change), timeout=undo.BUSY_S + 120)

    def begin(self) -> None:
        for machine in self.machines:
            machine.run(undo.begin())
            # Not before: what another run has recorded is not ours to take back.
            self.begun.append(machine)
            self.make(machine, changes.modules())

    def clean(self) -> list[str]:
        """Takes back all that is recorded; returns what could not be."""
        failed = []
        # First what disturbs the network, then what uses it, then what is used.
        for machine, urgent in ((self.server, True), (self.client, True), (self.client, False), (self.server, False)):
            if machine not in self.begun:
                continue
            try:
                answer = machine.run(undo.clean(urgent), timeout=600, check=False)
            except Failed as error:
                failed.append(str(error))
                continue
            if not answer.ok and not urgent:
                failed += [f"{machine.name}: {line}" for line in answer.text.splitlines() or [answer.errors]]
        return failed

    # Steps.

    @contextlib.contextmanager
    def step(self, part: str, name: str):
        """Notes how a step ends; `values` are what it found. A failed one does not end the run."""
        step = Step(part, name, PASSED, 0)
        began = time.monotonic()
        try:
            yield step
        except Skip as reason:
            step.status, step.said = SKIPPED, str(reason)
        except (Failed, ValueError, KeyError, IndexError) as error:
            step.status, step.said = FAILED, str(error) or type(error).__name__
            # Taking something back has failed on the way out, in the place of what was on its way.
            if self.stopped:
                raise self.stopped from error
        step.seconds = round(time.monotonic() - began, 1)
        self.outcome.steps.append(step)
        say(self.plan.progress(step))
        if step.status == FAILED:
            say("    " + step.said.replace("\n", "\n    "))

    def set_up(self) -> None:
        text = self.server.run("ibnbd key new").text
        for machine in self.machines:
            self.make(machine, changes.key(machine.name), stdin=f"{text}\n")
        self.devices[DATA] = self.make(self.server, changes.scratch(self.options.size_mib)).splitlines()[-1]
        if "null_blk" in self.facts["server"].modules or "null_blk" in self.facts["server"].words("loaded"):
            processors = int(self.facts["server"].text("processors") or 1)
            self.devices[NULL] = self.make(self.server, changes.null_disk(processors)).splitlines()[-1]
        if self.options.disk:
            if reasons := self.look_at_disk():
                raise Failed("\n".join(reasons))
            self.devices[NAMED] = self.named
        self.make(self.server, changes.host())
        for name, device in self.devices.items():
            self.make(self.server, changes.export(name, device))
        for name in self.devices:
            self.map(name)
        self.all_connected()

    def map(self, name: str) -> None:
        self.disks[name] = self.make(self.client, changes.mapped(name, self.links)).splitlines()[-1]

    def connected(self) -> list[str]:
        """The names of paths that are connected."""
        document = json.loads(self.client.run(f"ibnbd paths --output json {SESSION}").text)
        return [path["name"] for path in document["paths"] if path["side"] == "client" and path["state"] == "connected"]

    def until(self, condition, timeout: float, what: str) -> float:
        """How long it took until a condition held."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout:
                raise Failed(f"waited {timeout:.0f} s in vain: {what}")
            time.sleep(0.3)
        return time.monotonic() - began

    def all_connected(self) -> float:
        wanted = {link.folder for link in self.links}
        return self.until(lambda: wanted <= set(self.connected()), BACK,
                          f"all {len(wanted)} paths are connected; see `ibnbd paths` and `ibnbd check` on the client")
