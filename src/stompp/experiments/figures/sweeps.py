"""Final accuracy over one setting: depth, schedule and refresh rate, learning rate, length of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stompp.core.schedules import SCHEDULES
from stompp.recipes import paper
from stompp.recipes.grids import LEARNING_RATES, REFRESH_RATES, RESNETS, STES, Spec

from ..catalog import EXPERIMENTS, net, recipe_of
from ..comparison import paper_numbers
from ..evidence import Evidence
from ..runs import Run
from . import look
from .series import Series, about, over, told_data

HEIGHT = 2.3  # inches of a panel
BNNS = (*STES, "bnn-stompp")
# A schedule is no rule and gets no rule's colour: the later it freezes, the darker.
SCHEDULE_LOOK = {
    "flipped_quadratic": ("#F0A830", "v"),
    "linear": ("#E0637A", "s"),
    "cosine": ("#B5489A", "D"),
    "quadratic": ("#6A3FA0", "^"),
    "cubic": ("#1E1147", "o"),
}


@dataclass(frozen=True)
class Line:
    """One line of a panel; the paper's numbers have no runs."""

    name: str
    series: Series
    runs: tuple[Run, ...] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel, what is drawn in it, and how its x axis is laid out."""

    title: str
    lines: tuple[Line, ...]
    chance: float
    layout: Callable[[Any], None]

    @property
    def ours(self) -> bool:
        """True if it shows runs and not the paper's numbers."""
        return any(line.runs for line in self.lines)


def depth(evidence: Evidence) -> Any:
    """Every rule over nets of growing depth, and the same from the paper."""
    sets = ("cifar10",) if evidence.scale == "mini" else ("cifar10", "cifar100", "imagenet")
    panels = []
    for mode, methods in (("BNN", ("float-relu", *BNNS)), ("BWN", ("bwn-ste", "bwn-stompp"))):
        ours = [(Spec(data=data), "" if len(sets) == 1 else f", {data}") for data in sets]
        if (evidence.scale, mode) == ("mini", "BNN"):
            wide = Spec(data="cifar10", wide=True)
            ours.append((wide, f", width {recipe_of(wide, evidence.scale).width}"))
        for base, told in ours:
            grid = [[replace(base, net=n, method=m) for n in RESNETS] for m in methods]
            lines = tuple(_line(evidence, list(enumerate(its))) for its in grid)
            names = [evidence.name(Spec(n)) for n in RESNETS]
            panels.append(Panel(f"{mode}{told}", lines, evidence.chance(base), _categories(names)))
        for data in sets:
            grid = [[Spec(n, m, data) for n in RESNETS] for m in methods]
            lines = tuple(_from_paper("main", list(enumerate(its))) for its in grid)
            names = [net(spec, paper.recipe(spec)) for spec in grid[0]]
            chance = Evidence([], "paper").chance(Spec(data=data))
            panels.append(Panel(f"the paper: {mode}, {data}", lines, chance, _categories(names)))
    return _sweep(panels, 3)


def learning_rates(evidence: Evidence) -> Any:
    """Every rule over the learning rate, and the same from the paper."""
    points = {m: [(lr, Spec(method=m, lr=lr)) for lr in LEARNING_RATES] for m in BNNS}
    layout = _logarithmic(LEARNING_RATES, [f"{lr:g}" for lr in LEARNING_RATES], "learning rate")
    panels = []
    for told, scale, line in (
        ("", evidence.scale, lambda its: _line(evidence, its)),
        ("the paper: ", "paper", lambda its: _from_paper("lr", its)),
    ):
        recipe = recipe_of(Spec(), scale)
        title = f"{told}{net(Spec(), recipe)} on {recipe.data}"
        panels.append(Panel(title, tuple(map(line, points.values())), Evidence([], scale).chance(Spec()), layout))
    return _sweep(panels, 2)


def epochs(evidence: Evidence) -> Any:
    """Every rule over the length of training: test accuracy solid, training accuracy dashed."""
    grid = EXPERIMENTS["epochs"].specs(evidence.scale)
    panels = []
    for n in dict.fromkeys(spec.net for spec in grid):
        lines = []
        for method in dict.fromkeys(spec.method for spec in grid):
            its = [(recipe_of(s, evidence.scale).epochs, s) for s in grid if (s.net, s.method) == (n, method)]
            lines += [_line(evidence, its), _line(evidence, its, "train")]
        lengths = sorted({(recipe_of(s, evidence.scale).epochs, s.epochs) for s in grid})
        panels.append(Panel(evidence.name(Spec(n)), tuple(lines), evidence.chance(Spec(n)), _lengths(lengths)))
    return _sweep(panels, 2, "accuracy (%)", "Solid, filled: test; dashed, hollow: training; dotted: guessing.")


def refresh(evidence: Evidence) -> Any:
    """Every schedule over the refresh rate, in global and in layerwise order."""
    panels = []
    for order in ("global", "layerwise"):
        specs = {s: [Spec(order=order, schedule=s, refresh=r) for r in REFRESH_RATES] for s in SCHEDULE_LOOK}
        lines = tuple(replace(_line(evidence, list(zip(REFRESH_RATES, its))), name=s) for s, its in specs.items())
        rates = [recipe_of(s, evidence.scale).refresh for s in specs["cubic"]]
        panels.append(Panel(f"{evidence.name(Spec())}, {order}", lines, evidence.chance(Spec()), _rates(rates)))
    panels = [panel for panel in panels if panel.ours]
    if not panels:
        return None
    figure = look.new(HEIGHT + 0.9)
    shapes, *axes = figure.subplots(1, 1 + len(panels), width_ratios=(0.62, *[1] * len(panels)))
    _shapes(shapes)
    _panels(axes, panels, len(axes), "test accuracy (%)")
    look.legend(figure, [(name.replace("_", " "), *its) for name, its in SCHEDULE_LOOK.items()])
    look.note(figure, _told(panels, "Dotted: guessing."))
    return figure


def _sweep(
    panels: Iterable[Panel], columns: int, label: str = "test accuracy (%)", first: str = "Dotted: guessing."
) -> Any:
    """Draw the panels that have any line; None if none of them is of runs."""
    panels = [panel for panel in panels if any(line.series.x for line in panel.lines)]
    if not any(panel.ours for panel in panels):
        return None
    columns = min(columns, len(panels))
    figure, axes = look.grid(len(panels), columns, HEIGHT)
    _panels(axes, panels, columns, label)
    names = {line.name for panel in panels for line in panel.lines if line.series.x}
    look.legend(figure, [(n, c, look.MARKERS.get(n)) for n, c in look.COLOURS.items() if n in names])
    look.note(figure, _told(panels, first))
    return figure


def _panels(axes: Sequence[Any], panels: Sequence[Panel], columns: int, label: str) -> None:
    highest = 0.0
    for one, panel in zip(axes, panels):
        for line in panel.lines:
            if line.series.x:
                _draw(one, line, bool(line.runs))
                highest = max(highest, *line.series.high)
        look.guessing(one, panel.chance)
        look.panel_title(one, panel.title, (n for line in panel.lines for n in line.series.counts), panel.ours)
        panel.layout(one)
    look.accuracies(axes, columns, highest, label)


def _draw(axes: Any, line: Line, ours: bool) -> None:
    colour, marker = SCHEDULE_LOOK.get(line.name) or (look.COLOURS[line.name], look.MARKERS.get(line.name))
    hollow = {} if ours and not line.dashed else {"markerfacecolor": "white", "markeredgewidth": 1.1}
    style = look.DASHED if line.dashed else "-"
    label = f"{line.name}, training" if line.dashed else line.name
    look.bars(axes, line.series, colour)
    look.line(axes, line.series, colour, marker=marker, markersize=4.5, linestyle=style, label=label, **hollow)


def _line(evidence: Evidence, points: Sequence[tuple[float, Spec]], split: str = "test") -> Line:
    its = [(x, evidence.runs(spec)) for x, spec in points]
    name = look.name_of(recipe_of(points[0][1], evidence.scale))
    return Line(name, over(its, split), tuple(run for _, runs in its for run in runs), split == "train")


def _from_paper(experiment: str, points: Sequence[tuple[float, Spec]]) -> Line:
    numbers = paper_numbers()
    found = [(x, numbers.get((experiment, paper.recipe(spec).name, "test"))) for x, spec in points]
    known = [(x, number.accuracy) for x, number in found if number is not None]
    series = Series(tuple(x for x, _ in known), tuple((accuracy,) for _, accuracy in known))
    return Line(look.name_of(paper.recipe(points[0][1])), series)


def _categories(names: Sequence[str]) -> Callable[[Any], None]:
    def layout(axes: Any) -> None:
        axes.set_xlim(-0.35, len(names) - 0.65)
        axes.set_xticks(range(len(names)), names)

    return layout


def _logarithmic(at: Sequence[float], labels: Sequence[str], label: str) -> Callable[[Any], None]:
    def layout(axes: Any) -> None:
        axes.set_xscale("log")
        axes.set_xticks(at, labels)
        axes.set_xticks([], minor=True)
        axes.set_xlabel(label)

    return layout


def _rates(here: Sequence[int]) -> Callable[[Any], None]:
    """Lay out refresh rates: the paper's, and below what they become here, if that is something else."""
    same = tuple(here) == REFRESH_RATES
    labels = [f"{r:,}" if same else f"{r:,}\n({own:,})" for r, own in zip(REFRESH_RATES, here)]
    return _logarithmic(REFRESH_RATES, labels, "refresh rate r" if same else "the paper's refresh rate r (and r here)")


def _lengths(pairs: Sequence[tuple[int, int]]) -> Callable[[Any], None]:
    """Lay out numbers of epochs: ours, and below which of the paper's each stands for, if that is another one."""
    same = all(ours == theirs for ours, theirs in pairs)

    def layout(axes: Any) -> None:
        axes.set_xlim(0, None)
        axes.set_xticks([a for a, _ in pairs], [f"{a}" if same else f"{a}\n({b})" for a, b in pairs])
        axes.set_xlabel("epochs" if same else "epochs (and those of the paper they stand for)")

    return layout


def _shapes(axes: Any) -> None:
    u = [i / 60 for i in range(61)]
    for name, (colour, marker) in SCHEDULE_LOOK.items():
        axes.plot(u, [SCHEDULES[name](x) for x in u], color=colour, marker=marker, markevery=[30], markersize=4.5)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="share of the window", ylabel="frozen fraction p")
    axes.set_title("schedules")


def _told(panels: Sequence[Panel], first: str) -> list[str]:
    runs = [run for panel in panels for line in panel.lines for run in line.runs]
    theirs = "Hollow markers: numbers from the paper." if not all(panel.ours for panel in panels) else ""
    return ["Binary view after the last epoch.", first, *about(runs, "bars"), theirs, f"Data: {told_data(runs)}."]
