# SPDX-License-Identifier: GPL-2.0
"""The command line of the bench of messages; see scripts/bench.sh."""

import argparse
import sys
from pathlib import Path

from bench import measure as of_disks
from bench.__main__ import commit
from bench.plan import CPUS
from bench.results import Results, load
from testbed import accel, paths

from . import measure, tables, targets, truth

# In the folder for figures.
FIGURES = "figures.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-messages", description=__doc__)
    parser.add_argument("--kernel", choices=("fast", "stock"), default="fast")
    parser.add_argument("--only", default="", help="targets with this in their name, or these targets, between |")
    parser.add_argument("--loads", default="", help="loads with this in their name")
    parser.add_argument("--report", type=Path, required=True, help="the folder for figures and tables")
    parser.add_argument("--modules", type=Path, help="the folder of the modules to measure, if not this checkout's")
    parser.add_argument("--commit", help="the commit that they were built from")
    parser.add_argument("--where", choices=("together", "apart"), help="in one guest only, or in two")
    parser.add_argument("--add", action="store_true", help="only what is missing in the folder's figures of these modules")
    parser.add_argument("--truth", metavar="N|hour", help="instead, the truth table, with links that are cut "
                        "N times for 1, 5 and 25 s, or, for ours alone, until there were 10,000,000 requests")
    parser.add_argument("--smoke", action="store_true", help="few messages: whether it works at all")
    return parser


def _results(options, kernel: str) -> Results:
    """None yet, or those that the folder has."""
    new = Results(options.commit or commit(), options.kernel, kernel, f"{accel.COUNTING_CPU}; {CPUS} CPUs")
    figures = options.report / FIGURES
    if not (options.add and figures.exists()):
        return new
    found = load(figures)
    if (found.commit, found.kernel, found.machine) != (new.commit, new.kernel, new.machine):
        raise SystemExit(f"error: {figures} is of the modules of {found.commit} on {found.kernel}, not of {new.commit} on "
                         f"{new.kernel}: measure without --add, or to another folder")
    return found


def _measure(options) -> list[Exception]:
    kernel = paths.kernel(options.kernel)
    run = _results(options, kernel.build.name)
    chosen = targets.possible((kernel.build / "modules.order").read_text(), options.only)
    scope = measure.Scope(options.loads, 0.1 if options.smoke else 1, run, options.report / FIGURES)
    failed: list[Exception] = []
    with of_disks.modules(options.kernel, options.modules or kernel.our_modules) as folder:
        for name, where, possible in (("together", measure.together, [target for target in chosen if target.together]),
                                      ("apart", measure.apart, [target for target in chosen if target.apart])):
            if options.where in (name, None):
                for group in measure.groups(possible):
                    failed += where(options.kernel, folder, group, scope)
    tables.write(run, options.report)
    return failed if run.figures or run.counts else [AssertionError("nothing was measured")]


def main() -> int:
    options = _parser().parse_args()
    failed = (truth.measure(options.truth, options.kernel, options.only, options.report, options.modules, options.commit,
                            options.add) if options.truth
              else _measure(options))
    if failed:
        print("error: not everything was measured, or is as it was promised", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
