# SPDX-License-Identifier: GPL-2.0
"""The report: one HTML file with plots made by matplotlib."""

import html
import sys
from pathlib import Path

from . import goals, results, tables
from .drawing import bars, document, pyplot, svg, table
from .results import Results

CARD = """Counted over the card of tools/card, which does nearly nothing by itself. Client and server are one guest, each
on half of the processors. There are no times."""
METHOD = """One nanosecond of the guest is one instruction of any of its processors, so a microsecond is a
thousand instructions. Client and server are one guest. These figures say how much work an I/O is. They do not say how
long it takes on an RDMA card: soft-RoCE does in instructions what a card does by itself, and an instruction is not a
nanosecond."""


def stacked(title: str, modules: dict[str, dict[str, float]]) -> str:
    """Instructions of an I/O by module, a bar for each target."""
    biggest: dict[str, float] = {}
    for found in modules.values():
        for name, insns in found.items():
            biggest[name] = max(biggest.get(name, 0), insns)
    names = sorted(biggest, key=lambda name: -biggest[name])[:10]
    figure, axes = pyplot().subplots(figsize=(9, 1.2 + 0.35 * len(modules)))
    targets, left = list(modules)[::-1], [0.0] * len(modules)
    for name in names:
        widths = [modules[target].get(name, 0) for target in targets]
        axes.barh(targets, widths, left=left, label=name)
        left = [start + width for start, width in zip(left, widths)]
    axes.set_title(f"{title}: instructions of an I/O by module", loc="left", fontsize=10)
    axes.legend(fontsize=7, ncol=5, loc="upper center", bbox_to_anchor=(0.45, -0.12))
    return svg(figure)


def page(run: Results) -> str:
    parts = ["<h2>Figures</h2>", table(tables.figures(run))] if run.figures else []
    for job in run.jobs:
        values = {target: run.value(target, job) for target in run.targets}
        parts.append(bars(job, run.unit(job), {target: value for target, value in values.items() if value}))
    found_goals = goals.of(run)
    if found_goals:
        parts.append("<h2>Goals</h2>")
    parts += [table(tables.reached(run, goal)) for goal in found_goals]
    jobs = list(dict.fromkeys(job for found in run.counts.values() for job in found))
    if jobs:
        parts.append("<h2>What an I/O takes</h2>")
    for job in jobs:
        by_target = {target: found[job]["modules"] for target, found in run.profiles.items() if job in found}
        parts += [table(tables.counts(run, job)), stacked(job, by_target)]
    if run.profiles:
        parts.append("<h2>Profiles</h2>")
    for target, found in run.profiles.items():
        for job, profile in found.items():
            rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(module)}</td><td>{insns:,.0f}</td><td>{calls:g}</td></tr>"
                           for name, module, insns, calls in profile["functions"])
            parts.append(f"<details><summary>{html.escape(target)}, {html.escape(job)}: instructions of an I/O by "
                         f"function, and calls</summary><table>{rows}</table></details>")
    if run.lines:
        parts.append("<h2>Locked instructions on lines that several processors use</h2>")
    parts += [table(tables.lines(run, target, job)) for target, found in run.lines.items() for job in found
              if "CPUs" in job]
    if run.facts:
        parts += ["<h2>Memory and times</h2>", table(tables.facts(run))]
    title = f"Bench of {run.commit}, {run.flavour} kernel"
    about = (f"<p>Kernel {html.escape(run.kernel)}; processor {html.escape(run.machine)}.</p>"
             f"<p>{CARD if run.device == 'card' else METHOD}</p>")
    return document(title, [about, *parts])


def write(run: Results, folder: Path) -> None:
    """Leaves report.html, tables.md and figures.json there."""
    run.save(folder / "figures.json")
    (folder / "tables.md").write_text(tables.everything(run))
    (folder / "report.html").write_text(page(run))
    print(f"==> {folder / 'report.html'}, {folder / 'tables.md'}")


def main() -> int:
    """report.py FIGURES.json FOLDER: a report of figures that were kept."""
    if len(sys.argv) != 3:
        print("usage: python3 -m bench.report FIGURES.json FOLDER", file=sys.stderr)
        return 2
    write(results.load(Path(sys.argv[1])), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
