"""From a recipe to the things a run needs: data, model, optimizer, Freezer. Training, evaluation and tools share it."""

from __future__ import annotations

import hashlib
import inspect
import shlex
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_weights_file
from torch import nn

from stompp import models
from stompp.core.freeze import sites
from stompp.core.freezer import Freezer
from stompp.core.prepare import prepare
from stompp.data import Augment, Batches, Dataset, load
from stompp.data.dataset import Source
from stompp.errors import UsageError
from stompp.recipes import all_recipes, train_command
from stompp.recipes.schema import Recipe

from .distributed import ALONE, Ranks, share_of
from .folder import RunFolder
from .options import MachineOptions

BETWEEN_IMAGES = 2_000


def build_data(recipe: Recipe, options: MachineOptions, device: torch.device) -> Dataset:
    """Load the recipe's data set onto the device."""
    return load(
        recipe.data, options.data_root, device=device, download=options.download, limit_train=recipe.limit_train
    )


def training_batches(recipe: Recipe, data: Dataset, seed: int, ranks: Ranks = ALONE) -> Batches:
    """Return the shuffled, augmented training batches, or this rank's share of each."""
    if recipe.batch_size > len(data.train):
        raise UsageError(
            f"batch_size is {recipe.batch_size}, and {recipe.data} has {len(data.train)} training images"
            f"{'' if recipe.limit_train is None else ' with this limit_train'}; write a smaller --batch-size"
        )
    augment = Augment(crop_pad=recipe.crop_pad, flip=recipe.flip, resized_crop=recipe.resized_crop)
    share = share_of(recipe.batch_size, ranks)
    return Batches(
        data.train, share, data.mean, data.std, augment=augment, seed=seed, rank=ranks.rank, world=ranks.size
    )


def evaluation_batches(recipe: Recipe, data: Dataset, ranks: Ranks = ALONE) -> dict[str, Batches]:
    """Return the plain batches of the test images and of the first `eval_train` training images (a rank's share)."""
    splits = (("test", data.test), ("train", _scored_training_images(recipe, data)))
    return {name: _plain_batches(data, split, _scoring_size(recipe, data), ranks) for name, split in splits}


def between_batches(recipe: Recipe, data: Dataset, ranks: Ranks = ALONE) -> Batches:
    """Return the plain batches of the test images that evaluations within an epoch take."""
    images = data.test.limited(min(BETWEEN_IMAGES, len(data.test)))
    return _plain_batches(data, images, _scoring_size(recipe, data), ranks)


def recalibration_batches(recipe: Recipe, data: Dataset) -> Batches:
    """Return the plain batches that BatchNorm statistics are estimated from: of the recipe's size, on every device."""
    return _plain_batches(data, _scored_training_images(recipe, data), recipe.batch_size)


def _scored_training_images(recipe: Recipe, data: Dataset) -> Source:
    return data.train.limited(min(recipe.eval_train, len(data.train)))


def _scoring_size(recipe: Recipe, data: Dataset) -> int:
    """Return how many images to score at once: what keeps a GPU busy, or what a CPU's caches hold."""
    pixels = data.image_shape[1] ** 2
    if data.test.device.type == "cpu":
        return max(1, 64_000 // pixels)  # 1.7 times as fast as four times as many
    return max(recipe.batch_size, min(1_000, 256_000 // pixels))


def _plain_batches(data: Dataset, split: Source, size: int, ranks: Ranks = ALONE) -> Batches:
    return Batches(split, size, data.mean, data.std, shuffle=False, drop_last=False, rank=ranks.rank, world=ranks.size)


def build_model(recipe: Recipe, image_shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """Build the recipe's model with weights drawn from the seed, and prepare it; set the precision that it runs in."""
    allow_tf32(recipe.precision == "tf32")
    channels = image_shape[0]
    accepted = inspect.signature(models.MODELS[recipe.model]).parameters
    arguments: dict[str, Any] = {"num_classes": num_classes}
    if recipe.width is not None:
        arguments["width"] = recipe.width
    if "stem" in accepted:
        arguments["stem"] = "imagenet" if image_shape[1] >= 128 else "cifar"
    if "channels" in accepted:
        arguments["channels"] = channels
    elif channels != 3:
        raise UsageError(
            f"model {recipe.model!r} takes images of 3 channels and data {recipe.data!r} has {channels}; "
            "choose a cifar_resnet"
        )
    torch.manual_seed(seed)
    model = models.build(recipe.model, **arguments)
    return prepare(model, torch.zeros(1, *image_shape), recipe.binarize)


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over all parameters."""
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )


def autocast(recipe: Recipe) -> torch.dtype | None:
    """Return the type that the recipe's forward passes run in, or None for the weights' own."""
    return torch.bfloat16 if recipe.precision == "bf16" else None


def allow_tf32(allowed: bool) -> None:
    """Let an NVIDIA GPU round the factors of float32 products to TF32's 10 bits, or not; cuDNN would do it unasked."""
    torch.backends.cudnn.allow_tf32 = allowed
    torch.set_float32_matmul_precision("high" if allowed else "highest")


def build_freezer(recipe: Recipe, model: nn.Module, steps_per_epoch: int, seed: int) -> Freezer:
    """Return the Freezer over the recipe's whole training."""
    return Freezer(
        model,
        recipe.epochs * steps_per_epoch,
        order=recipe.order,
        schedule=recipe.schedule,
        refresh=recipe.refresh,
        policy=recipe.policy,
        granularity=recipe.granularity,
        steps_per_epoch=steps_per_epoch,
        hold_frozen=recipe.hold_frozen,
        seed=seed,
    )


def initialise_from(model: nn.Module, source: str, seed: int, runs: Path) -> Path:
    """Load the weights of a finished run into the model; `source` is a run folder or a recipe's name."""
    folder = RunFolder(Path(source))
    if not folder.recipe_file.exists():
        if source not in all_recipes() and not (runs / source).is_dir():
            raise UsageError(f"init_from is {source!r}, which is neither a run folder nor a recipe's name")
        folder = RunFolder(runs / source / f"seed{seed}")
    if not folder.done:
        name, seed = _named(folder) or (source, seed)
        raise UsageError(
            f"init_from is {source!r}, and the run in {folder.path} is not finished; train it first with "
            f"`stompp train {name} --seed {seed}`"
        )
    load_weights(model, folder)
    return folder.path


def _named(folder: RunFolder) -> tuple[str, int] | None:
    if not folder.recipe_file.exists():
        return None
    recipe, seed = folder.read_recipe()
    return recipe.name, seed


def load_weights(model: nn.Module, folder: RunFolder) -> None:
    """Load a finished run's weights."""
    if not folder.model_file.exists():
        raise UsageError(f"{folder.model_file} is missing; bring it back, or move the run folder away and train again")
    content = folder.model_file.read_bytes()
    if folder.checksum() not in (None, hashlib.sha256(content).hexdigest()):
        raise UsageError(
            f"{folder.model_file} is damaged (its checksum is not the one in {folder.done_file.name}); move the run "
            "folder away and train again"
        )
    try:
        state = load_weights_file(content)
    except Exception as error:  # safetensors has its own error type, which is not in its Python API
        raise UsageError(
            f"{folder.model_file} is damaged ({' '.join(str(error).split())}); move the run folder away and train again"
        ) from None
    ours = model.state_dict()
    for name in sorted(set(ours) | set(state)):
        if name not in state or name not in ours or state[name].shape != ours[name].shape:
            told = [f"{tuple(d[name].shape)}" if name in d else "missing" for d in (state, ours)]
            raise UsageError(
                f"the weights in {folder.path} are of another model: {name!r} is {told[0]} there and {told[1]} here"
            )
    model.load_state_dict(state)


def _how_it_stands(folder: RunFolder, recipe: Recipe, seed: int) -> str:
    """Say why an unfinished run has no result, and what to do."""
    if (reason := folder.divergence()) is not None:
        return f"has no trained net: {reason}"
    runs = folder.path.resolve().parent.parent
    where = "" if runs == Path("runs").resolve() else f" --runs {shlex.quote(str(folder.path.parent.parent))}"
    return f"is not finished; go on with `{train_command(recipe)} --seed {seed}{where}`"


def trained_model(
    folder: RunFolder, recipe: Recipe, seed: int, image_shape: tuple[int, int, int], num_classes: int
) -> nn.Module:
    """Return a finished run's model with its sites frozen as training left them."""
    model = build_model(recipe, image_shape, num_classes, seed)
    load_weights(model, folder)
    for site in sites(model):
        site.freeze()
    return model


def open_run(path: Path, options: MachineOptions, device: torch.device) -> tuple[Recipe, int, Dataset, nn.Module]:
    """Return recipe, seed, data and model (with its sites frozen as training left them) of a finished run."""
    folder = RunFolder.existing(path)
    recipe, seed = folder.read_recipe()
    if not folder.done:
        raise UsageError(f"the run in {path} {_how_it_stands(folder, recipe, seed)}")
    data = build_data(recipe, options, device)
    return recipe, seed, data, trained_model(folder, recipe, seed, data.image_shape, data.num_classes).to(device)
