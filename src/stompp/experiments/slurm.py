"""A grid's runs as jobs of a SLURM cluster, through submitit: one job per run, as arrays.

A run may take longer than a job: some minutes before its time is up a job is sent SIGUSR2, upon which the run saves and
the job is queued anew; so is one that is preempted. What submitit writes goes to RUNS/.slurm.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Hashable, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from stompp.errors import UsageError
from stompp.recipes.schema import Recipe
from stompp.training.options import RunOptions

from . import worker
from .cluster import SlurmOptions
from .executors import End, Start

LONGEST_ARRAY = 1000  # SLURM's own limit is 1001, unless set otherwise
SAVING = 180  # seconds before the end of its time at which a job is told
RESULT_DELAY = 15.0  # seconds that a shared disk may take to show a job's result
RESTARTS = 100  # of one run, after signals from outside; a run that gets no further than that will never
# The last is of submitit's imitation of a cluster: a signal ended the job.
NOT_ITS_FAULT = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED", "INTERRUPTED")
STOPPED = 128 + signal.SIGTERM


class SlurmJobs:
    """Carries out runs as jobs."""

    queues = True

    def __init__(self, runs: Path, options: SlurmOptions) -> None:
        try:
            import submitit
        except ImportError:
            raise UsageError("jobs for SLURM need submitit: pip install 'stompp[slurm]'") from None
        self.slots = options.at_once if options.cluster == "local" else 1_000_000  # SLURM keeps the queue
        self._options = options
        try:
            self._submitit = submitit.AutoExecutor(
                folder=runs / ".slurm" / "%j", cluster=options.cluster, slurm_max_num_timeout=RESTARTS
            )
        except RuntimeError as error:
            raise UsageError(f"{error} There is no SLURM here; leave --executor out to train on this machine") from None
        self._submitit.update_parameters(
            name="stompp",
            timeout_min=options.minutes,
            cpus_per_task=options.cpus,
            gpus_per_node=options.gpus,
            mem_gb=options.memory_gb,
            slurm_partition=options.partition,
            slurm_account=options.account,
            slurm_array_parallelism=options.at_once,
            slurm_signal_delay_s=min(SAVING, 30 * options.minutes),
        )
        self._running: dict[Hashable, _Running] = {}
        self._stopping = self._killed = False
        self._looked = 0.0

    def start(self, runs: Sequence[Start]) -> None:
        """Submit runs, many as arrays."""
        for first in range(0, len(runs), LONGEST_ARRAY):
            some = runs[first : first + LONGEST_ARRAY]
            for run, job in zip(some, self._submitted(some), strict=True):
                restarts = self._running[run.key].restarts + 1 if run.key in self._running else 0
                self._running[run.key] = _Running(run, job, restarts)

    def wait(self, seconds: float) -> list[End]:
        """Return the runs that have ended. The disk is looked at every two seconds at most."""
        time.sleep(seconds)
        if not self._killed and time.monotonic() - self._looked < (0 if self._options.cluster == "local" else 2):
            return []
        self._looked = time.monotonic()
        ends, again = [], []
        ask = self._stopping  # one question is enough: SLURM tells of all jobs at once
        for key, one in list(self._running.items()):
            end = End(key, STOPPED) if self._killed else one.end(ask)
            ask = False
            if end is None:
                continue
            if end.code == STOPPED and not self._stopping and one.restarts < RESTARTS and not one.cancelled():
                again.append(one.run)  # preempted: by us nobody was stopped
            else:
                del self._running[key]
                ends.append(end)
        try:
            self.start(again)
        except UsageError as error:  # the others go on
            for run in again:
                del self._running[run.key]
                ends.append(End(run.key, worker.CRASHED, str(error)))
        return ends

    def stop(self) -> None:
        """Cancel all jobs: those that run get a SIGTERM, upon which they save."""
        self._stopping = True
        for one in self._running.values():
            one.job.cancel(check=False)

    def kill(self) -> None:
        """Wait no longer for the jobs that were cancelled."""
        self._killed = True

    def close(self) -> None:
        """Cancel what is left."""
        self.stop()

    def _submitted(self, runs: Sequence[Start]) -> list[Any]:
        try:
            with redirect_stderr(io.StringIO()), self._submitit.batch():
                return [self._submitit.submit(RunInJob(), run.recipe, self._fitted(run.options)) for run in runs]
        except RuntimeError as error:  # submitit's for whatever sbatch says
            told = " ".join(str(error).split()) or "it does not say why"
            raise UsageError(f"SLURM takes no jobs ({told}); see `stompp reproduce --help` for --slurm.*") from None

    def _fitted(self, options: RunOptions) -> RunOptions:
        return options if options.threads is not None else replace(options, threads=self._options.cpus)


class _Running:
    """A job that was submitted."""

    def __init__(self, run: Start, job: Any, restarts: int) -> None:
        self.run, self.job, self.restarts = run, job, restarts
        self._over: float | None = None  # when it was first seen to be over without a result

    def end(self, ask: bool = False) -> End | None:
        """Return how it ended, if it did. Unless we `ask`, what SLURM said of it may be ten minutes old."""
        if not self._is_over(ask):
            self._over = None
            return None
        if not self.job.paths.result_pickle.exists():
            self._over = self._over or time.monotonic()
            if time.monotonic() - self._over < RESULT_DELAY or not self._is_over(ask=True):
                return None
            return self._without_result(self.job.state)
        try:
            return End(self.run.key, int(self.job.result()))
        except Exception as error:  # whatever submitit makes of an error in the job
            lines = [
                line
                for line in str(error).splitlines()
                if line and not line.startswith(("---", "You can", "or at", "  -"))
            ]
            return End(self.run.key, worker.CRASHED, lines[-1] if lines else type(error).__name__)

    def cancelled(self) -> bool:
        """Return whether somebody cancelled the job by hand."""
        return str(self.job.get_info(mode="force").get("State", "")).startswith("CANCELLED")

    def _is_over(self, ask: bool) -> bool:
        # Of a preempted job submitit thinks that it starts again. It does not where SLURM cancels what it preempts.
        return bool(self.job.done(force_check=ask)) or self.job.state.startswith("PREEMPTED")

    def _without_result(self, state: str) -> End:
        word = state.split()[0].upper() if state else "UNKNOWN"
        if word == "CANCELLED" or word in NOT_ITS_FAULT:
            return End(self.run.key, STOPPED)
        return End(self.run.key, worker.CRASHED, f"job {self.job.job_id} ended as {state}; see {self.job.paths.stderr}")


class RunInJob:
    """What a job does: a run, saved and queued again when the job's time is up."""

    def __call__(self, recipe: Recipe, options: RunOptions) -> int:
        """Train; return the exit code."""
        number = getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2"))
        queue_again, idle = signal.getsignal(number), signal.getsignal(signal.SIGTERM)
        told = False

        def save_first(number: int, frame: FrameType | None) -> None:
            nonlocal told
            told = True
            if signal.getsignal(signal.SIGTERM) == idle:  # there is nothing to save before the first step
                queue_again(number, frame)  # type: ignore[operator, misc]
            os.kill(os.getpid(), signal.SIGTERM)

        if callable(queue_again):
            signal.signal(number, save_first)
        code = worker.carry_out(recipe, options)
        if told and code == STOPPED:
            queue_again(number, None)  # type: ignore[operator, misc] # ends this process
        return code

    def checkpoint(self, recipe: Recipe, options: RunOptions) -> Any:
        """Return what is to be done when the job is started again: the same, for the run resumes by itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, recipe, options)
