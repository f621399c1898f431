"""Run folders as `stompp train` leaves them, made up in a moment; for the tests of the report."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from stompp import recipes
from stompp.recipes.schema import Recipe


def write_run(
    root: Path,
    recipe: Recipe | str = "resnet8-digits-bnn-stompp",
    seed: int = 0,
    *,
    sites: int = 13,
    upto: int | None = None,
    changes: dict[str, Any] | None = None,
    diverged: str | None = None,
    between: int = 0,
) -> Path:
    """Write a run with so many sites; `upto` stops it after that epoch, `diverged` says why. Return its folder.

    `between` is the number of evaluations within each epoch.
    """
    if isinstance(recipe, str):
        recipe = recipes.get(recipe)
    fields = recipe.to_dict() | (changes or {})
    folder = root / fields["name"].replace("/", "_") / f"seed{seed}"
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps({"recipe": fields, "seed": seed}))
    environment = {"stompp": "0.1.0", "torch": "2.13.0", "cpu": "A processor", "device": "cpu", "threads": 1}
    (folder / "env.json").write_text(json.dumps(environment))
    epochs = fields["epochs"]
    lines = [epoch_line(e, epochs, sites, fields, seed) for e in range(epochs if upto is None else upto)]
    for line in lines if between else ():
        line["between"] = evaluations_between(line, between)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if diverged is not None:
        (folder / "DIVERGED").write_text(json.dumps({"reason": diverged, "step": 1, "steps": 2}))
    elif upto is None:
        (folder / "DONE").write_text(json.dumps({"test": lines[-1]["test"]}))
    return folder


def epoch_line(epoch: int, epochs: int, sites: int, fields: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a line of metrics.jsonl like a real one."""
    dice = random.Random(f"{fields['name']} {seed} {epoch}")
    u = (epoch + 1) / epochs
    current = 20 + 60 * (1 - math.exp(-5 * u)) + 4 * dice.random() - 8 * (u * sites % 1)
    binary = current if fields["weights"] != "stompp" else 10 + (current - 10) * u**2
    scores = {v: {"loss": 1.0, "accuracy": a} for v, a in (("current", current), ("binary", binary))}
    names = [f"layer{i // 8}.{i // 2 % 4}.{'conv.weight' if i % 2 else 'relu'}" for i in range(sites)]
    weights = [name for name in names if name.endswith("weight")]
    frozen = {n: round(min(1.0, max(0.0, u * sites - i)), 4) for i, n in enumerate(names)}
    flow = {}
    for i, name in enumerate(weights):
        norm = 0.0 if fields["weights"] == "stompp" and u * sites > 2 * i + 2 else 10 ** (-1 - 3 * dice.random())
        flow[name.removesuffix(".weight")] = [norm, float(norm > 0), norm / 2, float(norm > 0)]
    return {
        "epoch": epoch,
        "step": 10 * (epoch + 1),
        "loss": 1.0,
        "accuracy": current,
        "test": scores,
        "train": {v: {"loss": 0.9, "accuracy": s["accuracy"] + 1} for v, s in scores.items()},
        "sites": frozen if "stompp" in (fields["weights"], fields["activations"]) else {},
        "moving": [n for n, f in frozen.items() if 0 < f < 1],
        "flips": {} if fields["weights"] == "float" else {n: round(0.1 * dice.random(), 4) for n in weights},
        "flow": flow,
        "images_per_second": 1000.0,
        "seconds": 2.0,
        "evaluation_seconds": 0.5,
        "time": {"data": 0.1, "masks": 0.1, "forward": 0.3, "backward": 0.4, "optimizer": 0.1},
    }


def evaluations_between(line: dict[str, Any], count: int) -> list[dict[str, float]]:
    """Return evaluations within an epoch, a little below the one at its end; an epoch has 1,000 steps then."""
    line["step"] = 1_000 * (line["epoch"] + 1)
    return [
        {
            "step": 1_000 * line["epoch"] + 1_000 * k // (count + 1),
            **{view: round(line["test"][view]["accuracy"] * (0.8 + 0.1 * k / count), 3) for view in line["test"]},
        }
        for k in range(1, count + 1)
    ]
