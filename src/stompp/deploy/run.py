"""A finished run's net, packed; and the contenders that `stompp bench` lets it race."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from stompp.core.trace import evaluating
from stompp.data import Batches, Dataset
from stompp.deploy.pack import pack
from stompp.deploy.race import Contender, float_contenders, packed_contender
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe
from stompp.training.build import build_model, open_run
from stompp.training.options import MachineOptions

CALIBRATION = 64  # images that set the ranges of int8 layers


@dataclass(frozen=True)
class Report:
    """What packing a run showed."""

    float_bytes: int  # of the float state dict
    agreed: int
    checked: int


def pack_run(run: Path, floats: str, check: int, data_root: Path | None) -> tuple[PackedNet, Report]:
    """Pack a finished run's net with real images as example, and compare it with PyTorch on test images."""
    if check < 0:
        raise UsageError(f"check is {check}; it must be at least 0")
    recipe, seed, data, model = open_run(run, MachineOptions(data_root), torch.device("cpu"))
    packed = pack(model, example(data), floats=floats, meta=describe(recipe, seed, data))
    agreed = checked = 0
    tests = Batches(data.test, 250, data.mean, data.std, shuffle=False, drop_last=False)
    with evaluating(model):
        for images, _ in tests.epoch(0):
            images = images[: check - checked]
            if not len(images):
                break
            want = model(images).argmax(1).numpy()
            agreed += int((packed(images.numpy()).argmax(1) == want).sum())
            checked += len(images)
    return packed, Report(state_bytes(model), agreed, checked)


def describe(recipe: Recipe, seed: int, data: Dataset) -> dict[str, str]:
    """Return what `stompp run` needs to know of a net's images and classes, as texts."""
    return {
        "recipe": recipe.name,
        "seed": str(seed),
        "data": data.name,
        "classes": json.dumps(list(data.classes)),
        "mean": json.dumps(list(data.mean)),
        "std": json.dumps(list(data.std)),
    }


def example(data: Dataset) -> torch.Tensor:
    """Return a batch of normalised training images."""
    batches = Batches(data.train, min(CALIBRATION, len(data.train)), data.mean, data.std, shuffle=False)
    images, _ = next(iter(batches.epoch(0)))
    return images


def state_bytes(model: nn.Module) -> int:
    """Return the size of the state dict as PyTorch saves it."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return len(buffer.getvalue())


def contenders_of_run(run: Path, floats: str, threads: int, data_root: Path | None) -> list[Contender]:
    """Return the packed net of a run, and its float twin (the same net with real weights and ReLU) in other engines."""
    recipe, seed, data, model = open_run(run, MachineOptions(data_root), torch.device("cpu"))
    images = example(data)
    packed = pack(model, images, floats=floats, threads=threads)
    from stompp.deploy.format import encode

    twin = replace(recipe, weights="float", activations="relu", ovsw=False)
    float_net = build_model(twin, data.image_shape, data.num_classes, seed).eval()
    return [packed_contender(packed, len(encode(packed.graph))), *float_contenders(float_net, images, threads)]
