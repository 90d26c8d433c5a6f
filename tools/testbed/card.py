# SPDX-License-Identifier: GPL-2.0
"""The strict RDMA device in software of tools/card: builds it, and reads what it has to report."""

import re
import subprocess
from pathlib import Path

from . import klog
from .guest import Guest
from .paths import TOP

FOLDER = "/sys/kernel/debug/rdma_card"
# Not mistakes by themselves: a peer may have no receive posted for a moment; and what the card tolerates, see
# Documentation/card.md.
ORDINARY = {"no_receive", "not_returned"}


def build(flavour: str) -> Path:
    """The folder with its modules, built for a test kernel."""
    script = TOP / "scripts/build-card.sh"
    done = subprocess.run([script, flavour], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}


def reports(guest: Guest, ordinary: bool = False) -> dict[str, int]:
    """The misuses that all cards of a guest have seen, by kind; those that are ordinary only if asked for."""
    total: dict[str, int] = {}
    for text in guest.run(f"for card in {FOLDER}/*/reports; do cat $card; echo; done").split("\n\n"):
        for name, number in _numbers(text).items():
            total[name] = total.get(name, 0) + number
    return {name: number for name, number in total.items() if number and (ordinary or name not in ORDINARY)}


def counts(guest: Guest, name: str = "card0") -> dict[str, int]:
    """What a card has counted of its own work."""
    return _numbers(guest.run(f"cat {FOLDER}/{name}/counts"))


def forget(guest: Guest) -> None:
    """Begins to count misuses from zero."""
    guest.run(f"for card in {FOLDER}/*/reports; do echo 0 > $card; done")


def forgive(guest: Guest) -> None:
    """Has the scenario not fail for misuses that the card has logged so far, which were planted; nothing else may be
    in the log."""
    others = [line for line in guest.log.new_lines() if not re.search(klog.CARD, line)]
    guest.log.move_mark()
    assert not [report.text for report in klog.faults(others)]
