#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""vendor.py FOLDER: copies the crates that the commands `ibnbd` and `ibmsg` depend on, in the versions of
Cargo.lock, for a build without a network, and collects their licences in one file.

Cargo wants a crate for each entry of Cargo.lock, so crates that only tests or other systems
need become empty ones."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
# Those that the package is built for.
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def cargo(*words: str) -> str:
    done = subprocess.run(["cargo", *words], cwd=TOP, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def needed() -> set[tuple[str, str]]:
    """Names and versions of what is compiled."""
    found = set()
    for target in TARGETS:
        tree = cargo("tree", "--locked", "--package", "ibnbd", "--package", "ibmsg", "--edges", "normal,build",
                     "--target", target, "--prefix", "none", "--format", "{p}")
        # There is an empty line between the trees of two commands.
        for line in filter(None, tree.splitlines()):
            name, version = line.split()[:2]
            found.add((name, version.removeprefix("v")))
    return found


def empty(crate: Path) -> None:
    """Leaves what Cargo reads of a crate that it does not compile."""
    sums = crate / ".cargo-checksum.json"
    package = json.loads(sums.read_text())["package"]
    for entry in crate.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry not in (sums, crate / "Cargo.toml"):
            entry.unlink()
    (crate / "src").mkdir()
    (crate / "src/lib.rs").touch()
    sums.write_text(json.dumps({"files": {}, "package": package}))


def version_of(crate: Path) -> tuple[str, str]:
    """The first name and the first version of the file are the crate's."""
    lines = (crate / "Cargo.toml").read_text().splitlines()
    name, version = (next(line for line in lines if line.startswith(f"{key} = ")).split('"')[1]
                     for key in ("name", "version"))
    return name, version


def licences(crates: list[Path]) -> str:
    """Each text once, below the crates that have it."""
    texts = {}
    for crate in crates:
        for file in sorted(crate.iterdir()):
            if file.is_file() and file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "UNLICENSE")):
                texts.setdefault(file.read_text().strip(), []).append(f"{' '.join(version_of(crate))}, {file.name}")
    return "".join(f"{'=' * 80}\n" + "\n".join(of) + f"\n{'=' * 80}\n\n{text}\n\n" for text, of in texts.items())


def main(folder: Path) -> None:
    cargo("vendor", "--locked", "--quiet", str(folder))
    wanted, compiled = needed(), []
    for crate in sorted(folder.iterdir()):
        if version_of(crate) in wanted:
            compiled.append(crate)
        else:
            empty(crate)
    (folder / "crates.txt").write_text(licences(compiled))


if len(sys.argv) != 2:
    sys.exit("usage: vendor.py FOLDER")
main(Path(sys.argv[1]))
