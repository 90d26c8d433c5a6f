# SPDX-License-Identifier: GPL-2.0
"""Every call of our modules for memory, to verbs, to the connection manager, to the block layer and
to sysfs fails, one at a time: while modules are loaded, a disk is mapped, I/O runs, a path fails
over, is connected again or added, a second disk is mapped, a device is closed, and everything is
removed. Each phase ends with an error or goes on; afterwards everything works, every byte is there,
and kmemleak finds nothing lost.

Some cases are fixed.  The others are run by hand only: IBTRS_FAULTS=<seconds> counts the calls and
runs as many cases as fit into that time, in random order; IBTRS_SEED=<number> repeats an order,
IBTRS_CASES="connect:ib_alloc_mr:3 ..." runs those cases, IBTRS_LONG=1 all of them, and with
IBTRS_SHARE=k/n share k of n of all."""

import json
import os
import random
from pathlib import Path

import pytest

from testbed import checker, faults, races
from testbed.stack import SLOTS_OVER_RXE

# One of these has to be set.
ASKED = ("IBTRS_FAULTS", "IBTRS_SEED", "IBTRS_CASES", "IBTRS_LONG")
# On the kernel that checks everything, slots are tested here and with the races; chunks, everywhere.
pytestmark = [pytest.mark.links(2), pytest.mark.kernel_arguments(SLOTS_OVER_RXE)]
# What a module needs to know an RDMA device: without it, no path over the device would ever connect. The calls that
# put a session and its paths into sysfs, on both sides.
FIXED = """load:krealloc_node_align_noprof:1
connect:kobject_add:2 connect:kobject_add:4 connect:kobject_add:6 connect:kobject_add:8
connect:device_add:1 connect:sysfs_create_file_ns:1 failover:kobject_add:1 connect:blk_mq_alloc_queue:1""".split()

LONG = bool(os.environ.get("IBTRS_LONG"))
# Seconds for cases; counting what is called comes before that, and takes a minute or two.
BUDGET = 4 * 3600 if LONG else float(os.environ.get("IBTRS_FAULTS") or 45)


def run(guest, budget: float, seed: int, cases: list[str]) -> dict:
    """Runs cases in a guest; what was counted."""
    for name in (faults.__file__, races.__file__, checker.__file__):
        guest.push(f"/tmp/{Path(name).name}", Path(name).read_text())
    faults.load(guest)
    share = os.environ.get("IBTRS_SHARE", "1/1")
    job = guest.start(f"exec python3 /tmp/faults.py {budget} {seed} {share} {' '.join(cases)}")
    try:
        words = job.wait(budget + 900 + 60 * len(cases), check=False)
    finally:
        print(job.text, flush=True)
    assert words.ok, f"IBTRS_SEED={seed}: {words[-3000:]}"
    guest.run("busybox rmmod ibtrs_faults")
    return json.loads(words.splitlines()[-1])


def test_fixed_calls_fail(solo):
    """A module that cannot know a device is not loaded; neither side keeps or uses what it could not show."""
    if not solo.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    solo.null_blk(size_mb=races.SIZE_MB)
    solo.null_blk(faults.SECOND.removeprefix("/dev/"), size_mb=races.SIZE_MB)
    counted = run(solo, 0, 1, FIXED)
    assert counted["missing"] == []
    assert counted["wrong"] == counted["unexpected"] == 0
    assert counted["run"] == counted["struck"] == len(FIXED)


@pytest.mark.fresh
@pytest.mark.long
@pytest.mark.skipif(not any(map(os.environ.get, ASKED)),
                    reason="takes long: by hand, with IBTRS_FAULTS=<seconds>")
def test_every_call_fails_once(solo):
    if not solo.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    seed = int(os.environ.get("IBTRS_SEED") or random.randrange(1 << 32))
    cases = os.environ.get("IBTRS_CASES", "").split()
    print(f"\nIBTRS_SEED={seed}", flush=True)
    solo.null_blk(size_mb=races.SIZE_MB)
    solo.null_blk(faults.SECOND.removeprefix("/dev/"), size_mb=races.SIZE_MB)
    counted = run(solo, BUDGET, seed, cases)
    assert counted["missing"] == []
    assert counted["wrong"] == counted["unexpected"] == 0
    # A call that did not fail was not tried.
    assert counted["run"] > 0 and counted["struck"] >= max(1, counted["run"] // 4)
