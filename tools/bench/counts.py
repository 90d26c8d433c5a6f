# SPDX-License-Identifier: GPL-2.0
"""The cost of an I/O: work requests, packets, completions, interrupts, wake-ups and instructions,
from rxe's counters and from a trace of the guest's execution.

Each load runs twice, with few and with more I/Os.  The difference belongs to the I/Os alone,
without the start and the end of fio."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed import fio
from testbed.guest import Guest

from . import devices, jobs, layers, measure, shared_lines, sources, targets, tracing
from .plan import Step
from .results import Figure, Results

# Each count beside those of the device, and the function, with its module, whose calls are counted.
CALLS = {
    "softirqs": ("handle_softirqs", "kernel"),
    "work items": ("__queue_work", "kernel"),
    "wake-ups": ("ttwu_do_activate", "kernel"),
    "context switches": ("__switch_to_asm", "kernel"),
    "system calls": ("entry_SYSCALL_64", "kernel"),
}
# The ways into the kernel that are not for programs and timers.
INTERRUPTS = ("asm_sysvec_reschedule_ipi", "asm_sysvec_call_function_single", "asm_sysvec_call_function",
              "asm_sysvec_irq_work", "asm_common_interrupt")
# What Rust calls where C's inline functions are not inlined into it.
HELPERS = "rust_helper_"
COUNTED = ("null_blk", "floor, process", "RNBD Y", "RNBD N", "NVMe-oF", "ibnbd Y", "ibnbd N", "ibnbd to RNBD Y",
           "RNBD to ibnbd Y")
ON_CARD = ("NVMe-oF", "RNBD Y", "ibnbd Y")
# With our modules at both ends.
OURS = ("ibnbd Y", "ibnbd N")
MODULES = ("ibnbd_client", "ibtrs_client", "ibtrs_core", "ibtrs_server", "ibnbd_server")
# How many functions a profile has.
TOP = 60


def per_io(snapshot: tracing.Snapshot, symbols: tracing.Symbols, packets: dict[str, int], ios: int,
           device: devices.Device = devices.RXE) -> dict:
    """The counts of one I/O; what the kernel's compiler left no function of is not there."""
    found = {name: [symbols.address(*function)] for name, function in (device.calls | CALLS).items()
             if symbols.address(*function) is not None}
    if helpers := symbols.named(HELPERS):
        found["calls of helpers"] = helpers
    found["interrupts"] = [address for name in INTERRUPTS for address in [symbols.address(name)] if address]
    counts = {name: tracing.calls(snapshot, addresses) / ios for name, addresses in found.items()}
    counts |= {name: number / ios for name, number in packets.items()}
    counts["instructions"] = sum(tracing.by_function(snapshot, symbols).values()) / ios
    return {name: round(number, 2) for name, number in counts.items()}


def profile(snapshot: tracing.Snapshot, symbols: tracing.Symbols, ios: int) -> dict:
    """Instructions of one I/O: of each module, of each layer, and of the functions that have most, with their
    calls."""
    functions = tracing.by_function(snapshot, symbols)
    modules: Counter = Counter()
    of_layers: Counter = Counter()
    for (name, module), insns in functions.items():
        modules[module] += insns
        of_layers[layers.of(name, module)] += insns
    return {"modules": {name: round(insns / ios, 1) for name, insns in modules.most_common()},
            "layers": {name: round(insns / ios, 1) for name, insns in of_layers.most_common()},
            "functions": [[name, module, round(insns / ios, 1), round(symbols.calls(snapshot, name, module) / ios, 2)]
                          for (name, module), insns in functions.most_common(TOP)]}


def shared(snapshot: tracing.Snapshot, symbols: tracing.Symbols, ios: int) -> list:
    """Locked instructions of one I/O on shared lines, by function."""
    return [[name, module, round(runs / ios, 2)]
            for (name, module), runs in tracing.shared_lines(snapshot, symbols).most_common()
            if runs >= shared_lines.NOTED * ios]


@dataclass
class Done:
    """What a guest has executed, and the packets that it has sent."""

    trace: tracing.Snapshot
    packets: dict[str, int]

    def __sub__(self, other: "Done") -> "Done":
        return Done(self.trace - other.trace,
                    {name: number - other.packets[name] for name, number in self.packets.items()})


class Traced:
    """A guest that is traced."""

    def __init__(self, guest: Guest, trace: tracing.Trace, device: devices.Device = devices.RXE):
        self.guest, self.trace, self.device = guest, trace, device
        guest.run("cat /proc/kallsyms > /mnt/share/kallsyms", 600)
        self.symbols = tracing.Symbols((guest.share / "kallsyms").read_text())

    def of_sides(self, done: Done, ios: int) -> dict[str, tuple[dict, dict, list]]:
        """The same of the client's processors and of the server's, without what the device has counted."""
        return {side: self.of_ios(Done(trace, {}), ios) for side, trace in zip(tracing.SIDES, done.trace.halves())}

    def of_ios(self, done: Done, ios: int) -> tuple[dict, dict, list]:
        return (per_io(done.trace, self.symbols, done.packets, ios, self.device), profile(done.trace, self.symbols, ios),
                shared(done.trace, self.symbols, ios))


class Counting:
    """Guests with a load, which is called with a number of I/Os, and the counters of their packets."""

    def __init__(self, guests: list[Traced], load: Callable[[int], object],
                 packets: Callable[[Guest], dict[str, int]] | None = None):
        self.guests, self.load, self.packets = guests, load, packets

    def _so_far(self) -> list[Done]:
        packets = [(self.packets or traced.device.counted)(traced.guest) for traced in self.guests]
        with tracing.frozen([traced.guest for traced in self.guests]):
            return [Done(traced.trace.snapshot(), sent) for traced, sent in zip(self.guests, packets)]

    def _run(self, ios: int) -> list[Done]:
        before = self._so_far()
        self.load(ios)
        return [after - sofar for after, sofar in zip(self._so_far(), before)]

    def done(self, many: int) -> tuple[list[Done], int]:
        """What each guest did for the I/Os alone, and how many these are."""
        few = many // 4
        self._run(few)
        less, more = self._run(few), self._run(many)
        return [of_more - of_less for of_more, of_less in zip(more, less)], many - few

    def count(self, many: int) -> list[tuple[dict, dict, list]]:
        """Counts, profile and shared lines of each guest."""
        done, ios = self.done(many)
        return [traced.of_ios(of_guest, ios) for traced, of_guest in zip(self.guests, done)]


def _counting(guests: list[Traced], disks: list[str], step: Step, job: jobs.Job, more: str = "") -> Counting:
    """Of a load of fio, which runs in the first guest."""
    def load(ios: int) -> None:
        fio.run(guests[0].guest, job.arguments(disks, step.workers, ios / job.ios) + more, measure.TIME_LIMIT)

    return Counting(guests, load)


def count_job(guests: list[Traced], disks: list[str], step: Step, job: jobs.Job) -> list[tuple[dict, dict, list]]:
    return _counting(guests, disks, step, job).count(job.ios)


def count_sides(traced: Traced, disks: list[str], step: Step, job: jobs.Job,
                by_source: sources.Sources | None = None) -> dict[str, tuple[dict, dict, list]]:
    """Of one guest that is both, by label: of all processors, of the client's and of the server's."""
    pinned = f" --cpus_allowed=0-{step.cpus // 2 - 1}"
    [done], ios = _counting([traced], disks, step, job, pinned).done(job.ios)
    label = step.label(job)
    if by_source:
        by_source.keep(label, done.trace, traced.symbols, ios)
    sides = {f"{label}, {side}": found for side, found in traced.of_sides(done, ios).items()}
    return {label: traced.of_ios(done, ios), **sides}


def keep(results: Results, target: str, label: str, found: tuple[dict, dict, list]) -> None:
    """Adds counts, profile and shared lines of a target, and shows the counts."""
    for kept, of_job in zip((results.counts, results.profiles, results.lines), found):
        kept.setdefault(target, {})[label] = of_job
    print(f"{target:22} {label:32} " + ", ".join(f"{number:g} {what}" for what, number in found[0].items()), flush=True)


def run(flavour: str, folder: Path, boot: list[Step], results: Results, device: devices.Device = devices.RXE,
        scale: float = 1, by_source: sources.Sources | None = None) -> list[Exception]:
    """Adds counts, profiles and shared lines of the steps; returns what went wrong."""
    failed: list[Exception] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as where:
        trace = tracing.Trace(Path(where), split=boot[0].cpus // 2 if device.halves else None)

        def do(guest: Guest, disks: list[str], step: Step) -> None:
            traced, name = Traced(guest, trace, device), step.target.name
            for job in step.jobs:
                job = dataclasses.replace(job, ios=int(job.ios * scale))
                if device.halves:
                    for label, found in count_sides(traced, disks, step, job, by_source).items():
                        keep(results, name, label, found)
                    continue
                [found] = count_job([traced], disks, step, job)
                keep(results, name, step.label(job), found)
                without = shared_lines.without_reason(found[2]) if name in OURS else []
                if without:
                    failed.append(AssertionError(f"{name}: no reason for locked instructions of {', '.join(without)}"))
                    print(f"*** {failed[-1]}", flush=True)

        return measure.each(flavour, folder, boot, do, trace.how(), device) + failed


def card_steps() -> list[Step]:
    """Single requests and many, over the card."""
    return [Step(targets.BY_NAME[name], tuple(jobs.BASIC)) for name in ON_CARD]


def card_short() -> list[Step]:
    """Of these, what is counted before each change is taken."""
    return [step for step in card_steps() if step.target.name == OURS[0]]


def figures(results: Results) -> list[Figure]:
    """The instructions of our modules, both sides together, of each load that was counted."""
    return [Figure(target, f"{job}, our modules", round(sum(profile["modules"].get(name, 0) for name in MODULES), 1),
                   "instructions")
            for target, profiles in results.profiles.items() if target in OURS
            for job, profile in profiles.items() if not job.endswith(tracing.SIDES)]


def steps() -> list[Step]:
    """Single requests and many on two processors, many of four workers on four, and those on 16 disks."""
    counted = [Step(targets.BY_NAME[name], tuple(jobs.BASIC)) for name in COUNTED]
    return counted + [Step(targets.BY_NAME[name], tuple(jobs.DEEP), cpus=4, workers=4, disks=disks)
                      for disks in (1, 16) for name in ("RNBD Y", "NVMe-oF", "ibnbd Y")]
