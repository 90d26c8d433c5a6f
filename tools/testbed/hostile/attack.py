# SPDX-License-Identifier: GPL-2.0
"""The program of the hostile client: runs the table of attacks, and prints a line for each.

With a key it is an authenticated host that attacks, from the first connection on."""

import argparse

from . import auth, report
from .values import chosen

# What is about connecting without a key, about devices that are no exports, or about clients without extensions, which
# nobody who authenticates is.
NOT_OF_A_HOST = ("connect", "deaf while it is set up", "a connection from", "session named 254",
                 "name of a session that is there", "OPEN of", "OPEN with flags", "DISCOVER that is short",
                 "DISCOVER in a chunk", "times are offered")


def is_of_a_host(name: str) -> bool:
    return not name.startswith(NOT_OF_A_HOST) and not name.endswith("without extensions")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--key", type=bytes.fromhex)
    options, rest = parser.parse_known_args()
    if options.key:
        auth.become_insiders(options.key)
    # The table has whatever a party is by then.
    from .attacks import ATTACKS, Shared  # noqa: PLC0415
    table = [attack for attack in ATTACKS if not options.key or is_of_a_host(attack.name)]
    wanted = chosen([attack.name for attack in table], rest)
    for attack in table:
        if attack.name in wanted:
            report.run(attack.name, attack.run)
    Shared.drop()


if __name__ == "__main__":
    main()
