# SPDX-License-Identifier: GPL-2.0
"""Which functions of our sources the instructions of an I/O belong to, those that the compiler has inlined as well.

The compiler makes a few long functions of what a request passes, so the symbols of the kernel tell little. Modules
with tables of lines (IBTRS_LINES=1) name the function of each instruction."""

import bisect
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from testbed import paths

from . import tracing

# The fewest instructions of a row.
LEAST = 3
# Those of the compiler, see scripts/env.sh.
_TOOLS = Path(os.environ.get("LIBCLANG_PATH", "/usr/lib/llvm-22/lib")).parent / "bin"
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s", re.M)
_SYMBOL = re.compile(r"^([0-9a-f]+) [tTwW] (\S+)$", re.M)
# Innermost: of a type, or what comes behind its name.
_BRACKETS = re.compile(r"(::|(?<=\w))?<([^<>]*)>")


@dataclass(frozen=True)
class Place:
    """A function of the sources."""

    function: str
    file: str


def _without(brackets: re.Match) -> str:
    """Arguments of types are left out; of a type, its name stays."""
    return "" if brackets[1] is not None else brackets[2].split(" as ")[0]


def short(name: str) -> str:
    """A name without what makes it unique: `<a::b::Con as c::Handler>::received::<d::E>` is `Con::received`."""
    name = re.sub(r"\{closure#\d+\}", "closure", name.replace("->", ""))
    name = re.sub(r"(::)?\{[^{}]*\}", "", name)
    while (shorter := _BRACKETS.sub(_without, name)) != name:
        name = shorter
    return "::".join(name.split("::")[-2:])


def place_of(frames: list[dict]) -> Place:
    """The innermost frame in a file of this tree; instructions of the standard library and of the kernel's crate belong
    to what has called them."""
    for frame in frames:
        # The compiler is given paths below the tree for some crates, and the whole path for others.
        file = paths.TOP / frame["FileName"]
        if file.is_relative_to(paths.TOP) and file.is_file():
            return Place(short(frame["FunctionName"]), str(file.relative_to(paths.TOP)))
    return Place(short(frames[-1]["FunctionName"]) if frames else "?", "")


@dataclass
class Image:
    """A module with its code at fixed addresses."""

    # Of each function, by the name that the kernel knows.
    symbols: dict[str, int] = field(default_factory=dict)
    # The addresses of the instructions, in order.
    instructions: list[int] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    path: Path = Path()

    @classmethod
    def of(cls, module: Path, folder: Path) -> "Image":
        path = folder / module.stem
        # What the kernel defines is missing, which does not matter for the lines.
        subprocess.run([_TOOLS / "ld.lld", "-static", "-Ttext=0x100000", "--unresolved-symbols=ignore-all",
                        "--noinhibit-exec", "-o", path, module], check=True, capture_output=True)
        listing = subprocess.run([_TOOLS / "llvm-nm", path], check=True, capture_output=True, text=True).stdout
        code = subprocess.run([_TOOLS / "llvm-objdump", "-d", "--no-show-raw-insn", path], check=True,
                              capture_output=True, text=True).stdout
        return cls({name: int(at, 16) for at, name in _SYMBOL.findall(listing)},
                   sorted(int(at, 16) for at in _INSTRUCTION.findall(code)), {}, path)

    def run(self, at: int, insns: int) -> list[int]:
        """The addresses of the instructions of a block."""
        first = bisect.bisect_left(self.instructions, at)
        return self.instructions[first:first + insns]

    def find(self, addresses: set[int]) -> None:
        """Looks up the functions that instructions are in."""
        if not addresses:
            return
        wanted = sorted(addresses)
        done = subprocess.run([_TOOLS / "llvm-symbolizer", f"--obj={self.path}", "--inlines", "--demangle",
                               "--output-style=JSON"], input="".join(f"{at:#x}\n" for at in wanted), check=True,
                              capture_output=True, text=True)
        for at, line in zip(wanted, done.stdout.splitlines(), strict=True):
            self.places[at] = place_of(json.loads(line)["Symbol"])


class Sources:
    """The sources of modules that were built with tables of lines."""

    def __init__(self, modules: list[Path]):
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._found: dict[tuple[str, str], Counter] = {}
        self._images = {module.stem: Image.of(module, Path(self._folder.name)) for module in modules}

    def keep(self, label: str, trace: tracing.Snapshot, symbols: tracing.Symbols, ios: int) -> None:
        """Notes what a load took."""
        for side, half in zip(tracing.SIDES, trace.halves()):
            self._found[label, side] = Counter({place: runs / ios for place, runs in self.count(half, symbols).items()})

    def table(self) -> str:
        """The functions that have most, with the instructions of each load."""
        labels = list(dict.fromkeys(label for label, _ in self._found))
        lines = []
        for side in tracing.SIDES:
            columns = [self._found[label, side] for label in labels]
            lines += [f"| {side} | file | {' | '.join(labels)} |", f"| --- | --- |{' --- |' * len(labels)}"]
            rows = sorted(set().union(*columns), key=lambda row: -max(column[row] for column in columns))
            for place, module in rows:
                of_row = [column[place, module] for column in columns]
                if max(of_row) >= LEAST:
                    lines.append(f"| `{place.function}` | {place.file or module} | "
                                 f"{' | '.join(f'{insns:.1f}' for insns in of_row)} |")
            sums = (f"{sum(column.values()):.1f}" for column in columns)
            lines += [f"| all of this side | | {' | '.join(sums)} |", ""]
        return "\n".join(lines)

    def count(self, snapshot: tracing.Snapshot, symbols: tracing.Symbols) -> Counter:
        """Instructions of each (place, module)."""
        found: dict[str, Counter] = {}
        for (address, insns), runs in snapshot.blocks.items():
            name, module = symbols.at(address)
            if (image := self._images.get(module)) and (start := image.symbols.get(name)):
                at = start + address - symbols.address(name, module)
                for instruction in image.run(at, insns):
                    found.setdefault(module, Counter())[instruction] += runs
        counts: Counter = Counter()
        for module, instructions in found.items():
            image = self._images[module]
            image.find(instructions.keys() - image.places.keys())
            for at, runs in instructions.items():
                counts[image.places[at], module] += runs
        return counts
