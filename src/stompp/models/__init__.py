"""The project's own float models, by name. None of them knows of binarization: `stompp.prepare` brings that."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from stompp.errors import UsageError

from .bireal import BiRealNet, bireal18, bireal34
from .cifar_resnet import (
    CifarResNet,
    cifar_resnet8,
    cifar_resnet20,
    cifar_resnet32,
    cifar_resnet44,
    cifar_resnet56,
)
from .resnet import ResNet, resnet18, resnet34, resnet50

MODELS: dict[str, Callable[..., nn.Module]] = {
    f.__name__: f
    for f in (
        resnet18,
        resnet34,
        resnet50,
        cifar_resnet8,
        cifar_resnet20,
        cifar_resnet32,
        cifar_resnet44,
        cifar_resnet56,
        bireal18,
        bireal34,
    )
}


def build(name: str, **arguments: Any) -> nn.Module:
    """Build a model of the registry.

    >>> type(build("cifar_resnet8", num_classes=10, width=8)).__name__
    'CifarResNet'
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        raise UsageError(
            f"unknown model {name!r}{f', did you mean {near[0]!r}?' if near else '.'} Known are {', '.join(MODELS)}"
        )
    accepted = inspect.signature(MODELS[name]).parameters
    for argument in arguments:
        if argument not in accepted:
            raise UsageError(f"model {name!r} has no argument {argument!r}; it takes {', '.join(accepted)}")
    return MODELS[name](**arguments)


__all__ = [
    "MODELS",
    "BiRealNet",
    "CifarResNet",
    "ResNet",
    "bireal18",
    "bireal34",
    "build",
    "cifar_resnet8",
    "cifar_resnet20",
    "cifar_resnet32",
    "cifar_resnet44",
    "cifar_resnet56",
    "resnet18",
    "resnet34",
    "resnet50",
]
