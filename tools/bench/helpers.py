# SPDX-License-Identifier: GPL-2.0
"""Counts the calls of C helpers that one I/O makes on Debian's own kernel.

Kernels that clang built with CONFIG_RUST_INLINE_HELPERS have none of these calls.  Where gcc
built the kernel, each helper is a call: the kernel's own helpers (rust_helper_*) and those of
ibtrs_core.  The function tracer records every call, on server and client separately."""

import argparse
import re
import sys
from collections import Counter

from testbed import blockdev, fio
from testbed.guest import Guest
from testbed.lab import Pair
from testbed.stack import STACKS

COUNT = 1000
TRACING = "/sys/kernel/tracing"
BEGIN = (f"cd {TRACING} && echo nop > current_tracer && echo 40000 > buffer_size_kb && "
         "echo 'rust_helper_*' > set_ftrace_filter && echo function > current_tracer && echo > trace")
CALL = re.compile(r" (rust_helper_\w+)")


def calls(guest: Guest) -> Counter:
    """The functions that were called since the last time, or since BEGIN."""
    guest.run(f"cd {TRACING} && echo 0 > tracing_on && cat trace > /mnt/share/trace && echo > trace && "
              "echo 1 > tracing_on", timeout=600)
    text = (guest.share / "trace").read_text()
    lost = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
    assert lost and lost[1] == lost[2], "the guest's buffer is too small"
    return Counter(CALL.findall(text))


def measure(lab: Pair, disk: str, pattern: str) -> dict[str, Counter]:
    """The calls that `count` I/Os make, on either side."""
    for guest in lab:
        calls(guest)
    fio.run(lab.client, f"--name=count --filename={disk} --rw={pattern} --bs=4k --iodepth=1 --size=64m "
                        f"--number_ios={COUNT} --direct=1 --ioengine=io_uring --randseed=1 --norandommap")
    return {guest.name: calls(guest) for guest in lab}


def show(pattern: str, side: str, counted: Counter) -> None:
    each = {name: count / COUNT for name, count in counted.items() if count >= COUNT / 20}
    print(f"{pattern}, {side}: {sum(each.values()):.1f} calls of helpers an I/O")
    for name in sorted(each, key=each.get, reverse=True):
        print(f"    {each[name]:6.2f} {name.removeprefix('rust_helper_')}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="helpers", description=__doc__)
    parser.add_argument("--always-invalidate", choices="YN", default="Y")
    options = parser.parse_args()
    stack = STACKS["ibtrs"]
    with Pair("stock") as lab:
        lab.server.run(f"modprobe ibtrs_server always_invalidate={options.always_invalidate}")
        blockdev.map_new(lab, stack)
        for guest in lab:
            guest.run(BEGIN)
        for pattern in ("randread", "randwrite"):
            for side, counted in measure(lab, stack.disk, pattern).items():
                show(pattern, side, counted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
