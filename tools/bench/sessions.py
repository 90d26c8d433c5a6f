# SPDX-License-Identifier: GPL-2.0
"""Many sessions of one server: what they take while they are idle, and how they come back when all of them lose a path,
or their server, in the same second.

Client and server are in one guest, over two cards (Documentation/card.md), and the guest's clock counts instructions:
a second of it is a thousand million of them.  sessions_guest.py is what the guest executes."""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from testbed import card, keyring, paths
from testbed.free_memory import free_bytes
from testbed.guest import Guest
from testbed.lab import Solo
from testbed.stack import STACKS
from testbed.tool import Tool

from . import devices, measure, tables, tracing
from .__main__ import commit

OURS = STACKS["ibtrs"]
PROGRAM = "/tmp/sessions_guest.py"
DEVICE = "/dev/nullb0"
MEMORY_MIB, CPUS = 8192, 4
# Few requests in flight of each, as with many clients.
SERVER = "modprobe ibtrs_server sess_queue_depth=32 max_sessions=4096"
IDLE = 20
LIMIT = 7200


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-sessions", description=__doc__)
    parser.add_argument("--kernel", choices=("fast", "stock"), default="fast")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--keys", action="store_true", help="each session proves a key")
    parser.add_argument("--report", type=Path, help="a folder for the table")
    return parser


class Sessions:
    """A guest, with its sessions and what was measured so far."""

    def __init__(self, guest: Guest, trace: tracing.Trace, number: int, keys: bool):
        self.guest, self.trace, self.number, self.keys = guest, trace, number, keys
        self.found: dict[str, str] = {}

    def do(self, *words: object) -> dict:
        """Has the guest's program do something; what it says in JSON."""
        return json.loads(self.guest.run(f"python3 {PROGRAM} {' '.join(map(str, words))}", LIMIT).splitlines()[-1])

    def note(self, what: str, value: str) -> None:
        self.found[what] = value
        print(f"{what:60} {value}", flush=True)

    def load(self) -> None:
        guest = self.guest
        guest.push(PROGRAM, (Path(__file__).parent / "sessions_guest.py").read_text())
        guest.run("modprobe null_blk nr_devices=1 gb=1 bs=4096 memory_backed=1")
        if self.keys:
            keyring.load_for_all(guest, f"s{{0..{self.number}}}")
        guest.run(f"{SERVER} && {OURS.load_server()} && {OURS.load_client()}", 600)
        self.do("write", DEVICE, self.number + 1)

    def map_all(self) -> None:
        before = free_bytes(self.guest)
        took = self.do("map", DEVICE, 0, self.number)["ms"]
        first, last = took[0], statistics.median(took[-10:])
        taken = (before - free_bytes(self.guest)) >> 10
        self.note("mapping the first disk, ms", f"{first:.1f}")
        self.note("mapping one of the last ten disks, ms", f"{last:.1f}")
        self.note("memory of both sides, by session, KiB", f"{taken / self.number:,.0f}")
        proved = self.guest.run("cat /sys/class/ibtrs-client/*/paths/*/key_id").split()
        assert len(proved) == self.keys * 2 * self.number, proved[:4]
        self.verify()
        another, = self.do("map", DEVICE, self.number, self.number + 1)["ms"]
        self.note(f"mapping disk {self.number + 1:,}, ms", f"{another:.1f}")
        assert another <= 2 * first, (another, first)
        self.guest.run(f"echo normal > /sys/block/ibnbd{self.number}/ibnbd/unmap_device")

    def verify(self) -> None:
        assert self.do("verify", self.number)["right"] == self.number

    def idle(self) -> None:
        """What is executed while nobody does I/O: heartbeats of both sides."""
        before = self._executed()
        self.guest.run(f"sleep {IDLE}", LIMIT)
        a_second = (self._executed() - before) / IDLE
        self.note("instructions a second of both idle sides, millions", f"{a_second / 1e6:.1f}")

    def _executed(self) -> int:
        with tracing.frozen([self.guest]):
            blocks = self.trace.snapshot().blocks
        return sum(insns * runs for (_, insns), runs in blocks.items())

    def lose(self, what: str, lose: Callable[[], object], restore: Callable[[], object], paths_left: int) -> None:
        """Something takes a path of each session away, or both; then it ends."""
        begin = self.do("now")["now"]
        lose()
        lost = self.do("wait", self.number, begin, paths_left)
        self._times(f"{what}: until a session has lost its path", lost["s"])
        if paths_left:
            self.verify()
        begin = self.do("now")["now"]
        restore()
        self._times(f"{what}: until a session is whole again", self.do("wait", self.number, begin, 2)["s"])
        self.verify()

    def _times(self, what: str, seconds: list[float]) -> None:
        assert len(seconds) == self.number, f"{what}: {len(seconds)}"
        for name, value in (("first", min(seconds)), ("median", statistics.median(seconds)), ("last", max(seconds))):
            self.note(f"{what}, {name}, s", f"{value:.2f}")

    def lists(self) -> None:
        """What an operator asks, by the program as it is packaged."""
        program = Tool(self.guest, released=True).program
        for words in ("list", "sessions", "metrics"):
            said = self.guest.run(f"TIMEFORMAT='%U %S'; {{ time {program} {words}; }} 2>&1", LIMIT)
            assert f"s{self.number - 1}" in said, words
            seconds = sum(map(float, said.splitlines()[-1].split()))
            self.note(f"ibnbd {words}, ms", f"{seconds * 1000:,.0f}")

    def all(self) -> None:
        self.load()
        self.map_all()
        self.idle()
        self.lists()
        down = f"{card.FOLDER}/card1/port_down"
        self.lose("port down", lambda: self.guest.run(f"echo 1 > {down}"), lambda: self.guest.run(f"echo 0 > {down}"), 1)
        self.lose("server unloaded", lambda: self.guest.run("busybox rmmod ibnbd_server ibtrs_server", LIMIT),
                  lambda: self.guest.run(f"{SERVER} && {OURS.load_server()}", LIMIT), 0)
        assert card.reports(self.guest) == {}


def run(options) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="bench-") as where:
        trace = tracing.Trace(Path(where))
        with Solo(options.kernel, links=2, how=trace.how(), cpus=CPUS, rdma=devices.CARD.name,
                  kernel_arguments=devices.CARD.kernel_arguments, memory=(MEMORY_MIB,)) as lab:
            sessions = Sessions(lab.guest, trace, options.sessions, options.keys)
            sessions.all()
            return sessions.found


def main() -> int:
    options = _parser().parse_args()
    found = run(options)
    name = f"{options.sessions:,} sessions" + (" with keys" if options.keys else "")
    text = tables.table("", [name], [(what, [value]) for what, value in found.items()])
    print(f"\nModules of {commit()}, kernel {paths.kernel(options.kernel).build.name}.\n\n{text}")
    if options.report:
        options.report.mkdir(parents=True, exist_ok=True)
        (options.report / "sessions.md").write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except measure.FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
