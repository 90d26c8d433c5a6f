# SPDX-License-Identifier: GPL-2.0
"""Loads modules built with their KUnit suites into a guest, which runs them, and reports the
results."""

import argparse
import sys
from pathlib import Path

from . import boots, judge, ktap
from .lab import Solo
from .tally import Tally

MODULES = ("ibtrs_core", "ibtrs_client", "ibtrs_server", "ibnbd_client", "ibnbd_server", "ibmsg")


def run(modules: Path | None) -> Tally:
    tally = Tally()
    # Suites that need RDMA devices find two.
    with Solo("debug", links=2, kernel_arguments="kunit.enable=1", our_modules=modules) as lab:
        guest = lab.guest
        guest.log.move_mark()
        for module in MODULES:
            # The block server wants to be told what it may export.
            argument = "dev_search_path=/dev" if module == "ibnbd_server" else ""
            guest.run(f"modprobe {module} {argument}", timeout=600)
        for result in ktap.parse(guest.log.new_lines()):
            if result.skipped:
                tally.skipped += 1
                continue
            tally.add(result.passed, f"{result.suite}: {result.name}")
            print(f"{'ok' if result.passed else 'FAILED':6} {result.suite}: {result.name}")
            if not result.passed:
                print("\n".join(f"       {line}" for line in result.words))
        for report in judge.kernel_reports(lab):
            # A KUnit suite that fails taints, which is no fault of its own.
            tally.add(False, str(report))
            print(f"FAILED {report}")
        if tally.failed:
            print(f"logs kept in {judge.keep(lab, 'kunit')}")
    tally.booted, tally.again = boots.COUNT.booted, len(boots.COUNT.failed)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="kunit", description=__doc__)
    parser.add_argument("--modules", type=Path, help="the folder of the modules")
    parser.add_argument("--tally", type=Path, help="where to leave the counts")
    options = parser.parse_args()
    tally = run(options.modules)
    if options.tally:
        tally.save(options.tally)
    print(boots.summary(tally.booted, tally.again))
    print(tally)
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
