# SPDX-License-Identifier: GPL-2.0
"""The list of scenarios that cannot pass on Debian's own kernel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[1] / "scenarios"
sys.path += [str(SCENARIOS), str(Path(__file__).parent)]
import not_on_stock  # noqa: E402
import stock_needs  # noqa: E402


def listed(*options: str) -> list[tuple]:
    """File and name of each scenario, what it needs that the kernel lacks, and the kernel on which it runs, if any."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "stock_needs", "--collect-only", "-q",
               SCENARIOS, "--kernel", "debug", *options]
    folders = ":".join([str(SCENARIOS.parents[1]), str(Path(__file__).parent)])
    listing = subprocess.run(command, capture_output=True, text=True, check=True,
                             env={"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": folders}).stdout
    return json.loads(next(line for line in listing.splitlines() if line.startswith("[[")))


@pytest.fixture(scope="module")
def scenarios() -> list[tuple]:
    return listed()


def test_each_entry_is_a_scenario(scenarios):
    used = {not_on_stock.pattern_of(file, name) for file, name, *_ in scenarios}
    assert set(not_on_stock.REASONS) <= used


def test_each_scenario_that_needs_more_is_listed(scenarios):
    needy = [scenario for scenario in scenarios if scenario[2]]
    assert {need for scenario in needy for need in scenario[2]} == {
        stock_needs.RNBD, stock_needs.INJECTION, stock_needs.SIW}
    assert [scenario for scenario in needy if not not_on_stock.reason(*scenario[:2])] == []


def test_what_scenarios_use_is_found(scenarios):
    needs = {(file, name): found for file, name, found, _ in scenarios}
    # By a parameter, by a function and by a class of the file, and by a fixture or marker.
    assert needs["test_overtaking.py", "test_our_server_lets_none_overtake[mainline-client]"] == ["RNBD"]
    assert needs["test_overtaking.py", "test_our_server_lets_none_overtake[our-client]"] == []
    assert needs["test_tool.py", "test_the_kernels_own_disks_are_shown"] == ["RNBD"]
    assert needs["test_checksums.py", "test_damaged_headers[Y]"] == ["fault injection"]
    assert needs["test_interop.py", "test_messages_of_a_read[ours]"] == []
    assert needs["test_data.py", "test_every_byte_is_right"] == []


def test_debians_kernel_takes_the_place_of_the_fast_one(scenarios):
    """In scenarios that ask for the fast one, unless they are on the list."""
    def instead(file, name, kernel):
        return kernel if kernel != "fast" else None if not_on_stock.reason(file, name) else "stock"

    expected = {(file, name): instead(file, name, kernel) for file, name, _, kernel in scenarios}
    assert {"debug", "stock", None} <= set(expected.values())
    assert {(file, name): kernel for file, name, _, kernel in listed("--fast", "stock")} == expected


def test_a_scenario_is_found_by_its_name():
    assert not_on_stock.reason("test_overtaking.py", "test_x[mainline-client]") == not_on_stock.NO_RNBD
    assert not_on_stock.reason("test_overtaking.py", "test_x[our-client]") is None
    assert not_on_stock.reason("test_data.py", "test_every_byte_is_right") is None
