# SPDX-License-Identifier: GPL-2.0
"""Guests that do not come up are booted again.  A program stands in for the emulator."""

import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from testbed import boots, guest as guests
from testbed.channel import CommandFailed
from testbed.guest import DidNotBoot, Guest, Limits, Progress
from testbed.lab import Lab

# Writes to its console, and takes the host's call; what it does then is the word given.
EMULATOR = """
import socket, sys, time
folder, console, what = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/line")
listener.listen()
console = open(console, "w", buffering=1)
console.write("booting\\n")
if what == "ends":
    sys.exit("Assertion `r' failed")
line, _ = listener.accept()
while what in ("slow", "babbles"):
    # Longer than it may be silent, and not silent.
    for _ in range(12):
        time.sleep(0.25)
        console.write("a line\\n")
    if what == "slow":
        break
if what in ("comes up", "slow", "breaks"):
    line.sendall(b"0 hello 0\\n")
while frame := line.recv(4096):
    if what == "breaks":
        sys.exit(1)
    line.sendall(frame.split()[0] + b" exit 1\\n0")
time.sleep(60)
"""


class Emulated(Guest):
    def __init__(self, folder, what):
        self.what = what
        spec = SimpleNamespace(name="solo", kernel=SimpleNamespace(flavour="fast", slow=False), tree=None,
                               accel=SimpleNamespace(counts=False))
        super().__init__(spec, folder)

    def _command(self):
        return [sys.executable, "-c", EMULATOR, str(self.folder), str(self.console), self.what]


class Boots(Lab):
    """A lab whose guests boot or fail as the test says, one boot after the other."""

    def __init__(self, folder, *outcomes):
        self.folder, self.outcomes, self.guests = folder, iter(outcomes), {}
        self.numbers = itertools.count(1)
        self._launch("solo")

    def _launch(self, name):
        self.guests[name] = Emulated(self.folder / f"solo-{next(self.numbers)}", next(self.outcomes))

    def network(self, name):
        return ["true"]


@pytest.fixture
def boot(tmp_path, monkeypatch):
    """Boots until it is up, and returns the count of boots and of those that failed."""
    labs = []
    monkeypatch.setenv("IBTRS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(guests.stubs, "build", lambda: tmp_path / "lib")
    monkeypatch.setattr(guests, "FAST", Limits(silence=2, total=6))
    monkeypatch.setattr(boots, "COUNT", boots.Count())

    def run(*outcomes):
        lab = Boots(tmp_path / f"lab{len(labs)}", *outcomes)
        labs.append(lab)
        lab._all_ready()
        assert next(lab.outcomes, None) is None
        return boots.COUNT

    run.labs = labs
    yield run
    for lab in labs:
        lab.guests["solo"].kill()


def test_one_that_comes_up_is_booted_once(boot):
    count = boot("comes up")
    assert (count.booted, count.failed) == (1, [])


def test_one_that_was_booted_again_stays(boot):
    # Longer than a thread that waited for it takes to end.
    boot("breaks", "comes up")
    guest = boot.labs[-1].guests["solo"]
    with pytest.raises(subprocess.TimeoutExpired):
        guest.process.wait(1)
    assert guest.ended() is None


def test_one_that_is_slow_is_waited_for(boot):
    assert boot("slow").booted == 1


@pytest.mark.parametrize("what, reason", [
    ("ends", r"its emulator ended \(1\)"),
    ("is silent", "nothing new on its console for 2 s"),
    ("babbles", "not up after 6 s"),
    # Gone while its links are set up, before anything of ours is loaded.
    ("breaks", "`true`: the guest went away")])
def test_whatever_is_wrong_it_is_booted_again(boot, tmp_path, what, reason):
    count = boot(what, "comes up")
    assert count.booted == 2
    (line,) = count.failed
    assert re.search(rf"solo \(fast\): .*{reason}; logs kept in", line), line
    (console,) = (tmp_path / "cache/artefacts").glob("*-boot-solo-1/console.log")
    assert "booting" in console.read_text()


def test_there_is_an_end_to_it(boot):
    with pytest.raises(DidNotBoot, match="Assertion `r' failed"):
        boot(*["ends"] * boots.TRIES)
    assert (boots.COUNT.booted, len(boots.COUNT.failed)) == (boots.TRIES, boots.TRIES - 1)
    with pytest.raises(CommandFailed):
        boot(*["breaks"] * boots.TRIES)


def test_progress_is_what_the_console_says():
    progress = Progress(Limits(silence=10, total=100), now=0)
    assert [progress.stuck(now, size) for now, size in ((9, 0), (10, 5), (20, 5))] == [None] * 3
    assert progress.stuck(20.1, 5) == "nothing new on its console for 10 s"
    assert progress.stuck(20.2, 6) is None
    assert all(progress.stuck(now, now) is None for now in range(21, 101))
    assert progress.stuck(101, 101) == "not up after 101 s"
