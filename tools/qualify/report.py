# SPDX-License-Identifier: GPL-2.0
"""The report of a run, one HTML file, made from its document alone."""

import html
import json
import sys
from pathlib import Path

from bench import tables
from bench.drawing import bars, document, pyplot, svg, table

from . import results
from .options import SHORT, USUAL
from .results import FAILED, PASSED, SKIPPED, Outcome

COLOURS = {PASSED: "#2a7d3c", FAILED: "#b3261e", SKIPPED: "#8a6d00"}
SEND = """The JSON beside this page has the same in it, and this page has nothing that the JSON has not. Keys, serial numbers and,
unless the run was asked for them with NAMES=yes, host names and addresses are not in either. Read it before you send it."""
# Of figures: what they are, and their units.
FIGURES = {"iops": ("Requests per second", "IOPS"), "mean_us": ("Mean latency", "us"),
           "p99_us": ("99th percentile of the latency", "us"), "mib_s": ("Throughput", "MiB/s")}
# The disk without a transport, beside which the bars of the others would be too short to compare.
WITHOUT_TRANSPORT = "on the server"


def _cell(text: str) -> str:
    """Bars and newlines would end a cell of a table in Markdown."""
    return " ".join(str(text).replace("|", "/").split())


def verdict(outcome: Outcome) -> str:
    counts = ", ".join(f"{len(outcome.of(status))} {status}" for status in (PASSED, FAILED, SKIPPED))
    word = "interrupted" if outcome.interrupted else "passed" if outcome.passed else "failed"
    return f"{word}: {counts}"


def _coloured(outcome: Outcome) -> str:
    colour = COLOURS[PASSED if outcome.passed else FAILED]
    return f'<p style="font-size:1.3rem;color:{colour}">The run {html.escape(verdict(outcome))}, in {outcome.seconds:.0f} s.</p>'


def _paragraphs(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    return [f"<h2>{html.escape(title)}</h2><ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"]


def _facts(title: str, columns: dict[str, dict]) -> list[str]:
    """A table with a column for each of these."""
    # Software devices have no firmware: what no column has is left out.
    names = list(dict.fromkeys(name for values in columns.values() for name, value in values.items() if value not in ("", 0)))
    if not names:
        return []
    rows = [(name, [_cell(values.get(name, "")) for values in columns.values()]) for name in names]
    return [f"<h2>{html.escape(title)}</h2>", table(tables.table("", list(columns), rows))]


def _steps(outcome: Outcome) -> list[str]:
    parts = ["<h2>Steps</h2>"]
    rows = [(_cell(f"{step.part}: {step.name}"), [step.status, f"{step.seconds:.1f}", _cell(step.said)])
            for step in outcome.steps]
    made = table(tables.table("step", ["result", "seconds", "remark"], rows))
    for status, colour in COLOURS.items():
        made = made.replace(f"<td>{status}</td>", f'<td style="color:{colour}">{status}</td>')
    return [*parts, made]


def timeline(title: str, rates: list[list[float]], marks: dict[str, float]) -> str:
    """Writes per second over time; each mark is a moment."""
    figure, axes = pyplot().subplots(figsize=(9, 1.9))
    axes.step([0, *(point[0] for point in rates)], [rates[0][1], *(point[1] for point in rates)], where="pre", color="#c8501e")
    for name, second in marks.items():
        axes.axvline(second, color="#7a8ca0", linestyle="--", linewidth=1)
        axes.annotate(name, (second, 1), xycoords=("data", "axes fraction"), fontsize=8, color="#45566b", xytext=(3, -9),
                      textcoords="offset points")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_title(f"{title}: writes per second", loc="left", fontsize=10)
    return svg(figure)


def _failovers(outcome: Outcome) -> list[str]:
    steps = [step for step in outcome.steps if "longest_ms" in step.values]
    if not steps:
        return []
    parts = ["<h2>Failover</h2><p>The longest that a write took while this happened, and the writes over time. fio wrote 500 "
             "times a second, and read everything back afterwards.</p>",
             bars("longest write", "ms", {step.name: step.values["longest_ms"] for step in steps})]
    return parts + [timeline(step.name, step.values["rates"], step.values.get("marks", {})) for step in steps
                    if step.values.get("rates")]


def _bench(outcome: Outcome) -> list[str]:
    if not outcome.bench:
        return []
    targets = list(dict.fromkeys(target for found in outcome.bench.values() for target in found))
    parts = ["<h2>Bench</h2><p>fio with one process on the client, on a disk of the server that keeps nothing and takes no "
             "time, so that the transports can be told apart. Each measurement was made over all of them before the next "
             f"one, and took {(SHORT if outcome.short else USUAL).bench} s. <i>{WITHOUT_TRANSPORT}</i> is the disk without a "
             "transport.</p>"]
    for figure, (name, unit) in FIGURES.items():
        rows = [(job, [tables.number(found.get(target, {}).get(figure)) for target in targets])
                for job, found in outcome.bench.items()]
        parts += [f"<h3>{html.escape(name)}</h3>", table(tables.table(unit, targets, rows))]
    for job, found in outcome.bench.items():
        figure = "mean_us" if job.endswith("depth 1") else "iops"
        over = {target: values[figure] for target, values in found.items() if target != WITHOUT_TRANSPORT}
        if over:
            parts.append(bars(job, FIGURES[figure][1], over))
    return parts


def page(outcome: Outcome) -> str:
    about = ("<p><i>make qualify</i> has tried ibtrs, a network block device over RDMA, on a server and a client: "
             f"ibtrs {html.escape(outcome.version)}, begun {html.escape(outcome.began)} UTC{', a short run' if outcome.short else ''}.</p>")
    failed = [f"{step.part}: {step.name}: {step.said}" for step in outcome.of(FAILED)]
    skipped = [f"{step.part}: {step.name}: {step.said}" for step in outcome.of(SKIPPED)]
    return document("ibnbd on two machines", [
        about, _coloured(outcome), *_paragraphs("What failed", failed), *_paragraphs("Warnings", outcome.warnings),
        *_paragraphs("What was left out, and why", skipped), *_facts("Machines", outcome.machines),
        *_facts("Links", outcome.links), *_failovers(outcome), *_bench(outcome), *_steps(outcome),
        "<h2>To send it</h2>", f"<p>{html.escape(SEND)}</p>"])


def main() -> int:
    """report.py RESULTS.json REPORT.html: a report of a document that was sent."""
    if len(sys.argv) != 3:
        print("usage: python3 -m qualify.report RESULTS.json REPORT.html", file=sys.stderr)
        return 2
    Path(sys.argv[2]).write_text(page(results.load(json.loads(Path(sys.argv[1]).read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
