# SPDX-License-Identifier: GPL-2.0
"""The list of scenarios that cannot pass on Debian's own kernel."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[1] / "scenarios"
sys.path.insert(0, str(SCENARIOS))
import not_on_stock  # noqa: E402


@pytest.fixture(scope="module")
def scenarios() -> list[tuple[str, str]]:
    """File and name of each."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", SCENARIOS]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, file = [], ""
    for line in listing.splitlines():
        if module := re.search(r"(?:<Module |^)(?:\S*/)?(test_\w+\.py)", line):
            file = module[1]
        if name := re.search(r"(?:<Function |::)(test_[^>]+)", line):
            found.append((file, name[1].strip()))
    assert found
    return found


def test_each_entry_is_a_scenario(scenarios):
    used = {not_on_stock.pattern_of(*scenario) for scenario in scenarios}
    assert set(not_on_stock.REASONS) <= used


def test_a_scenario_is_found_by_its_name():
    assert not_on_stock.reason("test_overtaking.py", "test_x[mainline-client]") == not_on_stock.NO_RNBD
    assert not_on_stock.reason("test_overtaking.py", "test_x[our-client]") is None
    assert not_on_stock.reason("test_data.py", "test_every_byte_is_right") is None
