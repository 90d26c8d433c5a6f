# SPDX-License-Identifier: GPL-2.0
"""The command line of the bench of messages; see scripts/bench.sh."""

import argparse
import sys
from pathlib import Path

from bench import measure as of_disks
from bench.__main__ import commit
from bench.plan import CPUS
from bench.results import Results
from testbed import accel, paths

from . import measure, tables, targets, truth


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-messages", description=__doc__)
    parser.add_argument("--kernel", choices=("fast", "stock"), default="fast")
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--loads", default="", help="loads with this in their name")
    parser.add_argument("--report", type=Path, required=True, help="the folder for figures and tables")
    parser.add_argument("--truth", metavar="N|hour", help="instead, the truth table, with links that are cut "
                        "N times for 1, 5 and 25 s, or, for ours alone, until there were 10,000,000 requests")
    parser.add_argument("--smoke", action="store_true", help="few messages: whether it works at all")
    return parser


def _measure(options) -> list[Exception]:
    kernel = paths.kernel(options.kernel)
    run = Results(commit(), options.kernel, kernel.build.name, f"{accel.COUNTING_CPU}; {CPUS} CPUs")
    chosen = targets.possible((kernel.build / "modules.order").read_text(), options.only)
    scope = measure.Scope(options.loads, 0.1 if options.smoke else 1, run, options.report / "figures.json")
    failed: list[Exception] = []
    with of_disks.modules(options.kernel, kernel.our_modules) as folder:
        for where, possible in ((measure.together, [target for target in chosen if target.together]),
                                (measure.apart, [target for target in chosen if target.apart])):
            for group in measure.groups(possible):
                failed += where(options.kernel, folder, group, scope)
    tables.write(run, options.report)
    return failed if run.figures or run.counts else [AssertionError("nothing was measured")]


def main() -> int:
    options = _parser().parse_args()
    failed = (truth.measure(options.truth, options.kernel, options.only, options.report) if options.truth
              else _measure(options))
    if failed:
        print("error: not everything was measured, or is as it was promised", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
