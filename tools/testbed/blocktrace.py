# SPDX-License-Identifier: GPL-2.0
"""Records the requests that a guest's block layer receives for one disk."""

import re
from typing import NamedTuple

from .guest import Guest

TRACING = "/sys/kernel/tracing"
BIO = re.compile(r"block_bio_queue: \S+ (\S+) (\d+) \+ (\d+) \[")
UNPLUG = re.compile(r"block_unplug: \[\S+\] (\d+)$", re.M)
REQUEST = re.compile(r"block_rq_issue: \S+ (\S+) \d+ \(\S*\) (\d+) \+ (\d+) (\w+),\d+,(\d+) ")


class Bio(NamedTuple):
    # Letters as blktrace has them: R, W, D, DE, WZ, with F before for a flush
    # and after for FUA, S for one that somebody waits for.
    what: str
    sector: int
    sectors: int


class BlockTrace:
    """Records from where it is made until `stop`."""

    def __init__(self, guest: Guest, disk: str):
        self.guest = guest
        name = disk.removeprefix("/dev/").replace("/", "!")
        # As the kernel keeps the number, and not as user space does.
        guest.run(f"IFS=: read -r major minor < /sys/class/block/{name}/dev && cd {TRACING} && echo > trace && "
                  "for event in block_bio_queue block_rq_issue; do "
                  'echo "dev == $((major << 20 | minor))" > events/block/$event/filter && '
                  "echo 1 > events/block/$event/enable || exit 1; done")
        self.text = ""

    def stop(self) -> None:
        self.text = self.guest.run(f"cd {TRACING}; for event in block_bio_queue block_rq_issue; do "
                                   "echo 0 > events/block/$event/enable; echo 0 > events/block/$event/filter; "
                                   "done; cat trace; echo > trace")

    def bios(self) -> list[Bio]:
        """As they were submitted, before they are split."""
        return [Bio(what, int(sector), int(sectors)) for what, sector, sectors in BIO.findall(self.text)]

    def priorities(self) -> set[str]:
        """Classes and levels of the requests that the driver got, as in be/4."""
        return {f"{match[3]}/{match[4]}" for match in REQUEST.findall(self.text)}


def batches(guest: Guest, during) -> list[int]:
    """How many requests at a time threads handed to the drivers of all the guest's disks, while
    during() ran, of those that they had collected."""
    event = f"{TRACING}/events/block/block_unplug/enable"
    guest.run(f"echo > {TRACING}/trace; echo 1 > {event}")
    during()
    text = guest.run(f"echo 0 > {event}; cat {TRACING}/trace; echo > {TRACING}/trace")
    return [int(count) for count in UNPLUG.findall(text)]
