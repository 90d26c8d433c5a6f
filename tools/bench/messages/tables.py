# SPDX-License-Identifier: GPL-2.0
"""Tables in Markdown, for Documentation/performance.md."""

from pathlib import Path

from bench import tables
from bench.results import Results

from . import goals

def everything(run: Results) -> str:
    jobs = list(dict.fromkeys(job for found in run.counts.values() for job in found))
    parts = [f"Modules of {run.commit}, kernel {run.kernel}.", tables.figures(run), goals.table(run)]
    for job in jobs:
        parts += [tables.counts(run, job), tables.modules(run, job)]
    return "\n\n".join(parts) + "\n"


def write(run: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(everything(run))
    print(f"==> {folder / 'tables.md'}")
