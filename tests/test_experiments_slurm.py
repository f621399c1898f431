"""Jobs of a cluster: trained for real in submitit's imitation of one, and what is said to a SLURM that is only acted.

The actor is four shell scripts: sbatch hands out a number and notes what it was given, sacct tells the states that the
test has written down, scancel writes that a job was cancelled. Nothing runs there; a job's result is put where submitit
looks for it.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import submitit
from rich.console import Console

from stompp.errors import UsageError
from stompp.experiments import slurm, worker
from stompp.experiments.cluster import SlurmOptions
from stompp.experiments.executors import End, Start
from stompp.experiments.grid import Job, Outcome, look, run
from stompp.experiments.slurm import STOPPED, SlurmJobs
from stompp.training.loop import train
from stompp.training.options import RunOptions
from test_experiments_grid_processes import OPTIONS, assert_same_runs, carry_out, small

LOCAL = SlurmOptions(cluster="local", gpus=0, cpus=1, at_once=2)
SHORT = 8  # epochs of a run that lasts some seconds, to be disturbed meanwhile

# ---- trained for real -----------------------------------------------------------------------------------------------


class Disturbed(SlurmJobs):
    """Submits to submitit's local executor, and calls a function ever so often while the grid waits."""

    def __init__(self, runs: Path, disturb: Callable[[Disturbed], None], options: SlurmOptions = LOCAL) -> None:
        super().__init__(runs, options)
        self._disturb = disturb
        self.submitted: list[Start] = []

    def start(self, runs: Sequence[Start]) -> None:
        self.submitted += runs
        super().start(runs)

    def wait(self, seconds: float) -> list[End]:
        self._disturb(self)
        return super().wait(0.02)


def once(job: Job, runs: Path, act: Callable[[Disturbed, int], None]) -> Callable[[Disturbed], None]:
    """Return what acts, with the id of the process that trains, when the job's first epoch is over."""
    acted = False

    def look_and_act(jobs: Disturbed) -> None:
        nonlocal acted
        folder = job.folder(runs)
        if not acted and folder.metrics_file.exists() and (owner := folder.in_use_by()) is not None:
            acted = True
            act(jobs, int(owner))

    return look_and_act


def controller(jobs: SlurmJobs) -> subprocess.Popen[bytes]:
    """Return the process of submitit that watches over the only job, as a cluster's node would."""
    (one,) = jobs._running.values()
    process = one.job._process
    assert process is not None
    return process


def grid_of(jobs: Sequence[Job], runs: Path, executor: SlurmJobs, console: Console | None = None) -> Outcome:
    return run(jobs, runs, executor=executor, options=OPTIONS, console=console or Console(quiet=True))


def submissions(runs: Path) -> list[str]:
    """Return the ids of all jobs that there were. (The imitation makes a folder of its pattern's name, too.)"""
    return sorted(path.name for path in (runs / ".slurm").iterdir() if path.name.isdigit())


def test_run_as_a_job_has_the_same_bits_as_one_here(tmp_path: Path) -> None:
    job = Job(small("bnn-stompp", epochs=1), 3)
    console = Console(file=io.StringIO(), width=300)
    outcome = run([job], tmp_path / "jobs", executor="slurm", slurm=LOCAL, options=OPTIONS, console=console)
    assert [r.state for r in outcome.reports] == ["finished"], outcome.reports
    assert outcome.exit_code == 0
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"finished  {job}: test accuracy" in told
    assert len(submissions(tmp_path / "jobs")) == 1
    assert "epoch   1/1" in job.folder(tmp_path / "jobs").log_file.read_text()
    train(job.recipe, replace(OPTIONS, seed=3, runs=tmp_path / "alone"), Console(quiet=True))
    assert_same_runs(tmp_path / "jobs", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "case"),
    [pytest.param(240, "preempted", id="preempted"), pytest.param(5, "timed-out", id="time-is-up")],
)
def test_job_that_is_told_to_end_is_queued_anew_and_ends_with_the_same_bits(
    tmp_path: Path, minutes: int, case: str
) -> None:
    """The signal is the same; submitit takes a job for preempted that had more than ten minutes to go."""
    job = Job(small("bnn-stompp", epochs=SHORT), 0)
    tell = once(job, tmp_path / "jobs", lambda jobs, owner: os.kill(owner, signal.SIGUSR2))
    executor = Disturbed(tmp_path / "jobs", tell, replace(LOCAL, minutes=minutes))
    outcome = grid_of([job], tmp_path / "jobs", executor)
    assert [r.state for r in outcome.reports] == ["finished"], outcome.reports
    log = job.folder(tmp_path / "jobs").log_file.read_text()
    assert "stopped by SIGTERM at step" in log
    assert f"this job is {case}." in log
    assert "going on with" in log
    assert not executor._running
    assert len(executor.submitted) == len(submissions(tmp_path / "jobs")) == 1  # the cluster queued it anew by itself
    train(job.recipe, replace(OPTIONS, runs=tmp_path / "alone"), Console(quiet=True))
    assert_same_runs(tmp_path / "jobs", tmp_path / "alone")


@pytest.mark.slow
def test_small_grid_runs_to_its_end_as_jobs_and_tells_of_a_failure(tmp_path: Path) -> None:
    source, failing = small("float-clip"), Job(small("bnn-ste", init_from="/no/such/run"), 0)
    jobs = [Job(source, 0), Job(small("bnn-ste", init_from=source.name), 0), Job(small("bnn-stompp"), 1)]
    console = Console(file=io.StringIO(), width=300)
    outcome = run([failing, *jobs], tmp_path / "jobs", executor="slurm", slurm=LOCAL, options=OPTIONS, console=console)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    failed, *others = outcome.reports
    assert [r.state for r in others] == ["finished"] * 3, others
    assert failed.state == "failed"
    assert failed.note == "init_from is '/no/such/run', which is neither a run folder nor a recipe's name"
    assert failing.folder(tmp_path / "jobs").failed_file.read_text() == failed.note + "\n"
    assert f"failed    {failing}: {failed.note}" in told
    assert "Traceback" not in told
    assert outcome.exit_code == 1

    carry_out([failing, *jobs], tmp_path / "alone")
    for job in jobs:
        name = Path(job.recipe.name) / f"seed{job.seed}" / "model.safetensors"
        assert (tmp_path / "jobs" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()

    before = submissions(tmp_path / "jobs")
    assert len(before) == 4
    again = run(jobs, tmp_path / "jobs", executor="slurm", slurm=LOCAL, options=OPTIONS, console=Console(quiet=True))
    assert again.exit_code == 0
    assert submissions(tmp_path / "jobs") == before


def stop_with_sigterm(jobs: Disturbed, owner: int) -> None:
    """As clusters do that preempt a job: SIGTERM to all of it, and time to save."""
    controller(jobs).terminate()


def kill_all_of_it(jobs: Disturbed, owner: int) -> None:
    """As a node does that fails."""
    controller(jobs).kill()
    os.kill(owner, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", [stop_with_sigterm, kill_all_of_it])
def test_job_that_was_ended_from_outside_is_submitted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Disturbed, int], None]
) -> None:
    monkeypatch.setattr(slurm, "RESULT_DELAY", 0.5)
    job = Job(small("bnn-stompp", epochs=SHORT), 0)
    executor = Disturbed(tmp_path / "jobs", once(job, tmp_path / "jobs", how))
    outcome = grid_of([job], tmp_path / "jobs", executor)
    assert outcome.reports[0].state == "finished", outcome.reports
    assert len(executor.submitted) == len(submissions(tmp_path / "jobs")) == 2
    log = job.folder(tmp_path / "jobs").log_file.read_text()
    assert len(re.findall(r"^--- \d{4}-", log, re.M)) == 2
    assert ("going on with" in log) or how is kill_all_of_it  # which may have come before the first checkpoint
    train(job.recipe, replace(OPTIONS, runs=tmp_path / "alone"), Console(quiet=True))
    assert_same_runs(tmp_path / "jobs", tmp_path / "alone")


@pytest.mark.slow
def test_job_whose_process_was_killed_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's end, most likely: it would come again."""
    monkeypatch.setattr(slurm, "RESULT_DELAY", 0.5)
    job = Job(small("bnn-stompp", epochs=SHORT), 0)
    kill = once(job, tmp_path, lambda jobs, owner: os.kill(owner, signal.SIGKILL))
    executor = Disturbed(tmp_path, kill)
    outcome = grid_of([job], tmp_path, executor)
    assert outcome.reports[0].state == "failed"
    assert "ended as FINISHED; see " in outcome.reports[0].note
    assert len(executor.submitted) == 1
    assert look(job, tmp_path).state == "failed"
    assert grid_of([job], tmp_path, Disturbed(tmp_path, lambda jobs: None)).reports[0].state == "failed"


@pytest.mark.slow
def test_cancelled_grid_stops_cleanly_and_goes_on(tmp_path: Path) -> None:
    jobs = [Job(small("bnn-stompp", epochs=400), k) for k in range(3)]
    interrupt = once(jobs[0], tmp_path, lambda executor, owner: os.kill(os.getpid(), signal.SIGINT))
    executor = Disturbed(tmp_path, interrupt)
    console = Console(file=io.StringIO(), width=300)
    outcome = grid_of(jobs, tmp_path, executor, console)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert outcome.exit_code == 130
    assert [r.state for r in outcome.reports] == ["stopped", "stopped", "waiting"], outcome.reports
    assert "2 stopped, 1 waiting of 3 runs" in told
    assert "the same command goes on from here" in told
    assert not list(tmp_path.glob("*/seed*/FAILED"))
    assert jobs[0].folder(tmp_path).in_use_by() is None
    assert "stopped by SIGINT at step" in jobs[0].folder(tmp_path).log_file.read_text()
    assert look(jobs[0], tmp_path).state == "unfinished"
    assert len(executor.submitted) == 2


# ---- said to a SLURM that is only acted -----------------------------------------------------------------------------

SBATCH = """#!/bin/sh
[ -e {home}/refuse ] && {{ cat {home}/refuse >&2; exit 1; }}
number=$(($(cat {home}/number) + 1))
echo $number > {home}/number
cp "$1" {home}/$number.sh
echo "Submitted batch job $number"
"""
SACCT = """#!/bin/sh
echo asked >> {home}/asked
cat {home}/states
"""
SCANCEL = """#!/bin/sh
echo "$1" >> {home}/cancelled
echo "$1|CANCELLED by 1000|node" >> {home}/states
"""


@dataclass
class Actor:
    """A SLURM that does nothing."""

    home: Path

    def say(self, job: Any, state: str) -> None:
        """Have sacct tell a job's state from now on."""
        with open(self.home / "states", "a") as file:
            file.write(f"{job.job_id}|{state}|node\n")

    def finish(self, job: Any, content: tuple[str, object]) -> None:
        """Put a result where submitit looks for it."""
        job.paths.result_pickle.parent.mkdir(parents=True, exist_ok=True)
        job.paths.result_pickle.write_bytes(pickle.dumps(content))
        self.say(job, "COMPLETED")

    def refuse(self, reason: str) -> None:
        """Have sbatch take nothing."""
        (self.home / "refuse").write_text(reason)

    def cancelled(self) -> list[str]:
        file = self.home / "cancelled"
        return file.read_text().split() if file.exists() else []

    def asked(self) -> int:
        file = self.home / "asked"
        return len(file.read_text().split()) if file.exists() else 0

    def scripts(self) -> list[str]:
        """Return what sbatch was given, in order."""
        return [path.read_text() for path in sorted(self.home.glob("*.sh"))]


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Actor]:
    home = tmp_path / "cluster"
    home.mkdir()
    for name, text in (("srun", "#!/bin/sh\n"), ("sbatch", SBATCH), ("sacct", SACCT), ("scancel", SCANCEL)):
        (home / name).write_text(text.format(home=home))
        (home / name).chmod(0o755)
    (home / "number").write_text(str(time.time_ns() // 1000))  # submitit remembers jobs by number
    (home / "states").write_text("JobID|State|NodeList\n")
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "RESULT_DELAY", 0.0)
    submitit.SlurmJob.watcher.clear()
    yield Actor(home)
    submitit.SlurmJob.watcher.clear()


def starts(count: int) -> list[Start]:
    return [Start(k, small("bnn-ste"), replace(OPTIONS, seed=k)) for k in range(count)]


def jobs_on(runs: Path, count: int = 1, **options: Any) -> tuple[SlurmJobs, list[Any]]:
    """Submit runs; return the executor and submitit's jobs."""
    executor = SlurmJobs(runs, SlurmOptions(**options))
    executor.start(starts(count))
    return executor, [one.job for one in executor._running.values()]


def ends(executor: SlurmJobs) -> list[tuple[object, int]]:
    executor._looked = float("-inf")  # as if the two seconds were over
    return [(end.key, end.code) for end in executor.wait(0)]


def test_jobs_are_submitted_as_one_array_with_what_was_asked(tmp_path: Path, actor: Actor) -> None:
    executor, jobs = jobs_on(
        tmp_path / "runs", 3, partition="gpu", account="me", minutes=90, gpus=2, cpus=7, memory_gb=48, at_once=2
    )
    (script,) = actor.scripts()
    for flag in (
        "--partition=gpu", "--account=me", "--time=90", "--gpus-per-node=2", "--cpus-per-task=7", "--mem=48GB",
        "--array=0-2%2", "--signal=USR2@180", "--job-name=stompp",
    ):  # fmt: skip
        assert f"#SBATCH {flag}\n" in script, script
    assert len({job.job_id for job in jobs}) == 3
    assert all(job.job_id.endswith(f"_{k}") for k, job in enumerate(jobs))
    assert executor.queues
    assert executor.slots > 10_000  # the cluster keeps the queue
    for k, job in enumerate(jobs):
        submission = job.submission()
        recipe, options = submission.args
        assert (recipe, options.seed, options.threads) == (small("bnn-ste"), k, 1)
        assert options.runs == OPTIONS.runs


def test_cluster_chooses_what_was_not_asked(tmp_path: Path, actor: Actor) -> None:
    jobs_on(tmp_path / "runs", minutes=2)
    (script,) = actor.scripts()
    for flag in ("partition", "account", "mem", "array"):
        assert f"#SBATCH --{flag}=" not in script
    assert "#SBATCH --signal=USR2@60\n" in script  # of so short a job not all is for saving


def test_run_gets_the_cores_of_its_job(tmp_path: Path, actor: Actor) -> None:
    executor = SlurmJobs(tmp_path, SlurmOptions(cpus=6))
    executor.start([Start(0, small("bnn-ste"), RunOptions(device="cpu"))])
    (one,) = executor._running.values()
    assert one.job.submission().args[1].threads == 6


def test_hundreds_of_runs_are_several_arrays(tmp_path: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LONGEST_ARRAY", 4)
    executor, jobs = jobs_on(tmp_path / "runs", 9)
    sizes = [line.split("0-")[1].split("%")[0] for s in actor.scripts() for line in s.splitlines() if "--array" in line]
    assert sizes == ["3", "3"]
    assert len(actor.scripts()) == 3
    assert list(executor._running) == list(range(9))
    assert len({job.job_id for job in jobs}) == 9


def test_job_that_waits_or_runs_has_not_ended(tmp_path: Path, actor: Actor) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    assert ends(executor) == []  # sacct knows nothing of it yet
    for state in ("PENDING", "RUNNING", "REQUEUED", "COMPLETING"):
        actor.say(job, state)
        submitit.SlurmJob.watcher.update()
        assert ends(executor) == [], state


@pytest.mark.parametrize("code", [worker.FINISHED, worker.BAD_INPUT, worker.DIVERGED, 130])
def test_jobs_result_is_the_runs_exit_code(tmp_path: Path, actor: Actor, code: int) -> None:
    executor, (first, second) = jobs_on(tmp_path / "runs", 2)
    actor.finish(second, ("success", code))
    assert ends(executor) == [(1, code)]
    assert ends(executor) == []
    actor.finish(first, ("success", 0))
    assert ends(executor) == [(0, 0)]
    assert not executor._running
    assert len(actor.scripts()) == 1


@pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_job_that_the_cluster_ended_is_submitted_anew(tmp_path: Path, actor: Actor, state: str) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.say(job, state)
    assert ends(executor) == []
    (one,) = executor._running.values()
    assert one.job.job_id != job.job_id
    assert one.restarts == 1
    assert one.job.submission().args == job.submission().args
    actor.finish(one.job, ("success", 0))
    assert ends(executor) == [(0, 0)]


def test_preempted_job_that_the_cluster_queues_itself_is_waited_for(
    tmp_path: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sacct said may be old: before a second job is submitted it is asked again."""
    monkeypatch.setattr(slurm, "RESULT_DELAY", 0.2)
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.say(job, "PREEMPTED")
    assert ends(executor) == []
    actor.say(job, "PENDING")
    time.sleep(0.25)
    assert ends(executor) == []
    assert len(actor.scripts()) == 1
    actor.finish(job, ("success", 0))
    assert ends(executor) == [(0, 0)]


def test_run_that_was_stopped_and_saved_is_submitted_anew(tmp_path: Path, actor: Actor) -> None:
    """A SIGTERM from the cluster, with time to save: the job ends in order, with a result that says so."""
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.finish(job, ("success", STOPPED))
    assert ends(executor) == []
    assert len(actor.scripts()) == 2


def test_run_that_is_stopped_again_and_again_is_given_up(
    tmp_path: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RESTARTS", 2)
    executor, _ = jobs_on(tmp_path / "runs")
    for _ in range(2):
        (one,) = executor._running.values()
        actor.finish(one.job, ("success", STOPPED))
        assert ends(executor) == []
    (one,) = executor._running.values()
    actor.finish(one.job, ("success", STOPPED))
    assert ends(executor) == [(0, STOPPED)]
    assert len(actor.scripts()) == 3


@pytest.mark.parametrize("saved", [True, False])
def test_job_that_somebody_cancelled_is_left_alone(tmp_path: Path, actor: Actor, saved: bool) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    if saved:
        actor.finish(job, ("success", STOPPED))
    actor.say(job, "CANCELLED by 1000")
    assert ends(executor) == [(0, STOPPED)]
    assert len(actor.scripts()) == 1


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "FAILED", "COMPLETED"])
def test_job_without_a_result_has_failed_with_its_state(tmp_path: Path, actor: Actor, state: str) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.say(job, state)
    executor._looked = float("-inf")
    (end,) = executor.wait(0)
    assert end.code == worker.CRASHED
    assert end.reason == f"job {job.job_id} ended as {state}; see {job.paths.stderr}"


def test_result_may_come_after_the_state(tmp_path: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "RESULT_DELAY", 30.0)
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.say(job, "COMPLETED")
    assert ends(executor) == []
    actor.finish(job, ("success", 0))
    assert ends(executor) == [(0, 0)]


def test_error_outside_the_run_is_told_in_one_line(tmp_path: Path, actor: Actor) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.finish(job, ("error", 'Traceback (most recent call last):\n  File "x.py"\nImportError: no module stompp\n'))
    executor._looked = float("-inf")
    (end,) = executor.wait(0)
    assert (end.code, end.reason) == (worker.CRASHED, "ImportError: no module stompp")


def test_stop_cancels_every_job_and_ends_soon(tmp_path: Path, actor: Actor) -> None:
    """sacct is asked at once: unasked, submitit would look again after minutes."""
    executor, (first, second, third) = jobs_on(tmp_path / "runs", 3)
    for job in (first, second, third):
        actor.say(job, "PENDING")
    assert ends(executor) == []  # and now sacct is not asked again for a while
    actor.finish(first, ("success", STOPPED))
    executor.stop()
    assert actor.cancelled() == [first.job_id, second.job_id, third.job_id]
    found = ends(executor) + ends(executor)
    assert sorted(found) == [(0, STOPPED), (1, STOPPED), (2, STOPPED)]
    assert len(actor.scripts()) == 1
    assert not executor._running


def test_stopping_asks_once_for_all_jobs(tmp_path: Path, actor: Actor) -> None:
    executor, jobs = jobs_on(tmp_path / "runs", 20)
    for job in jobs:
        actor.say(job, "RUNNING")
    ends(executor)
    before = actor.asked()
    executor._stopping = True
    time.sleep(0.01)  # submitit asks once a millisecond at most
    assert ends(executor) == []
    assert actor.asked() == before + 1


def test_kill_waits_no_longer(tmp_path: Path, actor: Actor) -> None:
    executor, jobs = jobs_on(tmp_path / "runs", 2)
    for job in jobs:
        actor.say(job, "COMPLETING")
    executor.stop()
    executor.kill()
    assert [(end.key, end.code) for end in executor.wait(0)] == [(0, STOPPED), (1, STOPPED)]


def test_close_cancels_what_is_left(tmp_path: Path, actor: Actor) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    executor.close()
    assert actor.cancelled() == [job.job_id]


def test_disk_is_not_looked_at_all_the_time(tmp_path: Path, actor: Actor) -> None:
    executor, (job,) = jobs_on(tmp_path / "runs")
    actor.finish(job, ("success", 0))
    executor._looked = time.monotonic()
    assert executor.wait(0) == []
    executor._looked -= 2.1
    assert executor.wait(0) == [End(0, 0)]


def test_refusal_of_the_cluster_is_one_line(tmp_path: Path, actor: Actor, capsys: pytest.CaptureFixture[str]) -> None:
    actor.refuse("sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed\n")
    jobs = [Job(small("bnn-ste"), seed) for seed in range(2)]
    with pytest.raises(UsageError) as error:
        grid_of(jobs, tmp_path / "runs", SlurmJobs(tmp_path, SlurmOptions(partition="nope")))
    told = str(error.value)
    assert "SLURM takes no jobs (sbatch: error: invalid partition specified: nope sbatch: error: Batch" in told
    assert "\n" not in told
    assert capsys.readouterr().err == ""
    assert look(jobs[0], tmp_path / "runs").state == "new"


def test_refusal_of_a_job_to_be_submitted_anew_leaves_the_others_alone(tmp_path: Path, actor: Actor) -> None:
    executor, (first, second) = jobs_on(tmp_path / "runs", 2)
    actor.say(second, "RUNNING")
    actor.finish(first, ("success", STOPPED))
    actor.refuse("sbatch: error: the account has no time left\n")
    executor._looked = float("-inf")
    (end,) = executor.wait(0)
    assert (end.key, end.code) == (0, worker.CRASHED)
    assert "the account has no time left" in end.reason
    assert list(executor._running) == [1]
    assert actor.cancelled() == []


# ---- what may be asked, and where -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"minutes": 0}, "slurm.minutes is 0; it must be at least 1"),
        ({"gpus": -1}, "slurm.gpus is -1; it must be at least 0"),
        ({"cpus": 0}, "slurm.cpus is 0; it must be at least 1"),
        ({"memory_gb": 0}, "slurm.memory_gb is 0; it must be at least 1"),
        ({"at_once": 0}, "slurm.at_once is 0; it must be at least 1"),
    ],
)
def test_options_that_no_cluster_can_give_are_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(UsageError) as error:
        SlurmOptions(**options)  # type: ignore[arg-type]
    assert str(error.value) == told


def test_options_at_their_edges() -> None:
    assert SlurmOptions(minutes=1, gpus=0, cpus=1, memory_gb=None, at_once=1).memory_gb is None


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="There is no SLURM here; leave --executor out to train on this machine"):
        SlurmJobs(tmp_path, SlurmOptions())


def test_submitit_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError) as error:
        SlurmJobs(tmp_path, SlurmOptions())
    assert str(error.value) == "jobs for SLURM need submitit: pip install 'stompp[slurm]'"


def test_local_imitation_takes_as_many_as_may_run(tmp_path: Path) -> None:
    """It has no queue, so the grid must not hand it everything at once."""
    assert SlurmJobs(tmp_path, replace(LOCAL, at_once=3)).slots == 3


# ---- inside a job: which signal does what ---------------------------------------------------------------------------


class Requeued(SystemExit):
    """What submitit does to end a process whose job is queued again."""


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pretend to be a job: submitit's handlers are in place, which note what they are told."""
    said: list[str] = []

    def queue_again(number: int, frame: object) -> None:
        said.append("queued again")
        raise Requeued

    def bypass(number: int, frame: object) -> None:
        said.append("bypassed")

    before = {n: signal.getsignal(n) for n in (signal.SIGUSR2, signal.SIGTERM)}
    signal.signal(signal.SIGUSR2, queue_again)
    signal.signal(signal.SIGTERM, bypass)
    yield said
    for number, handler in before.items():
        signal.signal(number, handler)


def training(code: int, said: list[str], *, handles: bool = True) -> Callable[..., int]:
    """Return what stands in for a run that is sent the signal while it trains, or before it does."""

    def carry_out(recipe: object, options: object) -> int:
        idle = signal.getsignal(signal.SIGTERM)
        if handles:
            signal.signal(signal.SIGTERM, lambda number, frame: said.append("asked to save"))
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGTERM, idle)
        said.append(f"ended with {code}")
        return code

    return carry_out


def do_job(monkeypatch: pytest.MonkeyPatch, carry_out: Callable[..., int]) -> int:
    monkeypatch.setattr(worker, "carry_out", carry_out)
    return slurm.RunInJob()(small("bnn-ste"), OPTIONS)


def test_job_saves_before_it_is_queued_again(in_job: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Requeued):
        do_job(monkeypatch, training(STOPPED, in_job))
    assert in_job == ["asked to save", f"ended with {STOPPED}", "queued again"]


def test_job_that_has_nothing_to_save_is_queued_again_at_once(
    in_job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Requeued):
        do_job(monkeypatch, training(STOPPED, in_job, handles=False))
    assert in_job == ["queued again"]


@pytest.mark.parametrize("code", [worker.FINISHED, worker.DIVERGED, worker.CRASHED])
def test_job_that_ends_just_then_is_not_queued_again(
    in_job: list[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert do_job(monkeypatch, training(code, in_job)) == code
    assert "queued again" not in in_job


def test_job_that_somebody_else_stops_is_not_queued_again_by_itself(
    in_job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SIGTERM alone is scancel, or a preemption, which the grid sees: it must not be queued twice."""
    assert do_job(monkeypatch, lambda recipe, options: STOPPED) == STOPPED
    assert in_job == []


def test_job_says_what_to_do_when_it_starts_again() -> None:
    made = slurm.RunInJob().checkpoint(small("bnn-ste"), OPTIONS)
    assert isinstance(made.function, slurm.RunInJob)
    assert made.args == (small("bnn-ste"), OPTIONS)


def test_outside_of_a_job_there_is_nothing_to_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert do_job(monkeypatch, lambda recipe, options: STOPPED) == STOPPED
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
