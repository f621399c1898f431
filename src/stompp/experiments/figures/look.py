"""How every figure looks: one colour for a rule wherever it appears, quiet axes, the same bytes from the same runs.

matplotlib is in the extra `report` and is imported only when something is drawn. The figures are drawn without pyplot,
so nothing here touches what else a program draws.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stompp.errors import UsageError
from stompp.recipes import Recipe
from stompp.training.folder import write_atomically

from ..results import mode, rule
from ..tables import told_n
from .series import Series

# Okabe and Ito's palette, with two of Paul Tol's: told apart by colour-blind readers too, and by lightness in print.
COLOURS = {
    "float (ReLU)": "#555555",
    "float (clip)": "#555555",
    "STE (identity)": "#D55E00",
    "STE (clip)": "#E69F00",
    "STE (ApproxSign)": "#CC79A7",
    "StoMPP": "#0072B2",
    "hybrid A/W": "#009E73",
    "hybrid W/A (identity)": "#882255",
    "hybrid W/A (clip)": "#332288",
    # orders of StoMPP: the usual one has its colour
    "layerwise": "#0072B2",
    "global": "#56B4E9",
    "reverse": "#1B1B3A",
}
MARKERS = {"StoMPP": "o", "STE (identity)": "s", "STE (clip)": "D", "STE (ApproxSign)": "^", "float (ReLU)": "v"}
DASHED = (0, (3.2, 1.6))
QUIET = "#666666"
WIDTH = 8.4  # inches
LINE = 150  # characters of a note that fit on a line

_STYLE = {
    "svg.hashsalt": "stompp",  # else ids are random
    "svg.fonttype": "path",  # the same letters everywhere, whatever fonts a reader has
    "pdf.fonttype": 42,
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.7,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
}


class NoMatplotlib(UsageError):
    """The extra that draws is not installed."""


def name_of(recipe: Recipe) -> str:
    """Name a recipe's rule by the key of its colour; mode and order are for a panel's title.

    >>> from stompp.recipes import get
    >>> name_of(get("resnet18-cifar100-bwn-stompp-global")), name_of(get("resnet18-cifar100-bwn-ste"))
    ('StoMPP', 'STE (identity)')
    """
    if mode(recipe) == "BWN":  # the weights' part of STE is the identity whatever the activations' surrogate
        return "StoMPP" if recipe.weights == "stompp" else "STE (identity)"
    return rule(replace(recipe, order="layerwise"))


@contextmanager
def style() -> Iterator[None]:
    """Draw and save inside: the project's style alone, whatever the user's matplotlibrc says."""
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib("figures need matplotlib: pip install 'stompp[report]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new(height: float) -> Any:
    """Return an empty figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def grid(count: int, columns: int, height: float) -> tuple[Any, list[Any]]:
    """Return a figure with so many axes, row by row, of so many inches each; the room for legend and note is added."""
    rows = math.ceil(count / columns)
    figure = new(rows * height + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def settle(figure: Any) -> None:
    """Lay the figure out, once for all the formats it is saved in.

    The solver's last bits are not always the same, and ids in an SVG are hashes of places; so places are rounded.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(edge, 5) for edge in axes.get_position().bounds])


def save(figure: Any, path: Path, title: str) -> Path:
    """Write a figure; the ending of the path decides the format. No date goes in: the same runs give the same bytes."""
    date = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
    metadata = {"Title": title} | ({date: None} if date else {})
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix[1:], metadata=metadata)
    content = file.getvalue()
    if path.suffix == ".svg":  # a hundredth of a point is fine enough, for half the size
        content = re.sub(rb' d="([^"]*)"', lambda match: b' d="%b"' % _shorter(match[1]), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def _shorter(path: bytes) -> bytes:
    """Return the same path of an SVG in fewer bytes.

    >>> _shorter(b"M 1.234567 2 \\nL -3.5 4.999999 \\nz\\n")
    b'M1.23 2L-3.5 4.99z'
    """
    return re.sub(rb"\s*([A-Za-z])\s*", rb"\1", re.sub(rb"(\.\d\d)\d+", rb"\1", path))


def line(axes: Any, series: Series, colour: str, **look: Any) -> None:
    """Draw the mean over runs, and a cross where one of them broke down."""
    axes.plot(series.x, series.mean, color=colour, **look)
    for x, y in series.broken:
        axes.plot([x], [y], "x", color=colour, markersize=8, markeredgewidth=1.6, clip_on=False, zorder=5)


def band(axes: Any, series: Series, colour: str) -> None:
    """Draw the span from the lowest run to the highest of a curve."""
    if max(series.counts, default=0) > 1:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.16, linewidth=0, zorder=1)


def bars(axes: Any, series: Series, colour: str) -> None:
    """Draw the span from the lowest run to the highest at the points that have several."""
    several = [(x, min(v), max(v)) for x, v in zip(series.x, series.values) if len(v) > 1]
    if several:
        axes.vlines(*zip(*several), color=colour, linewidth=1.2, alpha=0.7)


def guessing(axes: Any, chance: float) -> None:
    """Draw the accuracy of guessing."""
    axes.axhline(chance, color="#888888", linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)


def rug(axes: Any, at: Sequence[float], height: float, colour: str) -> None:
    """Mark places of the x axis by ticks at a height, which is a share of the panel's."""
    place = axes.get_xaxis_transform()
    axes.plot(at, [height] * len(at), "|", color=colour, markersize=4, markeredgewidth=0.7, transform=place)


def legend(figure: Any, entries: Iterable[tuple[str, str, str | None]]) -> None:
    """Put the key over the figure: names with their colours and markers."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=2, marker=marker, markersize=4.5, label=name)
        for name, colour, marker in entries
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(6, len(handles)), columnspacing=1.6)


def note(figure: Any, sentences: Iterable[str]) -> None:
    """Put a note under the figure: what the lines are, how many runs, of what."""
    text = textwrap.fill(" ".join(s for s in sentences if s), LINE)
    figure.supxlabel(text, x=0.008, ha="left", fontsize=7.2, color=QUIET, linespacing=1.35)


def panel_title(axes: Any, title: str, counts: Iterable[int], ours: bool = True) -> None:
    """Put a title over one panel, and its number of runs."""
    axes.set_title(title, loc="left")
    if ours:
        axes.set_title(told_n(counts), loc="right", fontsize=7.5, fontweight="normal", color=QUIET)


def accuracies(axes: Sequence[Any], columns: int, highest: float, label: str = "test accuracy (%)") -> None:
    """Give panels the same axis of accuracy, which starts at zero, and label it once a row."""
    top = min(100.0, 10 * math.ceil((highest + 3) / 10))
    for i, one in enumerate(axes):
        one.set_ylim(0, top)
        one.yaxis.set_major_locator(_every(20 if top > 70 else 10))
        if i % columns:
            one.tick_params(labelleft=False)
        else:
            one.set_ylabel(label)


def _every(step: float) -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(step)
