# SPDX-License-Identifier: GPL-2.0
"""The command line of the bench; see scripts/bench.sh."""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from testbed import accel, paths
from testbed.guest import Guest

from . import apart, counts, devices, facts, measure, plan, report, results, sources, targets
from .results import Results

# What `--short` compares with, by the device.
SHORT = {"rxe": Path(__file__).parent / "short.json", "card": Path(__file__).parent / "short-card.json"}
# The differences that are allowed between two runs of a single build.
SHORT_TOLERANCE, TOLERANCE = 0.02, 0.01


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--kernel", choices=("fast", "stock"), default="fast")
    parser.add_argument("--device", choices=tuple(devices.DEVICES), default="rxe",
                        help="the RDMA device; over the card there are only --counts, and --short compares the "
                             "instructions of our modules")
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--modules", type=Path, help="the folder of the modules to measure, if not this checkout's")
    parser.add_argument("--commit", help="the commit that they were built from")
    parser.add_argument("--json", type=Path, help="where to leave the figures")
    parser.add_argument("--counts", action="store_true", help="also what an I/O takes, and profiles")
    parser.add_argument("--facts", action="store_true", help="also memory, and times to set up and to fail over")
    parser.add_argument("--report", type=Path, help="a folder for figures, tables and a report with plots")
    parser.add_argument("--base", type=Path, help="figures to compare with: worse by more than 1 %% is a failure")
    parser.add_argument("--functions", type=Path,
                        help="a file for the table of the instructions of our functions over the card; --modules are "
                             "to have tables of lines")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--smoke", action="store_true", help="few I/Os: whether it works at all")
    kind.add_argument("--short", action="store_true",
                      help="what is run before each change is taken: worse by more than 2 %% twice is a failure")
    kind.add_argument("--keep", action="store_true", help="measure what --short compares with, and keep it")
    return parser


def commit() -> str:
    git = ["git", "-C", str(paths.TOP)]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if name.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True)
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _possible(options, kernel, ours: Path, steps: list[plan.Step]) -> list[plan.Step]:
    has_mainline = any("rnbd-client" in line for line in (kernel.build / "modules.order").read_text().split())
    return plan.possible(steps, has_mainline, (ours / "ibnbd_client.ko").exists(), options.only)


def _steps(options, kernel, ours: Path) -> list[plan.Step]:
    steps = plan.short() if options.short or options.keep else plan.full()
    return _possible(options, kernel, ours, steps)


def _measure(options) -> tuple[Results, bool]:
    """The figures, and whether there are all that were asked for."""
    kernel = paths.kernel(options.kernel)
    ours = options.modules or kernel.our_modules
    run = Results(options.commit or commit(), options.kernel, kernel.build.name,
                  f"{accel.COUNTING_CPU}; {plan.CPUS} CPUs unless said otherwise", options.device)
    print(f"==> {options.kernel} kernel {kernel.build.name}, modules of {run.commit}\n"
          f"==> counted: one nanosecond of the guest is one instruction; its processor is {run.machine}", flush=True)
    scale = 0.05 if options.smoke else 1
    figures = options.report / "figures.json" if options.report else options.json
    with measure.modules(options.kernel, ours) as folder:
        failed = []
        plan_work = _work_on_card if options.device == "card" else _work
        for work in plan_work(options, run, folder, kernel, ours, scale):
            failed += work()
            if figures:
                run.save(figures)
    if options.device == "card" and (options.short or options.keep):
        run.figures = counts.figures(run)
    return run, not failed


def _work_on_card(options, run: Results, folder: Path, kernel, ours: Path,
                  scale: float) -> list[Callable[[], list[Exception]]]:
    """What an I/O takes there. The card is not a network: there are no times, nor sides apart."""
    short = options.short or options.keep
    steps = _possible(options, kernel, ours, counts.card_short() if short else counts.card_steps())
    return [partial(counts.run, options.kernel, folder, boot, run, devices.CARD, scale, options.sources)
            for boot in plan.boots(steps)]


def _work(options, run: Results, folder: Path, kernel, ours: Path,
          scale: float) -> list[Callable[[], list[Exception]]]:
    """All that is to be done, each with a guest of its own; it adds to the results and
    returns what went wrong."""
    def measured(guest: Guest, disks: list[str], step: plan.Step) -> None:
        run.figures.extend(measure.figures(guest, disks, step, scale))

    work = [partial(measure.each, options.kernel, folder, boot, measured)
            for boot in plan.boots(_steps(options, kernel, ours))]
    if options.counts:
        steps = _possible(options, kernel, ours, counts.steps())
        work += [partial(counts.run, options.kernel, folder, boot, run) for boot in plan.boots(steps)]
    # Those that have guests for each target.
    for module in [apart] * options.counts + [facts] * options.facts:
        steps = [plan.Step(targets.BY_NAME[name], ()) for name in module.MEASURED]
        work += [partial(module.run, options.kernel, folder, step.target, run)
                 for step in _possible(options, kernel, ours, steps)]
    return work


def _judge(base: Results, new: Results, tolerance: float) -> bool:
    # The instructions of our modules have no such reference: they depend on the compiler.
    reference = "" if base.kernel == new.kernel or new.device == "card" else "floor, process"
    print(f"\n==> beside {base.commit}" + (f", each figure by that of {reference}: {base.kernel} then, "
                                           f"{new.kernel} now" if reference else ""))
    changes = results.compare(base, new, reference)
    for change in changes:
        print(change.line())
    good, why = results.verdict(changes, tolerance)
    print(f"==> {why}")
    return good


def _judge_short(run: Results, options) -> bool:
    """A figure that is worse is measured once more: what a change costs is there both times,
    what a run had by chance is not."""
    base = results.load(SHORT[options.device])
    if _judge(base, run, SHORT_TOLERANCE):
        return True
    print("==> once more", flush=True)
    again, complete = _measure(options)
    return complete and _judge(base, results.best([run, again]), SHORT_TOLERANCE)


def main() -> int:
    options = _parser().parse_args()
    if options.functions and not (options.device == devices.CARD.name and options.modules):
        print("error: --functions needs --device card and --modules", file=sys.stderr)
        return 1
    options.sources = options.functions and sources.Sources(
        [options.modules / f"{name}.ko" for name in counts.MODULES])
    short = SHORT[options.device]
    if options.short and not short.exists():
        print(f"error: there is no {short.name} to compare with: run make bench-keep", file=sys.stderr)
        return 1
    run, complete = _measure(options)
    if options.sources:
        options.functions.parent.mkdir(parents=True, exist_ok=True)
        options.functions.write_text(options.sources.table())
        print(f"==> {options.functions}")
    if options.report:
        report.write(run, options.report)
    if not (run.figures or run.counts) or not complete:
        print("error: not everything was measured", file=sys.stderr)
        return 1
    if options.keep:
        dataclasses.replace(run, counts={}, profiles={}, lines={}).save(short)
    if options.short:
        return 0 if _judge_short(run, options) else 1
    if options.base:
        return 0 if _judge(results.load(options.base), run, TOLERANCE) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
