"""The training loop, the only one: read it from `run` down to see all that happens in a step.

A run is resumed by running it again. Its state is saved at every epoch's end, every few minutes in between, and when
the process is asked to stop; a kill at any moment costs the steps since then, and the result is the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save
from torch.nn import functional as F

from stompp.core.diagnose import GradientFlow, SignFlips
from stompp.core.ovsw import OvSW
from stompp.core.proof import assert_binary
from stompp.data import Batches
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
    recalibration_batches,
    training_batches,
)
from .distributed import ALONE, Ranks, joined, synchronise_batchnorm
from .evaluate import Score, both_views, recalibrated
from .folder import RunFolder, environment, write_atomically
from .graphs import StepGraph
from .monitor import Metrics, Screen, TensorBoard, TimeSplit, describe_moving, four_digits
from .options import RunOptions
from .signals import StopRequest, stop_signals


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
    with joined(device) as ranks, ExitStack() as stack:
        training = Training(recipe, options, folder, device, console if ranks.first else Console(quiet=True), ranks)
        ranks.first_only(lambda: stack.enter_context(folder.locked()))
        stop = stack.enter_context(stop_signals())
        ranks.first_only(lambda: folder.claim(recipe, options.seed))
        try:
            return training.run(stop)
        except Diverged as error:
            if ranks.first:
                folder.note_divergence(str(error), training.t)
            raise


class Training:
    """One run in this process: the objects that last over its steps, and the loop over them."""

    def __init__(
        self,
        recipe: Recipe,
        options: RunOptions,
        folder: RunFolder,
        device: torch.device,
        console: Console | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.recipe, self.options, self.folder, self.device, self.ranks = recipe, options, folder, device, ranks
        data = build_data(recipe, options, device)
        self.batches = training_batches(recipe, data, options.seed, ranks)
        self.evaluations = evaluation_batches(recipe, data, ranks)
        self.between_images = between_batches(recipe, data, ranks)
        self.recalibration_images = recalibration_batches(recipe, data)
        steps, parts = len(self.batches), recipe.evals_per_epoch
        self.between_steps = {steps * k // parts for k in range(1, parts)} - {0}
        model = build_model(recipe, data.image_shape, data.num_classes, options.seed)
        self.started_from = None
        if recipe.init_from is not None and not checkpoint.exists(folder.checkpoint_file):
            self.started_from = initialise_from(model, recipe.init_from, options.seed, options.runs)
        # The images follow: a convolution answers in the format of its weight.
        self.model = model.to(device, memory_format=options.resolve_memory_format(device, recipe.precision))
        self.example = torch.zeros(2, *data.image_shape, device=device)
        if options.sync_batchnorm and ranks.size > 1:
            synchronise_batchnorm(self.model)
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
        self.metrics_length = 0  # that of metrics.jsonl when the checkpoint that we go on from was written
        self.board: TensorBoard | None = None
        self._start_epoch_sums()

    def run(self, stop: StopRequest) -> Outcome:
        """Train from where the folder's checkpoint is to the end, or until asked to stop."""
        self._resume()
        self.ranks.first_only(self._open_files)
        saved = time.monotonic()
        try:
            with self.screen.live(self.t):
                while self.t < self.total:
                    epoch, start = divmod(self.t, len(self.batches))
                    for images, labels in self.batches.epoch(epoch, start=start):
                        due = time.monotonic() - saved > 60 * self.options.checkpoint_minutes
                        stopped_by, due = self.ranks.agree(stop.signal or 0, due)
                        if stopped_by:
                            self._save()
                            return self._stopped(stopped_by)
                        if due:
                            self._save()
                            saved = time.monotonic()
                            self.times.begin(self.t)
                        self._step(images, labels, epoch)
                        if self.t % len(self.batches) in self.between_steps:
                            self._evaluate_between()
                    self._refuse_nan()
                    self.row = self._evaluate(epoch)
                    self.ranks.first_only(self._record)
                    self._start_epoch_sums()
                    self._save()
                    self.times.begin(self.t)  # writing a checkpoint is not the next step's time
                    saved = time.monotonic()
                    (stopped_by,) = self.ranks.agree(stop.signal or 0)
                    if stopped_by and self.t < self.total:
                        return self._stopped(stopped_by)
        finally:
            if self.board is not None:
                self.board.close()
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
        self.images_here += self.recipe.batch_size
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
        loss, right = self.ranks.exchange(self.model, loss.detach(), (logits.detach().argmax(1) == labels).sum())
        if self.ranks.size > 1:
            self.times.lap("exchange")
        if flow is not None:
            self.flow = {row.name: row for row in flow.layers()}
        if self.ovsw is not None:
            self.ovsw.apply()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.times.lap("optimizer")
        return loss, right

    def _start_epoch_sums(self) -> None:
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.bad_step = torch.tensor(-1, device=self.device)
        self.between: list[dict[str, float]] = []  # evaluations within this epoch
        self.images_here = 0  # seen in this epoch
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
        scores = self._scores(self.between_images)
        self.between.append({"step": self.t, **{view: round(s.accuracy, 3) for view, s in scores.items()}})
        self.evaluation_seconds += time.monotonic() - began
        self.times.begin(self.t)

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        """Return the epoch's line for metrics.jsonl."""
        seconds = time.monotonic() - self.epoch_began - self.evaluation_seconds
        steps = len(self.batches)
        began = time.monotonic()
        scores = {
            name: {view: asdict(score) for view, score in self._scores(batches).items()}
            for name, batches in self.evaluations.items()
        }
        return {
            "epoch": epoch,
            "step": self.t,
            "loss": self.loss_sum.item() / steps,
            "accuracy": 100.0 * self.right.item() / (steps * self.recipe.batch_size),
            **scores,
            **({"between": self.between} if self.between else {}),
            "sites": {site.name: round(site.fraction, 4) for site in self.freezer.sites},
            "moving": [site.name for site, _ in self.freezer.moving],
            "flips": {name: four_digits(ratio) for name, ratio in self.flips.look().items()},
            "flow": {
                name: [four_digits(v) for v in (f.signal_norm, f.signal_share, f.weight_norm, f.weight_share)]
                for name, f in self.flow.items()
            },
            "images_per_second": round(self.images_here / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 2),
            "evaluation_seconds": round(self.evaluation_seconds + time.monotonic() - began, 2),
            "time": self.times.shares(),
        }

    def _scores(self, batches: Batches) -> dict[str, Score]:
        recalibration = self._recalibration()
        return both_views(self.model, batches, autocast=self.autocast, recalibration=recalibration, ranks=self.ranks)

    def _recalibration(self) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """Return the batches to estimate the binary view's BatchNorm statistics from, if the recipe wants that."""
        return list(self.recalibration_images.epoch(0)) if self.recipe.recalibrate_bn else None

    def _state(self) -> dict[str, Any]:
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
            "clock": [self.images_here, time.monotonic() - self.epoch_began, self.evaluation_seconds],
            "rng": torch.get_rng_state(),
            "metrics_length": self.metrics.length,
        }

    def _save(self) -> None:
        self._refuse_nan()
        self._refuse_nan_state()
        self.ranks.first_only(lambda: checkpoint.save(self.folder.checkpoint_file, self._state()))

    def _resume(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        state = self.ranks.first_then_others(
            lambda: checkpoint.load(self.folder.checkpoint_file, self.device, self.screen.say)
        )
        self.ranks.refuse_differing(-1 if state is None else int(state["t"]), f"checkpoint in {self.folder.path}")
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.freezer.load_state_dict(state["freezer"])
        if self.ovsw is not None:
            self.ovsw.load_state_dict(state["ovsw"])
        self.flips.load_state_dict(state["flips"])
        self.loss_sum, self.right, self.between = state["loss_sum"], state["right"], state["between"]
        self.images_here, seconds, self.evaluation_seconds = state.get("clock", (0, 0.0, 0.0))  # 0.1.0 saved none
        self.epoch_began = time.monotonic() - seconds
        torch.set_rng_state(state["rng"].cpu())
        self.t = int(state["t"])
        self.times.begin(self.t)
        self.metrics_length = int(state["metrics_length"])
        self.screen.say(f"going on with {self.folder.path} at step {self.t} of {self.total}")

    def _open_files(self) -> None:
        self.folder.diverged_file.unlink(missing_ok=True)
        self.metrics = Metrics(self.folder.metrics_file, self.metrics_length)
        found = {**environment(self.device), "processes": self.ranks.size}
        if self.started_from is not None:
            found["started_from"] = str(self.started_from)
        self.folder.write_environment(found, resumed=self.t > 0, say=self.screen.say)
        self.board = TensorBoard(self.folder.path, self.t // len(self.batches), self.options.tensorboard)

    def _record(self) -> None:
        """Write the epoch's line wherever it belongs."""
        self.metrics.append(self.row)
        if self.board is not None:
            self.board.epoch(self.row)
        self.screen.epoch(self.row, self.freezer)

    def _finish(self) -> Outcome:
        """Prove that the net is binary, then write its weights and the mark that the run is done."""
        told = ""
        if self.recipe.weights != "float":
            proof = assert_binary(self.model, self.example)
            told = f"; {proof.layers} layers saw only ±1"
        with recalibrated(self.model, self._recalibration()):
            weights = {name: v.detach().cpu().clone().contiguous() for name, v in self.model.state_dict().items()}
        self.ranks.first_only(lambda: self._write_result(save(weights, metadata={"recipe": self.recipe.name})))
        accuracy = self.folder.read_metrics()[-1]["test"]["binary"]["accuracy"]
        self.screen.say(f"finished {self.folder.path}: test accuracy {accuracy:.2f} %{told}")
        return Outcome(self.folder, finished=True)

    def _write_result(self, weights: bytes) -> None:
        write_atomically(self.folder.model_file, weights)
        row = self.folder.read_metrics()[-1]
        result = {
            "steps": self.total,
            "test": row["test"],
            "train": row["train"],
            "sha256": hashlib.sha256(weights).hexdigest(),  # of model.safetensors, which has no checksum of its own
        }
        write_atomically(self.folder.done_file, json.dumps(result, indent=2) + "\n")

    def _stopped(self, by: int) -> Outcome:
        at = f"stopped by {signal.Signals(by).name} at step {self.t} of {self.total}"
        self.screen.say(f"{at}; the same command goes on from here")
        return Outcome(self.folder, finished=False, stopped_by=by)

    def _graphed(self) -> StepGraph:
        fits = self.device.type == "cuda" and self.recipe.optimizer == "sgd" and self.ranks.size == 1
        if self.options.compile or not fits:
            raise UsageError(
                "cuda_graphs records steps with sgd on a CUDA device, without --compile and in one process; leave out "
                "--cuda-graphs"
            )

        def learn(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with self.times.paused():  # a recording must not wait for the device
                return self._learn(images, labels, self.model)

        return StepGraph(learn, self.freezer.sites)

    def _compiled(self) -> Any:
        # Every phase change of a site is a new graph, compiled once; dynamo gives up after 8 unless told of it.
        torch._dynamo.config.recompile_limit = 2 * len(self.freezer.sites) + 16
        return torch.compile(self.model)
