"""Runs summed up: what a recipe's rule is called, n, mean and spread of its runs, and the gain over STE.

Only runs that have ended count; one that broke down counts as guessing, and is told. A spread needs at least two of
them; for one it is None, never zero.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from stompp.recipes.schema import Recipe

from .runs import Run

SURROGATES = {"identity": "identity", "clip": "clip", "approxsign": "ApproxSign"}
_NET = ("model", "width", "data", "limit_train")
_RULE = ("weights", "activations", "frozen_grad", "surrogate", "order", "policy", "ovsw")
_FREEZING = ("schedule", "refresh", "granularity", "hold_frozen")  # of no account without a StoMPP site
_SHORT = {"lr": "lr {:g}", "epochs": "{} epochs", "refresh": "r {}", "schedule": "{}", "batch_size": "batch {}"}


@dataclass(frozen=True)
class Score:
    """Final accuracy of the binary view over the runs that have ended."""

    @staticmethod
    def of(runs: Iterable[Run], split: str = "test") -> Score:
        """Sum up the runs that have ended."""
        ended = [run for run in runs if run.ended]
        values = (run.final(split) for run in ended)
        return Score(tuple(v for v in values if v is not None), sum(run.diverged is not None for run in ended))

    values: tuple[float, ...]  # by seed
    diverged: int = 0  # how many of them broke down

    @property
    def n(self) -> int:
        """Number of runs."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean, if there is any run."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation, if there are two runs."""
        return statistics.stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True)
class Gain:
    """Difference of two means; its standard error, if both have a spread."""

    difference: float
    error: float | None
    over: str  # the label of the row it is taken over


@dataclass(frozen=True)
class Row:
    """One recipe of a net."""

    recipe: Recipe
    label: str
    runs: tuple[Run, ...]
    score: Score
    gain: Gain | None = None  # over STE with the identity surrogate, the paper's
    gain_over_best: Gain | None = None  # over the strongest STE of the same mode

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """Runs that do not count yet."""
        return tuple(run for run in self.runs if not run.ended)


@dataclass(frozen=True)
class Group:
    """All recipes of one net on one data set."""

    title: str
    settings: str  # what most of its recipes share
    rows: tuple[Row, ...]


def group(runs: Iterable[Run]) -> list[Group]:
    """Sum runs up: a group per net, in it a row per recipe, float first, then STE, then the rest."""
    nets: dict[tuple[Any, ...], dict[Recipe, list[Run]]] = {}
    for run in runs:
        nets.setdefault(_values(run.recipe, _NET), {}).setdefault(run.recipe, []).append(run)
    groups = []
    for _, by_recipe in sorted(nets.items(), key=lambda item: _natural(net_title(next(iter(item[1]))))):
        common = _common(list(by_recipe))
        rows = []
        for recipe in sorted(by_recipe, key=_order):
            its = tuple(sorted(by_recipe[recipe], key=lambda r: r.seed))
            score = Score.of(its)
            rows.append(Row(recipe, _label(recipe, common), its, score))
        twice = {label for label, n in Counter(row.label for row in rows).items() if n > 1}
        rows = [replace(row, label=f"{row.label} · {row.recipe.name}") if row.label in twice else row for row in rows]
        title = net_title(rows[0].recipe)
        groups.append(Group(title, _settings(common), tuple(_with_gains(row, rows) for row in rows)))
    return groups


def net_title(recipe: Recipe) -> str:
    """Name the net and its data.

    >>> net_title(Recipe(model="cifar_resnet20", data="cifar10-16", width=32))
    'ResNet-20, width 32, on cifar10-16'
    """
    name = recipe.model.removeprefix("cifar_")
    for known, shown in (("resnet", "ResNet-"), ("bireal", "Bi-Real-")):
        if name.startswith(known):
            name = shown + name.removeprefix(known)
    parts = [name] + ([f"width {recipe.width}"] if recipe.width else [])
    limit = f" ({recipe.limit_train:,} images)" if recipe.limit_train else ""
    return ", ".join(parts) + (", on " if recipe.width else " on ") + recipe.data + limit


def mode(recipe: Recipe) -> str:
    """Tell which of weights and activations end up binary.

    >>> mode(Recipe()), mode(Recipe(activations="clip")), mode(Recipe(weights="float", activations="relu"))
    ('BNN', 'BWN', 'float')
    """
    if recipe.weights == "float":
        return "float" if recipe.activations in ("clip", "relu") else "binary activations"
    return "BNN" if recipe.activations in ("stompp", "ste") else "BWN"


def rule(recipe: Recipe) -> str:
    """Name the training rule, its surrogate gradient included wherever one is used.

    >>> rule(Recipe()), rule(Recipe(weights="ste", activations="ste", surrogate="clip"))
    ('StoMPP', 'STE (clip)')
    """
    w, a = recipe.weights, recipe.activations
    kind = mode(recipe)
    if kind == "float":
        return "float (ReLU)" if a == "relu" else "float (clip)"
    surrogate = f" ({SURROGATES[recipe.surrogate]})" if a == "ste" or recipe.frozen_grad == "ste" else ""
    if kind == "binary activations":
        name = f"float weights, {a} activations{surrogate}"
    elif kind == "BWN":
        name = ("BWN StoMPP" if w == "stompp" else "BWN STE") + (", ReLU" if a == "relu" else "")
    elif w == a:
        name = "StoMPP" if w == "stompp" else f"STE{surrogate}"
    else:
        name = "hybrid A/W" if a == "stompp" else f"hybrid W/A{surrogate}"
    if "stompp" in (w, a):
        if recipe.frozen_grad == "ste":
            name += f" with STE{surrogate} on frozen entries"
        if recipe.order != "layerwise":
            name += f", {recipe.order}"
        if recipe.policy != "stochastic":
            name += f", {recipe.policy}"
    return name + (" + OvSW" if recipe.ovsw else "")


def _label(recipe: Recipe, common: dict[str, Any]) -> str:
    """Name the rule, and whatever else sets the recipe apart from most of its group."""
    parts = [rule(recipe)]
    for name, usual in common.items():
        value = getattr(recipe, name)
        if value != usual and not (name in _FREEZING and not _freezes(recipe)):
            if name == "init_from":
                parts.append("pretrained" if value else "from scratch")
            else:
                parts.append(_SHORT.get(name, name.replace("_", " ") + " {}").format(value))
    return " · ".join(parts)


def _common(recipes: list[Recipe]) -> dict[str, Any]:
    """Return the most frequent value of every field that is neither the net's nor the rule's."""
    found = {}
    for f in fields(Recipe):
        if f.name not in (*_NET, *_RULE, "name"):
            those = [r for r in recipes if f.name not in _FREEZING or _freezes(r)] or recipes
            if f.name == "refresh":  # a rate goes with its order
                those = [r for r in those if r.order == "layerwise"] or those
            found[f.name] = Counter(getattr(r, f.name) for r in those).most_common(1)[0][0]
    return found


def _settings(common: dict[str, Any]) -> str:
    """Tell a group's usual settings in a few words."""
    optimizer = {"sgd": "SGD with Nesterov momentum", "adamw": "AdamW"}[common["optimizer"]]
    decay = f", weight decay {common['weight_decay']:g}" if common["weight_decay"] else ""
    return f"{common['epochs']} epochs, batch {common['batch_size']}, {optimizer}, lr {common['lr']:g}{decay}"


def _with_gains(row: Row, rows: list[Row]) -> Row:
    ste = [other for other in rows if _is_ste_for(row, other) and other.score.n]
    paper = next((r for r in ste if r.recipe.surrogate == "identity"), None)
    best = max(ste, key=lambda r: r.score.mean or 0.0, default=None)
    return replace(row, gain=_gain(row, paper), gain_over_best=_gain(row, best))


def _is_ste_for(row: Row, other: Row) -> bool:
    """Say whether `other` is plain STE of the same mode with the same settings."""
    if mode(row.recipe) not in ("BNN", "BWN") or mode(other.recipe) != mode(row.recipe):
        return False
    if other.recipe.weights != "ste" or other.recipe.activations == "stompp" or other.recipe.ovsw:
        return False
    if mode(row.recipe) == "BWN" and other.recipe.activations != row.recipe.activations:
        return False
    same = [f.name for f in fields(Recipe) if f.name not in (*_NET, *_RULE, *_FREEZING, "name")]
    return _values(row.recipe, tuple(same)) == _values(other.recipe, tuple(same))


def _gain(row: Row, reference: Row | None) -> Gain | None:
    if reference is None or reference.recipe == row.recipe or row.score.mean is None or reference.score.mean is None:
        return None
    error = None
    if row.score.sd is not None and reference.score.sd is not None:
        error = math.sqrt(row.score.sd**2 / row.score.n + reference.score.sd**2 / reference.score.n)
    return Gain(row.score.mean - reference.score.mean, error, reference.label)


def _order(recipe: Recipe) -> tuple[Any, ...]:
    """Sort key: float, then BNN, then BWN; STE, hybrids, StoMPP; then by name."""
    modes = {"float": 0, "BNN": 1, "BWN": 2}
    rules = {("ste", "ste"): 0, ("ste", "stompp"): 2, ("stompp", "ste"): 2}
    place = rules.get((recipe.weights, recipe.activations), 0 if recipe.weights == "ste" else 1)
    plain = recipe.ovsw or recipe.frozen_grad == "ste"
    orders = ("layerwise", "global", "reverse")
    surrogates = tuple(SURROGATES)
    return (
        modes.get(mode(recipe), 3),
        plain,
        place,
        surrogates.index(recipe.surrogate),
        orders.index(recipe.order),
        _natural(recipe.name),
    )


def _freezes(recipe: Recipe) -> bool:
    return "stompp" in (recipe.weights, recipe.activations)


def _values(recipe: Recipe, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(recipe, name) for name in names)


def _natural(text: str) -> tuple[Any, ...]:
    """Sort key that puts 8 before 20."""
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    words = "".join(" " if c.isdigit() else c for c in text).split()
    return (words, [int(d) for d in digits])
