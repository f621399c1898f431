"""Runs on the digits that the package brings along: seconds on a CPU, to show the idea."""

from __future__ import annotations

from .methods import METHODS
from .schema import Recipe


def recipe(depth: int, method: str) -> Recipe:
    """Return a run of a CIFAR ResNet on the digits.

    >>> recipe(8, "bnn-ste").name
    'resnet8-digits-bnn-ste'
    """
    return Recipe(
        name=f"resnet{depth}-digits-{method}",
        model=f"cifar_resnet{depth}",
        data="digits",
        crop_pad=1,
        flip=False,
        epochs=40,
        batch_size=64,
        lr=0.05,
        eval_train=1_437,
        **METHODS[method],
    )


def recipes() -> list[Recipe]:
    """Return every rule, shallow and deep."""
    return [recipe(depth, method) for depth in (8, 20) for method in METHODS]
