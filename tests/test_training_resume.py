"""A run that is killed, at whatever moment, ends with the bits of the run that was not. With real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stompp.training import checkpoint

TIMED = {"images_per_second", "seconds", "evaluation_seconds", "time"}

# 16 steps an epoch, 13 sites, masks redrawn so fast that they are never empty. A checkpoint after every step, so that
# kills fall into writes and between them.
SIZE = {
    "width": 4,
    "limit-train": 512,
    "batch-size": 32,
    "eval-train": 64,
    "epochs": 4,
    "refresh": 2,
    "evals-per-epoch": 3,
}
RECIPE = ["resnet8-digits-bnn-stompp", *(part for name, n in SIZE.items() for part in (f"--{name}", str(n)))]
SELDOM = ["--checkpoint-minutes", "60"]  # at the end of an epoch only
QUICK = ["--threads", "1", "--checkpoint-minutes", "0", "--no-tensorboard", "--device", "cpu"]

# Imports stompp once, then forks a process per command; a plan makes that process signal itself at the n-th event.
SERVER = """
import json, os, signal, sys

import torch

import stompp.training.loop
from stompp.cli import main
from stompp.core.freezer import Freezer

torch.optim.SGD([torch.zeros(1)], 0.1)  # torch imports its compiler with the first optimizer; once is enough
fsync, replace, step = os.fsync, os.replace, Freezer.step


def arm(event, n, number, times=1, torn=0.5):
    count = 0

    def reached():
        nonlocal count
        count += 1
        return count == n

    def shoot():
        for _ in range(times):
            os.kill(os.getpid(), number)

    def at_step(self, t):
        if event == "step" and reached():
            shoot()
        return step(self, t)

    def at_fsync(handle):
        if event == "fsync" and reached():
            if os.path.isfile(f"/proc/self/fd/{handle}"):
                os.ftruncate(handle, int(torn * os.fstat(handle).st_size))
            shoot()
        return fsync(handle)

    def at_replace(old, new):
        if event == "before-replace" and reached():
            shoot()
        replace(old, new)
        if event == "after-replace" and reached():
            shoot()

    Freezer.step, os.fsync, os.replace = at_step, at_fsync, at_replace


for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        sys.stdin.close()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job["plan"]:
            arm(**job["plan"])
        code = 1
        try:
            code = main(job["arguments"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    """Runs `stompp` commands as processes of their own."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, arguments: list[str], plan: dict[str, Any] | None = None, meanwhile: Callable[[int], None] | None = None
    ) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"arguments": arguments, "plan": plan, "log": str(self.log)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if meanwhile is not None:
            meanwhile(pid)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server") / "log")
    yield made
    made.close()


def command(runs: Path, *more: str) -> list[str]:
    return ["train", *RECIPE, *QUICK, "--runs", str(runs), *more]


def folder(runs: Path) -> Path:
    (found,) = runs.glob("*/seed*")
    return found


def untimed_rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def assert_same(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def assert_same_run(run: Path, reference: Path) -> None:
    """Weights, optimizer, masks and every number but times are the same to the bit; no line lost or doubled."""
    epochs = [row["epoch"] for row in untimed_rows(run)]
    assert epochs == list(range(len(epochs)))
    assert untimed_rows(run) == untimed_rows(reference)
    assert (run / "model.safetensors").read_bytes() == (reference / "model.safetensors").read_bytes()
    assert (run / "DONE").read_bytes() == (reference / "DONE").read_bytes()
    ours, theirs = (torch.load(p / "checkpoint.pt", weights_only=True) for p in (run, reference))
    for state in (ours, theirs):
        state.pop("metrics_length")  # counts the digits of times
        state.pop("clock")
    assert_same(ours, theirs)


def kill_after_checkpoints(run: Path, count: int, delay: float) -> Callable[[int], None]:
    """Return what kills a process from outside, a moment after it wrote so many checkpoints."""

    def kill(pid: int) -> None:
        seen, last, give_up = 0, None, time.monotonic() + 60
        while seen <= count and time.monotonic() < give_up:
            try:
                now = (run / "checkpoint.pt").stat().st_ino
            except FileNotFoundError:
                now = None
            seen += now is not None and now != last
            last = now or last
            time.sleep(0.0005)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)

    return kill


@pytest.fixture(scope="module")
def reference(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs."""
    runs = tmp_path_factory.mktemp("reference")
    assert server.run(command(runs, *SELDOM)) == 0
    return folder(runs)


def test_run_killed_ten_times_ends_as_if_never_killed(server: Server, reference: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    kinds = ["step", "fsync", "before-replace", "after-replace", "outside"] * 2
    draw.shuffle(kinds)
    arguments = command(tmp_path)
    run = tmp_path / reference.parent.name / reference.name
    for kind in kinds:
        # At most 6 steps each time, so that the run cannot be over before the tenth kill. A checkpoint is two fsyncs
        # (file, folder) and two renames (the last one, the new one).
        steps = draw.randint(1, 6)
        if kind == "outside":
            code = server.run(arguments, None, kill_after_checkpoints(run, steps, draw.uniform(0, 0.01)))
        else:
            n = steps + 1 if kind == "step" else 2 * steps + draw.randint(0, 1)
            plan = {"event": kind, "n": n, "number": signal.SIGKILL, "torn": draw.random()}
            code = server.run(arguments, plan)
        assert code == -signal.SIGKILL, server.log.read_text()
        assert not (run / "DONE").exists()
        assert checkpoint.load(run / "checkpoint.pt", torch.device("cpu"), pytest.fail) is not None, kind
    assert server.run(arguments) == 0, server.log.read_text()
    assert_same_run(run, reference)
    assert not list(run.glob("*.tmp"))
    assert not list(run.glob("*damaged*"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["--hold-frozen"], id="hold-frozen"),
        pytest.param(["--ovsw"], id="stompp-ovsw"),
        pytest.param(["--optimizer", "adamw", "--lr", "0.003", "--weight-decay", "0.1"], id="adamw"),
        pytest.param(["--recalibrate-bn"], id="recalibrate-bn"),
        pytest.param(["--weights", "ste", "--surrogate", "clip"], id="hybrid"),
        pytest.param(
            ["--policy", "deterministic", "--activations", "clip", "--order", "global"],
            id="deterministic",
            marks=pytest.mark.slow,
        ),
        pytest.param(["--precision", "bf16"], id="bf16"),
    ],
)
def test_every_kind_of_run_survives_kills(server: Server, tmp_path: Path, changes: list[str]) -> None:
    changes = ["--epochs", "2", *changes]
    assert server.run(command(tmp_path / "whole", *SELDOM, *changes)) == 0, server.log.read_text()
    # first within an epoch, then just before the checkpoint that ends one, when its line is written already
    for event, n in (("step", 9), ("before-replace", 19), ("fsync", 21)):
        plan = {"event": event, "n": n, "number": signal.SIGKILL}
        assert server.run(command(tmp_path / "killed", *changes), plan) == -signal.SIGKILL
    assert server.run(command(tmp_path / "killed", *changes)) == 0, server.log.read_text()
    assert_same_run(folder(tmp_path / "killed"), folder(tmp_path / "whole"))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_run_killed_at_its_first_files_starts_again(server: Server, reference: Path, tmp_path: Path, n: int) -> None:
    # recipe.json, env.json, the first checkpoint
    plan = {"event": "before-replace", "n": n, "number": signal.SIGKILL}
    assert server.run(command(tmp_path, *SELDOM), plan) == -signal.SIGKILL
    assert server.run(command(tmp_path, *SELDOM)) == 0, server.log.read_text()
    assert_same_run(folder(tmp_path), reference)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_run_killed_while_finishing_finishes(server: Server, reference: Path, tmp_path: Path, n: int) -> None:
    # the last checkpoint under its name, model.safetensors, DONE
    renames = 2 + (2 * 4 - 1)  # recipe.json, env.json; four checkpoints, of which the first had none to put aside
    plan = {"event": "before-replace", "n": renames - 1 + n, "number": signal.SIGKILL}
    assert server.run(command(tmp_path, *SELDOM), plan) == -signal.SIGKILL
    assert not (folder(tmp_path) / "DONE").exists()
    assert server.run(command(tmp_path, *SELDOM)) == 0, server.log.read_text()
    assert_same_run(folder(tmp_path), reference)


@pytest.mark.parametrize(
    ("number", "n"),  # within an epoch, at the first step, at the last step of an epoch
    [(signal.SIGTERM, 25), (signal.SIGINT, 25), (signal.SIGTERM, 1), (signal.SIGINT, 32)],
)
def test_signal_saves_and_the_resumed_run_is_the_same(
    server: Server, reference: Path, tmp_path: Path, number: int, n: int
) -> None:
    arguments = command(tmp_path, *SELDOM)
    assert server.run(arguments, {"event": "step", "n": n, "number": number}) == 128 + number
    state = checkpoint.load(folder(tmp_path) / "checkpoint.pt", torch.device("cpu"), pytest.fail)
    assert state is not None
    assert state["t"] == n
    assert f"stopped by {signal.Signals(number).name} at step {n} of 64" in server.log.read_text()
    assert server.run(arguments) == 0
    assert_same_run(folder(tmp_path), reference)


def test_second_interrupt_ends_at_once(server: Server, tmp_path: Path) -> None:
    plan = {"event": "step", "n": 5, "number": signal.SIGINT, "times": 2}
    assert server.run(command(tmp_path, *SELDOM), plan) == 130
    assert not (folder(tmp_path) / "checkpoint.pt").exists()
    assert "Traceback" not in server.log.read_text()


def test_console_script_stops_at_sigterm_from_outside(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("stompp")
    process = subprocess.Popen([script, *command(tmp_path, "--epochs", "400")], stdout=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 60
    while not list(tmp_path.glob("*/seed0/checkpoint.pt")) and time.monotonic() < give_up:
        time.sleep(0.02)
    process.terminate()
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "the same command goes on from here" in told


def test_two_processes_cannot_share_a_folder(server: Server, tmp_path: Path) -> None:
    def second(pid: int) -> None:
        other = Server(tmp_path / "second.log")
        try:
            give_up = time.monotonic() + 60
            while not list((tmp_path / "runs").glob("*/seed0/checkpoint.pt")) and time.monotonic() < give_up:
                time.sleep(0.01)
            assert other.run(arguments) == 2
            told = (tmp_path / "second.log").read_text()
            assert f"is in use by process {pid};" in told
            assert told.count("\n") == 1
        finally:
            other.close()
            os.kill(pid, signal.SIGKILL)

    arguments = command(tmp_path / "runs", "--epochs", "400")
    assert server.run(arguments, None, second) == -signal.SIGKILL


def test_checkpoint_write_that_fails_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"t": 1})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(checkpoint.UsageError, match=r"No space left on device.*the last one is unharmed"):
            checkpoint.save(path, {"t": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.pt"]
    state = checkpoint.load(path, torch.device("cpu"), pytest.fail)
    assert state is not None
    assert state["t"] == 1


def test_checkpoint_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for t in range(3):
        checkpoint.save(path, {"t": t})
    assert torch.load(path, weights_only=True)["t"] == 2
    assert torch.load(checkpoint.previous_of(path), weights_only=True)["t"] == 1


def test_checkpoint_with_any_flipped_bit_is_noticed_or_read_right(tmp_path: Path) -> None:
    draw = random.Random(0)
    state = {"t": 7, "weights": torch.randn(300), "masks": {"a": torch.rand(50) > 0.5}}
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, state)
    whole = path.read_bytes()
    noticed = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            found = checkpoint.load(path, torch.device("cpu"), pytest.fail)
        except checkpoint.UsageError:
            noticed += 1
            continue
        assert found is not None
        assert_same({k: v for k, v in found.items() if k != "version"}, state)
    assert noticed > 50


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "code"])
def test_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "checkpoint.pt"
    for t in range(2):
        checkpoint.save(path, {"t": t, "weights": torch.arange(1000)})
    whole = path.read_bytes()
    middle = whole.index(torch.arange(1000).numpy().tobytes()) + 4000
    content = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "code": b"cos\nsystem\n(S'touch boom'\ntR.",
    }[damage]
    path.write_bytes(content)
    told: list[str] = []
    state = checkpoint.load(path, torch.device("cpu"), told.append)
    assert state is not None
    assert state["t"] == 0
    assert len(told) == 1
    assert "checkpoint.damaged.pt" in told[0]
    checkpoint.save(path, {"t": 1})  # does not take the place of the good one before with the damaged one
    assert torch.load(checkpoint.previous_of(path), weights_only=True)["t"] == 0
    assert (tmp_path / "checkpoint.damaged.pt").read_bytes() == content


def test_damaged_checkpoint_in_a_run_gives_the_same_end(server: Server, reference: Path, tmp_path: Path) -> None:
    arguments = command(tmp_path)
    assert server.run(arguments, {"event": "step", "n": 21, "number": signal.SIGKILL}) == -signal.SIGKILL
    (folder(tmp_path) / "checkpoint.pt").write_bytes(b"torn")
    assert server.run(arguments) == 0
    assert "checkpoint.damaged.pt, and the run goes on from the checkpoint before it" in server.log.read_text()
    assert_same_run(folder(tmp_path), reference)
