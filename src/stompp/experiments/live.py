"""What a grid shows: one live table at a terminal, plain lines elsewhere."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from .timeleft import Speeds, Tracked, duration

PLAIN_EVERY = 60.0  # seconds between two lines on the state of things where there is no terminal
STYLES = {
    "running": "cyan",
    "finished": "green",
    "diverged": "yellow",
    "failed": "red",
    "blocked": "red",
    "foreign": "red",
}
ORDER = ("running", "queued", "finished", "diverged", "failed", "blocked", "foreign", "in use", "stopped", "waiting")


class Screen:
    """The runs of a grid, for a person."""

    def __init__(self, runs: list[Tracked], slots: int | None, console: Console | None = None) -> None:
        self._runs, self._slots = runs, slots
        self._console = console or Console()
        self._speeds = Speeds(runs)
        self._live: Live | None = None
        self._began = self._said = time.monotonic()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the table while inside, if this is a terminal."""
        self.say(f"{self._number()}: {self._counts()}")
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def started(self, run: Tracked) -> None:
        """Say that a run starts."""
        if self._live is None:
            told = f", going on after epoch {run.epochs} of {run.recipe.epochs}" if run.epochs else ""
            self.say(f"{'start':9s} {run.name}{told}")

    def ended(self, run: Tracked) -> None:
        """Say how a run ended."""
        told = f": {run.note}" if run.note else ""
        if run.state == "finished" and run.progress is not None:
            told = f": test accuracy {run.progress.binary:.2f} %"
        if run.started:
            told += f"  ({duration(run.ended - run.started)})"
        self.say(f"{run.state:9s} {run.name}{told}")

    def update(self) -> None:
        """Read how far the runs are and show it."""
        for run in self._runs:
            if run.state in ("running", "queued"):
                run.look()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif time.monotonic() - self._said > PLAIN_EVERY:
            self._said = time.monotonic()
            self.say(self._state_of_things())

    def summary(self, stopped_by: int | None) -> None:
        """Say how it all ended, what went wrong, and how to go on."""
        self.say(f"{self._counts()} of {self._number()} in {duration(time.monotonic() - self._began)}")
        for run in self._runs:
            if run.state in ("diverged", "failed", "blocked", "foreign", "in use"):
                log = f" (see {run.folder.log_file})" if run.state == "failed" and run.folder.log_file.exists() else ""
                self.say(f"  {run.state}: {run.name}: {run.note}{log}")
        if any(run.state == "failed" for run in self._runs):
            self.say("What failed is left alone the next time; --retry-failed tries it again.")
        if stopped_by is not None and any(run.state in ("stopped", "waiting") for run in self._runs):
            self.say(f"Stopped by {signal.Signals(stopped_by).name}; the same command goes on from here.")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _number(self) -> str:
        return f"{len(self._runs)} run{'' if len(self._runs) == 1 else 's'}"

    def _counts(self) -> str:
        found = Counter(run.state for run in self._runs)
        return ", ".join(f"{found[state]} {state}" for state in ORDER if found[state])

    def _state_of_things(self) -> str:
        return f"{self._counts()}; {self._speeds.total(self._slots)}"

    def _table(self) -> Group:
        """Return the table of all runs, or of as many as fit: those that run, the last that ended, the next to come."""
        table = Table(
            Column("run", overflow="fold"),
            "state",
            Column("epoch", justify="right"),
            Column("test", justify="right"),
            Column("binary", justify="right"),
            Column("moving", overflow="ellipsis", no_wrap=True, max_width=32),
            Column("left", justify="right"),
            box=None,
        )
        for run in self._chosen(max(4, self._console.size.height - 4)):
            progress = run.progress
            left = self._speeds.left(run) if run.state == "running" else None
            table.add_row(
                run.name,
                Text(run.state, STYLES.get(run.state, "")),
                f"{run.epoch}/{run.recipe.epochs}",
                "" if progress is None else f"{progress.current:.1f}",
                "" if progress is None else f"{progress.binary:.1f}",
                _moving(progress.moving) if progress is not None and run.state == "running" else run.note,
                ("measuring" if left is None else duration(left)) if run.state == "running" else "",
            )
        return Group(table, Text(self._state_of_things(), "bold"))

    def _chosen(self, rows: int) -> list[Tracked]:
        if len(self._runs) <= rows:
            return self._runs
        running = [run for run in self._runs if run.state == "running"]
        ended = sorted((run for run in self._runs if run.ended), key=lambda run: -run.ended)
        next_ones = [run for state in ("queued", "waiting") for run in self._runs if run.state == state]
        kept = {id(run) for run in [*running, *ended[:5], *next_ones][:rows]}
        return [run for run in self._runs if id(run) in kept]


def _moving(sites: list[str]) -> str:
    return "" if not sites else sites[0] if len(sites) == 1 else f"{len(sites)} sites"
