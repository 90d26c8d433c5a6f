# SPDX-License-Identifier: GPL-2.0
"""Tables of figures in Markdown, for Documentation/performance.md."""

from . import goals, shared_lines
from .results import Results
from .shared_lines import readable


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def table(corner: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]
    return "\n".join(lines)


def figures(run: Results) -> str:
    """Jobs down, targets across."""
    return table("", run.targets, [
        (f"{job}, {run.unit(job)}", [number(run.value(target, job)) for target in run.targets])
        for job in run.jobs])


def ratios(run: Results, target: str, others: list[str]) -> str:
    """A target beside others, in the same run."""
    rows = []
    for job in run.jobs:
        found = [run.ratio(target, other, job) for other in others]
        if any(found):
            rows.append((f"{job}, {run.unit(job)}", [f"{value:.2f}" if value else "" for value in found]))
    return table(f"{target} by", others, rows)


def reached(run: Results, goal: goals.Goals) -> str:
    """Goals by another target, and what is reached; beside another transport also what the floor
    itself reaches."""
    has_floor = goal.target == goals.SECURE and goal.by not in (goals.FLOOR, goals.INSECURE)
    rows = []
    for job, bound in goal.bounds.items():
        ratio, floor = run.ratio(goal.target, goal.by, job), run.ratio(goals.FLOOR, goal.by, job)
        if ratio is None:
            continue
        word = "at most" if run.unit(job) == "us" else "at least"
        cells = [f"{word} {bound:.2f}", f"{ratio:.3f}", "yes" if goal.is_reached(run, job) else "no"]
        rows.append((job, [*cells, f"{floor:.3f}" if floor else ""] if has_floor else cells))
    columns = ["goal", "figure", "reached"]
    return table(f"{goal.target} by {goal.by}", [*columns, "the floor"] if has_floor else columns, rows)


def counts(run: Results, job: str) -> str:
    """The cost of an I/O: a row for each count, a column for each target."""
    targets = [target for target, jobs in run.counts.items() if job in jobs]
    names = list(dict.fromkeys(name for target in targets for name in run.counts[target][job]))
    return table(job, targets, [
        (name, [number(run.counts[target][job].get(name)) for target in targets]) for name in names])


def modules(run: Results, job: str, kind: str = "modules") -> str:
    """Instructions of an I/O by module, or by `layers`."""
    targets = [target for target, jobs in run.profiles.items() if job in jobs]
    names: dict[str, float] = {}
    for target in targets:
        for name, insns in run.profiles[target][job].get(kind, {}).items():
            names[name] = max(names.get(name, 0), insns)
    # Functions with less than a tenth of a percent everywhere are left out.
    shown = [name for name in sorted(names, key=lambda name: -names[name]) if names[name] >= 20]
    return table(job, targets, [
        (name, [number(run.profiles[target][job].get(kind, {}).get(name)) for target in targets]) for name in shown])


def facts(run: Results) -> str:
    targets = list(run.facts)
    names = list(dict.fromkeys(name for target in targets for name in run.facts[target]))
    return table("", targets, [(name, [number(run.facts[target].get(name)) for target in targets]) for name in names])


def lines(run: Results, target: str, job: str) -> str:
    return table(f"{target}, {job}", ["module", "locked instructions of an I/O", "reason"], [
        (readable(name), [module, f"{runs:g}", shared_lines.REASONS.get(readable(name), "")])
        for name, module, runs in run.lines[target][job]])


def everything(run: Results) -> str:
    ours = [target for target in run.targets if target.startswith("ibnbd")]
    others = [target for target in run.targets if target.startswith("floor") or target in ("RNBD Y", "NVMe-oF")]
    parts = [f"Modules of {run.commit}, kernel {run.kernel}."]
    parts += [figures(run)] if run.figures else []
    parts += [ratios(run, target, others) for target in ours if others]
    parts += [reached(run, goal) for goal in goals.of(run)]
    jobs = list(dict.fromkeys(job for jobs in run.counts.values() for job in jobs))
    for job in jobs:
        parts += [counts(run, job), modules(run, job)]
        if run.device == "card":
            parts.append(modules(run, job, "layers"))
    parts += [lines(run, target, job) for target, found in run.lines.items() for job in found
              if "CPUs" in job]
    if run.facts:
        parts.append(facts(run))
    return "\n\n".join(parts) + "\n"
