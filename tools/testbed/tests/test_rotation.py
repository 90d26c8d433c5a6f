# SPDX-License-Identifier: GPL-2.0
"""The scenarios that run in some commits only."""

import re
import sys
from itertools import combinations
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
SCENARIOS = TOP / "tools/testbed/scenarios"
sys.path.insert(0, str(SCENARIOS))
import rotation  # noqa: E402


def test_each_entry_is_a_file_and_in_one_part():
    assert all((SCENARIOS / f"{file}.py").exists() for files in rotation.ROTATION for file in files)
    assert not any(one & other for one, other in combinations(rotation.ROTATION, 2))


@pytest.mark.parametrize("file", sorted(path.stem for path in SCENARIOS.glob("test_*.py")))
def test_each_file_runs_in_one_part_or_in_all(file):
    assert rotation.runs(file, None)
    assert sum(rotation.runs(file, part) for part in rotation.PARTS) in (1, len(rotation.PARTS))


def test_the_script_knows_the_number_of_parts():
    script = (TOP / "scripts/part.sh").read_text()
    assert re.findall(r"^PARTS=(\d+)$", script, re.M) == [str(len(rotation.PARTS))]


def test_the_packages_are_installed_in_some_parts():
    parts, = re.findall(r'^SHORT_PARTS="([\d ]+)"$', (TOP / ".ci/run").read_text(), re.M)
    assert parts.split() and set(map(int, parts.split())) <= set(rotation.PARTS)
