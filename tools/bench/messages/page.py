# SPDX-License-Identifier: GPL-2.0
"""Writes figures into Documentation/messages-bench.md: tables between `<!-- figures: NAME -->` and `<!-- end -->`.

    python3 -m bench.messages.page FOLDER...

Each folder was left by `make bench-messages`, all for the same modules; the first one that has a figure counts."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from bench import tables as general
from bench.results import Results, load
from testbed import paths

from . import goals, loads, tables, truth

PAGE = paths.TOP / "Documentation" / "messages-bench.md"
BLOCK = re.compile(r"(<!-- figures: ([a-z, ]+) -->\n).*?(\n<!-- end -->)", re.S)
OURS = ["ibmsg", "ibmsg, CALL", "ibmsg, io_uring"]
OTHERS = ["TCP", "TCP, io_uring", "ZeroMQ", "NNG", "SMC-R", "RDS", "rsockets"]
FLOORS = ["floor, process", "floor, softirq"]


def _cell(run: Results, target: str, load_: loads.Load) -> str:
    return general.number(run.value(target, load_.name))


def _times(run: Results, of: list[loads.Load], names: list[str], unit: str) -> str:
    there = [name for name in names if any(run.value(name, load_.name) is not None for load_ in of)]
    return general.table(unit, there, [(load_.name, [_cell(run, name, load_) for name in there]) for load_ in of])


def _copies(run: Results) -> str:
    def row(kinds: list[str], unit: str) -> tuple[str, list[str]]:
        return f"{kinds[0].split(' of ')[1]}, {unit}", [general.number(run.value("ibmsg, memory", kind)) for kind in kinds]

    return general.table("", ["GET", "PUT"], [row([get.name, get.name.replace("GET", "PUT")], get.unit)
                                             for get in loads.COPIES if get.kind == "get"])


def _copied(run: Results) -> str:
    names = ["GET of 4 KiB", "PUT of 4 KiB"]
    found = [run.counts.get("ibmsg, memory", {}).get(name, {}) for name in names]
    return general.table("", names, [(what, [general.number(each.get(what)) for each in found]) for what in found[0]])


def _published(run: Results) -> str:
    one, many = loads.PUBLISHED[:len(loads.SUBSCRIBERS)], loads.PUBLISHED[len(loads.SUBSCRIBERS):]

    def values(of: list[loads.Load], times: bool = False) -> list[str]:
        found = [run.value("ibmsg, publish", load_.name) for load_ in of]
        return [general.number(value and value * (load_.channels if times else 1)) for value, load_ in zip(found, of)]

    columns = [f"{count} subscriber{'s' * (count > 1)}" for count in loads.SUBSCRIBERS]
    return general.table("", columns, [
        ("the next one when all have it, us", values(one)), ("as fast as they read, entries per second", values(many)),
        ("— and what reaches subscribers, per second", values(many, True))])


# What messages do not need, or what this kernel has inline.
LEFT_OUT = ("registrations", "invalidations", "calls of helpers", "doorbells", "receives posted")


def _chosen(run: Results, names: list[str]) -> Results:
    """Of these targets, in this order."""
    def of(found: dict) -> dict:
        return {name: {job: {what: value for what, value in of_job.items() if what not in LEFT_OUT}
                       for job, of_job in found[name].items()} for name in names if name in found}

    return Results(run.commit, run.flavour, run.kernel, run.machine, figures=run.figures, counts=of(run.counts),
                   profiles=of(run.profiles))


BLOCKS: dict[str, Callable[[Results], str]] = {
    "modules": lambda run: f"All figures are of Linux {run.kernel.split('-')[0]}, the {run.flavour} kernel, with the modules of "
                           f"{run.commit}.",
    "goals": goals.table,
    "one at a time": lambda run: _times(run, loads.CALLS + loads.ROUNDS, FLOORS + OTHERS + OURS, "together, us"),
    "many": lambda run: _times(run, loads.MANY, FLOORS + OTHERS + [*OURS, "ibmsg, MORE"], "together, per second"),
    "connect": lambda run: _times(run, [loads.CONNECT], OTHERS + OURS, "together, us"),
    "apart": lambda run: tables.apart(_chosen(run, OTHERS + [*OURS, "ibmsg, MORE"])),
    "call apart": lambda run: tables.call_apart(_chosen(run, OTHERS + OURS)),
    "call together": lambda run: general.counts(_chosen(run, FLOORS + OTHERS + OURS), loads.CALL.name),
    "layers": lambda run: general.modules(_chosen(run, [FLOORS[0], *OURS]), loads.CALL.name, "layers"),
    "copies": _copies,
    "copied": _copied,
    "published": _published,
}


def merged(runs: list[Results]) -> Results:
    """Raises ValueError if they are not of the same modules."""
    whole = runs[0]
    for run in runs[1:]:
        if (run.commit, run.kernel) != (whole.commit, whole.kernel):
            raise ValueError(f"modules of {run.commit} on {run.kernel}, and of {whole.commit} on {whole.kernel}")
        whole.figures += [figure for figure in run.figures if whole.value(*figure.key) is None]
        for kept, of_run in ((whole.counts, run.counts), (whole.profiles, run.profiles)):
            for target, found in of_run.items():
                kept[target] = {**found, **kept.get(target, {})}
    return whole


def filled(text: str, run: Results, rows: dict[str, truth.Truth]) -> str:
    """The page with these figures; blocks for which there are none stay as they are."""
    def block(found: re.Match) -> str:
        name = found[2]
        table = (rows and truth.table(rows)) if name == "truth" else BLOCKS[name](run)
        return found[1] + table + found[3] if table else found[0]

    return BLOCK.sub(block, text)


def main(folders: list[Path]) -> None:
    run = merged([load(file) for folder in folders if (file := folder / "figures.json").exists()])
    rows = {name: row for folder in folders for file in sorted(folder.glob("truth-*.json")) for name, row in truth.load(file).items()}
    ordered = {row.name: rows[row.name] for row in truth.ROWS if row.name in rows}
    PAGE.write_text(filled(PAGE.read_text(), run, ordered))
    print(f"==> {PAGE}")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
