# SPDX-License-Identifier: GPL-2.0
"""The scenarios that run in some commits only."""

import re
import sys
from collections import Counter
from pathlib import Path

TOP = Path(__file__).parents[3]
SCENARIOS = TOP / "tools/testbed/scenarios"
sys.path.insert(0, str(SCENARIOS))
import rotation  # noqa: E402


def functions(file: str) -> set[str]:
    return set(re.findall(r"^ *def (test_\w+)\(", (SCENARIOS / f"{file}.py").read_text(), re.M))


def test_what_always_runs_is_there():
    for file, names in rotation.ALWAYS.items():
        assert {name.partition("[")[0] for name in names or ()} <= functions(file), file


def test_a_name_stands_for_all_of_its_parameters():
    assert rotation.always_runs("test_data", "test_anything")
    assert rotation.always_runs("test_interop", "test_each_with_each[ours-Y-1]")
    assert rotation.always_runs("test_messages", "test_what_programs_are_promised[begin-]")
    assert not rotation.always_runs("test_messages", "test_what_programs_are_promised[begin-lossy]")
    assert not rotation.always_runs("test_no_such_file", "test_data")


def test_each_scenario_runs_in_one_part_or_in_all():
    for file in (path.stem for path in SCENARIOS.glob("test_*.py")):
        for name in functions(file):
            assert rotation.runs(file, name, None)
            parts = sum(rotation.runs(file, name, part) for part in rotation.PARTS)
            assert parts == (len(rotation.PARTS) if rotation.always_runs(file, name) else 1)


def test_the_parts_are_alike():
    counts = Counter(rotation.part_of("test_file", f"test_{number}") for number in range(3600))
    assert set(counts) == set(rotation.PARTS) and max(counts.values()) < 150


def test_the_script_knows_the_number_of_parts():
    script = (TOP / "scripts/part.sh").read_text()
    assert re.findall(r"^PARTS=(\d+)$", script, re.M) == [str(len(rotation.PARTS))]
