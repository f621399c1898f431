"""Runs as they lie on the disk, read without trusting them: finished or not, whole or damaged.

`find_runs` never stops at a bad file. Whatever it leaves out it says in a note, so that whoever shows the runs can show
what is missing too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stompp.data.catalog import shape_of
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe
from stompp.training.folder import RunFolder

SPLITS = ("test", "train")
VIEWS = ("current", "binary")


@dataclass(frozen=True)
class Epoch:
    """One line of metrics.jsonl."""

    number: int  # 1 after the first pass over the training set
    accuracy: dict[tuple[str, str], float]  # by (split, view), in percent
    sites: dict[str, float]  # frozen fraction, in the order of the forward pass
    flips: dict[str, float]  # share of the signs of a weight that changed in this epoch
    flow: dict[str, list[float]]  # per layer: signal norm, signal share, weight norm, weight share
    seconds: float
    evaluation_seconds: float
    images_per_second: float
    time: dict[str, float]  # shares of a step, by part
    step: int = 0  # training steps so far
    between: tuple[tuple[int, float, float], ...] = ()  # within the epoch: (step, current, binary) test accuracy


@dataclass(frozen=True)
class Run:
    """One run: what was asked for, what it ran on, and what it has brought so far."""

    path: Path
    recipe: Recipe
    seed: int
    done: bool  # it went to its end
    environment: dict[str, Any]
    epochs: list[Epoch]
    notes: list[str] = field(default_factory=list)
    diverged: str | None = None  # how it broke down, if it did

    @property
    def ended(self) -> bool:
        """True if there is a result to count: that of the last epoch, or that training broke down."""
        return self.done or self.diverged is not None

    @property
    def seconds(self) -> float:
        """Time spent in training and evaluation."""
        return sum(e.seconds + e.evaluation_seconds for e in self.epochs)

    def final(self, split: str = "test", view: str = "binary") -> float | None:
        """Return the accuracy after the last epoch so far; that of guessing, if training broke down."""
        if self.diverged is not None:
            return 100.0 / shape_of(self.recipe.data)[1]
        return self.epochs[-1].accuracy[split, view] if self.epochs else None


@dataclass(frozen=True)
class Found:
    """The runs in some folders, and what was wrong with other things there."""

    runs: list[Run]
    notes: list[str]


def find_runs(folders: Iterable[Path]) -> Found:
    """Read every run in the folders, at any depth, each once, sorted by recipe and seed."""
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    folders = list(folders)
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}; give folders that `stompp train` wrote")
        inside = sorted(Path(at) for at, _, files in os.walk(folder) if "recipe.json" in files)
        if not inside:
            notes.append(f"{folder} holds no runs.")
        for path in inside:
            if path.resolve() not in runs:
                try:
                    runs[path.resolve()] = read_run(path)
                except UsageError as error:
                    notes.append(f"{path} was left out: {error}.")
    if not runs:
        told = " ".join(notes) if notes else "No folders were given."
        raise UsageError(f"no runs found. {told} A run is a folder that `stompp train` wrote, with a recipe.json in it")
    best_first = sorted(runs.values(), key=lambda r: (r.recipe.name, r.seed, not r.done, not r.ended, -len(r.epochs)))
    kept = _each_once(best_first, notes)
    notes.extend(f"{run.recipe.name}, seed {run.seed}: {note}" for run in kept for note in run.notes)
    return Found(kept, notes)


def read_run(path: Path) -> Run:
    """Read one run folder. Only an unreadable recipe is an error; the rest is read as far as it goes."""
    folder = RunFolder.existing(path)
    try:
        recipe, seed = folder.read_recipe()
        hash(recipe)
    except TypeError as error:
        raise UsageError(f"{folder.recipe_file} is not a recipe written by stompp ({error})") from None
    except OSError as error:
        raise UsageError(f"{folder.recipe_file} cannot be read ({error.strerror})") from None
    if not isinstance(recipe.name, str) or not recipe.name:
        raise UsageError(f"{folder.recipe_file} has no name for its recipe")
    notes: list[str] = []
    epochs = _read_epochs(folder.metrics_file, notes)
    if folder.done and (not epochs or epochs[-1].number != recipe.epochs):
        last = epochs[-1].number if epochs else 0
        notes.append(f"it is marked as finished, yet its metrics end at epoch {last} of {recipe.epochs}.")
        return Run(path, recipe, seed, False, _read_environment(folder.env_file, notes), epochs, notes)
    environment = _read_environment(folder.env_file, notes)
    return Run(path, recipe, seed, folder.done, environment, epochs, notes, folder.divergence())


def _each_once(runs: list[Run], notes: list[str]) -> list[Run]:
    """Leave out copies: a recipe's run with the same seed is no second sample."""
    kept: dict[tuple[str, int], Run] = {}
    for run in runs:
        key = (json.dumps(run.recipe.to_dict(), sort_keys=True), run.seed)
        if key in kept:
            notes.append(f"{run.path} was left out: the same recipe and seed are in {kept[key].path}.")
        else:
            kept[key] = run
    return list(kept.values())


def _read_environment(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(errors="replace"))
        if isinstance(content, dict):
            return content
        notes.append("env.json is damaged; what it ran on is not known.")
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        notes.append("env.json is damaged; what it ran on is not known.")
    return {}


def _read_epochs(path: Path, notes: list[str]) -> list[Epoch]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"metrics.jsonl cannot be read ({error.strerror}).")
        return []
    found: dict[int, Epoch] = {}
    skipped = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            epoch = _epoch(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            skipped.append(number)
        else:
            found[epoch.number] = epoch
    if skipped:
        which = ", ".join(map(str, skipped[:8])) + (", …" if len(skipped) > 8 else "")
        lines_word = "line" if len(skipped) == 1 else "lines"
        notes.append(f"{len(skipped)} damaged {lines_word} of metrics.jsonl skipped ({lines_word} {which}).")
    return [found[n] for n in sorted(found)]


def _epoch(row: dict[str, Any]) -> Epoch:
    number = row["epoch"]
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"epoch is {number!r}")
    return Epoch(
        number=number + 1,
        accuracy={(s, v): _percent(row[s][v]["accuracy"]) for s in SPLITS for v in VIEWS},
        sites=_numbers(row.get("sites", {})),
        flips=_numbers(row.get("flips", {})),
        flow={str(k): [_number(v) for v in four] for k, four in row.get("flow", {}).items() if len(four) == 4},
        seconds=_positive(row.get("seconds")),
        evaluation_seconds=_positive(row.get("evaluation_seconds")),
        images_per_second=_positive(row.get("images_per_second")),
        time=_numbers(row.get("time", {})),
        step=row["step"] if isinstance(row.get("step"), int) else 0,
        between=tuple(
            (int(point["step"]), _percent(point["current"]), _percent(point["binary"]))
            for point in row.get("between", [])
        ),
    )


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {str(name): _number(value) for name, value in values.items()}


def _number(value: Any) -> float:
    """Return the number; what is none is not-a-number, and shown as missing."""
    return float(value) if isinstance(value, int | float) else math.nan


def _positive(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) and number > 0 else 0.0


def _percent(value: Any) -> float:
    number = _number(value)
    if not 0 <= number <= 100:
        raise ValueError(f"{value!r} is no accuracy in percent")
    return number
