#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Draws Documentation/pictures/*.svg from the .dot files beside them, with Graphviz.

Each picture ends with a checksum of its source, which shows whether the picture is out of date."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "Documentation/pictures"


def stamp(source: Path) -> str:
    return f"<!-- from {source.name}, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->\n"


def main() -> None:
    if not shutil.which("dot"):
        sys.exit("error: Graphviz is missing: apt install graphviz")
    for source in sorted(PICTURES.glob("*.dot")):
        drawn = subprocess.run(["dot", "-Tsvg", source], stdout=subprocess.PIPE, text=True, check=True).stdout
        source.with_suffix(".svg").write_text(drawn + stamp(source))


if __name__ == "__main__":
    main()
