"""The paper's experiments by name: the grid of each, the table it fills, and the claims it tests.

`grids` says which settings an experiment has; here stands where each goes in a table, and how many seeds it takes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from stompp.errors import UsageError
from stompp.recipes import METHODS, Recipe, mini, paper
from stompp.recipes.grids import GRIDS, Scale, Spec

from .grid import Job
from .results import rule

SCALES: tuple[Scale, ...] = ("paper", "mini")

Place = Callable[[Spec, Recipe], str]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    source: str  # which table or figure of the paper
    question: str
    claims: tuple[str, ...]  # of `claims.CLAIMS`
    seeds: int
    row: Place
    column: Place
    columns: str  # what the columns are
    train: bool = False  # the paper's table shows training accuracy too

    def specs(self, scale: Scale) -> list[Spec]:
        """Return the settings of its grid."""
        return GRIDS[self.name](scale)

    def recipes(self, scale: Scale) -> dict[Spec, Recipe]:
        """Return the recipe of each setting."""
        return {spec: recipe_of(spec, scale) for spec in self.specs(scale)}

    def jobs(self, scale: Scale, seeds: int | None = None) -> list[Job]:
        """Return its runs, all recipes of a seed before the next seed.

        Wide nets, which answer a side question, take one seed unless more are asked for.
        """
        most = seeds or self.seeds
        wanted = {recipe: seeds or (1 if spec.wide else most) for spec, recipe in self.recipes(scale).items()}
        return [Job(recipe, seed) for seed in range(most) for recipe, count in wanted.items() if seed < count]


@cache
def recipe_of(spec: Spec, scale: Scale) -> Recipe:
    """Return the recipe that a setting means at a scale."""
    return {"paper": paper.recipe, "mini": mini.recipe}[scale](spec)


def net(spec: Spec, recipe: Recipe) -> str:
    """Name a net.

    >>> net(Spec("resnet50"), mini.recipe(Spec("resnet50", wide=True)))
    'ResNet-32, width 32'
    """
    shown = recipe.model.removeprefix("cifar_").replace("resnet", "ResNet-").replace("bireal", "Bi-Real-")
    return f"{shown}, width {recipe.width}" if recipe.width else shown


def _net_and_data(spec: Spec, recipe: Recipe) -> str:
    return f"{net(spec, recipe)}, {recipe.data}"


def _rule(spec: Spec, recipe: Recipe) -> str:
    return rule(recipe)


def _order_and_policy(spec: Spec, recipe: Recipe) -> str:
    mode = "BNN" if recipe.activations == "stompp" else "BWN"
    return f"{mode}, {recipe.order}, {recipe.policy}"


def _start_and_rule(spec: Spec, recipe: Recipe) -> str:
    if recipe.weights == "float":
        return rule(recipe)
    return f"{rule(recipe)}, {'pretrained' if spec.pretrained else 'from scratch'}"


def _net_and_rule(spec: Spec, recipe: Recipe) -> str:
    return f"{net(spec, recipe)}, {rule(recipe)}"


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "main",
            "Table 1",
            "StoMPP against STE, with binary weights alone and with binary activations too, at three depths",
            ("C1", "C2"),
            3,
            _rule,
            _net_and_data,
            "nets",
        ),
        Experiment(
            "ordering",
            "Table 2",
            "Which site is frozen when, and which of its entries",
            ("C3", "C4", "C5"),
            3,
            _order_and_policy,
            net,
            "nets",
            train=True,
        ),
        Experiment(
            "hybrids",
            "Table 3",
            "StoMPP for the one and STE for the other of weights and activations",
            ("C6",),
            3,
            _rule,
            net,
            "nets",
            train=True,
        ),
        Experiment(
            "refresh-global",
            "Figure: hyperparameters, global",
            "Schedule and refresh rate where all sites freeze together",
            ("C8",),
            1,
            lambda spec, recipe: f"{spec.schedule.replace('_', ' ')}",
            lambda spec, recipe: f"r = {recipe.refresh:,}",
            "refresh rates",
        ),
        Experiment(
            "refresh-layerwise",
            "Figure: hyperparameters, layerwise",
            "Schedule and refresh rate where sites freeze one after the other",
            ("C8",),
            1,
            lambda spec, recipe: f"{spec.schedule.replace('_', ' ')}",
            lambda spec, recipe: f"r = {recipe.refresh:,}",
            "refresh rates",
        ),
        Experiment(
            "dynamics",
            "Figures: accuracy over time of BNN, hybrids and BWN",
            "What accuracy does while sites freeze",
            ("C9",),
            3,
            _rule,
            net,
            "nets",
        ),
        Experiment(
            "lr",
            "Table: learning rate",
            "How much the learning rate matters",
            ("C7",),
            3,
            _rule,
            lambda spec, recipe: f"lr {recipe.lr:g}",
            "learning rates",
        ),
        Experiment(
            "epochs",
            "Figure: epochs",
            "How long training has to be",
            ("C10",),
            1,
            _net_and_rule,
            lambda spec, recipe: f"{recipe.epochs} epochs",
            "lengths of training",
            train=True,
        ),
        Experiment(
            "bireal",
            "Table: Bi-Real nets",
            "Nets made for binary activations, from scratch and from a float net",
            ("C11",),
            3,
            _start_and_rule,
            net,
            "nets",
        ),
        Experiment(
            "ovsw",
            "Text: OvSW",
            "A correction of STE's gradients, and StoMPP with it",
            ("C12",),
            3,
            _rule,
            _net_and_data,
            "nets",
        ),
        Experiment(
            "scaffold",
            "the authors' later version",
            "StoMPP's progression with STE on the frozen entries, against both",
            (),
            3,
            _rule,
            net,
            "nets",
        ),
    )
}

assert EXPERIMENTS.keys() == GRIDS.keys()
assert METHODS.keys() >= {spec.method for e in EXPERIMENTS.values() for spec in e.specs("paper")}


def get(name: str) -> Experiment:
    """Return the experiment of that name, or suggest the nearest."""
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(EXPERIMENTS)}"
        raise UsageError(f"there is no experiment {name!r}; {hint}")
    return EXPERIMENTS[name]


def jobs_of(names: list[str], scale: Scale, seeds: int | None = None) -> list[Job]:
    """Return the runs of several experiments, each once: what several need is trained for the first.

    All that wants one seed comes before anything's second, so that a grid that is stopped has filled whole tables.
    """
    jobs = dict.fromkeys(job for name in names for job in get(name).jobs(scale, seeds))
    return sorted(jobs, key=lambda job: job.seed)
