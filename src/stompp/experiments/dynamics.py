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


def folded(run: Run, sites: int) -> list[float] | None:
    """Return the current view's mean distance from its trend in each quarter of a window; None without enough points.

    The trend is a running mean over one window of `sites` equal ones. What is left is folded onto a single window: a
    sawtooth with the windows' period adds up there, and whatever else goes up and down averages out. A run that broke
    down has no curve to its end, and so no windows.
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
    parts: list[list[float]] = [[] for _ in range(PHASES)]
    for i in range(reach, len(points) - reach):
        point = points[i]
        trend = sum(w * p.current for w, p in zip(weights, points[i - reach : i + reach + 1])) / per_window
        start, end = next((span for span in spans if span[0] < point.step <= span[1]), (0, 0))
        if not end:  # a step that no window has: the line is damaged
            continue
        phase = (point.step - start) / (end - start)
        parts[min(PHASES - 1, math.ceil(phase * PHASES) - 1)].append(point.current - trend)
    return [statistics.fmean(part) for part in parts] if all(parts) else None


def tooth(window: list[float], others: list[list[float]]) -> float | None:
    """Return how high a folded curve's tooth is, in points of accuracy; None where there is nothing to go by.

    Where in a window teeth are high and where low is read off `others`, folded curves of other runs: of the four
    quarters of a curve without teeth one is always the highest, by chance, and it is another one in another run.

    >>> tooth([0.9, 0.1, -0.7, -0.3], [[1.1, -0.2, -0.6, -0.3]])
    1.6
    >>> tooth([-0.5, 0.1, 0.6, -0.2], [[1.1, -0.2, -0.6, -0.3]])
    -1.1
    """
    if not others:
        return None
    usual = [statistics.fmean(quarter) for quarter in zip(*others)]
    return window[usual.index(max(usual))] - window[usual.index(min(usual))]


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
