"""Runs in several processes: the result of one process, the same state everywhere, ends that are ends for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stompp.errors import UsageError
from stompp.training.distributed import ALONE, Ranks, share_of

TIMED = {"images_per_second", "seconds", "evaluation_seconds", "time"}
SIZE = {"limit-train": 512, "batch-size": 32, "eval-train": 100, "epochs": 2, "refresh": 2, "lr": 0.01}
RECIPE = [*(part for name, n in SIZE.items() for part in (f"--{name}", str(n))), "--no-tensorboard", "--device", "cpu"]
BNN = ["resnet8-digits-bnn-stompp", "--width", "4"]

# Imports stompp once, then forks the ranks of each job, as torchrun would start them. A plan makes one rank send itself
# a signal at a step. Each rank leaves its state at the end beside the run, which only the first one writes.
SERVER = """
import json, os, signal, socket, sys
from types import SimpleNamespace

import torch
from torch import nn

import stompp.training.loop as loop
from stompp import models
from stompp.cli import main
from stompp.core.freezer import Freezer

torch.optim.SGD([torch.zeros(1)], 0.1)  # torch imports its compiler with the first optimizer; once is enough
step, finish = Freezer.step, loop.Training._finish


class Scale(nn.Module):
    def forward(self, x):
        return x / 8


def without_norms(num_classes, channels):
    convs = [(channels, 8), (8, 8), (8, 8)]
    blocks = [m for a, b in convs for m in (nn.Conv2d(a, b, 3, padding=1), Scale(), nn.ReLU())]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))


models.MODELS["without_norms"] = without_norms


def leave_state(training):
    training.metrics = SimpleNamespace(length=0)  # which only the first rank has
    state = training._state()
    torch.save(state, os.path.join(os.environ["STATES"], str(training.ranks.rank)))
    return finish(training)


def rank_of(job, rank, size, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "STATES": job["states"]}
    if size > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    log = os.open(f"{job['log']}{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    plan = job["plan"]

    def at_step(self, t):
        if plan and plan["rank"] == rank and plan["step"] == t:
            os.kill(os.getpid(), plan["number"])
        return step(self, t)

    Freezer.step, loop.Training._finish = at_step, leave_state
    code = 1
    try:
        code = main(job["arguments"])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


for line in sys.stdin:
    job = json.loads(line)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(job["size"]):
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            rank_of(job, rank, job["size"], port)
        pids.append(pid)
    codes = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pids.index(pid)] = os.waitstatus_to_exitcode(status)
    print(json.dumps([codes[rank] for rank in range(len(pids))]), flush=True)
"""


class Server:
    """Runs commands in as many processes as asked for."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.states = folder / "states"
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, size: int, arguments: list[str], **plan: int) -> list[int]:
        """Return the exit codes of the ranks."""
        self.states.mkdir(exist_ok=True)
        for old in (*self.states.iterdir(), *self.log.parent.glob("log?")):
            old.unlink()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"size": size, "arguments": arguments, "plan": plan, "log": str(self.log), "states": str(self.states)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def said(self, rank: int) -> str:
        return Path(f"{self.log}{rank}").read_text()

    def state(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.states / str(rank), weights_only=True)
        found.pop("clock")  # every rank has its own
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def command(runs: Path, *changes: str) -> list[str]:
    name, *more = changes or BNN
    return ["train", name, *RECIPE, *more, "--runs", str(runs)]


def folder(runs: Path) -> Path:
    (found,) = runs.glob("*/seed*")
    return found


def rows(runs: Path) -> list[dict[str, Any]]:
    lines = (folder(runs) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMED} for line in lines]


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


def assert_same_run(runs: Path, reference: Path) -> None:
    assert rows(runs) == rows(reference)
    for name in ("model.safetensors", "DONE"):
        assert (folder(runs) / name).read_bytes() == (folder(reference) / name).read_bytes()


@pytest.fixture(scope="module")
def two(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two processes that nothing disturbs."""
    runs = tmp_path_factory.mktemp("two")
    assert server.run(2, command(runs)) == [0, 0], server.said(0) + server.said(1)
    return runs


@pytest.mark.parametrize(
    "size, changes",
    [
        pytest.param(2, [*BNN[:1], "--model", "without_norms"], id="bnn"),
        pytest.param(4, [*BNN[:1], "--model", "without_norms"], id="bnn-4"),
        pytest.param(2, [*BNN[:1], "--model", "without_norms", "--ovsw", "--weights", "ste"], id="ovsw"),
        pytest.param(2, ["resnet8-digits-float-clip", "--width", "4", "--sync-batchnorm"], id="sync-batchnorm"),
        pytest.param(
            2,
            ["resnet8-digits-float-clip", "--width", "4", "--sync-batchnorm", "--recalibrate-bn"],
            id="recalibrate-bn",
        ),
    ],
)
def test_several_processes_give_the_result_of_one(
    server: Server, tmp_path: Path, size: int, changes: list[str]
) -> None:
    assert server.run(1, command(tmp_path / "one", *changes)) == [0], server.said(0)
    assert server.run(size, command(tmp_path / "several", *changes)) == [0] * size, server.said(0) + server.said(1)
    ours, theirs = (load_file(folder(tmp_path / name) / "model.safetensors") for name in ("several", "one"))
    for name, value in theirs.items():
        # Sums in another order differ in the last bit, and where that moves an entry over the edge of clip, by more.
        # Without synchronised BatchNorm the same weights are a hundred times further apart.
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-3, msg=name)
    for a, b in zip(rows(tmp_path / "several"), rows(tmp_path / "one"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["accuracy"] == pytest.approx(b["accuracy"], abs=0.21)  # one image of 512 may tip over
        assert a["sites"] == b["sites"]
        for split, images in (("test", 360), ("train", 100)):
            for view in ("current", "binary"):
                assert a[split][view]["loss"] == pytest.approx(b[split][view]["loss"], rel=1e-4)
                assert a[split][view]["accuracy"] == pytest.approx(b[split][view]["accuracy"], abs=100.1 / images)


def test_every_rank_holds_the_same_bits(server: Server, tmp_path: Path) -> None:
    # with BatchNorm per rank, whose running statistics differ between ranks unless they are averaged
    assert server.run(3, command(tmp_path, *BNN, "--batch-size", "33", "--hold-frozen")) == [0, 0, 0], server.said(0)
    first = server.state(0)
    assert any("running_var" in name for name in first["model"])
    for rank in (1, 2):
        assert_same(server.state(rank), first)


def test_only_the_first_rank_speaks(server: Server, tmp_path: Path) -> None:
    assert server.run(2, command(tmp_path)) == [0, 0]
    assert "epoch   2/2" in server.said(0)
    assert server.said(1) == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_ends_all_and_the_resumed_run_is_the_same(
    server: Server, two: Path, tmp_path: Path, rank: int
) -> None:
    arguments = [*command(tmp_path), "--checkpoint-minutes", "0"]
    codes = server.run(2, arguments, rank=rank, step=21, number=signal.SIGKILL)
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == 2
    assert "has lost the others" in server.said(1 - rank)
    assert "Traceback" not in server.said(1 - rank)
    assert server.run(2, arguments) == [0, 0], server.said(0) + server.said(1)
    assert "going on with" in server.said(0)
    assert_same_run(tmp_path, two)


@pytest.mark.parametrize("rank", [0, 1])
def test_signal_to_one_rank_stops_all_and_the_resumed_run_is_the_same(
    server: Server, two: Path, tmp_path: Path, rank: int
) -> None:
    codes = server.run(2, command(tmp_path), rank=rank, step=20, number=signal.SIGTERM)
    assert codes == [128 + signal.SIGTERM] * 2, server.said(0) + server.said(1)
    assert "stopped by SIGTERM at step 21 of 32" in server.said(0)
    assert server.run(2, command(tmp_path)) == [0, 0]
    assert_same_run(tmp_path, two)


def test_run_goes_on_in_another_number_of_processes_and_says_so(server: Server, tmp_path: Path) -> None:
    assert server.run(2, command(tmp_path), rank=1, step=20, number=signal.SIGTERM) == [143, 143]
    assert server.run(1, command(tmp_path)) == [0], server.said(0)
    assert "processes was 2 and is 1 now" in server.said(0)
    assert json.loads((folder(tmp_path) / "env.json").read_text())["processes"] == 1


def test_finished_run_is_left_alone(server: Server, two: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder(two).iterdir()}
    assert server.run(2, command(two)) == [0, 0]
    assert {path: path.stat().st_mtime_ns for path in folder(two).iterdir()} == before


@pytest.mark.parametrize(
    "size, changes, told",
    [
        (3, [], "batch_size is 32, which 3 processes cannot share evenly; write a --batch-size that is a multiple"),
        (2, ["--lr", "1e30"], "is not finite at step"),
    ],
)
def test_mistake_is_one_line_and_ends_all(
    server: Server, tmp_path: Path, size: int, changes: list[str], told: str
) -> None:
    assert server.run(size, [*command(tmp_path), *changes]) == [2] * size
    for rank in range(size):
        last = server.said(rank).splitlines()[-1]
        assert told in last
        assert last.startswith("stompp: " if rank == 0 else f"stompp: rank {rank}: ")
        assert "Traceback" not in server.said(rank)


def test_failure_of_the_first_rank_is_said_once_and_ends_all(server: Server, two: Path, tmp_path: Path) -> None:
    run = tmp_path / folder(two).parent.name / "seed0"
    run.mkdir(parents=True)
    for name in ("recipe.json", "checkpoint.pt"):
        (run / name).write_bytes((folder(two) / name).read_bytes())
    assert server.run(2, command(tmp_path)) == [2, 2]  # metrics.jsonl has lost its lines, which only rank 0 looks at
    assert "metrics.jsonl has lost lines" in server.said(0)
    assert server.said(1) == ""


def test_ranks_that_see_different_checkpoints_are_refused(server: Server, two: Path, tmp_path: Path) -> None:
    class Torn(Ranks):
        def agree(self, *values: int) -> tuple[int, ...]:
            return tuple(max(pair) for pair in zip(values, (7, -7)))

    with pytest.raises(UsageError, match="not every rank sees the same checkpoint; put --runs on a disk"):
        Torn(0, 2).refuse_differing(5, "checkpoint")
    Torn(0, 2).refuse_differing(7, "checkpoint")


def test_alone_nothing_is_exchanged() -> None:
    values = torch.ones(3)
    assert ALONE.total(values) is values
    assert ALONE.agree(3, False) == (3, False)
    assert ALONE.first_then_others(lambda: 5) == 5
    assert share_of(33, ALONE) == 33


@pytest.mark.slow
def test_torchrun_starts_stops_and_goes_on(tmp_path: Path) -> None:
    # more epochs than it can do before the signal comes
    arguments = [*command(tmp_path), "--epochs", "60"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "stompp"]
    process = subprocess.Popen([*torchrun, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    give_up = time.monotonic() + 120
    while not list(tmp_path.glob("*/seed0/checkpoint.pt")) and time.monotonic() < give_up:
        time.sleep(0.05)
    process.terminate()
    told, _ = process.communicate(timeout=120)
    assert "stopped by SIGTERM" in told
    done = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "going on with" in done.stdout
    assert done.stdout.count("finished") == 1
