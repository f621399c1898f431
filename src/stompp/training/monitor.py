"""What a run tells: a line in metrics.jsonl per epoch, TensorBoard scalars, and a person at a terminal.

Everything that reads a value off the device happens here, every so many steps, and nowhere else in the loop.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stompp.core.freezer import Freezer
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe


class TimeSplit:
    """Shares of a step's time by part. On an accelerator only some steps are timed, since timing has to wait for it."""

    def __init__(self, device: torch.device, every: int) -> None:
        self._device, self._every = device, every
        self._seconds: dict[str, float] = {}
        self._active = True
        self._last = 0.0

    def begin(self, t: int) -> None:
        """Start timing the step t."""
        self._active = self._device.type == "cpu" or t % self._every == 0
        self._last = self._now() if self._active else 0.0

    def lap(self, part: str) -> None:
        """Count the time since the last lap as `part`'s."""
        if self._active:
            now = self._now()
            self._seconds[part] = self._seconds.get(part, 0.0) + now - self._last
            self._last = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no laps inside."""
        active, self._active = self._active, False
        yield
        self._active = active

    def shares(self) -> dict[str, float]:
        """Return each part's share since the last call."""
        total = sum(self._seconds.values()) or 1.0
        found = {part: round(seconds / total, 4) for part, seconds in self._seconds.items()}
        self._seconds.clear()
        return found

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Metrics:
    """metrics.jsonl: appended to line by line, each line on disk before the checkpoint that counts on it."""

    def __init__(self, path: Path, length: int) -> None:
        """Open the file and cut off what came after the checkpoint that we go on from."""
        self.path = path
        with _writing(path), open(path, "ab") as file:
            if file.tell() < length:
                raise UsageError(
                    f"{path} has lost lines: it has {file.tell()} bytes, and {length} when the checkpoint was written. "
                    "Bring it back, or move the run folder away to start anew"
                )
            file.truncate(length)

    @property
    def length(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size

    def append(self, row: dict[str, Any]) -> None:
        """Add a line."""
        with _writing(self.path), open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror}); the last checkpoint is unharmed: make room, then run the same "
            "command again to go on from it"
        ) from None


class Screen:
    """Progress for a person: a live bar at a terminal, one plain line per epoch elsewhere."""

    def __init__(self, recipe: Recipe, steps: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self._recipe, self._steps = recipe, steps
        self._progress: Progress | None = None
        self._task: Any = None

    @contextmanager
    def live(self, done: int) -> Iterator[None]:
        """Show the bar while inside."""
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("[bold]{task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as self._progress:
            self._task = self._progress.add_task("", total=self._steps, completed=done, epoch="", told="")
            yield
        self._progress = None

    def step(self, t: int, epoch: int, loss: float, freezer: Freezer, rate: float) -> None:
        """Update the bar."""
        if self._progress is not None:
            told = f"loss {loss:6.3f}  {describe_moving(freezer)}  {rate:,.0f} images/s"
            self._progress.update(self._task, completed=t + 1, epoch=f"{epoch + 1}/{self._recipe.epochs}", told=told)

    def epoch(self, row: dict[str, Any], freezer: Freezer) -> None:
        """Say what an epoch brought."""
        test = row["test"]
        views = f"test {test['current']['accuracy']:5.1f} %"
        if freezer.sites:
            views += f", binary {test['binary']['accuracy']:5.1f} %"
        frozen = sum(f == 1.0 for f in row["sites"].values())
        progress = f"  frozen {frozen}/{len(freezer.sites)}" if freezer.sites else ""
        self.say(
            f"epoch {row['epoch'] + 1:3d}/{self._recipe.epochs}  loss {row['loss']:6.3f}  "
            f"train {row['accuracy']:5.1f} %  {views}{progress}  {row['images_per_second']:,.0f} images/s"
        )
        if self._progress is not None:
            told = f"loss {row['loss']:6.3f}  {describe_moving(freezer)}  {row['images_per_second']:,.0f} images/s"
            self._progress.update(self._task, completed=row["step"], told=told)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def describe_moving(freezer: Freezer, t: int | None = None) -> str:
    """Say which site is moving and how far it is: now, or at a step before."""
    if not freezer.sites:
        return "no sites"
    if t is not None:
        names = [site.name for site, (start, end) in zip(freezer.sites, freezer.windows) if start <= t < end]
        return f"{_names(names)} moving" if names else "all frozen"
    if freezer.moving:
        return f"{_names([site.name for site, _ in freezer.moving])} p={freezer.moving[0][1]:.2f}"
    frozen = sum(site.phase == "frozen" for site in freezer.sites)  # a site whose window is one step never moves
    return "all frozen" if frozen == len(freezer.sites) else f"{frozen} of {len(freezer.sites)} sites frozen"


def _names(sites: list[str]) -> str:
    return sites[0] if len(sites) == 1 else f"{len(sites)} sites"


class TensorBoard:
    """The same numbers as scalars for TensorBoard, or nothing."""

    def __init__(self, folder: Path, epoch: int, enabled: bool) -> None:
        self._writer: Any = None
        self._folder = folder / "tensorboard"
        if enabled:
            from torch.utils.tensorboard import SummaryWriter

            with _writing(self._folder):
                self._writer = SummaryWriter(str(self._folder), purge_step=epoch)
            # It writes in a thread, whose OSError comes up again in flush; the thread need not print it as well.
            self._hook = threading.excepthook
            threading.excepthook = self._quiet

    def epoch(self, row: dict[str, Any]) -> None:
        """Write one epoch's scalars."""
        if self._writer is not None:
            with _writing(self._folder):
                self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        epoch = row["epoch"]
        self._writer.add_scalar("train/loss", row["loss"], epoch)
        self._writer.add_scalar("train/accuracy", row["accuracy"], epoch)
        for split in ("test", "train"):
            for view, score in row[split].items():
                self._writer.add_scalar(f"{split}_{view}/accuracy", score["accuracy"], epoch)
                self._writer.add_scalar(f"{split}_{view}/loss", score["loss"], epoch)
        if row["sites"]:
            self._writer.add_scalar("frozen/mean", sum(row["sites"].values()) / len(row["sites"]), epoch)
        for part, share in row["time"].items():
            self._writer.add_scalar(f"time/{part}", share, epoch)
        self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        if self._writer is not None:
            with suppress(OSError):  # whoever closes after a failed write has heard of it
                self._writer.close()
            threading.excepthook = self._hook

    def _quiet(self, failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):
            self._hook(failure)


def four_digits(value: float) -> float:
    """Round to four significant digits, which is what metrics.jsonl keeps of a norm.

    >>> four_digits(0.000123456), four_digits(float("inf"))
    (0.0001235, inf)
    """
    return float(f"{value:.4g}")
