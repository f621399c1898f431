"""Recipes for a CPU: CIFAR at 16×16 with CIFAR ResNets, and the digits that the package brings along.

`mini` runs take minutes and show the directions of the paper's claims; `digits` runs take seconds and show the idea.
"""

from __future__ import annotations

from typing import Any

from .methods import METHODS
from .schema import Recipe

# Each small depth stands for one of the paper's: its number of BNN sites, and that of the paper's net.
DEPTHS = {8: ("resnet18", 13, 33), 20: ("resnet34", 37, 65), 32: ("resnet50", 61, 97)}
MINI_STEPS, PAPER_STEPS = 12 * 390, 200 * 195  # epochs times steps per epoch


def mini_refresh(depth: int, order: str = "layerwise", paper_rate: int = 100) -> int:
    """Return the refresh rate that redraws a mask as often over its site's window as the paper's rate does there.

    A small run has fewer steps than the paper's and other numbers of sites, so its windows are shorter; the same rate
    would hardly refresh a mask before it is frozen.

    >>> [mini_refresh(depth) for depth in (8, 20, 32)], mini_refresh(20, "global")
    ([30, 21, 19], 12)
    """
    _, sites, paper_sites = DEPTHS[depth]
    if order == "global":
        sites = paper_sites = 1
    return max(1, round(paper_rate * (MINI_STEPS / sites) / (PAPER_STEPS / paper_sites)))


def mini(depth: int, method: str, variant: str = "", **fields: Any) -> Recipe:
    """Return a run on CIFAR-10 at 16×16: 12 epochs, batch 128."""
    name = "-".join(part for part in (f"resnet{depth}", "cifar10-16", method, variant) if part)
    base: dict[str, Any] = {
        "model": f"cifar_resnet{depth}",
        "data": "cifar10-16",
        "crop_pad": 2,
        "epochs": 12,
        "batch_size": 128,
        "eval_train": 5_000,
        "refresh": mini_refresh(depth, fields.get("order", "layerwise")),
    }
    return Recipe(name=name, **(base | METHODS[method] | fields))


def mini_methods() -> list[Recipe]:
    """Every rule at every small depth."""
    return [mini(depth, method) for depth in DEPTHS for method in METHODS]


def digits(depth: int, method: str) -> Recipe:
    """Return a run on the bundled digits: seconds on a CPU."""
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


def digits_methods() -> list[Recipe]:
    """Every rule on the digits, shallow and deep."""
    return [digits(depth, method) for depth in (8, 20) for method in METHODS]


TABLES = (mini_methods, digits_methods)
