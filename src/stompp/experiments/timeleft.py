"""How the runs of a grid come along, and how long the rest will take: from measured speeds, or not at all."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stompp.recipes.schema import Recipe
from stompp.training.folder import RunFolder

TAIL = 1 << 16  # bytes of metrics.jsonl to look for the last line in, to begin with
# An epoch takes about as long in two recipes that agree in these. The rule is among them: what is frozen needs no
# backward pass, so that layerwise order takes less than half the time of global order.
KIND = (
    *("model", "width", "data", "limit_train", "batch_size", "precision", "optimizer", "eval_train", "evals_per_epoch"),
    *("weights", "activations", "frozen_grad", "order", "policy", "ovsw"),
)


@dataclass(frozen=True)
class Progress:
    """What the last line of metrics.jsonl says."""

    epoch: int  # finished so far
    current: float  # test accuracy of both views, in percent
    binary: float
    moving: list[str]
    seconds: float  # that the epoch took


def read_progress(file: Path) -> Progress | None:
    """Read the last whole line of a metrics.jsonl that may be written to; None if there is none to be read."""
    row = _last_row(file)
    try:
        test = row["test"]
        return Progress(
            int(row["epoch"]) + 1,
            float(test["current"]["accuracy"]),
            float(test["binary"]["accuracy"]),
            [str(name) for name in row["moving"]],
            float(row["seconds"]) + float(row["evaluation_seconds"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _last_row(file: Path) -> Any:
    try:
        with open(file, "rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            tail = TAIL
            while True:
                opened.seek(max(0, size - tail))
                lines = opened.read().split(b"\n")[:-1]  # what follows the last newline is not whole yet
                if len(lines) > 1 or tail >= size:
                    return json.loads(lines[-1]) if lines else None
                tail *= 4
    except (OSError, ValueError):
        return None


@dataclass
class Tracked:
    """A run as the grid sees it."""

    name: str
    recipe: Recipe
    folder: RunFolder
    state: str
    note: str = ""
    epochs: int = 0  # finished before the grid began
    progress: Progress | None = None
    started: float = 0.0  # on the monotonic clock
    looked: float = 0.0  # when the last epoch was seen to be finished
    ended: float = 0.0
    pace: float | None = None  # seconds an epoch took here, with its share of the start
    _log: int = 0  # when the log was last written to, before the start

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """What its speed depends on, of its recipe."""
        return tuple(getattr(self.recipe, name) for name in KIND)

    def start(self, queued: bool = False) -> None:
        """Note that it starts now, or as soon as there is a machine for it."""
        self.state, self.note = "queued" if queued else "running", ""
        self.started = self.looked = time.monotonic()
        self._log = self._log_changed()

    def look(self) -> None:
        """Read how far it is."""
        if self.state == "queued" and self._log_changed() != self._log:
            self.state = "running"
            self.started = self.looked = time.monotonic()
        found = read_progress(self.folder.metrics_file)
        if found is None or found == self.progress:
            return
        self.progress = found
        now = time.monotonic()
        here = found.epoch - self.epochs
        if here > 0 and self.started:
            self.looked = now
            self.pace = (now - self.started) / here

    def end(self, state: str, note: str) -> None:
        """Note how it ended."""
        self.look()
        self.state, self.note, self.ended = state, note, time.monotonic()

    def _log_changed(self) -> int:
        try:
            return self.folder.log_file.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def epoch(self) -> int:
        """Epochs finished so far."""
        return self.epochs if self.progress is None else self.progress.epoch


@dataclass(frozen=True)
class TimeLeft:
    """Seconds that a grid still takes, and how many of its runs are not in them since nobody knows their speed."""

    seconds: float
    unknown: int

    def __str__(self) -> str:
        if self.unknown and not self.seconds:
            return "time left: measuring"
        if self.unknown:
            runs = f"{self.unknown} run{'s' if self.unknown > 1 else ''}"
            return f"more than {duration(self.seconds)} left, the speed of {runs} not being known yet"
        return f"about {duration(self.seconds)} left"


def duration(seconds: float) -> str:
    """Say a time as people do.

    >>> duration(8.2), duration(754), duration(7260), duration(200_000)
    ('8 s', '13 min', '2 h 1 min', '55 h 33 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Speeds:
    """Seconds per epoch of every kind of run that was measured: in this grid, or before it on the same machine."""

    def __init__(self, runs: Iterable[Tracked]) -> None:
        self._runs = list(runs)
        self._earlier: dict[Path, float | None] = {}
        self._machines: dict[tuple[Path, float], tuple[Any, ...]] = {}

    def left(self, run: Tracked) -> float | None:
        """Return the seconds that a running or waiting run still takes; None if nobody knows."""
        pace = run.pace or self._pace(run)
        if pace is None:
            return None
        seconds = pace * (run.recipe.epochs - run.epoch)
        return max(0.0, seconds - (time.monotonic() - run.looked)) if run.state == "running" else seconds

    def total(self, slots: int | None) -> TimeLeft:
        """Return the time until all runs are finished, so many at once; with None as many as are running now."""
        running = [self.left(run) for run in self._runs if run.state == "running"]
        waiting = [self.left(run) for run in self._runs if run.state in ("queued", "waiting")]
        slots = max(1, len(running)) if slots is None else slots
        free = [seconds or 0.0 for seconds in running]
        free += [0.0] * min(len(waiting), slots - len(running))
        heapq.heapify(free)
        last = max(free, default=0.0)
        for seconds in waiting:
            if free and seconds is not None:
                end = heapq.heappop(free) + seconds
                heapq.heappush(free, end)
                last = max(last, end)
        return TimeLeft(last, sum(seconds is None for seconds in running + waiting))

    def _pace(self, wanted: Tracked) -> float | None:
        here = [run for run in self._runs if run.pace is not None]
        for same in ([run for run in here if run.recipe == wanted.recipe], [r for r in here if r.kind == wanted.kind]):
            if same:
                return sum(run.pace or 0.0 for run in same) / len(same)
        machines = {self._machine(run) for run in here}
        before = (run for run in self._runs if run.pace is None and run.epochs and run.kind == wanted.kind)
        found = [self._measured_before(run.folder.metrics_file) for run in before if self._machine(run) in machines]
        known = [pace for pace in found if pace is not None]
        return sum(known) / len(known) if known else None

    def _machine(self, run: Tracked) -> tuple[Any, ...]:
        """Return what a run was trained on: a folder may come from a faster machine than this one."""
        key = run.folder.path, run.started
        if key not in self._machines:
            found = run.folder.read_environment()
            self._machines[key] = tuple(found.get(name) for name in ("device", "cpu", "threads", "processes"))
        return self._machines[key]

    def _measured_before(self, file: Path) -> float | None:
        """Return the mean seconds of an epoch of a run that an earlier grid trained."""
        if file not in self._earlier:
            try:
                rows = [json.loads(line) for line in file.read_bytes().splitlines()]
                self._earlier[file] = sum(r["seconds"] + r["evaluation_seconds"] for r in rows) / len(rows)
            except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
                self._earlier[file] = None
        return self._earlier[file]
