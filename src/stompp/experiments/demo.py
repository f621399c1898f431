"""The demo: a float, an STE and a StoMPP net on the bundled digits, and what their numbers mean."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from stompp import recipes
from stompp.core.freeze import sites
from stompp.core.summary import summary
from stompp.training.build import build_model
from stompp.training.loop import train
from stompp.training.options import RunOptions

ACTS = (
    (
        "resnet20-digits-float-relu",
        "float",
        "An ordinary ResNet-20 on 1,437 images of handwritten digits: what the net can do with 32-bit numbers.",
    ),
    (
        "resnet20-digits-bnn-ste",
        "STE",
        "The same net with 1-bit weights and activations, trained as usual: sign() forward, and backward the\n"
        "straight-through estimator, which pretends that sign() has slope 1. The error of that pretence grows\n"
        "with every layer.",
    ),
    (
        "resnet20-digits-bnn-stompp",
        "StoMPP",
        "The same binary net, trained by progressive freezing: layer by layer, from input to output, entries turn\n"
        "from continuous to ±1. Open entries get their true gradient, frozen ones none, and nobody pretends.\n"
        "Watch two numbers: 'test' is the partly frozen net, 'binary' the net with everything forced to ±1.\n"
        "They meet when the last site is frozen.",
    ),
)


def demo(folder: Path) -> Path:
    """Train the three nets under `folder`, say what they show, and return the report's path."""
    from .report import write_report

    console = Console()
    began = time.monotonic()
    accuracies = {}
    for number, (name, short, text) in enumerate(ACTS, 1):
        console.print(Panel(text, title=f"{number} of {len(ACTS)}: {name}", title_align="left"))
        options = RunOptions(runs=folder / "runs", tensorboard=False)
        outcome = train(recipes.get(name), options, console)
        if outcome.stopped_by is not None:
            raise KeyboardInterrupt
        accuracies[short] = outcome.folder.read_metrics()[-1]["test"]["binary"]["accuracy"]
    report = write_report([folder / "runs"], folder / "report.html")
    _tell(console, accuracies, report, time.monotonic() - began)
    return report


def _tell(console: Console, accuracies: dict[str, float], report: Path, seconds: float) -> None:
    import torch

    from stompp.data.catalog import shape_of

    recipe = recipes.get(ACTS[-1][0])
    image_shape, num_classes = shape_of(recipe.data)
    model = build_model(recipe, image_shape, num_classes, seed=0)
    cost = summary(model, torch.zeros(1, *image_shape))
    table = Table("net", "weights and activations", "test accuracy", title="What you have seen")
    for short, accuracy in accuracies.items():
        table.add_row(short, "32 bit" if short == "float" else "1 bit", f"{accuracy:.1f} %")
    console.print(table)
    gain = accuracies["StoMPP"] - accuracies["STE"]
    console.print(
        f"StoMPP is {gain:+.1f} points from STE (one seed each, {len(sites(model))} sites; chance is "
        f"{100 / num_classes:.0f} %). The surrogate matters: clipped STE (resnet20-digits-bnn-ste-clip) is the stronger "
        "baseline, and one command away.",
        highlight=False,
    )
    binary = [row for row in cost.layers if row.bits == 1]
    console.print(
        f"{cost.binary_macs / (cost.macs + cost.binary_macs):.0%} of the binary nets' multiply-accumulates are 1-bit; "
        f"their {len(binary)} binary layers shrink from {sum(r.float_size for r in binary) / 1000:.0f} kB to "
        f"{sum(r.size for r in binary) / 1000:.0f} kB.",
        highlight=False,
    )
    console.print(f"Curves, freeze wave and gradient flow: {report}   ({seconds:.0f} s in all)", highlight=False)
