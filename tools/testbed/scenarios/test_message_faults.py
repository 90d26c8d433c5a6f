# SPDX-License-Identifier: GPL-2.0
"""Every call of the module for messages that can fail does so, one at a time: while the module is loaded, a channel is
opened, messages and calls are exchanged, rules are written, and everything ends. No message is lost, doubled or
changed, and afterwards everything works. IBTRS_FAULTS=<seconds> runs more cases, IBTRS_SEED=<number> repeats an
order, IBTRS_CASES="talk:krealloc_node_align_noprof:3 ..." runs those."""

import json
import os
import random
from pathlib import Path

import pytest

from testbed import faults, messages, paths, races

BUDGET = float(os.environ.get("IBTRS_FAULTS") or 45)


@pytest.mark.long
def test_every_call_fails_once(solo):
    if not solo.spec.kernel.slow:
        pytest.skip("the fast kernel does not fail on demand")
    for path in (faults.__file__, races.__file__, messages.__file__, paths.TOP / "tools/testbed/message_faults.py"):
        solo.push(f"/tmp/{Path(path).name}", Path(path).read_text())
    faults.load(solo)
    solo.run("mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config")
    seed = int(os.environ.get("IBTRS_SEED") or random.randrange(1 << 32))
    cases = os.environ.get("IBTRS_CASES", "")
    print(f"\nIBTRS_SEED={seed}", flush=True)
    job = solo.start(f"exec python3 /tmp/message_faults.py {BUDGET} {seed} {cases}")
    try:
        words = job.wait(BUDGET + 300 + 60 * len(cases.split()), check=False)
    finally:
        print(job.text, flush=True)
    assert words.ok, f"IBTRS_SEED={seed}: {words[-3000:]}"
    solo.run("busybox rmmod ibmsg ibtrs_faults")
    counted = json.loads(words.splitlines()[-1])
    assert counted["missing"] == [] and counted["failed"] is None
    # A call that did not fail was not tried.
    assert counted["run"] >= 10 and counted["struck"] >= counted["run"] // 2
