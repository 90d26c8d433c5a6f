# SPDX-License-Identifier: GPL-2.0
"""The parts of the bench of messages that need no guest: loads, goals, tables, and its program over sockets."""

import json
import subprocess

import pytest

from bench.messages import goals, loads, measure, program, tables, targets
from bench.results import Figure, Results


def test_loads_and_targets_have_names_of_their_own():
    assert len(loads.BY_NAME) == len(loads.LOADS) and len(targets.BY_NAME) == len(targets.TARGETS)
    assert set(loads.COUNTED) <= set(loads.LOADS)


def test_one_at_a_time_is_a_time_and_many_are_a_rate():
    assert loads.CALL.value(1000, 50_000_000) == 50
    many = loads.MANY[0]
    assert many.in_flight == 32 and many.value(1000, 50_000_000) == 20_000
    assert many.arguments(10).split() == ["--load", "calls", "--bytes", "64", "--depth", "32", "--channels", "1",
                                          "--count", "10"]


def test_a_target_has_the_loads_that_it_can(tmp_path):
    scope = measure.Scope("call of", 0.001, Results("c", "fast", "k", "cpu"), tmp_path)
    floor, ours = targets.BY_NAME["floor, process"], targets.BY_NAME["ibmsg"]
    assert {load.kind for load in loads.LOADS if floor.can(load)} == {"calls"}
    assert loads.MANY[1].channels > 1 and not floor.can(loads.MANY[1]) and ours.can(loads.MANY[1])
    assert [load.name for load in scope.chosen(loads.LOADS, ours)] == [load.name for load in loads.CALLS]
    # Each of several threads makes some calls.
    assert scope.count(loads.MANY[0]) >= 32


def test_a_group_shares_a_guest():
    groups = measure.groups(targets.TARGETS)
    assert sum(map(len, groups)) == len(targets.TARGETS)
    assert all(len({target.group for target in group}) == 1 for group in groups)
    # The floor's modules differ in their parameters.
    assert all(len(group) == 1 for group in groups if isinstance(group[0], targets.Floor))


def test_a_kernel_without_a_transport_measures_the_others():
    names = {target.name for target in targets.possible("kernel/net/smc/smc.o kernel/a/b.o")}
    assert {"SMC-R", "TCP", "ibmsg", "floor, process"} <= names and "RDS" not in names
    assert [target.name for target in targets.possible("net/rds/rds_rdma.ko", "RDS")] == ["RDS"]


def made(ours: float) -> Results:
    run = Results("c", "fast", "k", "cpu")
    for target, time, insns in ((goals.FLOOR, 40.0, None), ("TCP", 24.0, 20_000), ("ibmsg", ours, ours * 500)):
        run.figures.append(Figure(target, loads.CALL.name, time, "us"))
        if insns:
            run.counts[target] = {f"{loads.CALL.name}, {side}": {"instructions": insns} for side in goals.SIDES}
    return run


@pytest.mark.parametrize("ours, by_floor, by_tcp", [(49.9, "| 1.25 | yes |", "| 1.25 | no |"),
                                                    (23.9, "| 0.60 | yes |", "| 0.60 | yes |")])
def test_goals_are_about_time_in_one_guest_and_instructions_in_two(ours, by_floor, by_tcp):
    rows = goals.table(made(ours)).splitlines()
    assert by_floor in next(row for row in rows if row.startswith("| ibmsg by floor"))
    assert by_tcp in next(row for row in rows if row.startswith("| ibmsg by TCP"))
    # Nothing is said about what was not measured.
    assert not [row for row in rows if "SMC-R" in row or "CALL" in row]


def test_tables_have_figures_goals_and_counts():
    text = tables.everything(made(50))
    assert f"| {loads.CALL.name}, us | 40.0 | 24.0 | 50.0 |" in text and "| at most 1.25 |" in text
    assert f"| {loads.CALL.name}, server | TCP | ibmsg |" in text


def run(side: str, *words: str) -> subprocess.Popen:
    return subprocess.Popen([program.build(), side, *words, "127.0.0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


@pytest.mark.parametrize("load", ("round", "calls", "oneway"))
@pytest.mark.parametrize("depth, channels", ((1, 1), (8, 1), (2, 5)))
@pytest.mark.parametrize("size", (8, 65536))
def test_the_program_over_tcp(load, depth, channels, size):
    words = f"tcp --load {load} --depth {depth} --channels {channels} --bytes {size} --count 300".split()
    server = run("server", *words)
    assert server.stdout.readline() == "ready\n"
    client = run("client", *words)
    said, wrong = client.communicate(timeout=60)
    assert client.returncode == 0 and not wrong, wrong
    assert json.loads(said)["messages"] == 300 and json.loads(said)["ns"] > 0
    assert server.communicate(timeout=60)[1] == "" and server.returncode == 0


def test_the_program_refuses_wrong_words():
    for words in ("carrier-pigeon", "tcp --bytes 7", "tcp --load forth", "tcp --depth x", "tcp --count 0"):
        assert run("client", *words.split()).wait(10) == 2
