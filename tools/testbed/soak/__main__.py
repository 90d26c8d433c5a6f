# SPDX-License-Identifier: GPL-2.0
"""A soak test: for hours, two disks are under fio with verification, and their I/O must never fail;
a third one comes and goes under programs that compare.  Meanwhile links fail in every way, paths
are disconnected, removed and added, modules are unloaded, memory is taken, peers break the protocol and,
on the debug kernel, calls fail in the client and in the server.

Prints a line each minute, and a table at the end, which it also leaves as JSON below the cache.
The status is 0 if no byte was wrong, no I/O of the first two disks failed, no kernel complained
and nothing leaked."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from .. import judge, paths
from ..channel import CommandFailed
from ..lab import Pair
from ..reset import CannotReset, reset
from .events import Events
from .loads import STACK, Loads
from .tally import Tally


class Soak:
    def __init__(self, pair: Pair, seconds: float, seed: int):
        self.pair, self.seconds = pair, seconds
        self.tally, self.rows = Tally(), []
        dice = random.Random(seed)
        self.loads = Loads(pair, dice, self.tally)
        self.events = Events(pair, dice, self.tally, self.loads)

    def run(self) -> None:
        for guest in self.pair:
            # A busy machine is not what is looked for.
            guest.command_timeout = 600
        self.events.make_ready()
        self.loads.export()
        self.pair.server.run(STACK.load_server())
        self.loads.begin()
        self.started = time.monotonic()
        self.go()
        self.end()

    def go(self) -> None:
        next_row = 0.0
        while (now := time.monotonic() - self.started) < self.seconds:
            if now >= next_row:
                self.look()
                next_row = now + min(60, self.seconds / 5)
            self.events.one()
            self.loads.third_is_back()
            self.events.disarm()
            self.loads.both_connected()
            self.loads.third_is_back()
            self.loads.go_on()

    def look(self) -> None:
        """One row of the table, if all is well."""
        self.loads.run()
        self.loads.count()
        row = {"seconds": round(time.monotonic() - self.started),
               "requests": self.tally.requests, "failed_over": self.tally.failovers,
               "faults": self.tally.faults, "verified_mib": self.tally.verified >> 20}
        for guest in self.pair:
            words = guest.run("while read -r name value _; do case $name in Slab:|MemAvailable:) echo $value ;; "
                              "esac; done < /proc/meminfo").split()
            row |= {f"{guest.name}_available_kib": int(words[0]), f"{guest.name}_slab_kib": int(words[1])}
        self.rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        judge.check(self.pair)

    def end(self) -> None:
        """Everything is read back and compared, and nothing is left."""
        self.look()
        self.loads.end()
        for guest in (self.pair.client, self.pair.server):
            reset(guest)
        judge.check(self.pair)
        judge.check_leaks(self.pair)

    def report(self, failed: str | None, seed: int) -> Path:
        names = list(self.rows[0]) if self.rows else []
        step = max(1, len(self.rows) // 20)
        print("\n| " + " | ".join(names) + " |\n|" + " ---: |" * len(names))
        for row in self.rows[::-step][::-1]:
            print("| " + " | ".join(str(value) for value in row.values()) + " |")
        print()
        for event, times in sorted(self.tally.events.items()):
            print(f"{times:6} {event}")
        target = paths.cache() / "soak" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"seed": seed, "kernel": self.pair.kernel.flavour, "failed": failed,
                                      "rows": self.rows, "events": self.tally.events}, indent=1))
        print(f"\n{'FAILED: ' + failed if failed else 'All was well.'}\nseed {seed}; {target}")
        return target


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("hours", type=float)
    parser.add_argument("--kernel", choices=("debug", "fast"), default="debug")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"==> {options.hours} hours on the {options.kernel} kernel, seed {seed}", flush=True)
    with Pair(options.kernel, links=2) as lab:
        soak, failed = Soak(lab, options.hours * 3600, seed), None
        try:
            soak.run()
        except (AssertionError, CommandFailed, CannotReset) as error:
            failed = f"{type(error).__name__}: {error}"
            print(f"logs kept in {judge.keep(lab, 'soak')}")
        soak.report(failed, seed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
