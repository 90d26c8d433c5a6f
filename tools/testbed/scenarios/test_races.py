# SPDX-License-Identifier: GPL-2.0
"""Every operation on a disk against every other, under I/O that is compared: nothing hangs, no kernel
complains, every acknowledged byte is there, and afterwards the disk can be mapped and works.

Runs as many pairs as fit into the time, in random order.  IBTRS_SEED=<number> repeats an order,
IBTRS_PAIRS="map+unload force+force" runs those pairs, IBTRS_LONG=1 all 136, and each for longer."""

import json
import os
import random
from pathlib import Path

import pytest

from testbed import checker, fio, races
from testbed.channel import CommandFailed
from testbed.stack import SLOTS_OVER_RXE

pytestmark = [pytest.mark.links(2), pytest.mark.cpus(4), pytest.mark.long, pytest.mark.kernel_arguments(SLOTS_OVER_RXE)]

LONG = bool(os.environ.get("IBTRS_LONG"))
SECONDS = 5 if LONG else 1
# No further pair begins after this number of seconds.
BUDGET = 3 * 3600 if LONG else 30
TOOLS = Path(races.__file__).parent


def race(guest, pairs: list[str], seed: int) -> dict:
    """Runs pairs in a guest; what was counted."""
    for name in (races.__file__, checker.__file__):
        guest.push(f"/tmp/{Path(name).name}", Path(name).read_text())
    job = guest.start(f"exec python3 /tmp/races.py {BUDGET} {SECONDS} {seed} {' '.join(pairs)}")
    try:
        words = job.wait(BUDGET + 4 * races.TIME_LIMIT, check=False)
    finally:
        print(job.text, flush=True)
    assert words.ok, f"IBTRS_SEED={seed}: {words[-3000:]}"
    return json.loads(words.splitlines()[-1])


def chosen(seed: int) -> list[str]:
    if pairs := os.environ.get("IBTRS_PAIRS"):
        return pairs.split()
    pairs = races.pairs()
    return random.Random(seed).sample(pairs, len(pairs))


def test_each_against_each(solo, stack):
    seed = int(os.environ.get("IBTRS_SEED") or random.randrange(1 << 32))
    pairs = chosen(seed)
    print(f"\nIBTRS_SEED={seed}", flush=True)
    solo.null_blk(size_mb=races.SIZE_MB)
    counted = race(solo, pairs, seed)
    assert counted["pairs"] == len(pairs) or not LONG and counted["pairs"] > 0
    assert counted["writes"] > 0 and counted["reads"] > 0, "nobody wrote or compared anything"
    assert counted["wrong"] == counted["unexpected"] == 0
    # A program that knows nothing of all this.
    fio.run(solo, f"--name=after --filename={stack.disk} --rw=randwrite --bs=4k --size=4m --direct=1 "
                  "--iodepth=8 --ioengine=io_uring --verify=crc32c --verify_fatal=1")
    solo.run(stack.unmap())


def test_a_checker_sees_what_is_wrong(solo, stack):
    """Someone else writes to a block: what it was to hold is gone."""
    solo.null_blk(size_mb=races.SIZE_MB)
    solo.push("/tmp/checker.py", Path(checker.__file__).read_text())
    solo.push("/tmp/spoil.py", """
import mmap, os, time
from checker import Checkers
os.chdir("/dev")
checkers = Checkers("/dev/nullb0", 1, 4, 1)
checkers.race()
while checkers.shared.total("writes") < 20:
    time.sleep(0.01)
# Through the page cache, the checkers' direct writes would make fsync() fail.
disk = os.open("/dev/nullb0", os.O_WRONLY | os.O_DIRECT)
spoilt = mmap.mmap(-1, 16384)
spoilt.write(b"x" * 16384)
while not checkers.faults:
    os.pwritev(disk, [spoilt], 0)
checkers.stop()
print(checkers.shared.total("wrong"), checkers.shared.total("unexpected"))
""")
    words = solo.run("python3 /tmp/spoil.py", timeout=300).splitlines()
    assert words[0].startswith("WRONG: /dev/nullb0 block ") and int(words[-1].split()[0]) > 0
