"""From runs to the lines of a figure: accuracy over something, of every seed, with where runs broke down."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stompp.data.catalog import shape_of

from ..dynamics import curve
from ..runs import Run
from ..tables import told_seeds

View = Literal["current", "binary"]


@dataclass(frozen=True)
class Series:
    """One line: at every x the accuracies of the runs."""

    x: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    broken: tuple[tuple[float, float], ...] = ()  # where a run broke down, and at which accuracy that is drawn

    @property
    def mean(self) -> list[float]:
        """Mean over the runs."""
        return [statistics.fmean(v) for v in self.values]

    @property
    def low(self) -> list[float]:
        """Lowest of the runs."""
        return [min(v) for v in self.values]

    @property
    def high(self) -> list[float]:
        """Highest of the runs."""
        return [max(v) for v in self.values]

    @property
    def counts(self) -> set[int]:
        """Numbers of runs behind the points."""
        return {len(v) for v in self.values}


def over_time(runs: Sequence[Run], view: View) -> Series:
    """Return test accuracy over epochs, evaluations within epochs included.

    A run that broke down counts as guessing after its last evaluation, as it does in the tables.
    """
    paths = [_path(run, view) for run in runs]
    ends = [max(path, default=0.0) for path in paths]
    guess = [_guess(run) for run in runs]
    whole = [path for path, run in zip(paths, runs) if run.diverged is None]
    if whole:
        at = set.intersection(*map(set, whole))
    else:  # nobody went to the end: their own points, the next ones after these, and where the end would have been
        after = {end + 1 / run.recipe.evals_per_epoch for end, run in zip(ends, runs)}
        at = {0.0, float(runs[0].recipe.epochs)}.union(after, *paths)
        at = {x for x in at if all(not x or x in path or x > end for path, end in zip(paths, ends))}
    values = {x: tuple(path.get(x, g) for path, g in zip(paths, guess)) for x in sorted(at)}
    broken = tuple((end, g) for end, g, run in zip(ends, guess, runs) if run.diverged is not None)
    return Series(tuple(values), tuple(values.values()), broken)


def over(points: Iterable[tuple[float, Sequence[Run]]], split: str = "test") -> Series:
    """Return final accuracy of the binary view over whatever sets the groups of runs apart."""
    known = {x: (runs, _finals(runs, split)) for x, runs in sorted(points, key=lambda point: point[0])}
    known = {x: (runs, values) for x, (runs, values) in known.items() if values}
    broken = [(x, _guess(run)) for x, (runs, _) in known.items() for run in runs if run.diverged is not None]
    return Series(tuple(known), tuple(values for _, values in known.values()), tuple(dict.fromkeys(broken)))


def about(runs: Sequence[Run], spans: str = "bands") -> list[str]:
    """Say what a line is, of which seeds, and what a cross means if there is one."""
    several = len({run.seed for run in runs}) > 1
    return [
        f"Lines: mean over n runs, {told_seeds(run.seed for run in runs)}; {spans}: lowest to highest."
        if several
        else f"One run each, {told_seeds(run.seed for run in runs)}.",
        "×: training broke down, which counts as guessing." if any(run.diverged is not None for run in runs) else "",
    ]


def told_data(runs: Iterable[Run]) -> str:
    """Name the data sets."""
    return ", ".join(dict.fromkeys(run.recipe.data for run in runs))


def _finals(runs: Iterable[Run], split: str) -> tuple[float, ...]:
    return tuple(value for run in runs if (value := run.final(split)) is not None)


def _path(run: Run, view: View) -> dict[float, float]:
    steps = run.epochs[-1].step if run.epochs else 0
    if not steps:
        return {}
    per_epoch = steps / run.epochs[-1].number
    return {point.step / per_epoch: getattr(point, view) for point in curve(run)}


def _guess(run: Run) -> float:
    return 100.0 / shape_of(run.recipe.data)[1]
