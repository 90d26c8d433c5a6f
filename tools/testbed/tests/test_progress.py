# SPDX-License-Identifier: GPL-2.0
"""Steps that take long say so, and what they print stays in a log."""

import os
import re
import subprocess

import pytest

from testbed.paths import TOP

# Says a line each second, and what no user should have to read.
STEP = "for n in $(seq 4); do echo \"warning: step $n\" >&2; sleep 1; done; exit $0"


@pytest.fixture
def run(tmp_path):
    def run(status: int) -> subprocess.CompletedProcess:
        script = f". {TOP}/scripts/env.sh; with_progress 'Building a thing' 40 bash -c '{STEP}' {status}"
        environment = {**os.environ, "IBTRS_CACHE": str(tmp_path), "IBTRS_PROGRESS_S": "2"}
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    return run


def test_a_long_step_says_how_far_it_is_and_hides_its_output(run, tmp_path):
    done = run(0)
    first, *between, last = done.stdout.splitlines()
    log = tmp_path / "logs/Building-a-thing.log"
    assert (done.returncode, done.stderr, first) == (0, "", f"==> Building a thing (log: {log})")
    progress = re.compile(r"    Building a thing: \d of about 40 steps, \d s so far, about \S+ s left")
    assert between and all(map(progress.fullmatch, between)), between
    assert re.fullmatch(r"    Building a thing: done in \d s", last), last
    assert "warning: step 4" in log.read_text()


def test_a_step_that_fails_shows_the_end_of_its_log(run, tmp_path):
    done = run(3)
    assert done.returncode != 0 and "warning: step 4" in done.stderr, done.stderr
    assert f"error: Building a thing failed with status 3; the whole log is {tmp_path}/logs/" in done.stderr, done.stderr
