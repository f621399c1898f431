"""Shapes of accuracy over time: the sawtooth of sites that freeze one after the other, and the swoop of a BWN."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from stompp.core.orders import windows
from stompp.recipes.schema import Recipe

from .runs import Run

PHASES = 4  # parts of a site's window


@dataclass(frozen=True)
class Point:
    """Test accuracy at a step, in percent."""

    step: int
    current: float
    binary: float


def curve(run: Run) -> list[Point]:
    """Return the test accuracy over time, evaluations within epochs included."""
    points = []
    for epoch in run.epochs:
        points += [Point(*between) for between in epoch.between]
        points.append(Point(epoch.step, epoch.accuracy["test", "current"], epoch.accuracy["test", "binary"]))
    return points


def sawtooth(run: Run, sites: int) -> float | None:
    """Return the height of the sawtooth, in points of accuracy of the current view; None without enough points.

    The curve's trend, a running mean over one window of `sites` equal ones, is taken off. What is left is folded onto a
    single window. A sawtooth with the windows' period adds up there, whatever else goes up and down averages out; its
    height is the difference between the highest and the lowest quarter of the window. A run that broke down has no
    curve to its end, and so no windows.
    """
    points = curve(run) if run.diverged is None else []
    steps = points[-1].step if points else 0
    spans = windows("layerwise", sites, steps) if steps >= sites else []
    per_window = len(points) / sites
    if not spans or per_window < PHASES / 2:
        return None
    reach = math.ceil((per_window - 1) / 2)
    edge = (per_window - (2 * reach - 1)) / 2  # the outermost points count in part, so that the mean is of one window
    weights = [edge, *[1.0] * (2 * reach - 1), edge]
    folded: list[list[float]] = [[] for _ in range(PHASES)]
    for i in range(reach, len(points) - reach):
        point = points[i]
        trend = sum(w * p.current for w, p in zip(weights, points[i - reach : i + reach + 1])) / per_window
        start, end = next(span for span in spans if span[0] < point.step <= span[1])
        phase = (point.step - start) / (end - start)
        folded[min(PHASES - 1, math.ceil(phase * PHASES) - 1)].append(point.current - trend)
    means = [statistics.fmean(part) for part in folded if part]
    return max(means) - min(means) if len(means) == PHASES else None


def swoop(run: Run) -> float | None:
    """Return by how much the current view gains more in the last third of training than in the middle one, in points.

    A swoop rises, stays level or dips, and rises again: positive. A curve that levels off is negative. None without
    enough points, or if training broke down before its end.
    """
    points = curve(run) if run.diverged is None else []
    if len(points) < 6:
        return None
    third, two_thirds = (_level(points, points[-1].step * share) for share in (1 / 3, 2 / 3))
    return (points[-1].current - two_thirds) - (two_thirds - third)


def _level(points: list[Point], step: float) -> float:
    """Return the mean accuracy of the three points nearest to a step, against the noise of a single one."""
    return statistics.fmean(p.current for p in sorted(points, key=lambda p: abs(p.step - step))[:3])


def site_count(run: Run) -> int:
    """Return the number of a run's scheduled sites."""
    return len(run.epochs[0].sites) if run.epochs else 0


def freezes(recipe: Recipe) -> bool:
    """Tell whether a recipe has scheduled sites."""
    return "stompp" in (recipe.weights, recipe.activations)
