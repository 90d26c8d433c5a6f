# SPDX-License-Identifier: GPL-2.0
"""The scenarios that run in every third commit."""

import sys
from itertools import combinations
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[1] / "scenarios"
sys.path.insert(0, str(SCENARIOS))
import thirds  # noqa: E402


def test_each_entry_is_a_file_and_has_one_third():
    assert all((SCENARIOS / f"{file}.py").exists() for files in thirds.THIRDS for file in files)
    assert not any(one & other for one, other in combinations(thirds.THIRDS, 2))


@pytest.mark.parametrize("file", sorted(path.stem for path in SCENARIOS.glob("test_*.py")))
def test_each_file_runs_in_one_third_or_in_all(file):
    assert thirds.runs(file, None)
    assert sum(thirds.runs(file, third) for third in (1, 2, 3)) in (1, 3)
