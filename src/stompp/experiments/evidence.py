"""What the runs that have ended say to a comparison: statements "this is above that", found and tested by setting."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from stompp.data.catalog import shape_of
from stompp.recipes import Recipe
from stompp.recipes.grids import STES, Scale, Spec

from .catalog import net, recipe_of
from .runs import Run
from .statistics import Contrast, contrast

SURE = 0.95
MARGIN = 1.0  # points that "at least level" forgives

Verdict = Literal["holds", "does not hold", "undecided", "no runs"]


@dataclass(frozen=True)
class Statement:
    """One comparison, and what the runs say to it."""

    text: str
    contrast: Contrast | None = None  # of which a value above zero makes it true
    n: tuple[int, ...] = ()  # runs on either side

    @property
    def verdict(self) -> Verdict:
        """Tell whether the statement holds."""
        if self.contrast is None:
            return "no runs"
        sure = self.contrast.confidence
        if sure is None:
            return "undecided"
        return "holds" if sure >= SURE else "does not hold" if sure <= 1 - SURE else "undecided"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, judged by runs."""

    name: str
    text: str
    statements: tuple[Statement, ...]
    strongest: tuple[Statement, ...] | None = None  # the same against the strongest STE, where that is another question

    @property
    def verdict(self) -> Verdict:
        """Sum up the statements."""
        return sum_up(self.statements)

    @property
    def verdict_on_strongest(self) -> Verdict | None:
        """Sum up the statements against the strongest STE."""
        return None if self.strongest is None else sum_up(self.strongest)


def sum_up(statements: Iterable[Statement]) -> Verdict:
    """Return the verdict on all statements together."""
    statements = list(statements)
    found = {s.verdict for s in statements}
    if found <= {"no runs"}:
        return "no runs"
    if (refuted(statements) or 0.0) >= SURE:
        return "does not hold"
    return "holds" if found == {"holds"} else "undecided"


def weakest(statements: Iterable[Statement]) -> float | None:
    """Return the lowest confidence of the statements that have one."""
    return min(_confidences(statements), default=None)


def refuted(statements: Iterable[Statement]) -> float | None:
    """Return how sure it is that some statement is wrong.

    All of many statements have to hold, so each may be tested as if it were alone. One of many looks wrong by chance
    more often than one alone does, so the chance that the worst one's numbers came about by luck counts once for each
    (Bonferroni).

    >>> one, other = (compare("", (1, values)) for values in ([-4.0, -4.4, -4.2], [1.0, 1.1]))
    >>> round(refuted([one]), 4), round(refuted([one, other]), 4)
    (0.9996, 0.9992)
    """
    sure = _confidences(statements)
    return 1 - min(1.0, len(sure) * min(sure)) if sure else None


def how_sure(verdict: Verdict, statements: Iterable[Statement]) -> float | None:
    """Return how sure a verdict is: that some statement is wrong if it does not hold, or else of the weakest one."""
    return refuted(statements) if verdict == "does not hold" else weakest(statements)


def _confidences(statements: Iterable[Statement]) -> list[float]:
    contrasts = [s.contrast for s in statements if s.contrast is not None]
    return [c.confidence for c in contrasts if c.confidence is not None]


class Evidence:
    """The finished runs at one scale, found by setting."""

    def __init__(self, runs: Iterable[Run], scale: Scale) -> None:
        self.scale: Scale = scale
        self._runs: dict[Recipe, list[Run]] = {}
        for run in runs:
            if run.ended:
                self._runs.setdefault(run.recipe, []).append(run)
        for its in self._runs.values():
            its.sort(key=lambda run: run.seed)

    def runs(self, spec: Spec) -> list[Run]:
        """Return the finished runs of a setting, by seed."""
        return self._runs.get(recipe_of(spec, self.scale), [])

    def accuracy(self, spec: Spec) -> list[float]:
        """Return the final test accuracy of each."""
        return [v for run in self.runs(spec) if (v := run.final()) is not None]

    def chance(self, spec: Spec) -> float:
        """Return the accuracy of guessing."""
        return 100 / shape_of(recipe_of(spec, self.scale).data)[1]

    def name(self, spec: Spec) -> str:
        """Return what the net is called at this scale."""
        return net(spec, recipe_of(spec, self.scale))

    def compare(self, text: str, *terms: tuple[float, Spec], constant: float = 0.0) -> Statement:
        """Return the statement that a weighted sum of accuracies is above zero."""
        return compare(text, *((w, self.accuracy(spec)) for w, spec in terms), constant=constant)

    def above(self, this: Spec, that: Spec, text: str) -> Statement:
        """Return the statement that one setting is above another."""
        return self.compare(text, (1, this), (-1, that))

    def level(self, this: Spec, that: Spec, text: str, margin: float = MARGIN) -> Statement:
        """Return the statement that one setting is at most a margin below another."""
        points = "point" if margin == 1 else "points"
        return self.compare(f"{text} (within {margin:g} {points})", (1, this), (-1, that), constant=margin)

    def strongest(self, spec: Spec) -> Spec:
        """Return the BNN STE that does best in a setting's place."""
        return max(
            (replace(spec, method=method) for method in STES), key=lambda s: statistics.fmean(self.accuracy(s) or [0.0])
        )

    def surrogate(self, spec: Spec) -> str:
        """Name an STE's surrogate."""
        return {"bnn-ste": "identity", "bnn-ste-clip": "clip", "bnn-ste-approx": "ApproxSign"}[spec.method]


def compare(text: str, *terms: tuple[float, list[float]], constant: float = 0.0) -> Statement:
    """Return the statement that a weighted sum of means is above zero."""
    if not all(values for _, values in terms):
        return Statement(text)
    return Statement(text, contrast(*terms, constant=constant), tuple(len(values) for _, values in terms))
