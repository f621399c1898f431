"""The training loop, the only one: read it from `run` down to see all that happens in a step.

A run is resumed by running it again. Its state is saved at every epoch's end, every few minutes in between, and when
the process is asked to stop; a kill at any moment costs the steps since then, and the result is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save
from torch.nn import functional as F

from stompp.core.diagnose import GradientFlow, SignFlips
from stompp.core.ovsw import OvSW
from stompp.core.proof import assert_binary
from stompp.errors import Diverged, UsageError
from stompp.recipes.schema import Recipe

from . import checkpoint
from .build import (
    autocast,
    between_batches,
    build_data,
    build_freezer,
    build_model,
    build_optimizer,
    evaluation_batches,
    initialise_from,
    training_batches,
)
from .evaluate import both_views, recalibrated
from .folder import RunFolder, environment, write_atomically
from .graphs import StepGraph
from .monitor import Metrics, Screen, TensorBoard, TimeSplit, describe_moving
from .options import RunOptions


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    folder: RunFolder
    finished: bool
    stopped_by: int | None = None  # the signal's number


def train(recipe: Recipe, options: RunOptions, console: Console | None = None) -> Outcome:
    """Start a run, go on with it, or say that it is finished."""
    screen = Screen(recipe, 0, console)
    folder = RunFolder.of(recipe, options.seed, options.runs)
    folder.refuse_others(recipe, options.seed)
    if folder.done:
        screen.say(f"{folder.path} is finished already; nothing to do")
        return Outcome(folder, finished=True)
    device = options.ready()
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses to work deterministically
        torch.use_deterministic_algorithms(True)
    training = Training(recipe, options, folder, device, console)
    with folder.locked(), stop_signals() as stop:
        folder.claim(recipe, options.seed)
        return training.run(stop)


class Training:
    """One run in this process: the objects that last over its steps, and the loop over them."""

    def __init__(
        self,
        recipe: Recipe,
        options: RunOptions,
        folder: RunFolder,
        device: torch.device,
        console: Console | None = None,
    ) -> None:
        self.recipe, self.options, self.folder, self.device = recipe, options, folder, device
        data = build_data(recipe, options, device)
        self.batches = training_batches(recipe, data, options.seed)
        self.evaluations = evaluation_batches(recipe, data)
        self.between_images = between_batches(recipe, data)
        steps, parts = len(self.batches), recipe.evals_per_epoch
        self.between_steps = {steps * k // parts for k in range(1, parts)} - {0}
        model = build_model(recipe, data.image_shape, data.num_classes, options.seed)
        self.started_from = None
        if recipe.init_from is not None and not checkpoint.exists(folder.checkpoint_file):
            self.started_from = initialise_from(model, recipe.init_from, options.seed, options.runs)
        # The images follow: a convolution answers in the format of its weight.
        self.model = model.to(device, memory_format=options.resolve_memory_format(device, recipe.precision))
        self.example = torch.zeros(2, *data.image_shape, device=device)
        self.optimizer = build_optimizer(recipe, self.model)
        self.freezer = build_freezer(recipe, self.model, len(self.batches), options.seed)
        self.ovsw = OvSW(self.model) if recipe.ovsw else None
        self.flips = SignFlips(self.model)
        self.autocast = autocast(recipe)
        self.forward = self._compiled() if options.compile else self.model
        self.graph = self._graphed() if options.cuda_graphs else None
        self.total = recipe.epochs * len(self.batches)
        self.screen = Screen(recipe, self.total, console)
        self.times = TimeSplit(device, options.monitor_every)
        self.t = 0  # the next step
        self._start_epoch_sums()

    def run(self, stop: StopRequest) -> Outcome:
        """Train from where the folder's checkpoint is to the end, or until asked to stop."""
        metrics = Metrics(self.folder.metrics_file, self._resume())
        self._write_environment()
        board = TensorBoard(self.folder.path, self.t // len(self.batches), self.options.tensorboard)
        saved = time.monotonic()
        try:
            with self.screen.live(self.t):
                while self.t < self.total:
                    epoch, start = divmod(self.t, len(self.batches))
                    for images, labels in self.batches.epoch(epoch, start=start):
                        if stop.signal is not None:
                            self._save(metrics)
                            return self._stopped(stop.signal)
                        if time.monotonic() - saved > 60 * self.options.checkpoint_minutes:
                            self._save(metrics)
                            saved = time.monotonic()
                            self.times.begin(self.t)
                        self._step(images, labels, epoch)
                        if self.t % len(self.batches) in self.between_steps:
                            self._evaluate_between()
                    self._refuse_nan()
                    row = self._evaluate(epoch)
                    metrics.append(row)
                    board.epoch(row)
                    self.screen.epoch(row, self.freezer)
                    self._start_epoch_sums()
                    self._save(metrics)
                    self.times.begin(self.t)  # writing a checkpoint is not the next step's time
                    saved = time.monotonic()
                    if stop.signal is not None and self.t < self.total:
                        return self._stopped(stop.signal)
        finally:
            board.close()
        return self._finish()

    def _step(self, images: torch.Tensor, labels: torch.Tensor, epoch: int) -> None:
        """One training step."""
        t, last_of_epoch = self.t, (self.t + 1) % len(self.batches) == 0
        self.times.lap("data")
        self.freezer.step(t)
        self.times.lap("masks")
        if last_of_epoch:  # compiled or recorded code does not see hooks that come later
            with GradientFlow(self.model) as flow:
                loss, right = self._learn(images, labels, self.model, flow)
        elif self.graph is not None:
            loss, right = self.graph(images, labels)
            self.times.lap("graph")
        else:
            loss, right = self._learn(images, labels, self.forward)
        self.loss_sum += loss.double()
        self.right += right
        # the first step with a bad loss, kept on the device so that no step has to wait to look at it
        self.bad_step = torch.where((self.bad_step < 0) & ~loss.isfinite(), t, self.bad_step)
        self.t += 1
        self.images_here += len(labels)
        if t % self.options.monitor_every == 0:
            self._refuse_nan()
            rate = self.images_here / max(time.monotonic() - self.epoch_began - self.evaluation_seconds, 1e-9)
            self.screen.step(t, epoch, loss.item(), self.freezer, rate)
        self.times.begin(t + 1)

    def _learn(
        self, images: torch.Tensor, labels: torch.Tensor, forward: Any, flow: GradientFlow | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward, backward, optimizer; return the loss and how many answers were right."""
        with torch.autocast(self.device.type, dtype=self.autocast) if self.autocast else nullcontext():
            logits = forward(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)
        self.times.lap("forward")
        loss.backward()
        self.times.lap("backward")
        if flow is not None:
            self.flow = {row.name: row for row in flow.layers()}
        if self.ovsw is not None:
            self.ovsw.apply()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.times.lap("optimizer")
        with torch.no_grad():
            return loss.detach(), (logits.argmax(1) == labels).sum()

    def _start_epoch_sums(self) -> None:
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.bad_step = torch.tensor(-1, device=self.device)
        self.between: list[dict[str, float]] = []  # evaluations within this epoch
        self.images_here = 0  # seen by this process in this epoch
        self.epoch_began = time.monotonic()
        self.evaluation_seconds = 0.0  # of that time
        self.times.begin(self.t)

    def _refuse_nan(self) -> None:
        bad = int(self.bad_step)
        if bad >= 0:
            raise self._diverged("the loss", bad)

    def _refuse_nan_state(self) -> None:
        """Refuse to save a net that is broken already: sign hides a NaN, so its loss may still look fine."""
        for name, value in self.model.state_dict().items():
            if not value.isfinite().all():
                raise self._diverged(repr(name), self.t - 1)

    def _diverged(self, what: str, t: int) -> Diverged:
        if checkpoint.exists(self.folder.checkpoint_file):
            kept = f"the last good checkpoint in {self.folder.path} stays"
        else:
            kept = "there is no checkpoint yet"
        return Diverged(
            f"{what} is not finite at step {t} of {self.total} ({describe_moving(self.freezer, t)}, learning rate "
            f"{self.recipe.lr:g}); {kept}. Try a lower --lr"
        )

    def _evaluate_between(self) -> None:
        """Note the test accuracy within an epoch: a site's window is often shorter than one."""
        began = time.monotonic()
        scores = both_views(
            self.model, self.between_images, autocast=self.autocast, recalibration=self._recalibration()
        )
        self.between.append({"step": self.t, **{view: round(s.accuracy, 3) for view, s in scores.items()}})
        self.evaluation_seconds += time.monotonic() - began
        self.times.begin(self.t)

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        """Return the epoch's line for metrics.jsonl."""
        seconds = time.monotonic() - self.epoch_began - self.evaluation_seconds
        steps = len(self.batches)
        recalibration = self._recalibration()
        began = time.monotonic()
        scores = {
            name: {
                view: asdict(score)
                for view, score in both_views(
                    self.model, batches, autocast=self.autocast, recalibration=recalibration
                ).items()
            }
            for name, batches in self.evaluations.items()
        }
        return {
            "epoch": epoch,
            "step": self.t,
            "loss": self.loss_sum.item() / steps,
            "accuracy": 100.0 * self.right.item() / (steps * self.batches.batch_size),
            **scores,
            **({"between": self.between} if self.between else {}),
            "sites": {site.name: round(site.fraction, 4) for site in self.freezer.sites},
            "moving": [site.name for site, _ in self.freezer.moving],
            "flips": {name: _short(ratio) for name, ratio in self.flips.look().items()},
            "flow": {
                name: [_short(v) for v in (f.signal_norm, f.signal_share, f.weight_norm, f.weight_share)]
                for name, f in self.flow.items()
            },
            "images_per_second": round(self.images_here / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 2),
            "evaluation_seconds": round(self.evaluation_seconds + time.monotonic() - began, 2),
            "time": self.times.shares(),
        }

    def _recalibration(self) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """Return the batches to estimate the binary view's BatchNorm statistics from, if the recipe wants that."""
        return list(self.evaluations["train"].epoch(0)) if self.recipe.recalibrate_bn else None

    def _state(self, metrics_length: int) -> dict[str, Any]:
        return {
            "t": self.t,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "freezer": self.freezer.state_dict(),
            "ovsw": None if self.ovsw is None else self.ovsw.state_dict(),
            "flips": self.flips.state_dict(),
            "loss_sum": self.loss_sum,
            "right": self.right,
            "between": self.between,
            "rng": torch.get_rng_state(),
            "metrics_length": metrics_length,
        }

    def _save(self, metrics: Metrics) -> None:
        self._refuse_nan()
        self._refuse_nan_state()
        checkpoint.save(self.folder.checkpoint_file, self._state(metrics.length))

    def _resume(self) -> int:
        """Take up the newest checkpoint, if there is one; return the length that metrics.jsonl had with it."""
        state = checkpoint.load(self.folder.checkpoint_file, self.device, self.screen.say)
        if state is None:
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.freezer.load_state_dict(state["freezer"])
        if self.ovsw is not None:
            self.ovsw.load_state_dict(state["ovsw"])
        self.flips.load_state_dict(state["flips"])
        self.loss_sum, self.right, self.between = state["loss_sum"], state["right"], state["between"]
        torch.set_rng_state(state["rng"].cpu())
        self.t = int(state["t"])
        self.times.begin(self.t)
        self.screen.say(f"going on with {self.folder.path} at step {self.t} of {self.total}")
        return int(state["metrics_length"])

    def _finish(self) -> Outcome:
        """Prove that the net is binary, then write its weights and the mark that the run is done."""
        told = ""
        if self.recipe.weights != "float":
            proof = assert_binary(self.model, self.example)
            told = f"; {proof.layers} layers saw only ±1"
        with recalibrated(self.model, self._recalibration()):
            weights = {name: v.detach().cpu().clone().contiguous() for name, v in self.model.state_dict().items()}
        content = save(weights, metadata={"recipe": self.recipe.name})
        write_atomically(self.folder.model_file, content)
        rows = self.folder.read_metrics()
        result = {
            "steps": self.total,
            "test": rows[-1]["test"],
            "train": rows[-1]["train"],
            "sha256": hashlib.sha256(content).hexdigest(),  # of model.safetensors, which has no checksum of its own
        }
        write_atomically(self.folder.done_file, _json(result))
        self.screen.say(
            f"finished {self.folder.path}: test accuracy {rows[-1]['test']['binary']['accuracy']:.2f} %{told}"
        )
        return Outcome(self.folder, finished=True)

    def _stopped(self, by: int) -> Outcome:
        self.screen.say(
            f"stopped by {signal.Signals(by).name} at step {self.t} of {self.total}; the same command goes on from here"
        )
        return Outcome(self.folder, finished=False, stopped_by=by)

    def _write_environment(self) -> None:
        found = environment(self.device)
        before = self.folder.read_environment() if self.t else {}
        if self.started_from is not None:
            found["started_from"] = str(self.started_from)
        elif "started_from" in before:
            found["started_from"] = before["started_from"]
        if before:
            for name in ("torch", "cpu", "device", "threads"):
                if before.get(name) != found[name]:
                    self.screen.say(
                        f"note: {name} was {before.get(name)} and is {found[name]} now; the result may differ in "
                        "the last bits from an uninterrupted run's"
                    )
        write_atomically(self.folder.env_file, _json(found))

    def _graphed(self) -> StepGraph:
        if self.device.type != "cuda" or self.options.compile or self.recipe.optimizer != "sgd":
            raise UsageError(
                "cuda_graphs records steps with sgd on a CUDA device, without --compile; leave out --cuda-graphs"
            )

        def learn(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with self.times.paused():  # a recording must not wait for the device
                return self._learn(images, labels, self.model)

        return StepGraph(learn, self.freezer.sites)

    def _compiled(self) -> Any:
        # Every phase change of a site is a new graph, compiled once; dynamo gives up after 8 unless told of it.
        torch._dynamo.config.recompile_limit = 2 * len(self.freezer.sites) + 16
        return torch.compile(self.model)


class StopRequest:
    """Whether the process has been asked to stop."""

    signal: int | None = None


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second SIGINT interrupts at once.

    A second SIGTERM does not: those who end a process group and then each process send two, and mean one.
    """
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = request.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals; whoever runs us in another one stops us otherwise
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _short(value: float) -> float:
    return float(f"{value:.4g}")
