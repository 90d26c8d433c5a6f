# SPDX-License-Identifier: GPL-2.0
"""The parts of the bench that need no guest: plans, figures, comparisons, traces, reports."""

import json
import struct
from collections import Counter

import pytest

from bench import (apart, counts, devices, facts, goals, jobs, layers, plan, report, results, sessions, sessions_guest,
                   shared_lines, sources, tables, targets, tracing)
from bench.results import Figure, Results
from testbed import paths


def run(commit="c", **values) -> Results:
    """Figures of one target each: floor=(us, IOPS)."""
    made = Results(commit, "fast", "k", "cpu")
    for target, (latency, rate) in values.items():
        made.figures += [Figure(target, "read", latency, "us"), Figure(target, "many", rate, "IOPS")]
    return made


# Plans.

def test_every_target_is_measured_and_named_once():
    steps = plan.full()
    assert {step.target for step in steps} == set(targets.TARGETS)
    labels = [(step.target.name, step.label(job)) for step in steps for job in step.jobs]
    assert len(labels) == len(set(labels)), [label for label, times in Counter(labels).items() if times > 1]


def test_a_kernel_without_rnbd_measures_the_rest():
    names = {step.target.name for step in plan.possible(plan.full(), has_mainline=False, has_ours=True)}
    assert {"NVMe-oF", "ibnbd Y", "floor, process", "null_blk"} <= names
    assert not [name for name in names if "RNBD" in name]
    assert not plan.possible(plan.short(), True, True, only="no such target")
    assert {step.target.name for step in plan.possible(plan.short(), True, False)} == {"floor, process"}


def test_targets_share_a_guest_where_they_can():
    boots = plan.boots(plan.full())
    assert len([step for boot in boots for step in boot]) == len(plan.full())
    for boot in boots:
        assert len({(step.cpus, step.disks, step.target.links) for step in boot}) == 1
        # Modules are loaded once in a guest, with one set of parameters.
        kinds = [type(step.target) for step in boot if not step.target.leaves]
        assert len(kinds) == len(set(kinds))
    assert len(boots) < len(plan.full()) * 2 / 3
    assert len(plan.boots(plan.short())) == 1


def test_every_target_but_the_null_device_has_many_disks_somewhere():
    many = {step.target.name for step in plan.full() if step.disks > 1}
    assert {"floor, process", "floor, one connection", "RNBD Y", "NVMe-oF", "ibnbd Y"} <= many


def test_instructions_of_our_modules_are_figures_of_which_less_is_better():
    def of(client: float) -> Results:
        made = run()
        sides = {"ibtrs_client": client, "ibtrs_core": 2, "rdma_card": 900, "kernel": 5000}
        made.profiles = {"ibnbd Y": {"read": {"modules": sides}, "read, client": {"modules": {"ibtrs_client": 1}}},
                         "NVMe-oF": {"read": {"modules": {"nvme_rdma": 1}}}}
        made.figures = counts.figures(made)
        return made

    assert of(1000).figures == [Figure("ibnbd Y", "read, our modules", 1002, "instructions")]
    [more], [fewer] = (results.compare(of(1000), of(client)) for client in (1100, 900))
    assert more.worse == pytest.approx(100 / 1002) and fewer.worse == pytest.approx(-100 / 1002)
    assert results.best([of(1000), of(900)]).figures[0].value == 902


def test_the_card_is_counted_by_its_own_functions():
    symbols = tracing.Symbols(f"{TWICE:x} t card_complete\t[rdma_card]\n{FIRST:x} T handle_softirqs\n")
    snapshot = tracing.Snapshot(Counter({(TWICE, 10): 30, (FIRST, 5): 20}))
    found = counts.per_io(snapshot, symbols, {"work requests": 40}, 10, devices.CARD)
    assert found == {"completions": 3, "softirqs": 2, "interrupts": 0, "work requests": 4, "instructions": 40}
    assert {step.target.name for step in counts.card_steps()} == set(counts.ON_CARD)
    assert len(plan.boots(counts.card_steps())) == 2


def test_the_sides_of_those_that_are_measured_apart_can_be_apart():
    for name in apart.MEASURED:
        target = targets.BY_NAME[name]
        assert isinstance(target, targets.Remote)
        assert not target.leaves
    step = plan.Step(target, tuple(jobs.BASIC))
    assert apart.label(step, jobs.BASIC[0], "server") == "read 4k QD1, server"


def test_what_was_done_before_is_taken_off():
    def done(runs: int, packets: int) -> counts.Done:
        return counts.Done(tracing.Snapshot(Counter({(0x10, 5): runs})), {"packets": packets})

    only = done(7, 30) - done(3, 10)
    assert only.trace.blocks == {(0x10, 5): 4} and only.packets == {"packets": 20}


def test_a_job_shares_its_requests_among_workers():
    job = jobs.Job("j", "--rw=read", 1000)
    words = job.arguments(["/dev/a", "/dev/b"], workers=4, scale=0.4, polled=True).split()
    assert "--number_ios=100" in words and "--numjobs=4" in words
    assert "--filename=/dev/a:/dev/b" in words and "--hipri=1" in words
    # fio takes what is not an option for a file.
    assert all(word.startswith("--") for word in words)
    assert "--hipri=1" not in job.arguments(["/dev/a"], 1, 1)


# Figures.

def test_figures_survive_a_file(tmp_path):
    made = run(floor=(60.0, 25000.0))
    made.counts = {"floor": {"read": {"packets": 4.0}}}
    made.save(tmp_path / "new/figures.json")
    assert results.load(tmp_path / "new/figures.json") == made


def test_another_file_is_refused(tmp_path):
    for text in ('{"schema": 0}', "[]", "no JSON"):
        (tmp_path / "x").write_text(text)
        with pytest.raises(ValueError):
            results.load(tmp_path / "x")


def test_worse_is_a_longer_time_and_a_lower_rate():
    changes = {change.figure.job: change for change in results.compare(run(a=(100, 1000)), run(a=(103, 970)))}
    assert changes["read"].worse == pytest.approx(0.03)
    assert changes["many"].worse == pytest.approx(1000 / 970 - 1)
    assert "worse" in changes["read"].line()


@pytest.mark.parametrize("now, good", [((100.9, 1000), True), ((101.2, 1000), False),
                                       ((100, 985), False), ((50, 2000), True)])
def test_a_verdict_is_about_the_worst(now, good):
    changes = results.compare(run(a=(100, 1000), b=(1, 1)), run(a=now, b=(1, 1)))
    assert results.verdict(changes, 0.01)[0] is good


def test_nothing_in_common_is_no_success():
    good, why = results.verdict(results.compare(run(a=(1, 1)), run(b=(1, 1))), 0.01)
    assert not good and "nothing" in why


def test_with_a_reference_other_kernels_can_be_compared():
    # Everything costs a tenth more, only "a" a fifth.
    base, new = run(floor=(50, 2000), a=(100, 1000), b=(100, 1000)), run(floor=(55, 1800), a=(120, 900), b=(110, 900))
    worse = {(change.figure.target, change.figure.job): change.worse for change in results.compare(base, new, "floor")}
    assert worse["b", "read"] == pytest.approx(0) and worse["b", "many"] == pytest.approx(0)
    assert worse["a", "read"] == pytest.approx(120 / 110 - 1)
    assert not [key for key in worse if key[0] == "floor"]


def test_the_best_of_two_runs_is_taken_for_each_figure():
    both = results.best([run(a=(100, 1000), b=(90, 990)), run(a=(99, 980), b=(95, 1010))])
    assert [figure.value for figure in both.figures] == [99, 1000, 90, 1010]
    assert results.verdict(results.compare(run(a=(100, 1000), b=(90, 1010)), both), 0)[0]


# Goals.

def goal_run(read: float, many: float, flavour: str = "fast") -> Results:
    made = Results("c", flavour, "k", "cpu")
    cpus = ", 1 CPU" if flavour == "fast" else ""
    for target, (latency, rate) in {goals.FLOOR: (60, 20000), "NVMe-oF": (75, 10000), "ibnbd Y": (read, many)}.items():
        made.figures += [Figure(target, f"read 4k QD1{cpus}", latency, "us"),
                         Figure(target, f"read 4k QD32{cpus}", rate, "IOPS")]
    return made


def test_a_goal_bounds_a_latency_from_above_and_a_rate_from_below():
    by_floor, by_nvme = goals.of(goal_run(67.1, 18401))
    assert (by_floor.by, by_nvme.by) == (goals.FLOOR, "NVMe-oF")
    for read, many, good in ((67.1, 18401, True), (67.3, 18401, False), (67.1, 18399, False)):
        run = goal_run(read, many)
        assert all(by_floor.is_reached(run, job) for job in ("read 4k QD1, 1 CPU", "read 4k QD32, 1 CPU")) is good
    assert by_floor.is_reached(run, "read 512 QD1, 1 CPU") is None


def test_goals_are_those_of_the_kernel():
    goal, = goals.of(goal_run(69, 12000, "stock"))
    assert goal.is_reached(goal_run(69, 12000, "stock"), "read 4k QD1") and goal.bounds["read 4k QD32"] == 1.2


def test_each_goal_is_about_what_is_measured():
    labels = {(step.target.name, step.label(job)) for step in plan.full() for job in step.jobs}
    for goal in (*goals.FAST, *goals.STOCK):
        for job in goal.bounds:
            assert {(goal.target, job), (goal.by, job)} <= labels


def test_tables_of_goals_show_what_the_floor_reaches():
    text = tables.everything(goal_run(67.5, 19000))
    assert "| ibnbd Y by floor, one connection | goal | figure | reached |\n" in text
    assert "| read 4k QD1, 1 CPU | at most 1.12 | 1.125 | no |\n" in text
    assert "| read 4k QD32, 1 CPU | at least 1.95 | 1.900 | no | 2.000 |\n" in text
    assert "<h2>Goals</h2>" in report.page(goal_run(67.5, 19000))


# Traces.

LISTING = """ffffffff81000000 T first
ffffffff81000010 t __pfx_second
ffffffff81000020 t second
ffffffff81000f00 D data
ffffffffc0000000 t twice	[mod]
ffffffffc0000100 t twice	[mod]
"""
FIRST, SECOND, TWICE, TWICE_AGAIN = 0xffffffff81000000, 0xffffffff81000020, 0xffffffffc0000000, 0xffffffffc0000100


def file_of_counts(blocks=(), lines=()) -> bytes:
    data = bytearray(tracing.BLOCKS * 32 + tracing.LINES * 32)
    for index, block in enumerate(blocks):
        struct.pack_into("<QQQQ", data, index * 32, *block, *[0] * (4 - len(block)))
    for index, line in enumerate(lines):
        struct.pack_into("<QQQQ", data, tracing.BLOCKS * 32 + index * 32, *line)
    return bytes(data)


def test_functions_are_found_by_address():
    symbols = tracing.Symbols(LISTING)
    assert symbols.at(FIRST + 0x1f) == ("first", "kernel")
    assert symbols.at(SECOND) == ("second", "kernel")
    assert symbols.at(TWICE_AGAIN + 4) == ("twice", "mod")
    assert symbols.at(5) == (tracing.LOST, tracing.LOST)
    assert symbols.at(0) == (tracing.USER, tracing.USER)
    # Of two functions of one name, the first.
    assert symbols.address("twice", "mod") == TWICE
    assert symbols.address("data") is None and symbols.named("sec") == [SECOND]
    # In modules as well.
    assert symbols.named("tw") == [TWICE]


def test_what_was_executed_in_between():
    symbols = tracing.Symbols(LISTING)
    before = tracing.parse(file_of_counts([(FIRST, 4, 10), (SECOND, 2, 1)]))
    after = tracing.parse(file_of_counts([(FIRST, 4, 15), (SECOND, 2, 1), (SECOND + 8, 7, 3), (0, 9, 2)]))
    only = after - before
    assert tracing.by_function(only, symbols) == {("first", "kernel"): 20, ("second", "kernel"): 21,
                                                  (tracing.USER, tracing.USER): 18}
    assert tracing.calls(only, [FIRST]) == 5
    # Executed, but not from its beginning.
    assert tracing.calls(only, [SECOND]) == 0


def test_the_processors_of_either_side_are_apart():
    symbols = tracing.Symbols(LISTING)
    before = tracing.parse(file_of_counts([(FIRST, 4, 10, 1), (SECOND, 2, 0, 2)]))
    after = tracing.parse(file_of_counts([(FIRST, 4, 15, 4), (SECOND, 2, 0, 7)]))
    only = after - before
    assert tracing.by_function(only, symbols) == {("first", "kernel"): 32, ("second", "kernel"): 10}
    client, server = only.halves()
    assert tracing.by_function(client, symbols) == {("first", "kernel"): 20}
    assert tracing.by_function(server, symbols) == {("first", "kernel"): 12, ("second", "kernel"): 10}


def test_only_lines_of_two_processors_are_shared():
    symbols = tracing.Symbols(LISTING)
    snapshot = tracing.parse(file_of_counts(lines=[
        (FIRST, 7, 0, 10), (SECOND, 7, 1, 5), (FIRST, 8, 0, 100), (TWICE, 9, 3, 1)]))
    assert tracing.shared_lines(snapshot, symbols) == {("first", "kernel"): 10, ("second", "kernel"): 5}


ANSWERED = "_RNvNtNtCsc8rsQac3ZnD_12ibtrs_client4data4slot8answered"


@pytest.mark.parametrize("symbol, path", [
    (ANSWERED, "ibtrs_client::data::slot::answered"),
    ("_RNvXs_NtNtCsigt7Hwg8qX1_12ibtrs_server4data7receiveNtNtB6_3con3ConNtNtCsiYjhfUPc6Dv_4rdma2qp7Handler8received",
     "ibtrs_server::data::receive::con::Con::rdma::qp::Handler::received"),
    ("_RNvMs0_NtNtCs2WNVx23UuCm_2kx4work7delayedINtB5_11DelayedWorkNtNtCsc8rsQac3ZnD_12ibtrs_client4path4PathKy3_E7run_rawB10_",
     "kx::work::delayed::DelayedWork::ibtrs_client::path::Path::run_raw"),
    ("_raw_spin_lock_irqsave", "_raw_spin_lock_irqsave")])
def test_names_of_functions_can_be_read(symbol, path):
    assert shared_lines.readable(symbol) == path


def test_our_functions_need_a_reason_for_locked_instructions():
    new = "_RNvNtNtNtCsigt7Hwg8qX1_12ibtrs_server4data4send6answer13leave_service"
    lines = [[ANSWERED, "ibtrs_client", 1.0], ["_raw_spin_lock", "kernel", 60.0], [new, "ibtrs_server", 0.01]]
    assert not shared_lines.without_reason(lines)
    lines[-1][-1] = 0.5
    assert shared_lines.without_reason(lines) == ["ibtrs_server::data::send::answer::leave_service"]


# Functions of the sources.

@pytest.mark.parametrize("name, short", [
    ("<ibtrs_client::data::con::Con as rdma::qp::Handler>::received", "Con::received"),
    ("<rdma::qp::QueuePair<a::Con>>::send_message::<1>", "QueuePair::send_message"),
    ("as_ref<kernel::sync::arc::ArcInner<kx::work::queue::Queue>>", "as_ref"),
    ("ibtrs_server::data::send::answer::post", "answer::post"),
    ("recv_done::{closure#0}<a::Con, 5>", "recv_done::closure"), ("{closure#1}", "closure")])
def test_names_of_functions_are_short(name, short):
    assert sources.short(name) == short


def frame(function: str, file) -> dict:
    return {"FunctionName": function, "FileName": str(file)}


def test_an_instruction_is_of_the_innermost_function_of_this_tree():
    library = frame("get<u8>", "/usr/lib/rustlib/src/rust/library/core/src/slice/index.rs")
    inner, outer = frame("take", "rust/kx/io.rs"), frame("a::submit", paths.TOP / "ibtrs-client/lib.rs")
    assert sources.place_of([library, inner, outer]) == sources.Place("take", "rust/kx/io.rs")
    assert sources.place_of([library, outer]) == sources.Place("a::submit", "ibtrs-client/lib.rs")
    # Nothing is lost.
    assert sources.place_of([library]) == sources.Place("get", "")
    assert sources.place_of([]) == sources.Place("?", "")


def test_instructions_of_a_module_are_counted_by_function_and_side():
    take, send = sources.Place("take", "a.rs"), sources.Place("send", "b.rs")
    # `twice` is at 0x10 in the image.
    image = sources.Image({"twice": 0x10}, [0x10, 0x12, 0x15, 0x19], {0x10: take, 0x12: take, 0x15: send, 0x19: send})
    made = sources.Sources([])
    made._images = {"mod": image}
    snapshot = tracing.Snapshot(Counter({(TWICE, 3): 20, (TWICE + 5, 2): 10, (FIRST, 7): 50}),
                                Counter({(TWICE + 5, 2): 10}))
    made.keep("read", snapshot, tracing.Symbols(LISTING), 10)
    rows = made.table().splitlines()
    assert rows[2:4] == ["| `take` | a.rs | 4.0 |", "| all of this side | | 6.0 |"]
    assert rows[7] == "| all of this side | | 2.0 |"


def test_a_file_of_another_size_is_refused():
    with pytest.raises(ValueError):
        tracing.parse(bytes(100))


def test_the_plugin_and_its_reader_agree_on_the_tables():
    source = (tracing.SOURCE / "trace.c").read_text()
    assert f"BLOCKS\t(1u << {tracing.BLOCKS.bit_length() - 1})" in source
    assert f"LINES\t(1u << {tracing.LINES.bit_length() - 1})" in source


def test_counts_of_an_io():
    symbols = tracing.Symbols("ffffffffc0000000 t rxe_cq_post\t[rdma_rxe]\n"
                              "ffffffff81000000 T asm_sysvec_reschedule_ipi\nffffffff81000100 T asm_common_interrupt\n")
    snapshot = tracing.Snapshot(Counter({(TWICE, 10): 30, (FIRST, 5): 4, (0xffffffff81000100, 5): 6}))
    found = counts.per_io(snapshot, symbols, {"packets": 80}, 10)
    assert found == {"completions": 3, "interrupts": 1, "packets": 8, "instructions": 35}


def test_a_profile_has_instructions_and_calls():
    symbols = tracing.Symbols(LISTING)
    snapshot = tracing.Snapshot(Counter({(FIRST, 4): 30, (FIRST + 8, 2): 10, (0, 9): 20}))
    found = counts.profile(snapshot, symbols, 10)
    assert found["modules"] == {tracing.USER: 18.0, "kernel": 14.0}
    assert found["layers"] == {tracing.USER: 18.0, "kernel: other": 14.0}
    assert found["functions"] == [[tracing.USER, tracing.USER, 18.0, 0.0], ["first", "kernel", 14.0, 3.0]]


@pytest.mark.parametrize("name, layer", [
    ("_raw_spin_lock_irqsave", "locks"), ("kfree", "memory"), ("__blk_mq_end_request", "block layer"),
    ("submit_bio_noacct", "block layer"), ("sbitmap_get", "block layer"), ("__alloc_skb", "network"), ("crc32_le", "copies, checksums"),
    ("__queue_work", "work queues"), ("handle_softirqs", "interrupts"), ("ktime_get", "clocks, timers"),
    ("try_to_wake_up", "scheduler"), ("entry_SYSCALL_64", "system calls, files"), ("xa_load", "other")])
def test_functions_of_the_kernel_have_layers(name, layer):
    assert layers.of(name, "kernel") == f"kernel: {layer}"
    assert layers.of(name, "ibmsg") == "ibmsg"


def test_helpers_count_wherever_they_are():
    symbols = tracing.Symbols(f"{FIRST:x} T rust_helper_one\n{TWICE:x} t rust_helper_two\t[ibtrs_core]\n")
    snapshot = tracing.Snapshot(Counter({(TWICE, 3): 30, (FIRST, 5): 20}))
    assert counts.per_io(snapshot, symbols, {}, 10)["calls of helpers"] == 5


def test_the_longest_request_of_all_jobs():
    def side(longest):
        return {"lat_ns": {"max": longest}}
    jobs_of_fio = [{"read": side(5_000_000), "write": side(0)}, {"read": side(1), "write": side(7_500_000)}]
    text = json.dumps({"jobs": jobs_of_fio})
    assert facts.longest_ms("fio: a complaint\n" + text) == 7.5


# Reports.

def full_run() -> Results:
    made = run(**{"null_blk": (5, 100000), "floor, process": (60, 25000), "ibnbd Y": (66, 23000)})
    made.counts = {"ibnbd Y": {"read": {"packets": 8.0, "instructions": 70123.0}}}
    made.profiles = {"ibnbd Y": {"read": {"modules": {"kernel": 40000.0, "rdma_rxe": 30000.0},
                                          "functions": [["crc<32>", "kernel", 9000.0, 4.0]]}}}
    made.lines = {"ibnbd Y": {"read, 4 CPUs": [["down", "kernel", 2.5], [ANSWERED, "ibtrs_client", 1.0]]}}
    made.facts = {"ibnbd Y": {"a path of the server, KiB": 76800.0}}
    return made


def test_tables_have_each_figure_and_ratio():
    text = tables.everything(full_run())
    assert "| read, us | 5.0 | 60.0 | 66.0 |" in text
    assert "| read, us | 1.10 |" in text and "| many, IOPS | 0.92 |" in text
    assert "| instructions | 70,123 |" in text and "| down | kernel | 2.5 |  |" in text
    assert "| ibtrs_client::data::slot::answered | ibtrs_client | 1 | the same count, " in text
    assert "76,800" in text


def test_a_run_over_the_card_has_layers_and_no_figures():
    made = full_run()
    made.device, made.figures, made.facts, made.lines = "card", [], {}, {}
    made.profiles["ibnbd Y"]["read"]["layers"] = {"kernel: block layer": 3000.0}
    text, page = tables.everything(made), report.page(made)
    assert "| kernel: block layer | 3,000 |" in text and "|  |  |" not in text
    assert report.CARD in page and report.METHOD not in page and "<h2>Figures</h2>" not in page


def test_a_figure_that_is_not_there_leaves_its_place_empty():
    made = run(a=(1, 2))
    made.figures.append(Figure("b", "read", 3.0, "us"))
    assert "| many, IOPS | 2.0 |  |" in tables.figures(made)


def test_the_report_is_one_file_with_plots():
    page = report.page(full_run())
    assert page.count("<svg") == page.count("</svg>") == 3
    assert "crc&lt;32&gt;" in page and "66.0" in page
    assert "src=" not in page and "href=\"http" not in page


# Many sessions.

def a_session(folder, number: int, states: list[str], events: str) -> None:
    for link, state in enumerate(states):
        path = folder / f"s{number}/paths/{link}"
        path.mkdir(parents=True)
        (path / "state").write_text(f"{state}\n")
    (folder / f"s{number}/events").write_text(events)


def test_the_time_of_a_session_is_that_of_the_last_change_of_its_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions_guest, "CLIENT", tmp_path)
    a_session(tmp_path, 0, ["connected", "connected"], "1764376034.5 ibnbd0 open\n1764376032.25 ip:10.0.2.1 connected\n"
                                                      "1764376031.0 ip:10.0.2.1 lost\n")
    assert sessions_guest.wait("1", "1764376030.25", "2") == {"s": [2.0]}
    a_session(tmp_path, 1, ["connected", "reconnecting"], "1764376032.25 - connected\n")
    with pytest.raises(AssertionError, match="s1 has no event of a path"):
        sessions_guest.last_event(1, 0)


def test_sessions_that_do_not_come_back_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions_guest, "CLIENT", tmp_path)
    monkeypatch.setattr(sessions_guest, "LIMIT", 0)
    a_session(tmp_path, 0, ["connected", "reconnecting"], "")
    with pytest.raises(AssertionError, match="1 sessions have not 2 paths"):
        sessions_guest.wait("1", "0", "2")


def test_the_first_the_median_and_the_last_session_are_noted():
    measured = sessions.Sessions(None, None, 3, keys=False)
    measured._times("back", [3.0, 1.0, 2.0])
    assert measured.found == {"back, first, s": "1.00", "back, median, s": "2.00", "back, last, s": "3.00"}
    with pytest.raises(AssertionError, match="back: 2"):
        measured._times("back", [1.0, 2.0])
