"""Figures for documents, as SVG by matplotlib (in the extra `report`): curves in both views, and the freeze wave."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stompp.errors import UsageError

from .results import net_title, rule
from .runs import Run, find_runs

# Okabe and Ito's palette: told apart by colour-blind readers too, and by lightness in print
COLOURS = {
    "float (ReLU)": "#555555",
    "STE (identity)": "#D55E00",
    "STE (clip)": "#E69F00",
    "STE (ApproxSign)": "#CC79A7",
    "StoMPP": "#0072B2",
}


def story(results: Path, out: Path, *, model: str = "cifar_resnet20", data: str = "cifar10-16", seed: int = 0) -> Path:
    """Draw one net's learning curves under each rule beside the wave in which StoMPP freezes its sites."""
    plt = _pyplot()
    runs = [
        run
        for run in find_runs([results]).runs
        if run.recipe.model == model and run.recipe.data == data and run.seed == seed and rule(run.recipe) in COLOURS
    ]
    stompp = [run for run in runs if rule(run.recipe) == "StoMPP" and run.done]
    if not stompp:
        raise UsageError(f"{results} holds no finished StoMPP run of {model} on {data} with seed {seed}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.7), width_ratios=(3, 2), layout="constrained")
    _curves(left, runs)
    _wave(figure, right, stompp[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    # no date and no random ids: the same runs give the same bytes
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)
    return out


def _curves(axes: Any, runs: Iterable[Run]) -> None:
    recipe = None
    for name, colour in COLOURS.items():
        for run in runs:
            if rule(run.recipe) != name:
                continue
            recipe = run.recipe
            epochs = [e.number for e in run.epochs]
            views = {view: [e.accuracy["test", view] for e in run.epochs] for view in ("current", "binary")}
            axes.plot(epochs, views["current"], color=colour, lw=1.8, label=name)
            if views["current"] != views["binary"]:
                axes.plot(epochs, views["binary"], color=colour, lw=1.4, ls=(0, (4, 2)), label=f"{name}, all ±1")
    assert recipe is not None
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, None), xlim=(1, recipe.epochs))
    axes.set_title(f"{net_title(recipe)}, one seed", fontsize=10, loc="left")
    axes.axhline(10, color="#999999", lw=0.8, ls=":")
    axes.annotate("chance", (recipe.epochs, 10), xytext=(-2, 3), textcoords="offset points", ha="right", fontsize=8)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0, 0.92))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0, 88)


def _wave(figure: Any, axes: Any, run: Run) -> None:
    names = list(run.epochs[0].sites)
    wave = [[epoch.sites[name] for epoch in run.epochs] for name in names]
    image = axes.imshow(
        wave,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0.5, len(run.epochs) + 0.5, len(names), 0),
    )
    axes.set(xlabel="epoch", ylabel="site, from input to output")
    axes.set_title("StoMPP: frozen fraction of each site", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UsageError("figures need matplotlib: pip install 'stompp[report]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "stompp", "font.size": 9})
    import matplotlib.pyplot as plt

    return plt
