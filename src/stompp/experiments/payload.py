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

from .results import Group, mode
from .runs import SPLITS, VIEWS, Run

MISSING, TOP = 255, 254
MOST_COLUMNS = 400  # epochs that a heat map shows; beyond, every so-manieth
FLOW = {"signal_norm": 0, "signal_share": 1, "weight_norm": 2, "weight_share": 3}
SLOTS = 8  # colours; each has its own marker too


def payload(groups: list[Group]) -> dict[str, Any]:
    """Return all that the figures draw, as plain data."""
    colours = slots(groups)
    nets = []
    for group in groups:
        series = [
            {
                "recipe": row.recipe.name,
                "label": row.label,
                "slot": colours[row.label],
                "epochs": row.recipe.epochs,
                "mode": mode(row.recipe),
                "stompp": "stompp" in (row.recipe.weights, row.recipe.activations),
                "runs": [_run(run) for run in row.runs if run.epochs],
            }
            for row in group.rows
        ]
        nets.append({"title": group.title, "chance": 100 / shape_of(group.rows[0].recipe.data)[1], "series": series})
    return {"nets": nets}


def slots(groups: Iterable[Group]) -> dict[str, int]:
    """Give each label a colour, the same in all nets; rules that everyone compares always have theirs."""
    own = {"StoMPP": 0, "STE (identity)": 1, "STE (clip)": 2, "float (ReLU)": 3, "float (clip)": 3}
    found: dict[str, int] = {}
    labels = list(dict.fromkeys(row.label for group in groups for row in group.rows))
    for label in labels:
        if label in own:
            found[label] = own[label]
    free = [s for s in range(SLOTS) if s not in found.values()] or list(range(SLOTS))
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


def _run(run: Run) -> dict[str, Any]:
    accuracy = {
        split: {view: [round(e.accuracy[split, view], 3) for e in run.epochs] for view in VIEWS} for split in SPLITS
    }
    return {
        "seed": run.seed,
        "done": run.ended,
        "epoch": [e.number for e in run.epochs],
        "accuracy": accuracy,
        "history": _history(run),
    }


def _history(run: Run) -> dict[str, Any]:
    """Return the run's matrices: `parts` tells what each is, `bytes` holds them one after the other."""
    every = math.ceil(len(run.epochs) / MOST_COLUMNS)
    epochs = run.epochs[::-1][::every][::-1]  # the last one is always shown
    parts: list[dict[str, Any]] = []
    cells = bytearray()

    def add(name: str, rows: dict[str, list[float]], scale: str) -> None:
        if rows:
            packed, part = _pack(rows, scale)
            cells.extend(packed)
            parts.append({"name": name, "rows": list(rows), **part})

    add("frozen", _columns([e.sites for e in epochs]), "share")
    add("flips", _columns([e.flips for e in epochs]), "linear")
    for name, place in FLOW.items():
        rows = _columns([{layer: four[place] for layer, four in e.flow.items()} for e in epochs])
        add(name, rows, "log" if name.endswith("norm") else "share")
    return {
        "epoch": [e.number for e in epochs],
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
