# SPDX-License-Identifier: GPL-2.0
"""Builds trace/trace.c, which counts the instructions that the guest's kernel executes, and reads
its counts.

A Trace is the file of counts of one guest.  The difference of two snapshots has the counts of the
time between them."""

import bisect
import hashlib
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed import accel, paths
from testbed.guest import Guest

SOURCE = Path(__file__).parent / "trace"
# Of a trace that is split.
SIDES = ("client", "server")
# As in trace.c.
BLOCKS, LINES = 1 << 19, 1 << 18
_BLOCK, _LINE = struct.Struct("<QQQQ"), struct.Struct("<QQQQ")
# The block and the line for whatever found no place in the tables.
LOST = "(not counted apart)"
USER = "(programs)"


def plugin() -> Path:
    """Returns the plugin, built once for each state of its source."""
    content = b"".join((SOURCE / name).read_bytes() for name in ("trace.c", "qemu_plugin.h"))
    target = paths.cache() / "trace" / hashlib.sha256(content).hexdigest()[:12] / "trace.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_suffix(".new")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", new,
                        SOURCE / "trace.c"], check=True)
        new.rename(target)
    return target


@dataclass
class Snapshot:
    """How often what was executed."""

    # (address, instructions) of a block: runs.
    blocks: Counter = field(default_factory=Counter)
    # The same of the processors from the one on at which the trace is split; they are in `blocks` as well.
    others: Counter = field(default_factory=Counter)
    # (address of a locked instruction, line of memory, processor): runs.
    lines: Counter = field(default_factory=Counter)

    def __sub__(self, other: "Snapshot") -> "Snapshot":
        return Snapshot(self.blocks - other.blocks, self.others - other.others, self.lines - other.lines)

    def halves(self) -> tuple["Snapshot", "Snapshot"]:
        """What the first processors executed, and what the others did."""
        return Snapshot(self.blocks - self.others), Snapshot(self.others)


def parse(data: bytes) -> Snapshot:
    """Reads the file of counts."""
    end = BLOCKS * _BLOCK.size
    if len(data) != end + LINES * _LINE.size:
        raise ValueError("not a file of counts")
    snapshot = Snapshot()
    for address, insns, first, second in _BLOCK.iter_unpack(data[:end]):
        if first or second:
            snapshot.blocks[address, insns] += first + second
        if second:
            snapshot.others[address, insns] += second
    for insn, line, cpu, runs in _LINE.iter_unpack(data[end:]):
        if runs:
            snapshot.lines[insn, line, cpu] += runs
    return snapshot


class Symbols:
    """The functions of a running kernel and its modules, from /proc/kallsyms."""

    def __init__(self, listing: str):
        found = []
        for line in listing.splitlines():
            address, kind, name, *module = line.split()
            if kind in "tTwW" and not name.startswith("__pfx_"):
                found.append((int(address, 16), name, module[0].strip("[]") if module else "kernel"))
        found.sort()
        self._addresses = [address for address, _, _ in found]
        self._functions = [(name, module) for _, name, module in found]
        self._by_name: dict[tuple[str, str], int] = {}
        for address, name, module in found:
            # Of static functions with one name, the first.
            self._by_name.setdefault((name, module), address)

    def at(self, address: int) -> tuple[str, str]:
        """The name and the module of the function that an address is in."""
        if address == 0:
            return USER, USER
        index = bisect.bisect_right(self._addresses, address) - 1
        return self._functions[index] if index >= 0 else (LOST, LOST)

    def address(self, name: str, module: str = "kernel") -> int | None:
        return self._by_name.get((name, module))

    def calls(self, snapshot: Snapshot, name: str, module: str) -> int:
        """How often a function was called; 0 for one that is not there, as all programs are."""
        address = self.address(name, module)
        return calls(snapshot, [address]) if address is not None else 0

    def named(self, prefix: str) -> list[int]:
        """The addresses of the functions whose names begin so, in the kernel and all modules."""
        return [address for (name, _), address in self._by_name.items() if name.startswith(prefix)]


def calls(snapshot: Snapshot, addresses: list[int]) -> int:
    """How often functions were called: blocks that begin where they do."""
    wanted = set(addresses)
    return sum(runs for (address, _), runs in snapshot.blocks.items() if address in wanted)


def by_function(snapshot: Snapshot, symbols: Symbols) -> Counter:
    """Instructions of each (function, module)."""
    counts: Counter = Counter()
    for (address, insns), runs in snapshot.blocks.items():
        counts[symbols.at(address)] += insns * runs
    return counts


def shared_lines(snapshot: Snapshot, symbols: Symbols) -> Counter:
    """Locked instructions of each (function, module) on lines that locked instructions of
    several processors were executed on."""
    cpus: dict[int, set[int]] = {}
    for _, line, cpu in snapshot.lines:
        cpus.setdefault(line, set()).add(cpu)
    counts: Counter = Counter()
    for (insn, line, _), runs in snapshot.lines.items():
        if insn and len(cpus[line]) > 1:
            counts[symbols.at(insn)] += runs
    return counts


class Trace:
    """The counts of a guest that is to be started with how(); apart for the processors from `split` on."""

    def __init__(self, folder: Path, name: str = "guest", split: int | None = None):
        self.path, self.split = folder / f"{name}-counts", split

    def how(self, sleep: bool = False) -> accel.Accel:
        split = f",split={self.split}" if self.split else ""
        return accel.counting("-plugin", f"file={plugin()},counts={self.path}{split}", sleep=sleep)

    def snapshot(self) -> Snapshot:
        return parse(self.path.read_bytes())


@contextmanager
def frozen(guests: Iterable[Guest]) -> Iterator[None]:
    """The clock of an idle guest leaps from timer to timer, so much is executed in little time: snapshots are taken
    while it stands still."""
    for guest in guests:
        guest.freeze()
    yield
    for guest in guests:
        guest.thaw()
