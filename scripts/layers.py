#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""layers.py: checks that the top modules of a crate use only those of the layers
below them, and that its files use each other in no circle, except that a child
may use its parents.  Prints each line that breaks a rule, and ends with 1 if
there are any.  Test modules may use everything."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent

# The top modules of each crate that has layers, from the lowest layer on; none, of one whose files only use each
# other in no circle.
LAYERS = {
    "rust/proto/ibtrs": [],
    "rust/proto/ibnbd": [],
    "rust/proto/ibmsg": [],
    "rust/ibtrs-core": [],
    "rust/kx": [
        ("crc", "cred", "crypto", "deque", "fs", "log", "module", "net", "random", "reboot", "ring", "trace"),
        ("file", "mm", "percpu", "sync"),
        ("keyring", "param", "sg", "sysfs", "work"),
        ("configfs", "io", "user"),
        ("blk",),
    ],
    "rust/rdma": [
        ("device", "direction", "position", "wc"),
        ("spans",),
        ("cm", "cq", "pd"),
        ("sge",),
        ("dma",),
        ("imm", "mr"),
        ("qp",),
    ],
    "ibtrs-client": [
        ("types", "text", "wait_queue"),
        ("env",),
        ("data",),
        ("path",),
        ("session",),
        ("sysfs",),
        ("open",),
    ],
    "ibtrs-server": [
        ("ends", "refusal"),
        ("types",),
        ("storage",),
        ("env",),
        ("data",),
        ("path",),
        ("sysfs",),
        ("session",),
        ("server",),
    ],
    "ibnbd/client": [
        ("admin", "background", "by_tag", "request", "timeouts", "write_cache"),
        ("damage", "fair_share", "latencies", "limits", "paused", "unclosed"),
        ("events",),
        ("dispatch", "session"),
        ("queue", "discovery"),
        ("registry",),
        ("device",),
        ("mapping",),
        ("control",),
    ],
    "ibnbd/server": [
        ("peer", "throttle", "stop"),
        ("config", "export"),
        ("device",),
        ("session",),
        ("sysfs", "configfs"),
    ],
    "ibmsg": [
        ("types",),
        ("limits", "link"),
        ("history", "publish"),
        ("memory",),
        ("access", "portal", "channel"),
        ("session",),
        ("peers",),
        ("hub",),
        ("file", "modules", "configfs"),
    ],
}

Module = tuple[str, ...]

# What is no code: comments, strings, characters.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|b?c?r#"(?:.*?)"#|[bc]?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.S)
TESTS = re.compile(r"#\[cfg\(IBTRS_KUNIT\)\]\s*(?:#\[[^\n]*\]\s*)*mod \w+ \{")
INLINE = re.compile(r"\bmod \w+ \{")
USE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:$])(?:\w+::)+(?:\w+)")


@dataclass
class File:
    """A source file, without what is no code and without its tests."""

    path: Path
    module: Module
    code: str
    exports: dict[str, list[str]] = field(default_factory=dict)

    def line(self, at: int) -> int:
        """The number of the line at a position."""
        return self.code.count("\n", 0, at) + 1


def block_end(code: str, at: int) -> int:
    """The end of the block whose brace opens just before a position."""
    depth = 1
    while depth and at < len(code):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        at += 1
    return at


def blank(text: str) -> str:
    """As many lines with nothing on them."""
    return "\n" * text.count("\n")


def code_of(text: str) -> str:
    """The code of a file, each line in its place."""
    code = NO_CODE.sub(lambda found: blank(found[0]) or " ", text)
    while tests := TESTS.search(code):
        end = block_end(code, tests.end())
        code = code[: tests.start()] + blank(code[tests.start() : end]) + code[end:]
    return code


def leaves(tree: str) -> Iterator[tuple[list[str], str]]:
    """Paths of a tree of imports, each with the name that it gets."""
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if parts and parts[-1] == "self":
            parts.pop()
        if parts:
            yield parts, alias.strip() or parts[-1]
        return
    base, depth, begin = head.strip(), 0, 0
    inner = rest[: rest.rindex("}")] + ","
    for at, char in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            if inner[begin:at].strip():
                yield from leaves(base + inner[begin:at].strip())
            begin = at + 1


class Crate:
    """The files of a crate, and which uses which."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[Module, File] = {}
        for path in sorted(folder.rglob("*.rs")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] == "tests":
                continue
            module = parts[:-1] if parts == ("lib",) or parts[-1] == "mod" else parts
            file = File(path, module, code_of(path.read_text()))
            for use in USE.finditer(file.code):
                if use["public"]:
                    file.exports.update({name: parts for parts, name in leaves(use["tree"])})
            self.files[module] = file

    def absolute(self, file: File, parts: list[str], depth: int) -> list[str] | None:
        """A path from the root of the crate on, for one in a file, at a depth of inline modules; None
        for a name of another crate or of the file itself."""
        module = list(file.module)
        if parts[0] == "crate":
            return parts[1:]
        if parts[0] in ("self", "super"):
            while parts and parts[0] in ("self", "super"):
                if parts[0] == "super":
                    depth -= 1
                    if depth < 0 and module:
                        module.pop()
                parts = parts[1:]
            return module + parts
        return module + parts if (*file.module, parts[0]) in self.files else None

    def resolve(self, parts: list[str], seen: frozenset[tuple[Module, str]] = frozenset()) -> Module:
        """The module that has what a path from the root names, wherever it is exported."""
        module: Module = ()
        for at, part in enumerate(parts):
            if (*module, part) in self.files:
                module = (*module, part)
                continue
            file = self.files.get(module)
            export = file.exports.get(part) if file else None
            if file and export and (module, part) not in seen:
                target = self.absolute(file, export, 0)
                if target is not None:
                    return self.resolve(target + parts[at + 1 :], seen | {(module, part)})
            break
        return module

    def uses(self, file: File) -> Iterator[tuple[Module, int]]:
        """The modules that a file uses, and the positions where it does."""
        blocks = [(found.end(), block_end(file.code, found.end())) for found in INLINE.finditer(file.code)]
        found: list[tuple[list[str], int]] = []
        for use in USE.finditer(file.code):
            for parts, _ in leaves(use["tree"]):
                last = re.search(rf"\b{re.escape(parts[-1])}\b", file.code[use.start("tree") : use.end()])
                found.append((parts, use.start("tree") + (last.start() if last else 0)))
        rest = USE.sub(lambda use: re.sub(r"[^\n]", " ", use[0]), file.code)
        found += [(path[0].split("::"), path.start()) for path in PATH.finditer(rest)]
        for parts, at in found:
            depth = sum(begin <= at < end for begin, end in blocks)
            target = self.absolute(file, parts, depth)
            if target is None:
                continue
            module = self.resolve(target)
            if module and module != file.module:
                yield module, at


def circles(graph: dict[Module, set[Module]]) -> list[list[Module]]:
    """For each set of files that use each other, one way round."""
    found, done = [], set()
    for start in graph:
        if start in done:
            continue
        ways, queue = {start: [start]}, [start]
        while queue:
            here = queue.pop(0)
            for there in sorted(graph.get(here, ())):
                if there == start:
                    found.append([*ways[here], start])
                    done |= set(ways[here])
                    queue.clear()
                    break
                if there not in ways:
                    ways[there] = [*ways[here], there]
                    queue.append(there)
    return found


def check(name: str, layers: list[tuple[str, ...]]) -> list[str]:
    """What breaks the rules in a crate."""
    crate = Crate(TOP / name)
    level = {top: at for at, layer in enumerate(layers) for top in layer}
    bad, graph, lines = [], {}, {}

    def where(file: File, at: int) -> str:
        number = file.line(at)
        shown = file.path.read_text().splitlines()[number - 1].strip()
        return f"{file.path.relative_to(TOP)}:{number}: {shown}"

    for file in crate.files.values():
        if not file.module:
            continue
        if layers and file.module[0] not in level:
            bad.append(f"{file.path.relative_to(TOP)}:1: in no layer of {name} (scripts/layers.py)")
            continue
        for module, at in crate.uses(file):
            if module == file.module[: len(module)]:
                continue
            if layers and module[0] != file.module[0] and level.get(module[0], 0) >= level[file.module[0]]:
                bad.append(f"{where(file, at)}: {module[0]} is not below {file.module[0]}")
            graph.setdefault(file.module, set()).add(module)
            lines.setdefault((file.module, module), where(file, at))
    for way in circles(graph):
        bad.append("a circle of files:")
        bad += [f"  {lines[pair]}" for pair in zip(way, way[1:])]
    return bad


if __name__ == "__main__":
    found = [line for name, layers in LAYERS.items() for line in check(name, layers)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))
