# SPDX-License-Identifier: GPL-2.0
"""The client's program in the fuzzing of a hostile server: maps a disk, reads and writes, and asks for
a list of exports.

Any outcome of these is right.  But a task that is killed while it maps must end, and a mapped
disk must be removable by force."""

import argparse
import time

from . import report
from .hear_lies import Server
from .victim import ADDRESS, TIME_LIMIT, Stuck, Victim

# How long a user waits for his disk; on a machine that is slow, no disk comes so soon.
BRIEFLY, PATIENTLY = 3.0, 30.0
# Unmapping by force gives the requests in flight 10 s, and the server 30 s to answer CLOSE.
FORCED = 2 * TIME_LIMIT
# How much longer it may take until something was read at all, on a machine that is slow.
LONGER = 600.0


def use(victim: Victim, counts: dict, waits: float) -> None:
    said = victim.map(waits)
    counts[said] = counts.get(said, 0) + 1
    if said != "OK":
        return
    for number in range(8):
        act = victim.write if number % 4 == 3 else victim.read
        try:
            if number == 0:
                victim.fail_fast()
            said = act((4096, 4096, 20480, 61440)[number % 4], seconds=1)
        except Stuck:
            # Some answers never come; unmapping ends what waits for them.
            said = "open"
        except OSError as error:
            said = type(error).__name__
        counts["I/O " + said] = counts.get("I/O " + said, 0) + 1
        if said == "open":
            return
    said = victim.discover(waits)
    counts["list " + said] = counts.get("list " + said, 0) + 1


def one(server: Server, number: int, seed: str, counts: dict, waits: float) -> None:
    port = int(server.tell(f"fuzz {seed}").removeprefix("port "))
    victim = Victim(f"fuzzed{number}", port, server.tell)
    try:
        use(victim, counts, waits)
        victim.unmap_disk(FORCED)
        victim.unmap()
    finally:
        server.tell("end")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--only", type=int, help="the session of this number, which has found something before")
    chosen = parser.parse_args()
    server = Server(ADDRESS)
    print("ready", flush=True)
    counts: dict[str, int] = {}
    rounds, failures = 0, []

    def another(waits: float = BRIEFLY) -> None:
        nonlocal rounds
        rounds += 1
        seed = f"{chosen.seed}-{rounds}"
        try:
            one(server, rounds, seed, counts, waits)
        except AssertionError as error:
            failures.append(f"seed {seed}: {error}")

    if chosen.only:
        rounds = chosen.only - 1
        another()
        said = "; ".join(failures) or f"session {chosen.only} of seed {chosen.seed}, {counts}"
        print(report.line(report.Result("fuzz", not failures, said)), flush=True)
        return
    for _ in report.rounds(chosen.seconds):
        another()
    end = time.monotonic() + LONGER
    while not counts.get("I/O OK") and not failures and time.monotonic() < end:
        another(PATIENTLY)
    what = "; ".join(failures) or f"seed {chosen.seed}, {rounds} sessions, {counts}"
    print(report.line(report.Result("fuzz", not failures and counts.get("I/O OK", 0) > 0, what)), flush=True)


if __name__ == "__main__":
    main()
