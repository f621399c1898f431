"""A finished run's net, packed; and the contenders that `stompp bench` lets it race.

The images of a data set are read only where they are needed: to compare with PyTorch, and for the ranges of int8.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from stompp.core.trace import evaluating
from stompp.data import Batches, Dataset, cifar, digits, fashion
from stompp.data.catalog import shape_of
from stompp.deploy.fold import refuse_unknown
from stompp.deploy.format import encode
from stompp.deploy.pack import pack
from stompp.deploy.race import Contender, float_contenders, packed_contender, state_bytes
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe
from stompp.training.build import build_model, open_run, trained_model
from stompp.training.folder import RunFolder
from stompp.training.options import MachineOptions

CALIBRATION = 64  # images that set the ranges of int8 layers
NEED_IMAGES = ("int8",)  # the FLOATS with ranges


@dataclass(frozen=True)
class Report:
    """What packing a run showed."""

    float_bytes: int  # of the float state dict
    agreed: int
    checked: int


@dataclass(frozen=True)
class Facts:
    """What is known of a data set without its images."""

    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def pack_run(run: Path, floats: str, check: int, data_root: Path | None) -> tuple[PackedNet, Report]:
    """Pack a finished run's net and compare it with PyTorch on `check` test images, which may be 0."""
    if check < 0:
        raise UsageError(f"check is {check}; it must be at least 0")
    refuse_unknown(floats)
    needed = check > 0 or floats in NEED_IMAGES
    recipe, seed, facts, data, model = _open(run, data_root, images=needed)
    images = example(data) if data is not None and needed else torch.zeros(2, *facts.image_shape)
    packed = pack(model, images, floats=floats, meta=describe(recipe, seed, facts))
    agreed = checked = 0
    if data is not None and check:
        tests = Batches(data.test, min(250, check), data.mean, data.std, shuffle=False, drop_last=False)
        with evaluating(model):
            for images, _ in tests.epoch(0):
                images = images[: check - checked]
                if not len(images):
                    break
                want = model(images).argmax(1).numpy()
                agreed += int((packed(images.numpy()).argmax(1) == want).sum())
                checked += len(images)
    return packed, Report(state_bytes(model), agreed, checked)


def describe(recipe: Recipe, seed: int, facts: Facts) -> dict[str, str]:
    """Return what `stompp run` needs to know of a net's images and classes, as texts."""
    return {
        "recipe": recipe.name,
        "seed": str(seed),
        "data": recipe.data,
        "classes": json.dumps(list(facts.classes)),
        "mean": json.dumps(list(facts.mean)),
        "std": json.dumps(list(facts.std)),
    }


def example(data: Dataset) -> torch.Tensor:
    """Return a batch of normalised training images."""
    batches = Batches(data.train, min(CALIBRATION, len(data.train)), data.mean, data.std, shuffle=False)
    images, _ = next(iter(batches.epoch(0)))
    return images


def facts_of(data: str) -> Facts | None:
    """Return what the package itself knows of a data set; None where the folders of the set have to be looked at.

    >>> facts_of("cifar10-16").classes[:2], facts_of("imagenet")
    (('airplane', 'automobile'), None)
    """
    layouts = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}
    name = data.removesuffix("-16")
    if name in layouts:
        return Facts(shape_of(data)[0], layouts[name].classes, cifar.MEAN, cifar.STD)
    if name == "fashion-mnist":
        known = fashion.FASHION
        return Facts(shape_of(data)[0], known.classes, known.mean, known.std)
    if name == "digits":
        return Facts(shape_of(data)[0], tuple("0123456789"), digits.MEAN, digits.STD)
    return None


def contenders_of_run(run: Path, floats: str, threads: int, data_root: Path | None) -> list[Contender]:
    """Return the packed net of a run, and its float twin (the same net with real weights and ReLU) in other engines.

    Times do not depend on the ranges of int8 layers, so random images will do for them.
    """
    refuse_unknown(floats)
    recipe, seed, facts, _, model = _open(run, data_root, images=False)
    images = torch.randn(CALIBRATION, *facts.image_shape, generator=torch.Generator().manual_seed(0))
    packed = pack(model, images, floats=floats, meta=describe(recipe, seed, facts), threads=threads)
    twin = replace(recipe, weights="float", activations="relu", ovsw=False)
    float_net = build_model(twin, facts.image_shape, len(facts.classes), seed).eval()
    return [packed_contender(packed, len(encode(packed.graph))), *float_contenders(float_net, images, threads)]


def _open(run: Path, root: Path | None, *, images: bool) -> tuple[Recipe, int, Facts, Dataset | None, nn.Module]:
    """Return recipe, seed, facts, data and model of a finished run; data only if `images` asks for them."""
    folder = RunFolder.existing(run)
    recipe, seed = folder.read_recipe()
    facts = facts_of(recipe.data)
    if images or facts is None or not folder.done:  # open_run says what to do about a run that is not finished
        recipe, seed, data, model = open_run(run, MachineOptions(root), torch.device("cpu"))
        return recipe, seed, Facts(data.image_shape, data.classes, data.mean, data.std), data, model
    model = trained_model(folder, recipe, seed, facts.image_shape, len(facts.classes))
    return recipe, seed, facts, None, model
