"""The paper's figures from run folders, by name, as SVG and PDF by matplotlib (in the extra `report`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evidence import Evidence
from . import curves, look, sweeps
from .look import NoMatplotlib as NoMatplotlib
from .story import story

ENDINGS = ("svg", "pdf")


@dataclass(frozen=True)
class Figure:
    """One figure; called with evidence and a folder it draws itself there."""

    name: str
    experiments: tuple[str, ...]  # those it belongs to
    caption: str
    draw: Callable[[Evidence], Any]  # to a matplotlib figure, or None where no run is there yet

    def __call__(self, evidence: Evidence, out: Path, endings: Iterable[str] = ENDINGS) -> list[Path]:
        """Write the figure of the runs that are there; return the files written, none without runs."""
        with look.style():
            figure = self.draw(evidence)
            if figure is None:
                return []
            look.settle(figure)
            return [look.save(figure, out / f"{self.name}.{ending}", self.caption) for ending in endings]


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "depth",
            ("main",),
            "Test accuracy of the binary view over depth, ours and the paper's",
            sweeps.depth,
        ),
        Figure(
            "orders",
            ("ordering",),
            "Test accuracy over training in layerwise, global and reverse order",
            curves.orders,
        ),
        Figure(
            "hybrids",
            ("hybrids", "dynamics"),
            "Test accuracy over training of the hybrids of StoMPP and STE",
            curves.hybrids,
        ),
        Figure(
            "refresh",
            ("refresh-global", "refresh-layerwise"),
            "Test accuracy of the binary view over the refresh rate, a line for each schedule",
            sweeps.refresh,
        ),
        Figure(
            "dynamics",
            ("dynamics",),
            "Test accuracy over training of StoMPP and of the STEs",
            curves.dynamics,
        ),
        Figure(
            "bwn",
            ("dynamics",),
            "Test accuracy over training with binary weights alone",
            curves.bwn,
        ),
        Figure(
            "lr",
            ("lr",),
            "Test accuracy of the binary view over the learning rate, ours and the paper's",
            sweeps.learning_rates,
        ),
        Figure(
            "epochs",
            ("epochs",),
            "Training and test accuracy of the binary view over the length of training",
            sweeps.epochs,
        ),
        Figure(
            "bireal",
            ("bireal",),
            "Test accuracy over training of Bi-Real nets",
            curves.bireal,
        ),
    )
}

README = Figure(
    "readme",
    (),
    "Test accuracy over training of a float, an STE and a StoMPP ResNet, and the wave of freezing sites",
    story,
)


def figures_of(names: Iterable[str]) -> list[Figure]:
    """Return the figures of some experiments, each once.

    >>> [figure.name for figure in figures_of(["refresh-global", "refresh-layerwise", "scaffold"])]
    ['refresh']
    """
    names = set(names)
    return [figure for figure in FIGURES.values() if names & set(figure.experiments)]
