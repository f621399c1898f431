"""The README's figure: one net's learning curves under each rule, beside the wave in which StoMPP freezes its sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stompp.recipes.grids import STES, Spec

from ..evidence import Evidence
from ..results import net_title
from ..runs import Run
from . import look
from .curves import Panel, draw, found, told

NET = Spec("resnet34", data="cifar10")  # deep enough for STE to struggle


def story(evidence: Evidence) -> Any:
    """Draw the curves and the wave; None without a run of StoMPP that went to its end."""
    stompp = [run for run in evidence.runs(NET) if run.done and run.epochs[-1].sites]
    if not stompp:
        return None
    panel = Panel(net_title(stompp[0].recipe), tuple(replace(NET, method=m) for m in ("float-relu", *STES, NET.method)))
    runs = found(evidence, panel)
    figure = look.new(3.5)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    look.accuracies([left], 1, draw(left, panel, runs, evidence))
    left.set_xlabel("epoch")
    _wave(figure, right, stompp[0])
    look.legend(figure, [(n, c, None) for n, c in look.COLOURS.items() if n in runs])
    wave = f"Right: frozen fraction at the end of each epoch, seed {stompp[0].seed}."
    look.note(figure, [*told([run for its in runs.values() for run in its]), wave])
    return figure


def _wave(figure: Any, axes: Any, run: Run) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    names = list(run.epochs[-1].sites)
    fractions = [[epoch.sites.get(name, 0.0) for epoch in run.epochs] for name in names]
    shades = LinearSegmentedColormap.from_list("frozen", ["#EDF2F6", look.COLOURS["StoMPP"]])
    # cells of a mesh are drawn with lines of their own colour, or else the background shines through between them
    mesh = {"cmap": shades, "vmin": 0, "vmax": 1, "edgecolors": "face", "linewidth": 0.2}
    edges = [epoch.number - 1 for epoch in run.epochs] + [run.epochs[-1].number]
    image = axes.pcolormesh(edges, range(len(names) + 1), fractions, **mesh)
    axes.grid(False)
    axes.set(xlabel="epoch", ylabel="site, from input to output")
    axes.set_title("how StoMPP freezes it")
    bar = figure.colorbar(image, ax=axes, pad=0.02, ticks=[0, 0.5, 1], label="frozen fraction")
    bar.outline.set_visible(False)
