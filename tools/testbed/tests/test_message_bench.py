# SPDX-License-Identifier: GPL-2.0
"""The parts of the bench of messages that need no guest: loads, goals, tables, and its program over sockets."""

import ctypes
import json
import socket
import subprocess
import time
from dataclasses import replace

import pytest

from bench.messages import goals, loads, measure, page, program, tables, targets, truth
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


def test_what_was_measured_is_not_measured_again(tmp_path):
    run, ours = made(50), targets.BY_NAME["ibmsg"]
    scope = measure.Scope("call of 64 B", 1, run, tmp_path)
    assert measure.missing([ours], scope, loads.COUNTED, True) == []
    # It has a time, but no counts of one guest.
    assert measure.missing([ours], scope, loads.LOADS, False) == [(ours, loads.CALL)]
    run.counts[ours.name][loads.CALL.name] = {}
    assert measure.missing([ours], scope, loads.LOADS, False) == []
    again = measure.Scope("call of", 1, run, tmp_path)
    assert [load for _, load in measure.missing([ours], again, loads.LOADS, False)] == [
        load for load in loads.CALLS if load != loads.CALL]


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
    assert [target.name for target in targets.possible("", "ibmsg|TCP|RDS")] == ["TCP", "ibmsg"]


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
    # Of both sides together.
    assert f"| instructions, apart | TCP | ibmsg |\n| --- | --- | --- |\n| {loads.CALL.name} | 40,000 | 50,000 |" in text
    assert f"| {loads.CALL.name}, apart | TCP | ibmsg |" in text


def has_rings() -> bool:
    setup, entries = 425, 1
    return ctypes.CDLL(None).syscall(setup, entries, ctypes.create_string_buffer(120)) >= 0


@pytest.fixture
def port() -> str:
    """One that is free, as other tests of this kind may run at the same time."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"--port={found.getsockname()[1]}"


def run(side: str, *words: str) -> subprocess.Popen:
    return subprocess.Popen([program.build(), side, *words, "127.0.0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def test_what_is_lost_is_what_nobody_told_of():
    client = {"sent": 100, "answers": 90, "errors": 1, "error": "gone", "longest_ms": 5, "in_doubt": [[10, 14]],
              "unanswered": [[10, 14], [97, 99]]}
    server = {"highest": 98, "received": 95, "doubled": 0, "out_of_order": 0, "after_error": 0, "missing": [[12, 15]]}
    # 15, 98 and 99; two of the five in doubt had arrived.
    found = truth.judge(client, server)
    assert (found.lost, found.in_doubt, found.delivered_in_doubt, found.errors) == (3, 5, 2, 1)
    assert not found.is_kept
    whole = truth.judge({**client, "in_doubt": [[10, 15], [98, 99]]}, server)
    assert whole.is_kept and whole.lost == 0 and not truth.judge(client, {**server, "missing": [], "highest": 100,
                                                                            "doubled": 1}).is_kept
    text = truth.table({"TCP": replace(found, cuts=9)})
    assert "| TCP | 9 | 100 | 3 | 0 | 0 | 0 | 1 (gone) | 5 (2 delivered) | 0.0 |" in text


def test_rows_are_about_targets():
    assert {row.target for row in truth.ROWS} <= set(targets.BY_NAME)
    assert all(isinstance(targets.BY_NAME[row.target], targets.Program) for row in truth.ROWS)


def test_the_program_notes_what_becomes_of_requests(port):
    server = run("truth-server", "tcp", port, "--bytes", "100")
    assert server.stdout.readline() == "ready\n"
    client = run("truth-client", "tcp", port, "--bytes", "100", "--depth", "8")
    time.sleep(0.5)
    # The process of the server that has the first connection.
    subprocess.run(["pkill", "-KILL", "-P", str(server.pid)], check=True)
    time.sleep(0.5)
    client.terminate()
    said = json.loads(client.communicate(timeout=60)[0])
    server.terminate()
    found = truth.judge(said, json.loads(server.communicate(timeout=60)[0]))
    assert found.is_kept and found.errors == 1 and 1 <= found.in_doubt <= 8 and found.sent > 100
    assert said["answers"] == found.sent - found.in_doubt and found.longest_ms >= 100


@pytest.mark.parametrize("backend", ("zeromq", "nng"))
def test_the_program_notes_what_becomes_of_requests_over_libraries(backend, port):
    server = run("truth-server", backend, port, "--bytes", "100")
    assert server.stdout.readline() == "ready\n"
    client = run("truth-client", backend, port, "--bytes", "100", "--depth", "8")
    time.sleep(0.5)
    client.terminate()
    said = json.loads(client.communicate(timeout=60)[0])
    server.terminate()
    found = truth.judge(said, json.loads(server.communicate(timeout=60)[0]))
    assert found.is_kept and not found.errors and not found.in_doubt and found.sent > 100


def sends_300(words: list[str]) -> None:
    """The program sends that many messages, and both sides end well."""
    server = run("server", *words)
    assert server.stdout.readline() == "ready\n"
    client = run("client", *words)
    said, wrong = client.communicate(timeout=60)
    assert client.returncode == 0 and not wrong, wrong
    assert json.loads(said)["messages"] == 300 and json.loads(said)["ns"] > 0
    assert server.communicate(timeout=60)[1] == "" and server.returncode == 0


@pytest.mark.parametrize("load", ("round", "calls", "oneway"))
@pytest.mark.parametrize("depth, channels", ((1, 1), (8, 1), (2, 5)))
@pytest.mark.parametrize("size", (8, 65536))
@pytest.mark.parametrize("backend", ("tcp", pytest.param("tcp-ring", marks=pytest.mark.skipif(
    not has_rings(), reason="this machine has no io_uring for programs"))))
def test_the_program_over_tcp(load, depth, channels, size, backend, port):
    words = f"{backend} {port} --load {load} --depth {depth} --channels {channels} --bytes {size} --count 300".split()
    sends_300(words)


def test_the_program_refuses_wrong_words():
    for words in ("carrier-pigeon", "tcp --bytes 7", "tcp --load forth", "tcp --depth x", "tcp --count 0",
                  "tcp --port 0", "tcp --port 65536"):
        assert run("client", *words.split()).wait(10) == 2


@pytest.mark.parametrize("load", ("round", "calls", "oneway"))
@pytest.mark.parametrize("depth, size", ((1, 8), (8, 65536)))
@pytest.mark.parametrize("backend", ("zeromq", "nng"))
def test_the_program_over_libraries(load, depth, size, backend, port):
    words = f"{backend} {port} --load {load} --depth {depth} --bytes {size} --count 300".split()
    sends_300(words)
    refused = run("server", backend, port, "--channels", "2")
    assert "one channel only" in refused.communicate(timeout=60)[1] and refused.returncode == 1


def test_the_page_has_figures_where_it_says():
    text = page.PAGE.read_text()
    names = [found[2] for found in page.BLOCK.finditer(text)]
    assert sorted(names) == sorted([*page.BLOCKS, "truth"]) and text.count("<!-- end -->") == len(names)
    rows = {"TCP": truth.Truth(100, 3, 0, 0, 0, 1, 5, 2, 5, "gone", 9)}
    run = page.merged([made(50), made(20)])
    assert run.value("ibmsg", loads.CALL.name) == 50
    found = page.filled(text, run, rows)
    assert "| TCP | 9 | 100 | 3 |" in found and "| at most 1.25 | 1.25 | yes |" in found
    # What is between blocks stays.
    assert page.BLOCK.sub("", found) == page.BLOCK.sub("", text)
    with pytest.raises(ValueError, match="modules of"):
        page.merged([made(50), replace(made(50), commit="d")])
