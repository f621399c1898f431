"""A recipe: everything that decides the result of a training run, except the seed. Frozen, flat, and plain data.

Whatever does not change the result (device, threads, where files go) is no part of a recipe; see
`stompp.training.options`.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro

from stompp.core.orders import ORDERS
from stompp.core.prepare import Binarize
from stompp.core.schedules import SCHEDULES
from stompp.data import names as dataset_names
from stompp.errors import UsageError
from stompp.models import MODELS

ScheduleName = Literal["cosine", "linear", "quadratic", "cubic", "flipped_quadratic"]
OrderName = Literal["layerwise", "global", "reverse"]


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and how."""

    name: Annotated[str, tyro.conf.Suppress] = ""
    """name in the list of recipes, with what was changed added to it"""

    model: str = "resnet18"
    """a model of `stompp.models`, such as resnet18, cifar_resnet20, bireal18"""
    width: int | None = None
    """channels of the first stage, for CIFAR ResNets (default 16) and Bi-Real nets (default 64)"""
    data: str = "cifar10"
    """a data set of `stompp.data`, such as digits, cifar10, cifar10-16"""
    limit_train: int | None = None
    """keep only this many training images"""
    crop_pad: int = 4
    """pixels of padding before the random crop; 0 for no crop"""
    flip: bool = True
    """mirror training images at random"""
    resized_crop: bool = False
    """random resized crop in place of the padded crop (ImageNet)"""

    weights: Literal["stompp", "ste", "float"] = "stompp"
    """rule for the weights"""
    activations: Literal["stompp", "ste", "clip", "relu"] = "stompp"
    """rule for the activations"""
    frozen_grad: Literal["zero", "ste"] = "zero"
    """gradient of frozen entries: zero (the method) or ste (the scaffold)"""
    surrogate: Literal["identity", "clip", "approxsign"] = "identity"
    """the gradient that STE gives activations"""
    order: OrderName = "layerwise"
    """which site is frozen when"""
    schedule: ScheduleName = "cubic"
    """how the frozen fraction of a site grows over its window"""
    refresh: int = 100
    """redraw one in so many mask entries each step"""
    policy: Literal["stochastic", "deterministic"] = "stochastic"
    """which entries of a site are frozen"""
    granularity: Literal["step", "epoch"] = "step"
    """give each site an equal share of the steps, or whole epochs"""
    hold_frozen: bool = False
    """keep frozen weights constant even against momentum"""
    ovsw: bool = False
    """correct the gradients of binary weights as OvSW does"""

    epochs: int = 200
    """passes over the training set"""
    batch_size: int = 256
    """images per step, over all processes"""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """sgd has Nesterov momentum"""
    lr: float = 0.1
    """learning rate, constant"""
    momentum: float = 0.9
    """momentum of sgd"""
    weight_decay: float = 0.0
    """weight decay"""
    label_smoothing: float = 0.0
    """label smoothing of the cross-entropy"""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """tf32 lets a GPU round what it multiplies; bf16 runs forward and loss under autocast"""
    init_from: str | None = None
    """start from the weights of this run folder, or of this recipe's run with the same seed"""
    recalibrate_bn: bool = False
    """estimate BatchNorm statistics anew for the binary view"""
    eval_train: int = 10_000
    """training images on which both views are evaluated (without augmentation)"""
    evals_per_epoch: int = 1
    """evaluations per epoch: those before its end take only the first 2,000 test images"""

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self)).items():
            value, choices = getattr(self, field), get_args(hint)
            if choices and all(isinstance(c, str) for c in choices):
                if value not in choices:
                    raise UsageError(f"{field} is {value!r}; choose one of {', '.join(choices)}")
            elif not isinstance(value, kinds := _kinds(hint)) or (isinstance(value, bool) and bool not in kinds):
                raise UsageError(f"{field} is {value!r}; it must be {_KIND_NAMES[kinds[0]]}")
        _known("model", self.model, tuple(MODELS))
        _known("data", self.data, dataset_names())
        for field in ("epochs", "batch_size", "refresh", "eval_train", "evals_per_epoch"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} is {getattr(self, field)}; it must be at least 1")
        for field, at_least in (("crop_pad", 0), ("width", 1), ("limit_train", 1)):
            value = getattr(self, field)
            if value is not None and value < at_least:
                raise UsageError(f"{field} is {value}; it must be at least {at_least}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"lr is {self.lr}; it must be a finite number above 0")
        for field in ("momentum", "weight_decay", "label_smoothing"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0 and (field == "weight_decay" or value < 1)):
                limit = "" if field == "weight_decay" else " and below 1"
                raise UsageError(f"{field} is {value}; it must be finite, at least 0{limit}")
        if self.width is not None and not self.model.startswith(("cifar_resnet", "bireal")):
            raise UsageError(f"width is for CIFAR ResNets and Bi-Real nets; model {self.model!r} has a fixed width")

    @property
    def binarize(self) -> Binarize:
        """The binarization part."""
        return Binarize(self.weights, self.activations, self.frozen_grad, self.surrogate)

    def idle(self) -> dict[str, str]:
        """Return the fields that have no effect beside the others, and why.

        >>> Recipe(weights="ste", activations="ste").idle()["order"]
        'no site is frozen progressively'
        >>> sorted(Recipe().idle())
        ['surrogate']
        """
        found = {}
        if "stompp" not in (self.weights, self.activations):
            names = ("order", "schedule", "refresh", "policy", "granularity", "hold_frozen", "frozen_grad")
            found = dict.fromkeys(names, "no site is frozen progressively")
        if not (self.activations == "ste" or (self.activations == "stompp" and self.frozen_grad == "ste")):
            found["surrogate"] = "no activation has a surrogate gradient"
        return found

    def changed(self, **changes: Any) -> Recipe:
        """Return the recipe with some fields changed, and the changes added to its name.

        >>> Recipe(name="demo").changed(lr=0.01, epochs=3).name
        'demo+epochs=3+lr=0.01'
        """
        made = replace(self, **changes)
        return replace(made, name=_name_with_changes(self, made))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Recipe:
        """Make a recipe from `to_dict`'s result, whatever else is in it being an error."""
        known = {f.name for f in fields(Recipe)}
        strange = sorted(set(values) - known)
        if strange:
            raise UsageError(f"a recipe has no field {strange[0]!r}; it was written by another version of stompp")
        return Recipe(**values)


def differences(a: Recipe, b: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two recipes differ, with both values.

    >>> differences(Recipe(), Recipe(lr=0.5))
    {'lr': (0.1, 0.5)}
    """
    return {
        f.name: (getattr(a, f.name), getattr(b, f.name))
        for f in fields(Recipe)
        if f.name != "name" and getattr(a, f.name) != getattr(b, f.name)
    }


def _name_with_changes(base: Recipe, made: Recipe) -> str:
    changes = [f"{field}={_plain(value)}" for field, (_, value) in differences(base, made).items()]
    return "+".join([base.name, *changes])


def _plain(value: Any) -> str:
    """Return a value as part of a folder's name: no separators, nothing a shell or a file system takes amiss."""
    text = re.sub(r"[^A-Za-z0-9._=+,-]+", "_", str(value))
    if len(text) <= 80:
        return text
    return f"{text[:60]}~{hashlib.sha256(str(value).encode(errors='surrogateescape')).hexdigest()[:12]}"


_KIND_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}


def _kinds(hint: Any) -> tuple[type, ...]:
    """Return the types a field's value may have, the one to name first."""
    kinds = get_args(hint) or (hint,)
    return (*kinds, int) if float in kinds else kinds


def _known(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{field} is {value!r}; known are {', '.join(known)}")


# tyro shows the choices of a Literal in its help; these two must say what core knows.
assert set(get_args(ScheduleName)) == set(SCHEDULES)
assert set(get_args(OrderName)) == set(ORDERS)
