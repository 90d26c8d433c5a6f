# SPDX-License-Identifier: GPL-2.0
"""The program of the hostile client: runs the table of attacks, and prints a line for each."""

from . import report
from .attacks import ATTACKS, Shared
from .values import chosen


def main() -> None:
    wanted = chosen([attack.name for attack in ATTACKS])
    for attack in ATTACKS:
        if attack.name in wanted:
            report.run(attack.name, attack.run)
    Shared.drop()


if __name__ == "__main__":
    main()
