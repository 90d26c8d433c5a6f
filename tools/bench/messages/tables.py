# SPDX-License-Identifier: GPL-2.0
"""Tables in Markdown, for Documentation/messages-bench.md."""

from pathlib import Path

from bench import tables
from bench.results import Results

from . import goals
from .loads import CALL, COUNTED

def _apart(run: Results) -> dict[str, dict[str, dict[str, float]]]:
    """The counts of both sides, by load and target."""
    found = {load.name: {target: counts for target in run.counts if (counts := goals.both_sides(run, target, load.name))}
             for load in COUNTED}
    return {load: of_load for load, of_load in found.items() if of_load}


def apart(run: Results) -> str:
    """Instructions of a message on both sides: loads down, targets across."""
    found = _apart(run)
    targets = list(dict.fromkeys(target for of_load in found.values() for target in of_load))
    return tables.table("instructions, apart", targets, [
        (load, [tables.number(of_load.get(target, {}).get("instructions")) for target in targets])
        for load, of_load in found.items()])


def call_apart(run: Results) -> str:
    """All counts of a call on both sides."""
    of_call = _apart(run).get(CALL.name, {})
    names = list(dict.fromkeys(name for counts in of_call.values() for name in counts))
    return tables.table(f"{CALL.name}, apart", list(of_call), [
        (name, [tables.number(counts.get(name)) for counts in of_call.values()]) for name in names])


def everything(run: Results) -> str:
    jobs = list(dict.fromkeys(job for found in run.counts.values() for job in found))
    parts = [f"Modules of {run.commit}, kernel {run.kernel}.", tables.figures(run), goals.table(run), apart(run),
             call_apart(run)]
    for job in jobs:
        parts += [tables.counts(run, job), tables.modules(run, job, "layers")]
    return "\n\n".join(parts) + "\n"


def write(run: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(everything(run))
    print(f"==> {folder / 'tables.md'}")
