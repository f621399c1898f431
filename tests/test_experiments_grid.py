"""A grid's plan, its order of things, and what it says: with an executor that only pretends to train."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from stompp import recipes
from stompp.errors import UsageError
from stompp.experiments import timeleft, worker
from stompp.experiments.executors import LOST, End, Start
from stompp.experiments.grid import Job, Outcome, dry_run, look, plan, run, steps_left
from stompp.experiments.live import Screen
from stompp.experiments.timeleft import Speeds, Tracked, read_progress
from stompp.recipes import Recipe
from stompp.training.folder import RunFolder
from stompp.training.options import RunOptions

STOMPP, STE, FLOAT = (
    recipes.get(f"resnet8-digits-{m}").changed(epochs=3) for m in ("bnn-stompp", "bnn-ste", "float-clip")
)
FROM_FLOAT = STE.changed(init_from=FLOAT.name)


def row(epoch: int, accuracy: float = 50.0, seconds: float = 2.0) -> str:
    """Return a line of metrics.jsonl, as far as a grid reads it."""
    scores = {view: {"accuracy": accuracy, "loss": 1.0} for view in ("current", "binary")}
    content = {"epoch": epoch, "test": scores, "moving": ["layer1"], "seconds": seconds, "evaluation_seconds": 0.5}
    return json.dumps(content) + "\n"


def train_a_bit(job: Job, runs: Path, epochs: int, seconds: float = 2.0) -> RunFolder:
    folder = job.folder(runs)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.claim(job.recipe, job.seed)
    folder.metrics_file.write_text("".join(row(epoch, seconds=seconds) for epoch in range(epochs)))
    if epochs == job.recipe.epochs:
        folder.done_file.write_text("{}")
    return folder


class Pretender:
    """Carries out runs one after the other, as told: an exit code by recipe's name, 0 if not told."""

    queues = False

    def __init__(self, runs: Path, slots: int = 2, codes: dict[str, int] | None = None) -> None:
        self.runs, self.slots, self.codes = runs, slots, codes or {}
        self.started: list[Job] = []
        self.at_once = 0
        self.stopped = 0
        self.killed = 0
        self._running: list[tuple[Start, Job]] = []

    def start(self, runs: Sequence[Start]) -> None:
        for one in runs:
            job = Job(one.recipe, one.options.seed)
            self.started.append(job)
            self._running.append((one, job))
        self.at_once = max(self.at_once, len(self._running))

    def wait(self, seconds: float) -> list[End]:
        one, job = self._running.pop(0)
        code = self.codes.get(job.recipe.name, 0)
        folder = job.folder(self.runs)
        if code in (0, 143):
            train_a_bit(job, self.runs, job.recipe.epochs if code == 0 else 1)
        if code == worker.CRASHED:
            folder.path.mkdir(parents=True, exist_ok=True)
            worker.note_failure(folder, "ValueError: it is\nno good")
        return [End(one.key, code)]

    def stop(self) -> None:
        self.stopped += 1
        self.codes = {job.recipe.name: 143 for _, job in self._running}

    def kill(self) -> None:
        self.killed += 1

    def close(self) -> None:
        assert not self._running


def states(outcome: Outcome) -> dict[str, str]:
    return {f"{r.job.recipe.name} {r.job.seed}": r.state for r in outcome.reports}


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_plan_tells_every_state(tmp_path: Path) -> None:
    jobs = [Job(STE, seed) for seed in range(7)]
    train_a_bit(jobs[0], tmp_path, 3)
    train_a_bit(jobs[1], tmp_path, 2)
    worker.note_failure(train_a_bit(jobs[3], tmp_path, 1), "it hurt")
    RunFolder(tmp_path / STE.name / "seed4").path.mkdir()
    (tmp_path / STE.name / "seed4" / "notes.txt").write_text("mine")
    other = RunFolder(tmp_path / STE.name / "seed5")
    other.path.mkdir()
    other.claim(STOMPP, 5)
    with train_a_bit(jobs[6], tmp_path, 1).locked():
        # a process cannot take its own flock amiss through another handle, as another process's would be
        found = plan(jobs, tmp_path)
    assert [p.state for p in found] == ["finished", "unfinished", "new", "failed", "foreign", "foreign", "in use"]
    assert [p.epochs for p in found] == [3, 2, 0, 1, 0, 0, 1]
    assert found[3].note == "it hurt"
    assert "no recipe.json" in found[4].note
    assert "holds another run" in found[5].note
    assert found[6].note == f"process {os.getpid()} trains it"


def test_plan_writes_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    dry_run([Job(STE, 0), Job(FROM_FLOAT, 0)], runs, quiet())
    assert not runs.exists()


def test_plan_adds_what_a_recipe_starts_from_before_it(tmp_path: Path) -> None:
    registered = FROM_FLOAT.changed(init_from="resnet8-digits-float-clip")
    jobs = [Job(FROM_FLOAT, 1), Job(registered, 1), Job(FLOAT, 1), Job(FROM_FLOAT, 2), Job(FROM_FLOAT, 1)]
    found = plan(jobs, tmp_path)
    told = [(p.job.recipe.name, p.job.seed) for p in found]
    default = "resnet8-digits-float-clip"
    assert told == [
        (FLOAT.name, 1),  # known by name since the list has it, though no registered recipe
        (FROM_FLOAT.name, 1),
        (default, 1),
        (registered.name, 1),
        (FLOAT.name, 2),
        (FROM_FLOAT.name, 2),
    ]
    assert [p.needs is not None for p in found] == [False, True, False, True, False, True]


def test_plan_leaves_a_run_folder_to_start_from_alone(tmp_path: Path) -> None:
    source = train_a_bit(Job(FLOAT, 0), tmp_path, 3)
    (planned,) = plan([Job(STE.changed(init_from=str(source.path)), 0)], tmp_path)
    assert planned.needs is None


def test_plan_refuses_two_recipes_of_one_name_and_circles(tmp_path: Path) -> None:
    values = {**STE.to_dict(), "lr": 0.5}
    with pytest.raises(UsageError, match=r"two recipes of the grid are named .* \(lr 0.05 and 0.5\)"):
        plan([Job(STE, 0), Job(Recipe.from_dict(values), 1)], tmp_path)
    a = Recipe(name="a", init_from="b")
    b = Recipe(name="b", init_from="a")
    with pytest.raises(UsageError, match="recipe 'a' starts from itself: a from b from a"):
        plan([Job(a, 0), Job(b, 0)], tmp_path)


def test_steps_left_counts_whole_batches_of_what_is_missing(tmp_path: Path) -> None:
    job = Job(STE.changed(batch_size=100), 0)
    assert steps_left(look(job, tmp_path)) == 3 * 14
    train_a_bit(job, tmp_path, 2)
    assert steps_left(look(job, tmp_path)) == 14
    limited = Job(STE.changed(batch_size=100, limit_train=250), 0)
    assert steps_left(look(limited, tmp_path)) == 3 * 2


def test_dry_run_tells_states_counts_and_steps(tmp_path: Path) -> None:
    jobs = [Job(STE, seed) for seed in range(3)]
    train_a_bit(jobs[0], tmp_path, 3)
    train_a_bit(jobs[1], tmp_path, 1)
    console = quiet()
    dry_run(jobs, tmp_path, console)
    told = console.file.getvalue()
    assert f"unfinished  {jobs[1]}: 44 steps after epoch 1" in told
    assert "3 runs: 1 finished, 1 unfinished, 1 new; 110 steps to train" in told


def test_dry_run_counts_what_is_tried_again_only_if_asked(tmp_path: Path) -> None:
    job = Job(STE, 0)
    folder = train_a_bit(job, tmp_path, 1)
    worker.note_failure(folder, "ValueError: it hurt")
    plain, again = quiet(), quiet()
    dry_run([job], tmp_path, plain)
    dry_run([job], tmp_path, again, retry_failed=True)
    assert f"failed      {job}: ValueError: it hurt\n1 run: 1 failed; 0 steps to train" in plain.file.getvalue()
    assert f"failed      {job}: 44 steps after epoch 1; before: ValueError: it hurt\n" in again.file.getvalue()
    assert "44 steps to train" in again.file.getvalue()


def test_grid_runs_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    jobs = [Job(STE, seed) for seed in range(5)]
    train_a_bit(jobs[0], tmp_path, 3)
    train_a_bit(jobs[1], tmp_path, 1)
    pretender = Pretender(tmp_path, slots=3)
    outcome = run(jobs, tmp_path, executor=pretender, console=quiet())
    assert pretender.started == jobs[1:]
    assert pretender.at_once == 3
    assert set(states(outcome).values()) == {"finished"}
    assert outcome.exit_code == 0
    again = Pretender(tmp_path)
    assert run(jobs, tmp_path, executor=again, console=quiet()).exit_code == 0
    assert again.started == []


def test_failing_run_is_reported_left_alone_and_tried_again_when_asked(tmp_path: Path) -> None:
    jobs = [Job(STE, 0), Job(STOMPP, 0)]
    console = quiet()
    outcome = run(jobs, tmp_path, executor=Pretender(tmp_path, 1, {STE.name: worker.CRASHED}), console=console)
    assert [r.state for r in outcome.reports] == ["failed", "finished"]
    assert outcome.reports[0].note == "ValueError: it is no good"
    assert outcome.exit_code == 1
    assert "--retry-failed" in console.file.getvalue()

    again = Pretender(tmp_path)
    outcome = run(jobs, tmp_path, executor=again, console=quiet())
    assert again.started == []
    assert outcome.reports[0].note == "ValueError: it is no good"
    assert outcome.exit_code == 1

    failing = Pretender(tmp_path, 1, {STE.name: worker.CRASHED})
    assert run(jobs, tmp_path, executor=failing, retry_failed=True, console=quiet()).exit_code == 1
    assert failing.started == [jobs[0]]  # once
    assert run(jobs, tmp_path, executor=Pretender(tmp_path), retry_failed=True, console=quiet()).exit_code == 0


def test_killed_run_is_reported_with_its_signal(tmp_path: Path) -> None:
    codes = {STE.name: -signal.SIGKILL, STOMPP.name: -signal.SIGSEGV, FLOAT.name: 143}
    jobs = [Job(recipe, 0) for recipe in (STE, STOMPP, FLOAT)]
    for job in jobs:
        train_a_bit(job, tmp_path, 1)
    outcome = run(jobs, tmp_path, executor=Pretender(tmp_path, 1, codes), console=quiet())
    assert [r.state for r in outcome.reports] == ["failed", "failed", "stopped"]
    assert outcome.reports[0].note == "killed by SIGKILL, by hand or because memory ran out"
    assert outcome.reports[1].note == "killed by SIGSEGV"
    assert outcome.exit_code == 1
    assert [p.state for p in plan(jobs, tmp_path)] == ["failed", "failed", "unfinished"]


def test_run_whose_end_nobody_saw_goes_on_next_time(tmp_path: Path) -> None:
    class Lost(Pretender):
        def wait(self, seconds: float) -> list[End]:
            return [End(one.key, LOST, "the process that starts the runs was killed") for one, _ in self._drain()]

        def _drain(self) -> list[tuple[Start, Job]]:
            ended, self._running = self._running, []
            return ended

    job = Job(STE, 0)
    train_a_bit(job, tmp_path, 1)
    outcome = run([job], tmp_path, executor=Lost(tmp_path), console=quiet())
    assert outcome.reports[0].state == "failed"
    assert "the process that starts the runs" in outcome.reports[0].note
    assert look(job, tmp_path).state == "unfinished"


def test_dependent_runs_after_what_it_needs_and_not_if_that_fails(tmp_path: Path) -> None:
    jobs = [Job(FROM_FLOAT, 0), Job(FROM_FLOAT, 1), Job(FLOAT, 0), Job(STE, 0)]
    pretender = Pretender(tmp_path / "a", slots=4)
    assert run(jobs, tmp_path / "a", executor=pretender, console=quiet()).exit_code == 0
    order = [pretender.started.index(job) for job in (Job(FLOAT, 0), Job(FROM_FLOAT, 0))]
    assert order == sorted(order)
    assert len(pretender.started) == 5

    failing = Pretender(tmp_path / "b", 4, {FLOAT.name: worker.CRASHED})
    outcome = run(jobs, tmp_path / "b", executor=failing, console=quiet())
    found = states(outcome)
    assert found.pop(f"{STE.name} 0") == "finished"
    assert sorted(found.values()) == ["blocked", "blocked", "failed", "failed"]
    blocked = next(r for r in outcome.reports if r.state == "blocked")
    assert blocked.note == f"it starts from {FLOAT.name}, seed 0, which is failed"


def test_grid_leaves_what_another_process_trains(tmp_path: Path) -> None:
    jobs = [Job(FLOAT, 0), Job(FROM_FLOAT, 0), Job(STE, 0)]
    folder = train_a_bit(jobs[0], tmp_path, 1)
    pretender = Pretender(tmp_path)
    with folder.locked():
        outcome = run(jobs, tmp_path, executor=pretender, console=quiet())
    assert pretender.started == [jobs[2]]
    assert [r.state for r in outcome.reports] == ["in use", "blocked", "finished"]
    assert outcome.exit_code == 1


@pytest.mark.parametrize(
    ("left", "state", "trained_here"),
    [("", "finished", True), ("DONE", "finished", False), ("DIVERGED", "diverged", False)],
)
def test_grid_takes_up_what_another_process_lets_go(tmp_path: Path, left: str, state: str, trained_here: bool) -> None:
    """Whether that one was killed, finished its run or saw it break down; what starts from the run may go on then."""
    jobs = [Job(FLOAT, 0), Job(FROM_FLOAT, 0), *(Job(STE, seed) for seed in range(2))]
    folder = train_a_bit(jobs[0], tmp_path, 1)
    with ExitStack() as lock:

        class Other(Pretender):
            def wait(self, seconds: float) -> list[End]:
                if left:
                    (folder.path / left).write_text('{"reason": "boom"}')
                lock.close()
                return super().wait(seconds)

        lock.enter_context(folder.locked())
        pretender = Other(tmp_path, slots=1)
        outcome = run(jobs, tmp_path, executor=pretender, console=quiet())
    assert (jobs[0] in pretender.started) == trained_here
    found = {report.job: report.state for report in outcome.reports}
    assert found == {
        jobs[0]: state,
        jobs[1]: "finished" if state == "finished" else "blocked",
        **dict.fromkeys(jobs[2:], "finished"),
    }


def test_grid_takes_up_what_another_grid_finished_meanwhile(tmp_path: Path) -> None:
    jobs = [Job(STE, seed) for seed in range(3)]

    class Other(Pretender):
        def wait(self, seconds: float) -> list[End]:
            train_a_bit(jobs[2], tmp_path, 3)
            return super().wait(seconds)

    pretender = Other(tmp_path, slots=1)
    assert run(jobs, tmp_path, executor=pretender, console=quiet()).exit_code == 0
    assert pretender.started == jobs[:2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_grid(tmp_path: Path, number: signal.Signals) -> None:
    class Interrupted(Pretender):
        def wait(self, seconds: float) -> list[End]:
            if len(self.started) == 3 and not self.stopped:
                os.kill(os.getpid(), number)
                return []
            return super().wait(seconds)

    before = signal.getsignal(number)
    jobs = [Job(STE, seed) for seed in range(4)]
    pretender = Interrupted(tmp_path, slots=1)
    console = quiet()
    outcome = run(jobs, tmp_path, executor=pretender, console=console)
    assert [r.state for r in outcome.reports] == ["finished", "finished", "stopped", "waiting"]
    assert (pretender.stopped, pretender.killed) == (1, 0)
    assert outcome.exit_code == 128 + number
    assert "the same command goes on from here" in console.file.getvalue()
    assert signal.getsignal(number) == before


def test_second_interrupt_kills(tmp_path: Path) -> None:
    class Stubborn(Pretender):
        def wait(self, seconds: float) -> list[End]:
            if self.killed:
                return [End(self._running.pop()[0].key, -signal.SIGKILL)]
            os.kill(os.getpid(), signal.SIGINT)
            return []

    job = Job(STE, 0)
    train_a_bit(job, tmp_path, 1)
    pretender = Stubborn(tmp_path)
    outcome = run([job], tmp_path, executor=pretender, console=quiet())
    assert (pretender.stopped, pretender.killed) == (1, 1)
    assert outcome.reports[0].state == "stopped"
    assert look(job, tmp_path).state == "unfinished"  # not failed: it was we who killed it
    assert outcome.exit_code == 130


def test_deadline_stops_the_grid_as_an_interrupt_does(tmp_path: Path) -> None:
    outcome = run(
        [Job(STE, k) for k in range(3)], tmp_path, executor=Pretender(tmp_path, 1), deadline=1e-9, console=quiet()
    )
    assert [r.state for r in outcome.reports] == ["finished", "waiting", "waiting"]
    assert outcome.exit_code == 130
    with pytest.raises(UsageError, match="deadline is 0"):
        run([], tmp_path, deadline=0)


def test_every_run_gets_its_seed_and_its_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stompp.experiments import grid

    pretender = Pretender(tmp_path)
    given: list[RunOptions] = []
    monkeypatch.setattr(
        pretender, "start", lambda runs, start=pretender.start: (given.extend(r.options for r in runs), start(runs))
    )
    monkeypatch.setattr(grid, "LocalProcesses", lambda parallel, tensorboard: pretender)
    monkeypatch.setattr(grid, "cores", lambda: 7)
    run([Job(STE, 0), Job(STE, 3)], tmp_path, parallel=3, console=quiet())
    run([Job(STE, 4)], tmp_path, parallel=3, options=RunOptions(threads=5), console=quiet())
    assert [(o.seed, o.threads, o.runs) for o in given] == [(0, 2, tmp_path), (3, 2, tmp_path), (4, 5, tmp_path)]


def test_progress_is_the_last_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_progress(file) is None
    file.write_text("")
    assert read_progress(file) is None
    monkeypatch.setattr(timeleft, "TAIL", 50)  # shorter than a line
    file.write_text(row(0, 11) + row(1, 22) + row(2, 33)[:40])
    found = read_progress(file)
    assert found is not None
    assert (found.epoch, found.binary, found.moving, found.seconds) == (2, 22.0, ["layer1"], 2.5)
    file.write_text(row(0) + "{torn}\n")
    assert read_progress(file) is None


def tracked(recipe: Recipe, state: str, runs: Path, seed: int = 0, **fields: float) -> Tracked:
    made = Tracked(f"{recipe.name}, seed {seed}", recipe, RunFolder.of(recipe, seed, runs), state)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_time_left_is_measured_or_said_to_be_unknown(tmp_path: Path) -> None:
    now = time.monotonic()
    fast = tracked(STE, "running", tmp_path, started=now - 10, looked=now, epochs=1, pace=10.0)
    waiting = [tracked(STE, "waiting", tmp_path, seed) for seed in (1, 2)]
    other = tracked(STE.changed(width=8), "waiting", tmp_path)  # other nets take other times
    assert str(Speeds([tracked(STE, "running", tmp_path)]).total(1)) == "time left: measuring"
    assert Speeds([fast]).total(1).seconds == pytest.approx(20, abs=1)
    assert Speeds([fast, *waiting]).total(1).seconds == pytest.approx(20 + 2 * 30, abs=1)
    assert Speeds([fast, *waiting]).total(2).seconds == pytest.approx(50, abs=1)  # 20 + 30 beside 30
    found = Speeds([fast, *waiting, other]).total(2)
    assert found.unknown == 1
    assert str(found).startswith("more than 50 s left")
    kin = tracked(STE.changed(lr=0.5), "waiting", tmp_path)  # as fast as any rate
    assert Speeds([fast, kin]).total(1).seconds == pytest.approx(50, abs=1)
    for unlike in (STOMPP, STOMPP.changed(order="global")):  # what is frozen needs no backward pass
        assert Speeds([fast, tracked(unlike, "waiting", tmp_path)]).total(1).unknown == 1


def test_time_left_knows_runs_of_an_earlier_grid_on_this_machine(tmp_path: Path) -> None:
    here, elsewhere = ({"device": device, "cpu": "A processor", "threads": 1} for device in ("cpu", "A GPU"))
    waiting = tracked(STE, "waiting", tmp_path, 1)
    folder = train_a_bit(Job(STE, 0), tmp_path, 3, seconds=3.5)
    folder.env_file.write_text(json.dumps(here))
    before = tracked(STE, "finished", tmp_path, epochs=3)
    assert str(Speeds([before, waiting]).total(2)) == "time left: measuring"  # what machine this is nobody knows yet

    other = train_a_bit(Job(STOMPP, 0), tmp_path, 1)
    ended = tracked(STOMPP, "finished", tmp_path, started=1.0, pace=5.0)
    other.env_file.write_text(json.dumps(here))
    assert Speeds([before, ended, waiting]).total(2).seconds == pytest.approx(3 * 4)
    other.env_file.write_text(json.dumps(elsewhere))
    assert Speeds([before, ended, waiting]).total(2).unknown == 1


def test_pace_counts_only_epochs_trained_here(tmp_path: Path) -> None:
    folder = train_a_bit(Job(STE, 0), tmp_path, 2)
    one = tracked(STE, "waiting", tmp_path, epochs=2)
    one.start()
    one.look()
    assert one.pace is None
    one.started -= 6
    folder.metrics_file.write_text(row(0) + row(1) + row(2))
    one.look()
    assert one.pace == pytest.approx(6, abs=0.5)
    assert one.epoch == 3


def test_queued_run_starts_to_run_when_its_log_grows(tmp_path: Path) -> None:
    one = tracked(STE, "waiting", tmp_path)
    one.start(queued=True)
    one.look()
    assert one.state == "queued"
    one.folder.path.mkdir(parents=True)
    one.folder.log_file.write_text("---\n")
    one.look()
    assert one.state == "running"


def test_table_of_hundreds_of_runs_fits_the_terminal(tmp_path: Path) -> None:
    runs = [tracked(STE, "waiting", tmp_path, seed) for seed in range(400)]
    for one in runs[:30]:
        one.start()
        train_a_bit(Job(STE, int(one.name.split()[-1])), tmp_path, 3)
        one.end("finished", "")
    runs[30].start()
    runs[31].start()
    train_a_bit(Job(STE, 30), tmp_path, 1)
    console = Console(file=io.StringIO(), width=140, height=24, force_terminal=True, color_system=None)
    screen = Screen(runs, 2, console)
    with screen.live():
        screen.update()
        told = console.file.getvalue()
    assert told.count("\n") <= 24
    assert f"{STE.name}, seed 31 " in told
    assert "1/3" in told
    assert "50.0" in told
    assert "layer1" in told
    assert "2 running, 30 finished, 368 waiting; " in told


def test_table_shows_what_waits_in_a_clusters_queue_first(tmp_path: Path) -> None:
    runs = [tracked(STE, "waiting", tmp_path, seed) for seed in range(100)]
    for one in runs[50:]:
        one.start(queued=True)
    console = Console(file=io.StringIO(), width=140, height=24, force_terminal=True, color_system=None)
    screen = Screen(runs, None, console)
    with screen.live():
        screen.update()
    told = console.file.getvalue()
    assert f"{STE.name}, seed 50 " in told
    assert f"{STE.name}, seed 0 " not in told


def test_plain_output_has_no_table(tmp_path: Path) -> None:
    console = quiet()
    run([Job(STE, 0)], tmp_path, executor=Pretender(tmp_path), console=console)
    told = console.file.getvalue().splitlines()
    assert told[0] == "1 run: 1 waiting"
    assert told[1] == f"start     {STE.name}, seed 0"
    assert told[2].startswith(f"finished  {STE.name}, seed 0: test accuracy 50.00 %")
    assert told[3].startswith("1 finished of 1 run in ")


def test_lock_that_is_only_a_file_is_no_lock(tmp_path: Path) -> None:
    folder = train_a_bit(Job(STE, 0), tmp_path, 1)
    lock = folder.path / ".lock"
    lock.write_text(str(os.getpid()))  # of a process that was killed, its id in use again
    assert folder.in_use_by() is None
    with open(lock) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert folder.in_use_by() == str(os.getpid())


def test_help_imports_no_grid() -> None:
    code = (
        "import sys; from stompp.cli import main; main(['--help']);"
        "bad = {'submitit', 'multiprocessing', 'stompp.experiments.worker'} & set(sys.modules) - before;"
        "assert not bad, bad"
    )
    # torch itself imports multiprocessing
    done = subprocess.run(
        [sys.executable, "-c", f"import torch, sys; before = set(sys.modules); {code}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
