# SPDX-License-Identifier: GPL-2.0
"""The program of the hostile client: goes through the table, a line for each attack."""

import argparse

from . import report
from .attacks import ATTACKS, Shared
from .values import representatives


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--all", action="store_true", help="not only some of each kind")
    chosen = parser.parse_args()
    names = [attack.name for attack in ATTACKS if chosen.only in attack.name]
    wanted = set(names) if chosen.all else representatives(names)
    for attack in ATTACKS:
        if attack.name in wanted:
            report.run(attack.name, attack.run)
    Shared.drop()


if __name__ == "__main__":
    main()
