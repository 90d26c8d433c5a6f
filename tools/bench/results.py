# SPDX-License-Identifier: GPL-2.0
"""Figures: their storage, and the comparison of two sets of them."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True)
class Figure:
    target: str
    job: str
    value: float
    # "us" for a mean latency, or "instructions", where less is better, or "IOPS".
    unit: str

    @property
    def less_is_better(self) -> bool:
        return self.unit != "IOPS"

    @property
    def key(self) -> tuple[str, str]:
        return self.target, self.job


@dataclass
class Results:
    """One run of the bench.  In JSON: the same names; `counts`, `profiles`, `lines` and
    `facts` are made by the modules of these names, by target."""

    # Of the modules that were measured.
    commit: str
    # fast or stock, and the folder it is in, whose name says how it was configured and built.
    flavour: str
    kernel: str
    # The kind of the guest's processor.
    machine: str
    # The RDMA device; files that do not name one are of soft-RoCE.
    device: str = "rxe"
    figures: list[Figure] = field(default_factory=list)
    counts: dict = field(default_factory=dict)
    profiles: dict = field(default_factory=dict)
    lines: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)

    def value(self, target: str, job: str) -> float | None:
        return next((figure.value for figure in self.figures if figure.key == (target, job)), None)

    def ratio(self, target: str, by: str, job: str) -> float | None:
        """A figure by another target's: below 1 is better for a latency, above 1 for a rate."""
        figure, other = self.value(target, job), self.value(by, job)
        return figure / other if figure and other else None

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(figure.target for figure in self.figures))

    @property
    def jobs(self) -> list[str]:
        return list(dict.fromkeys(figure.job for figure in self.figures))

    def unit(self, job: str) -> str:
        return next(figure.unit for figure in self.figures if figure.job == job)

    def put(self, figure: Figure) -> None:
        """In the place of one of the same target and job."""
        self.figures = [other for other in self.figures if other.key != figure.key] + [figure]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n")
        new.rename(path)


def load(path: Path) -> Results:
    """Raises ValueError for a file of another kind."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a file of figures that this bench can read")
    data["figures"] = [Figure(**figure) for figure in data["figures"]]
    return Results(**data)


def best(runs: list[Results]) -> Results:
    """The first run, with each figure the best of all runs."""
    def of(figure: Figure) -> Figure:
        values = [value for run in runs if (value := run.value(*figure.key)) is not None]
        return replace(figure, value=(min if figure.less_is_better else max)(values))

    return replace(runs[0], figures=[of(figure) for figure in runs[0].figures])


@dataclass(frozen=True)
class Change:
    """A figure beside what it was.  `worse` is the share that it is worse by; better is negative."""

    figure: Figure
    was: float
    worse: float

    def line(self) -> str:
        word = "worse" if self.worse > 0 else "better"
        return (f"{self.figure.target:22} {self.figure.job:32} {self.was:12,.1f} {self.figure.value:12,.1f} "
                f"{self.figure.unit:5} {abs(self.worse) * 100:6.2f} % {word}")


def _worse(less_is_better: bool, was: float, now: float) -> float:
    return now / was - 1 if less_is_better else was / now - 1


def compare(base: Results, new: Results, reference: str = "") -> list[Change]:
    """All figures that both have.  With a reference, a target of both, what is compared is
    how each figure relates to the reference's of its own run: kernels that were built by
    other compilers can then be compared, too."""
    changes = []
    for figure in new.figures:
        was, now = base.value(*figure.key), figure.value
        if was is None or figure.target == reference:
            continue
        before, after = was, now
        if reference:
            by = [run.value(reference, figure.job) for run in (base, new)]
            if None in by:
                continue
            before, after = was / by[0], now / by[1]
        changes.append(Change(figure, was, _worse(figure.less_is_better, before, after)))
    return changes


def verdict(changes: list[Change], tolerance: float) -> tuple[bool, str]:
    """Whether nothing is worse by more than the tolerance, and why."""
    if not changes:
        return False, "nothing can be compared: no figure is in both"
    beyond = [change for change in changes if change.worse > tolerance]
    better = [change for change in changes if change.worse < -tolerance]
    text = (f"{len(changes)} figures, {len(beyond)} worse and {len(better)} better by more than "
            f"{tolerance * 100:g} %")
    return not beyond, text
