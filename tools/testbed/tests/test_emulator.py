# SPDX-License-Identifier: GPL-2.0
"""Scenarios whose emulator fails run once more.  Stand-ins replace the guests."""

import os
import runpy
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from testbed import paths
from testbed.tally import junit

SCENARIOS = paths.TOP / "tools/testbed/scenarios"
ASSERTION = "qemu-system-x86_64: ../exec.c:1: iotlb_to_section: Assertion `x' failed."

# The scenarios' own conftest.py, with labs whose guest's emulator ends as the scenario says.
CONFTEST = """
import importlib.util, signal, sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, "@SCENARIOS@")
spec = importlib.util.spec_from_file_location("scenarios_conftest", sys.path[0] + "/conftest.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
globals().update({name: what for name, what in vars(module).items()
                   if name.startswith("pytest_") or name in ("pair", "solo", "trio", "stack")})

class Guest:
    name, cpu_seconds, channel, reports = "server", 0, None, []
    spec = SimpleNamespace(kernel=SimpleNamespace(flavour="fast"))
    def __init__(self, folder):
        self.folder, self.process = folder, SimpleNamespace(poll=lambda: self.code)
        self.log = SimpleNamespace(lines=lambda: self.console)
        self.console, self.waits = ["[    9.1] ibtrs_core: loading out-of-tree module taints kernel."], False
        self.unwatched = False
        self.ends(None, "")
    def ends(self, code, words):
        self.code = code
        (self.folder / "qemu.log").write_text(words)
    @property
    def alive(self):
        return self.code is None

class Lab:
    made = 0
    def __init__(self, *_, **__):
        Lab.made += 1
        self.number, self.folder = Lab.made, Path(__file__).parent / f"lab-{Lab.made}"
        self.folder.mkdir()
        self.guests = {"server": Guest(self.folder)}
        module.boots.COUNT.begin()
    def close(self):
        pass

module.KINDS["pair"] = Lab
module._judge = lambda item, lab, leaks: None
module.judge.keep = lambda lab, what: "nowhere"
module.judge.kernel_reports = lambda lab: lab.guests["server"].reports
module.judge.held_up = lambda lab: [guest for guest in lab.guests.values() if guest.waits]
module.judge.unwatched = lambda lab: any(guest.unwatched for guest in lab.guests.values())
module.judge.last_words = lambda lab: ""
"""


@pytest.fixture
def scenario(tmp_path):
    """Runs a scenario with that body, in which `guest.ends(code, words)` ends the emulator; returns how
    many passed and failed, and how many guests were booted, and of them again."""
    def run(body: str):
        (tmp_path / "conftest.py").write_text(CONFTEST.replace("@SCENARIOS@", str(SCENARIOS)))
        (tmp_path / "test_it.py").write_text(
            "import pytest\n\ndef test_it(pair):\n    guest = pair.guests['server']\n" + body)
        result = tmp_path / "result.xml"
        said = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={result}", "test_it.py"],
            cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "IBTRS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(paths.TOP / "tools"),
                 "PYTHONDONTWRITEBYTECODE": "1"})
        print(said.stdout, said.stderr)
        tally = junit(result.read_text())
        return (tally.passed, tally.failed), (tally.booted, tally.again)
    return run


def dies(words: str, code: int = -signal.SIGABRT, when: str = "pair.number == 1", reports: str = "[]") -> str:
    return f"""
    if {when}:
        guest.reports = {reports}
        guest.ends({code}, {words!r})
        assert False, "the guest went away"
"""


def test_it_is_run_once_more_on_new_guests(scenario):
    assert scenario(dies(ASSERTION)) == ((1, 0), (2, 1))


def test_there_is_an_end_to_it(scenario):
    assert scenario(dies(ASSERTION, when="True")) == ((0, 1), (2, 1))


@pytest.mark.parametrize("checked, flavour", [("", "fast"), ("1", "debug")])
def test_the_fast_kernel_is_not_used_where_all_is_checked(monkeypatch, checked, flavour):
    monkeypatch.setenv("IBTRS_CHECKED", checked)
    monkeypatch.syspath_prepend(str(SCENARIOS))
    wanted = runpy.run_path(str(SCENARIOS / "conftest.py"))["wanted"]
    item = SimpleNamespace(fixturenames=["pair"], get_closest_marker=lambda name: pytest.mark.fast if name == "fast" else None,
                           config=SimpleNamespace(getoption={"kernel": "debug", "rdma": "rxe", "--fast": "fast"}.get))
    assert wanted(item)[:2] == ("pair", flavour)


NOTHING_LOADED = ("    guest.console = ['Kernel command line: ibtrs_client.ack_timeout=20', '[ 8.0] rdma_rxe: loaded']\n")


@pytest.mark.parametrize("code, results", [(0, ((1, 0), (2, 1))), (-signal.SIGKILL, ((0, 1), (1, 0)))])
def test_a_guest_that_ended_before_anything_of_ours_was_loaded(scenario, code, results):
    assert scenario(NOTHING_LOADED + dies("", code=code)) == results


@pytest.mark.parametrize("reports, results", [("[]", ((1, 0), (2, 1))), ("['BUG: KASAN']", ((0, 1), (1, 0)))])
def test_a_soft_roce_that_waits_for_itself(scenario, reports, results):
    assert scenario(f"""
    guest.reports, guest.waits = {reports}, pair.number == 1
    assert not guest.waits
""") == results


@pytest.mark.parametrize("unwatched, booted", [(False, 1), (True, 2)])
def test_guests_whose_lockdep_has_stopped_are_of_no_more_use(scenario, unwatched, booted):
    assert scenario(f"    guest.unwatched = {unwatched}\n\ndef test_another(pair):\n    pass\n") == ((2, 0), (booted, 0))


@pytest.mark.parametrize("body", [
    "    assert False\n",
    dies(ASSERTION, code=-signal.SIGKILL),
    dies(ASSERTION, code=1),
    dies("out of memory"),
    dies(ASSERTION, reports="['BUG: KASAN: use after free']")],
    ids=["failed", "killed", "ended", "no assertion", "kernel report"])
def test_what_is_not_the_emulators_fault_is_not_run_again(scenario, body):
    assert scenario(body) == ((0, 1), (1, 0))
