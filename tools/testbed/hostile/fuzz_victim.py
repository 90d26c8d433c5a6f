# SPDX-License-Identifier: GPL-2.0
"""The program of the victim of a server whose answers are changed by chance.

Any outcome of mapping, reading and writing is right.  A user who is killed while he maps
comes back, and a disk that was mapped can be unmapped."""

import argparse

from . import report
from .hear_lies import Server
from .victim import ADDRESS, Stuck, Victim

# How long a user waits for his disk.
BRIEFLY = 3.0


def use(victim: Victim, counts: dict) -> None:
    said = victim.map(BRIEFLY)
    counts[said] = counts.get(said, 0) + 1
    if said != "OK":
        return
    victim.impatient()
    for number in range(8):
        act = victim.write if number % 4 == 3 else victim.read
        try:
            said = act((4096, 4096, 20480, 61440)[number % 4], seconds=1)
        except Stuck:
            # Some answers never come; unmapping ends what waits for them.
            said = "open"
        counts["I/O " + said] = counts.get("I/O " + said, 0) + 1
        if said == "open":
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("seconds", type=float)
    chosen = parser.parse_args()
    server = Server(ADDRESS)
    print("ready", flush=True)
    counts: dict[str, int] = {}
    rounds, failures = 0, []
    for _ in report.rounds(chosen.seconds):
        rounds += 1
        seed = f"{chosen.seed}-{rounds}"
        port = int(server.tell(f"fuzz {seed}").removeprefix("port "))
        victim = Victim(f"fuzzed{rounds}", port, server.tell)
        try:
            use(victim, counts)
            victim.unmap()
        except AssertionError as error:
            failures.append(f"seed {seed}: {error}")
        server.tell("end")
    what = "; ".join(failures) or f"seed {chosen.seed}, {rounds} sessions, {counts}"
    print(report.line(report.Result("fuzz", not failures and counts.get("I/O OK", 0) > 0, what)), flush=True)


if __name__ == "__main__":
    main()
