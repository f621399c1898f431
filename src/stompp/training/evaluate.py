"""Evaluation in both views: the net as it is being trained, and the net with everything scheduled binary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from stompp.core.freeze import fully_binary, sites
from stompp.core.trace import evaluating
from stompp.data import Batches

from .distributed import ALONE, Ranks

BatchesOfImages = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy in percent over a set of images."""

    loss: float
    accuracy: float


def evaluate(
    model: nn.Module, batches: BatchesOfImages, *, autocast: torch.dtype | None = None, ranks: Ranks = ALONE
) -> Score:
    """Score the model as it is now on every image once; each rank brings its share of them."""
    loss = torch.zeros((), dtype=torch.float64)
    right = torch.zeros((), dtype=torch.int64)
    count = 0
    with evaluating(model):
        for images, labels in batches:
            with torch.autocast(images.device.type, dtype=autocast) if autocast else nullcontext():
                logits = model(images)
            logits = logits.float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double().cpu()
            right += (logits.argmax(1) == labels).sum().cpu()
            count += len(labels)
    loss, right, images = ranks.total(torch.tensor([loss, right, count], dtype=torch.float64)).tolist()
    return Score(loss / images, 100.0 * right / images)


def both_views(
    model: nn.Module,
    batches: Batches,
    *,
    autocast: torch.dtype | None = None,
    recalibration: BatchesOfImages | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, Score]:
    """Score the current and the binary view; where they are the same net, it is scored once.

    recalibration: training batches to estimate BatchNorm statistics from, for the binary view alone.
    """
    current = evaluate(model, batches.epoch(0), autocast=autocast, ranks=ranks)
    same = all(site.phase == "frozen" for site in sites(model, scheduled=False))
    if same and recalibration is None:
        return {"current": current, "binary": current}
    with fully_binary(model), recalibrated(model, recalibration):
        binary = evaluate(model, batches.epoch(0), autocast=autocast, ranks=ranks)
    return {"current": current, "binary": binary}


@contextmanager
def recalibrated(model: nn.Module, batches: BatchesOfImages | None) -> Iterator[None]:
    """Inside, BatchNorm statistics are plain averages over `batches` through the model as it is; afterwards the old."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if batches is None or not norms:
        yield
        return
    kept = [({name: b.clone() for name, b in m.named_buffers()}, m.momentum, m.training) for m in norms]
    try:
        with evaluating(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a cumulative average
                norm.train()
            for images, _ in batches:
                model(images)
        for norm, (_, momentum, training) in zip(norms, kept):
            norm.momentum = momentum
            norm.train(training)
        yield
    finally:
        for norm, (buffers, momentum, training) in zip(norms, kept):
            for name, value in buffers.items():
                getattr(norm, name).copy_(value)
            norm.momentum = momentum
            norm.train(training)
