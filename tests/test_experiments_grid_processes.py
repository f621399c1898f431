"""Grids with real processes: results do not depend on kills, and a run's end is told as it was."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stompp import recipes
from stompp.experiments.collect import collect
from stompp.experiments.grid import Job, Outcome, look, run
from stompp.experiments.runs import find_runs
from stompp.recipes import Recipe
from stompp.training.options import RunOptions

TIMED = {"images_per_second", "seconds", "evaluation_seconds", "time"}
SIZE = {"width": 4, "limit_train": 512, "batch_size": 32, "eval_train": 64, "refresh": 2}
OPTIONS = RunOptions(tensorboard=False, device="cpu", threads=1)


def small(method: str, **fields: Any) -> Recipe:
    return recipes.get(f"resnet8-digits-{method}").changed(**{**SIZE, "epochs": 2, **fields})


# Imports stompp once, then forks a process per grid, which leads a process group of its own and may be killed.
SERVER = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path

import stompp.experiments.worker
from stompp.experiments.grid import run
from test_experiments_grid_processes import OPTIONS, jobs

options = replace(OPTIONS, checkpoint_minutes=0)  # a checkpoint after every step, so that kills fall into writes
for line in sys.stdin:
    runs, epochs, output = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = 1
        try:
            code = run(jobs(epochs), Path(runs), options=options, parallel=2).exit_code
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Grids:
    """Starts grids as processes of their own, one after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, runs: Path, epochs: int, output: Path) -> int:
        """Start a grid; return the id of its process, which is also that of its group."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(runs), epochs, str(output)]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def ended(self) -> bool:
        assert self._server.stdout is not None
        return bool(select.select([self._server.stdout], [], [], 0)[0])

    def wait(self) -> int:
        """Return the exit code of the grid that was started last."""
        wait_for(self.ended)
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


@pytest.fixture(scope="module")
def grids() -> Iterator[Grids]:
    made = Grids()
    yield made
    made.close()


def jobs(epochs: int) -> list[Job]:
    source = small("float-clip", epochs=epochs)
    chosen = [small("bnn-stompp", epochs=epochs), small("bnn-ste", epochs=epochs, init_from=source.name), source]
    return [Job(recipe, 0) for recipe in chosen] + [Job(chosen[0], 1)]


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.002)


def checkpoints(runs: Path) -> dict[Path, int]:
    found = {}
    for path in runs.glob("*/seed*/checkpoint.pt"):
        with suppress(FileNotFoundError):  # between its two renames
            found[path] = path.stat().st_ino
    return found


def in_group(group: int) -> list[str]:
    """Return the stat lines of the processes that are in a process group, those apart that only wait to be reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, theirs = path.read_text().rsplit(")", 1)[1].split()[:3]
            if int(theirs) == group and state != "Z":
                found.append(str(path))
    return found


def untimed_rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def assert_same_runs(ours: Path, theirs: Path) -> None:
    folders = sorted(path.parent.relative_to(theirs) for path in theirs.glob("*/seed*/recipe.json"))
    assert folders == sorted(path.parent.relative_to(ours) for path in ours.glob("*/seed*/recipe.json"))
    for folder in folders:
        assert untimed_rows(ours / folder) == untimed_rows(theirs / folder)
        for name in ("model.safetensors", "DONE", "recipe.json"):
            assert (ours / folder / name).read_bytes() == (theirs / folder / name).read_bytes(), folder / name
        assert not (ours / folder / "FAILED").exists()


def carry_out(jobs: list[Job], runs: Path, **more: Any) -> Outcome:
    options = more.pop("options", OPTIONS)
    return run(jobs, runs, options=options, console=Console(quiet=True), **more)


def kill_again_and_again(grids: Grids, runs: Path, epochs: int, kills: int, draw: random.Random, output: Path) -> None:
    """Start the grid and kill -9 its whole process group a few checkpoints later, so many times."""
    for _ in range(kills):
        seen = set(checkpoints(runs).items())
        enough = len(seen) + draw.randint(1, 12)
        group = grids.start(runs, epochs, output)
        while len(seen) < enough and not grids.ended():
            seen.update(checkpoints(runs).items())
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        os.killpg(group, signal.SIGKILL)
        assert grids.wait() == -signal.SIGKILL, output.read_text()
        wait_for(lambda: not in_group(group))  # noqa: B023 - called in this round only


@pytest.mark.parametrize(
    ("epochs", "kills"), [pytest.param(2, 1, id="once"), pytest.param(6, 12, id="often", marks=pytest.mark.slow)]
)
def test_grid_killed_at_any_time_ends_as_if_left_alone(grids: Grids, tmp_path: Path, epochs: int, kills: int) -> None:
    assert carry_out(jobs(epochs), tmp_path / "alone").exit_code == 0
    kill_again_and_again(grids, tmp_path / "killed", epochs, kills, random.Random(7), tmp_path / "log")
    assert len(list((tmp_path / "killed").glob("*/seed*/DONE"))) < 4
    outcome = carry_out(jobs(epochs), tmp_path / "killed")
    assert outcome.exit_code == 0, outcome.reports
    assert_same_runs(tmp_path / "killed", tmp_path / "alone")


def test_failing_run_tells_why_and_the_others_go_on(tmp_path: Path) -> None:
    diverging, missing, good = (
        small("bnn-ste", lr=1e9),
        small("bnn-ste", init_from="/no/such/run"),
        small("float-clip"),
    )
    made = [Job(diverging, 0), Job(missing, 0), Job(good, 0)]
    outcome = carry_out(made, tmp_path)
    assert [r.state for r in outcome.reports] == ["diverged", "failed", "finished"]
    notes = [r.note for r in outcome.reports]
    assert "is not finite at step" in notes[0]
    assert "neither a run folder nor a recipe's name" in notes[1]
    for job, note in zip(made, notes[:2]):
        assert note in job.folder(tmp_path).log_file.read_text()
    assert not made[0].folder(tmp_path).failed_file.exists()
    assert made[1].folder(tmp_path).failed_file.read_text() == notes[1] + "\n"
    assert "epoch   2/2" in made[2].folder(tmp_path).log_file.read_text()
    assert outcome.exit_code == 1


def test_broken_down_run_is_a_result_that_is_not_tried_again(tmp_path: Path) -> None:
    jobs = [Job(small("bnn-ste", lr=1e9), 0), Job(small("float-clip"), 0)]
    assert carry_out(jobs, tmp_path).exit_code == 0
    folder = jobs[0].folder(tmp_path)
    before = folder.log_file.read_bytes()
    assert look(jobs[0], tmp_path).state == "diverged"
    assert carry_out(jobs, tmp_path).exit_code == 0
    assert folder.log_file.read_bytes() == before
    (found,) = find_runs([folder.path]).runs
    assert "is not finite at step" in (found.diverged or "")
    assert (found.ended, found.done, found.final()) == (True, False, 10.0)
    kept = collect([tmp_path], tmp_path / "kept")
    assert len(kept) == 2
    assert find_runs([tmp_path / "kept"]).runs[0].diverged == found.diverged
    assert carry_out(jobs, tmp_path, retry_failed=True).reports[0].state == "diverged"
    assert folder.log_file.read_bytes() != before


@pytest.mark.slow
def test_deadline_saves_and_the_next_grid_goes_on(tmp_path: Path) -> None:
    job = Job(small("bnn-stompp", epochs=400), 0)
    outcome = carry_out([job], tmp_path, deadline=4.0)
    assert outcome.exit_code == 130
    assert outcome.reports[0].state == "stopped"
    folder = job.folder(tmp_path)
    assert "stopped by SIGTERM at step" in folder.log_file.read_text()
    epochs = len(folder.read_metrics())
    assert look(job, tmp_path).state == "unfinished"
    carry_out([job], tmp_path, deadline=4.0)
    assert "going on with" in folder.log_file.read_text()
    assert len(folder.read_metrics()) > epochs


@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(signal.SIGTERM, False, id="sigterm", marks=pytest.mark.slow),
        # as timeout(1) or a scheduler does: every process gets it, and the runs once more from the grid
        pytest.param(signal.SIGTERM, True, id="sigterm-to-group"),
        pytest.param(signal.SIGINT, True, id="ctrl-c", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, False, id="sighup", marks=pytest.mark.slow),
    ],
)
def test_signal_saves_every_run(grids: Grids, tmp_path: Path, number: signal.Signals, group: bool) -> None:
    pid = grids.start(tmp_path / "runs", 400, tmp_path / "log")
    wait_for(lambda: len(checkpoints(tmp_path / "runs")) == 2)
    (os.killpg if group else os.kill)(pid, number)
    assert grids.wait() == 128 + number
    told = (tmp_path / "log").read_text()
    assert "2 stopped, 2 waiting of 4 runs" in told
    assert "Traceback" not in told
    assert_all_saved(tmp_path / "runs")
    assert not in_group(pid)


def assert_all_saved(runs: Path) -> None:
    logs = [log.read_text() for log in runs.glob("*/seed*/log.txt")]
    assert len(logs) == 2
    for log in logs:
        assert "stopped by SIGTERM at step" in log
        assert "Traceback" not in log


@pytest.mark.slow
def test_runs_save_when_the_grid_alone_is_killed(grids: Grids, tmp_path: Path) -> None:
    pid = grids.start(tmp_path / "runs", 400, tmp_path / "log")
    wait_for(lambda: len(checkpoints(tmp_path / "runs")) == 2)
    os.kill(pid, signal.SIGKILL)
    assert grids.wait() == -signal.SIGKILL
    wait_for(lambda: not in_group(pid))
    assert_all_saved(tmp_path / "runs")


@pytest.mark.slow
def test_runs_save_when_their_server_alone_is_killed(grids: Grids, tmp_path: Path) -> None:
    pid = grids.start(tmp_path / "runs", 400, tmp_path / "log")
    wait_for(lambda: len(checkpoints(tmp_path / "runs")) == 2)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (server,) = [int(child) for child in children]
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: "the process that starts the runs was killed by SIGKILL" in (tmp_path / "log").read_text())
    os.kill(pid, signal.SIGTERM)
    assert grids.wait() == 143
    wait_for(lambda: not in_group(pid))
    assert not list((tmp_path / "runs").glob("*/seed*/FAILED"))


def test_killed_run_is_told_with_its_signal_and_a_second_grid_keeps_off(grids: Grids, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    pid = grids.start(runs, 400, tmp_path / "log")
    wait_for(lambda: len(checkpoints(runs)) == 2)
    running = [job for job in jobs(400) if look(job, runs).state == "in use"]
    assert [r.state for r in carry_out(running, runs).reports] == ["in use", "in use"]
    owner = running[0].folder(runs).in_use_by()
    assert owner is not None
    os.kill(int(owner), signal.SIGKILL)
    wait_for(lambda: look(running[0], runs).state == "failed")
    assert look(running[0], runs).note == "killed by SIGKILL, by hand or because memory ran out"
    wait_for(lambda: f"failed    {running[0]}: killed by SIGKILL" in (tmp_path / "log").read_text())
    os.killpg(pid, signal.SIGKILL)
    assert grids.wait() == -signal.SIGKILL
    wait_for(lambda: not in_group(pid))
