"""What the page's figures draw, as compact JSON: curves as numbers, per-site and per-layer histories as packed bytes.

A history is a matrix (names × epochs) of one byte per cell: 0 is exactly zero, 254 the top of the scale (exactly 1 for
a share), 255 missing. Norms are spread over their logarithms. The matrices of a run are joined, deflated and written in
base64; the browser inflates those of the run it shows.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable
from typing import Any

from stompp.data.catalog import shape_of
from stompp.recipes.schema import Recipe

from .catalog import EXPERIMENTS, SCALES
from .results import Group
from .runs import VIEWS, Run

MISSING, TOP = 255, 254
MOST_COLUMNS = 400  # epochs that a heat map shows; beyond, every so-manieth
MOST_BETWEEN = 1_600  # evaluations within epochs that a curve shows
FLOW = {"signal_norm": 0, "signal_share": 1, "weight_norm": 2, "weight_share": 3}
SLOTS = 8  # colours; each has its own marker too
_MOST_DIFFERENT = (4, 7, 5, 2, 3, 1, 6, 0)  # the last but one is next to StoMPP's


def payload(groups: list[Group]) -> dict[str, Any]:
    """Return all that the figures draw, as plain data. Lists that many runs share stand in `lists`, once."""
    colours, shared = slots(groups), _Shared()
    nets, drawn = [], _drawn_together()
    for group in groups:
        series = [
            {
                "recipe": row.recipe.name,
                "label": row.label,
                "slot": colours[row.label],
                "epochs": row.recipe.epochs,
                "in": [name for name, recipes in drawn.items() if row.recipe in recipes],
                "lost": [run.seed for run in row.runs if run.diverged is not None and not run.epochs],
                "runs": [_run(run, shared) for run in row.runs if run.epochs],
            }
            for row in group.rows
        ]
        nets.append({"title": group.title, "chance": 100 / shape_of(group.rows[0].recipe.data)[1], "series": series})
    sources = {name: experiment.source for name, experiment in EXPERIMENTS.items()}
    return {"nets": nets, "experiments": sources, "lists": shared.lists}


class _Shared:
    """Lists, each kept once and told by its place."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, values: list[Any]) -> int:
        key = tuple(values)
        if key not in self._places:
            self._places[key] = len(self.lists)
            self.lists.append(values)
        return self._places[key]


def _drawn_together() -> dict[str, frozenset[Recipe]]:
    """Return the recipes of each of the paper's experiments, at either scale."""
    return {
        name: frozenset(recipe for scale in SCALES for recipe in experiment.recipes(scale).values())
        for name, experiment in EXPERIMENTS.items()
    }


def slots(groups: Iterable[Group]) -> dict[str, int]:
    """Give each label a colour, the same in all nets; rules that everyone compares always have theirs."""
    own = {
        "StoMPP": 0,
        "STE (identity)": 1,
        "STE (clip)": 2,
        "STE (ApproxSign)": 5,
        "float (ReLU)": 3,
        "float (clip)": 3,
    }
    found: dict[str, int] = {}
    labels = list(dict.fromkeys(row.label for group in groups for row in group.rows))
    for label in labels:
        if label in own:
            found[label] = own[label]
    free = [s for s in _MOST_DIFFERENT if s not in found.values()] or list(range(SLOTS))
    others = [label for label in labels if label not in found]
    return found | {label: free[i % len(free)] for i, label in enumerate(others)}


def to_script(content: Any) -> str:
    """Return JSON that cannot end the script element it is put in.

    >>> to_script("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _run(run: Run, shared: _Shared) -> dict[str, Any]:
    times, test = _over_time(run)
    train = {view: [round(e.accuracy["train", view], 3) for e in run.epochs] for view in VIEWS}
    found = {
        "seed": run.seed,
        "state": "broken" if run.diverged is not None else "done" if run.done else "open",
        "epoch": shared.place([e.number for e in run.epochs]),
        "at": shared.place(times),  # of the test accuracies, in epochs
        "accuracy": {"test": _views(test), "train": _views(train)},
        "history": _history(run, shared),
    }
    return found | ({} if run.diverged is None else {"why": run.diverged.split(";")[0]})


def _views(accuracy: dict[str, list[float]]) -> dict[str, list[float]]:
    """Leave the binary view out where it is the current one, as in a net without StoMPP sites."""
    same = accuracy["current"] == accuracy["binary"]
    return {"current": accuracy["current"]} if same else accuracy


def _over_time(run: Run) -> tuple[list[float], dict[str, list[float]]]:
    """Return when the test accuracy was measured, in epochs, and what it was in either view.

    Evaluations within epochs are left out, evenly, where they are more than can be seen; those at the ends never are.
    """
    points: list[tuple[float, float, float]] = []
    every = math.ceil(sum(len(e.between) for e in run.epochs) / MOST_BETWEEN)
    count = 0
    for epoch in run.epochs:
        per_epoch = epoch.step / epoch.number
        before = epoch.number - 1.0
        for step, current, binary in epoch.between:
            at = step / per_epoch if per_epoch > 0 else 0.0
            if before < at < epoch.number:  # else the file is damaged
                before = at
                count += 1
                if count % every == 0:
                    points.append((round(at, 4), current, binary))
        accuracy = (epoch.accuracy["test", view] for view in VIEWS)
        points.append((epoch.number, *accuracy))
    return [p[0] for p in points], {view: [round(p[1 + i], 3) for p in points] for i, view in enumerate(VIEWS)}


def _history(run: Run, shared: _Shared) -> dict[str, Any]:
    """Return the run's matrices: `parts` tells what each is, `bytes` holds them one after the other."""
    every = math.ceil(len(run.epochs) / MOST_COLUMNS)
    epochs = run.epochs[::-1][::every][::-1]  # the last one is always shown
    parts: list[dict[str, Any]] = []
    cells = bytearray()

    def add(name: str, rows: dict[str, list[float]], scale: str) -> None:
        if rows:
            packed, part = _pack(rows, scale)
            cells.extend(packed)
            parts.append({"name": name, "rows": shared.place(list(rows)), **part})

    add("frozen", _columns([e.sites for e in epochs]), "share")
    add("flips", _columns([e.flips for e in epochs]), "linear")
    for name, place in FLOW.items():
        rows = _columns([{layer: four[place] for layer, four in e.flow.items()} for e in epochs])
        add(name, rows, "log" if name.endswith("norm") else "share")
    return {
        "epoch": shared.place([e.number for e in epochs]),
        "every": every,
        "parts": parts,
        "bytes": base64.b64encode(zlib.compress(bytes(cells), 9)).decode(),
    }


def _columns(lines: list[dict[str, float]]) -> dict[str, list[float]]:
    """Turn one dictionary per epoch into one list per name, in the order in which names first appear."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name, math.nan) for line in lines] for name in names}


def _pack(rows: dict[str, list[float]], scale: str) -> tuple[bytes, dict[str, Any]]:
    """Return the cells as bytes, and the scale that turns them back: `low` and `high` of bytes 1 and 254."""
    values = [v for row in rows.values() for v in row if math.isfinite(v) and v > 0]
    if scale == "share":
        low, high = 0.0, 1.0
    elif scale == "linear":
        low, high = 0.0, max(values, default=1.0)
    else:
        low, high = math.log10(min(values, default=1e-3)), math.log10(max(values, default=1.0))
        high = max(high, low + 0.1)
    cells = bytes(_byte(v, low, high, scale) for row in rows.values() for v in row)
    return cells, {"scale": scale, "low": round(low, 6), "high": round(high, 6)}


def _byte(value: float, low: float, high: float, scale: str) -> int:
    if not math.isfinite(value) or value < 0:
        return MISSING
    if value == 0:
        return 0
    if scale == "log":
        return 1 + round((TOP - 1) * (math.log10(value) - low) / (high - low))
    share = min(value / high, 1.0)
    return TOP if share == 1.0 else min(max(round(TOP * share), 1), TOP - 1)
