"""Many runs: which of them are to do, in what order, and how each ended. `run` is the whole story.

A grid keeps nothing of its own: all that it knows stands in the run folders, so it can be killed at any time and
started again, and two grids may work in the same folder at once. Of every run it first looks at its folder:

    finished     there is a DONE: nothing to do
    diverged     there is a DIVERGED: training broke down, which is a result, and would be again: nothing to do
    unfinished   it was stopped or killed: it goes on from its checkpoint
    new          it is trained
    failed       there is a FAILED with the reason: left alone until `retry_failed`, for it would most likely fail again
    foreign      the folder holds another recipe's run, or no run: left alone
    in use       another process trains there: left to that one

A recipe that starts from another one's weights (`init_from`) waits for that one's run with the same seed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console

from stompp import recipes
from stompp.data.catalog import train_images_of
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe, differences
from stompp.training.folder import RunFolder
from stompp.training.options import RunOptions

from . import worker
from .cluster import SlurmOptions
from .executors import LOST, End, Executor, LocalProcesses, Start, cores
from .live import Screen
from .timeleft import Tracked, read_progress

State = Literal["finished", "diverged", "unfinished", "new", "failed", "foreign", "in use"]
TO_DO = ("unfinished", "new")
ACTIVE = ("running", "queued")
WITH_RESULT = ("finished", "diverged")
RETRIED = ("failed", "diverged")  # only if asked


@dataclass(frozen=True)
class Job:
    """A recipe to be trained with a seed."""

    recipe: Recipe
    seed: int

    def folder(self, runs: Path) -> RunFolder:
        """Return the folder of this run."""
        return RunFolder.of(self.recipe, self.seed, runs)

    def __str__(self) -> str:
        return f"{self.recipe.name}, seed {self.seed}"


@dataclass(frozen=True)
class Planned:
    """A job, how it stands on the disk, and the job that has to be finished before it."""

    job: Job
    state: State
    note: str = ""
    epochs: int = 0  # finished so far
    needs: Job | None = None


@dataclass(frozen=True)
class Report:
    """How a job of a grid ended: as it stood on the disk, or `stopped`, `waiting` (never started), or `blocked`."""

    job: Job
    state: str
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a grid ended."""

    reports: list[Report]
    stopped_by: int | None = None  # the signal's number; SIGINT's for a deadline

    @property
    def exit_code(self) -> int:
        """0: every run has a result; 1: not every one has; 128 + n: stopped by signal n before that."""
        if all(report.state in WITH_RESULT for report in self.reports):
            return 0
        return 1 if self.stopped_by is None else 128 + self.stopped_by


def plan(jobs: Sequence[Job], runs: Path) -> list[Planned]:
    """Return every job with its state, each once and after the one that it needs; what is needed is added."""
    found: dict[tuple[str, int], Planned] = {}
    by_name: dict[str, Recipe] = {}
    for job in jobs:
        other = by_name.setdefault(job.recipe.name, job.recipe)
        if other != job.recipe:
            told = ", ".join(f"{name} {a!r} and {b!r}" for name, (a, b) in differences(other, job.recipe).items())
            raise UsageError(f"two recipes of the grid are named {other.name!r} ({told}); they would share a folder")

    def add(job: Job, above: tuple[str, ...] = ()) -> None:
        name = job.recipe.name
        if name in above:
            raise UsageError(f"recipe {name!r} starts from itself: {' from '.join((*above, name))}")
        if (name, job.seed) in found:
            return
        source = job.recipe.init_from
        needs = None
        if source is not None and not RunFolder(Path(source)).recipe_file.exists():
            needed = by_name.get(source) or recipes.all_recipes().get(source)
            needs = None if needed is None else Job(needed, job.seed)
        if needs is not None:
            add(needs, (*above, name))
        found[name, job.seed] = replace(look(job, runs), needs=needs)

    for job in jobs:
        add(job)
    return list(found.values())


def look(job: Job, runs: Path) -> Planned:
    """Return how a job stands on the disk."""
    folder = job.folder(runs)
    try:
        folder.refuse_others(job.recipe, job.seed)
    except UsageError as error:
        return Planned(job, "foreign", str(error))
    progress = read_progress(folder.metrics_file)
    epochs = 0 if progress is None else progress.epoch
    if folder.done:
        return Planned(job, "finished", epochs=epochs)
    if (owner := folder.in_use_by()) is not None:
        return Planned(job, "in use", f"process {owner} trains it", epochs)
    if (reason := folder.divergence()) is not None:
        return Planned(job, "diverged", reason, epochs)
    if (reason := worker.read_failure(folder)) is not None:
        return Planned(job, "failed", reason, epochs)
    return Planned(job, "unfinished" if folder.recipe_file.exists() else "new", epochs=epochs)


def run(
    jobs: Sequence[Job],
    runs: Path,
    *,
    executor: Executor | Literal["local", "slurm"] = "local",
    parallel: int = 2,
    slurm: SlurmOptions | None = None,
    options: RunOptions | None = None,
    retry_failed: bool = False,
    deadline: float | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train what of the jobs is not finished, several at once, and show how they come along.

    `parallel` is for processes of this machine, `slurm` for jobs of a cluster. `options` hold for every run, but for
    its seed and folder; without `threads` the cores are shared out. After `deadline` seconds everything is stopped as
    by Ctrl-C.
    """
    if deadline is not None and not deadline > 0:
        raise UsageError(f"deadline is {deadline}; it must be more than 0 seconds")
    options = options or RunOptions()
    planned = plan(jobs, runs)
    if executor == "slurm":
        from .slurm import SlurmJobs

        executor = SlurmJobs(runs, slurm or SlurmOptions())
    elif executor == "local":
        executor = LocalProcesses(parallel, tensorboard=options.tensorboard)
        if options.threads is None:
            options = replace(options, threads=max(1, cores() // parallel))
    grid = Grid(planned, runs, executor, options, retry_failed, console)
    return grid.run(deadline)


def dry_run(
    jobs: Sequence[Job], runs: Path, console: Console | None = None, *, retry_failed: bool = False
) -> list[Planned]:
    """Print what `run` would do, and do nothing."""
    console = console or Console()
    planned = plan(jobs, runs)
    counts = Counter(p.state for p in planned)
    to_do = (*TO_DO, *RETRIED) if retry_failed else TO_DO
    steps = {p.job: steps_left(p) for p in planned if p.state in to_do}
    for p in planned:
        told = f"{steps[p.job]:,d} steps" if p.job in steps else ""
        told += f" after epoch {p.epochs}" if told and p.epochs else ""
        told += f"; before: {p.note}" if told and p.note else ""
        console.print(
            f"{p.state:10s}  {p.job}: {told or p.note or 'nothing to do'}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.print(
        f"{len(planned)} run{'' if len(planned) == 1 else 's'}: {told}; {sum(steps.values()):,d} steps to train",
        highlight=False,
        soft_wrap=True,
    )
    return planned


def steps_left(planned: Planned) -> int:
    """Return how many steps a run has to go, without looking at its data."""
    recipe = planned.job.recipe
    images = recipe.limit_train or train_images_of(recipe.data)
    return (recipe.epochs - planned.epochs) * (images // recipe.batch_size)


class Grid:
    """The jobs while they are carried out."""

    def __init__(
        self,
        planned: list[Planned],
        runs: Path,
        executor: Executor,
        options: RunOptions,
        retry_failed: bool = False,
        console: Console | None = None,
    ) -> None:
        self._runs, self._executor, self._options = runs, executor, options
        self._jobs = [p.job for p in planned]
        self._needs = {p.job: p.needs for p in planned}
        self._retry = {p.job for p in planned if retry_failed and p.state in RETRIED}
        # Other processes train these, on this machine: their end can be seen.
        self._watched = {p.job for p in planned if p.state == "in use"}
        self._tracked: dict[Job, Tracked] = {}
        for p in planned:
            state = "waiting" if p.state in TO_DO or p.job in self._retry else p.state
            note = p.note if state == p.state else ""
            self._tracked[p.job] = Tracked(str(p.job), p.job.recipe, p.job.folder(runs), state, note, p.epochs)
        self._screen = Screen(list(self._tracked.values()), None if executor.queues else executor.slots, console)
        self._stopped_by: int | None = None

    def run(self, deadline: float | None = None) -> Outcome:
        """Carry out what is waiting, until all is done or somebody stops it."""
        end = float("inf") if deadline is None else time.monotonic() + deadline
        try:
            with self._screen.live(), _signals() as received:
                while True:
                    if self._stopped_by is None:
                        self._start_ready()
                    if not any(t.state in ACTIVE for t in self._tracked.values()):
                        break
                    for ended in self._executor.wait(0.5):
                        self._end(ended)
                    if time.monotonic() > end and self._stopped_by is None:
                        self._screen.say("the deadline has come")
                        received.append(signal.SIGINT)
                    while received:
                        self._stop(received.pop(0))
                    self._screen.update()
        finally:
            self._executor.close()
        self._settle()
        self._screen.summary(self._stopped_by)
        return Outcome([Report(job, t.state, t.note) for job, t in self._tracked.items()], self._stopped_by)

    def _start_ready(self) -> None:
        """Start as many runs as there is room for, each after another look at its folder."""
        for job in [job for job in self._watched if self._tracked[job].folder.in_use_by() is None]:
            self._watched.remove(job)
            self._take_back(job)
        room = self._executor.slots - sum(t.state in ACTIVE for t in self._tracked.values())
        starts: list[Start] = []
        for key, job in enumerate(self._jobs):
            tracked = self._tracked[job]
            if len(starts) >= room:
                break
            if tracked.state != "waiting" or not self._has_what_it_needs(job):
                continue
            now = look(job, self._runs)
            if now.state in TO_DO or (now.state in RETRIED and job in self._retry):
                tracked.epochs = now.epochs
                tracked.start(queued=self._executor.queues)
                self._screen.started(tracked)
                starts.append(Start(key, job.recipe, replace(self._options, seed=job.seed, runs=self._runs)))
            else:  # another grid has been there meanwhile, or is there now
                tracked.end(now.state, now.note)
                self._screen.ended(tracked)
                if now.state == "in use":
                    self._watched.add(job)
        self._executor.start(starts)

    def _take_back(self, job: Job) -> None:
        """Go on with a run that another process has let go, or note how it ended there."""
        tracked, now = self._tracked[job], look(job, self._runs)
        if now.state in TO_DO:
            tracked.state, tracked.note, tracked.epochs = "waiting", "", now.epochs
        else:
            tracked.end(now.state, now.note)
            self._screen.ended(tracked)

    def _has_what_it_needs(self, job: Job) -> bool:
        needs = self._needs[job]
        if needs is None:
            return True
        tracked = self._tracked[needs]
        if tracked.state == "in use" and tracked.folder.done:
            tracked.end("finished", "")
        if tracked.state in ("failed", "diverged", "foreign", "blocked", "stopped"):
            self._tracked[job].end("blocked", f"it starts from {needs}, which is {tracked.state}")
            self._screen.ended(self._tracked[job])
        return tracked.state == "finished"

    def _end(self, end: End) -> None:
        """Note how a run ended."""
        job = self._jobs[int(str(end.key))]
        tracked = self._tracked[job]
        folder, code = tracked.folder, end.code
        number = -code if code < 0 else code - 128 if 128 < code < LOST else 0
        if code == worker.FINISHED and folder.done:
            tracked.end("finished", "")
        elif code == worker.DIVERGED:
            tracked.end("diverged", folder.divergence() or "")
        elif code in (worker.BUSY, worker.FOREIGN):
            now = look(job, self._runs)
            told = "in use" if code == worker.BUSY else "foreign"
            tracked.end(told, now.note if now.state == told else "by another process")
            if now.state == "in use":
                self._watched.add(job)
        elif number and (self._stopped_by is not None or number in worker.LET_GO):
            tracked.end("stopped", f"stopped by {signal.Signals(number).name}")
        else:
            if end.reason and code != LOST:
                worker.note_failure(folder, end.reason)
            elif number:
                hint = ", by hand or because memory ran out" if number == signal.SIGKILL else ""
                worker.note_failure(folder, f"killed by {signal.Signals(number).name}{hint}")
            tracked.end("failed", end.reason or worker.read_failure(folder) or f"it ended with exit code {code}")
        self._screen.ended(tracked)

    def _stop(self, number: int) -> None:
        """Ask all runs to save and end; a second Ctrl-C ends them at once."""
        if self._stopped_by is None:
            self._stopped_by = number
            self._screen.say("stopping: the runs save what they have (Ctrl-C again to kill them)")
            self._executor.stop()
        elif number == signal.SIGINT:
            self._executor.kill()

    def _settle(self) -> None:
        """Give those a last look that others were busy with, and those that waited for them."""
        for job, tracked in self._tracked.items():
            needs = self._needs[job]
            if tracked.state == "in use" and (now := look(job, self._runs)).state in WITH_RESULT:
                tracked.end(now.state, now.note)
            if tracked.state == "waiting" and self._stopped_by is None and needs is not None:
                tracked.end("blocked", f"it starts from {needs}, which is {self._tracked[needs].state}")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the SIGINTs, SIGTERMs and the SIGHUP of a closed terminal that come while inside."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)

    chosen = [number for number in worker.LET_GO if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup does
    before = {number: signal.signal(number, handle) for number in chosen}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
