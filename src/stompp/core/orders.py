"""Orders: which site moves when. An order gives every site its window [start, end) of training steps.

Before its window a site is open, inside it is moving, and at the window's last step it is frozen, so that from step
total - 1 on every site is frozen.
"""

from __future__ import annotations

from collections.abc import Callable

from stompp.errors import UsageError

Window = tuple[int, int]
Order = Callable[[int, int], list[Window]]


def layerwise(sites: int, total: int) -> list[Window]:
    """Sites one after the other, from input to output: site i has [floor(i T / N), floor((i+1) T / N)).

    >>> layerwise(3, 10)
    [(0, 3), (3, 6), (6, 10)]
    """
    return [(i * total // sites, (i + 1) * total // sites) for i in range(sites)]


def reverse(sites: int, total: int) -> list[Window]:
    """The windows of `layerwise`, given to the sites from output to input.

    >>> reverse(3, 10)
    [(6, 10), (3, 6), (0, 3)]
    """
    return layerwise(sites, total)[::-1]


def global_(sites: int, total: int) -> list[Window]:
    """All sites together, over the whole training.

    >>> global_(2, 10)
    [(0, 10), (0, 10)]
    """
    return [(0, total)] * sites


ORDERS: dict[str, Order] = {"layerwise": layerwise, "global": global_, "reverse": reverse}


def windows(
    order: str | Order, sites: int, total: int, *, granularity: str = "step", steps_per_epoch: int | None = None
) -> list[Window]:
    """Return one window per site within [0, total).

    granularity="epoch" gives every site the same number of whole epochs; what is left over comes at the end, with
    everything frozen.

    >>> windows("layerwise", 2, 50, granularity="epoch", steps_per_epoch=10)
    [(0, 20), (20, 40)]
    """
    if isinstance(order, str) and order not in ORDERS:
        raise UsageError(f"unknown order {order!r}; known are {', '.join(ORDERS)}, or pass a function (sites, steps)")
    if granularity not in ("step", "epoch"):
        raise UsageError(f"granularity must be 'step' or 'epoch', not {granularity!r}")
    if not isinstance(total, int):
        raise UsageError(f"total_steps must be a whole number, not {total!r}")
    if total < 1:
        raise UsageError(f"total_steps must be at least 1, not {total}")
    if sites == 0:
        return []
    together = order == "global"
    span = total
    if granularity == "epoch":
        if steps_per_epoch is None or steps_per_epoch < 1:
            raise UsageError("granularity='epoch' needs steps_per_epoch, the number of steps in one epoch")
        epochs = total // steps_per_epoch
        if together and not epochs:
            raise UsageError(f"{total} steps are less than one epoch of {steps_per_epoch}: use granularity='step'")
        if epochs < sites and not together:
            raise UsageError(
                f"{epochs} epochs are too few for {sites} sites at one epoch each: train at least {sites} epochs, "
                "or use granularity='step'"
            )
        span = epochs * steps_per_epoch if together else epochs // sites * sites * steps_per_epoch
    elif total < sites and not together:
        raise UsageError(f"{total} steps are too few for {sites} sites: a site needs a step, so at least {sites}")
    found = (ORDERS[order] if isinstance(order, str) else order)(sites, span)
    if len(found) != sites:
        raise UsageError(f"the order gave {len(found)} windows for {sites} sites")
    for i, (start, end) in enumerate(found):
        if not 0 <= start < end <= total:
            raise UsageError(f"the order gave site {i} the window [{start}, {end}), which is not within [0, {total})")
    return found
