"""Accuracy over training, a panel for each net: StoMPP's sawtooth, and what hybrids, BWNs and orders make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stompp.recipes import Recipe
from stompp.recipes.grids import BIREALS, ORDERS, RESNETS, STES, Spec

from ..catalog import recipe_of
from ..dynamics import freezes, site_count
from ..evidence import Evidence
from ..runs import Run
from . import look
from .series import Series, about, over_time, told_data

HEIGHT = 2.1  # inches of a panel

Named = Callable[[Recipe], str]


@dataclass(frozen=True)
class Panel:
    """What one panel compares."""

    title: str
    specs: tuple[Spec, ...]


def dynamics(evidence: Evidence) -> Any:
    """StoMPP and the STEs on every net."""
    panels = [Panel(evidence.name(Spec(n)), tuple(Spec(n, m) for m in (*STES, "bnn-stompp"))) for n in RESNETS]
    return _curves(evidence, panels, 3)


def hybrids(evidence: Evidence) -> Any:
    """The hybrids on every net, and in global order on the smallest."""
    mixed = ("bnn-hybrid-aw", "bnn-hybrid-wa", "bnn-hybrid-wa-clip")
    panels = [Panel(f"{evidence.name(Spec(n))}, layerwise", tuple(Spec(n, m) for m in mixed)) for n in RESNETS]
    together = tuple(Spec(method=m, order="global") for m in mixed)
    return _curves(evidence, [*panels, Panel(f"{evidence.name(Spec())}, global", together)], 2)


def bwn(evidence: Evidence) -> Any:
    """Binary weights alone, and in global order on the smallest net."""
    pair = ("bwn-stompp", "bwn-ste")
    panels = [Panel(f"{evidence.name(Spec(n))}, layerwise", tuple(Spec(n, m) for m in pair)) for n in RESNETS]
    together = (Spec(method="bwn-stompp", order="global"),)
    return _curves(evidence, [*panels, Panel(f"{evidence.name(Spec())}, global", together)], 2)


def orders(evidence: Evidence) -> Any:
    """The three orders, on every net, of a BNN and of a BWN."""
    panels = [
        Panel(f"{evidence.name(Spec(n))}, {mode}", tuple(Spec(n, f"{mode.lower()}-stompp", order=o) for o in ORDERS))
        for mode in ("BNN", "BWN")
        for n in RESNETS
    ]
    return _curves(evidence, panels, 3, lambda recipe: recipe.order)


def bireal(evidence: Evidence) -> Any:
    """Bi-Real nets from scratch and from a float net."""
    panels = []
    for pretrained, told in ((False, "from scratch"), (True, "pretrained")):
        for n in BIREALS:
            usual = Spec(n, lr=0.06, epochs=300)
            specs = [replace(usual, method=m, pretrained=pretrained) for m in (*STES, "bnn-stompp")]
            start = [] if pretrained else [replace(usual, method="float-clip")]
            panels.append(Panel(f"{evidence.name(usual)}, {told}", (*start, *specs)))
    return _curves(evidence, panels, 2)


def _curves(evidence: Evidence, panels: Iterable[Panel], columns: int, named: Named = look.name_of) -> Any:
    """Draw the panels that have any run; None if there are none."""
    filled = [(panel, runs) for panel in panels if (runs := found(evidence, panel, named))]
    if not filled:
        return None
    columns = min(columns, len(filled))
    figure, axes = look.grid(len(filled), columns, HEIGHT)
    highest = max(draw(one, panel, runs, evidence) for one, (panel, runs) in zip(axes, filled))
    look.accuracies(axes, columns, highest)
    for one in axes[-columns:]:
        one.set_xlabel("epoch")
    names = {name for _, runs in filled for name in runs}
    look.legend(figure, [(n, c, None) for n, c in look.COLOURS.items() if n in names])
    look.note(figure, told([run for _, runs in filled for its in runs.values() for run in its]))
    return figure


def found(evidence: Evidence, panel: Panel, named: Named = look.name_of) -> dict[str, list[Run]]:
    """Return the runs of a panel by what they are called in it, without those of which there are none."""
    recipes = ((named(recipe_of(spec, evidence.scale)), spec) for spec in panel.specs)
    return {name: runs for name, spec in recipes if (runs := evidence.runs(spec))}


def draw(axes: Any, panel: Panel, runs: dict[str, list[Run]], evidence: Evidence) -> float:
    """Draw one panel and return the highest accuracy in it."""
    highest = 0.0
    numbers: list[int] = []
    for name, its in runs.items():
        colour = look.COLOURS[name]
        current, binary = (over_time(its, view) for view in ("current", "binary"))
        look.band(axes, current, colour)
        look.line(axes, current, colour, linewidth=1.5, label=name)
        if binary.values != current.values:
            binary = Series(binary.x, binary.values)  # where a run broke down is marked already
            look.line(axes, binary, colour, linewidth=1.1, linestyle=look.DASHED, label=f"{name}, binary view")
        highest = max(highest, *current.high, *binary.high)
        sites = _sites_in_turn(its)
        if sites and sites not in numbers:
            ends = [its[0].recipe.epochs * i / sites for i in range(1, sites)]
            look.rug(axes, ends, 1 - 0.035 * len(numbers), colour)
            numbers.append(sites)
    look.guessing(axes, evidence.chance(panel.specs[0]))
    axes.set_xlim(0, max(run.recipe.epochs for its in runs.values() for run in its))
    look.panel_title(axes, panel.title, (len(its) for its in runs.values()))
    return highest


def told(runs: Sequence[Run]) -> list[str]:
    """Say what the lines of such panels are."""
    recipe = runs[0].recipe
    fewer = "; evaluations within an epoch take fewer images" if recipe.evals_per_epoch > 1 else ""
    return [
        "Solid: the net as it is trained; dashed: its binary view, everything scheduled being ±1 (none where both are "
        "the same); dotted: guessing.",
        "Ticks on top: one site is frozen, the next one starts." if _sites_in_turn(runs) else "",
        *about(runs),
        f"Data: {told_data(runs)}{fewer}.",
    ]


def _sites_in_turn(runs: Iterable[Run]) -> int:
    """Return the number of sites, if there are runs that freeze them one after the other."""
    return max((site_count(run) for run in runs if freezes(run.recipe) and run.recipe.order != "global"), default=0)
