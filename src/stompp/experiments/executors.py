"""Where a grid's runs are carried out: processes of this machine, or jobs of a SLURM cluster.

An executor starts runs and tells how they ended, and knows nothing of what a grid is.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stompp.errors import UsageError
from stompp.recipes.schema import Recipe
from stompp.training.options import RunOptions

from . import worker

LOST = 255  # exit code of a run whose end nobody saw


@dataclass(frozen=True)
class Start:
    """A run to be started; `key` comes back with its end."""

    key: Hashable
    recipe: Recipe
    options: RunOptions


@dataclass(frozen=True)
class End:
    """How a run ended: its process's exit code, as of `worker`; below 0 is the signal that killed it."""

    key: Hashable
    code: int
    reason: str = ""  # where the run could not tell it itself


class Executor(Protocol):
    """What a grid needs of an executor."""

    slots: int
    """how many runs it takes at once"""
    queues: bool
    """whether what it takes may wait for a machine of the cluster before it runs"""

    def start(self, runs: Sequence[Start]) -> None:
        """Start runs."""

    def wait(self, seconds: float) -> list[End]:
        """Return the runs that have ended, after so long at most."""

    def stop(self) -> None:
        """Ask all runs to save and end."""

    def kill(self) -> None:
        """End all runs at once."""

    def close(self) -> None:
        """Clean up, once nothing runs any more."""


class LocalProcesses:
    """A process per run, forked from a server that has imported PyTorch already."""

    queues = False

    def __init__(self, parallel: int, *, tensorboard: bool = False) -> None:
        if parallel < 1:
            raise UsageError(f"parallel is {parallel}; it must be at least 1")
        self.slots = parallel
        self._extras = ["tensorboard"] if tensorboard else []
        self._running: set[Hashable] = set()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, runs: Sequence[Start]) -> None:
        """Start runs; the first call starts the server as well."""
        if runs and self._server is None:
            self._server = self._started()
        for run in runs:
            self._running.add(run.key)
            self._tell((run.key, run.recipe, run.options))

    def wait(self, seconds: float) -> list[End]:
        """Return the runs that have ended, after so long at most."""
        if self._server is None or self._server.stdout is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self._server.stdout], [], [], seconds)
        if not ready:
            return []
        lines = self._lines.read()
        if lines is None:
            return self._lost()
        ends = [End(*worker.decode(line)) for line in lines]
        self._running -= {end.key for end in ends}
        return ends

    def stop(self) -> None:
        """Send every run a SIGTERM."""
        self._tell(worker.STOP)

    def kill(self) -> None:
        """Send every run a SIGKILL."""
        self._tell(worker.KILL)

    def close(self) -> None:
        """End the server, and with it what still runs."""
        if self._server is not None and self._server.stdin is not None and self._server.stdout is not None:
            with suppress(BrokenPipeError):
                self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()
            self._server = None

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stompp.experiments.worker", *self._extras, "--", *sys.argv]
        environment = {"OPENBLAS_NUM_THREADS": "1"} | os.environ  # it would start threads before the server forks
        # Blocked here, these stay so in the server: it must outlive its runs, and a Ctrl-C is the grid's to answer.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, worker.LET_GO)
        try:
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert server.stdout is not None
        self._lines = worker.Lines(server.stdout.fileno())
        return server

    def _tell(self, message: object) -> None:
        if self._server is not None and self._server.stdin is not None:
            with suppress(BrokenPipeError):  # the server is gone, which `wait` will see
                self._server.stdin.write(worker.encode(message))
                self._server.stdin.flush()

    def _lost(self) -> list[End]:
        """The server is gone, and with it the knowledge of how its runs end. They stop by themselves."""
        code = self._server.wait() if self._server is not None else 0
        self._server = None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        ends = [End(key, LOST, f"the process that starts the runs {how}") for key in self._running]
        self._running.clear()
        return ends


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
