"""Policies: which entries of a moving site are frozen. A policy maps (mask, p, key, values) to the next mask.

`mask` is the mask of the step before, `p` the fraction to aim at, `key` all the randomness there is, `values` the
weights (None for an activation). A policy may change the mask in place and return it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch  # noqa: F401  (for the doctests)
from torch import Tensor

from stompp.errors import UsageError

from .randomness import Key, bernoulli, distinct_indices

Policy = Callable[[Tensor, float, Key, "Tensor | None"], Tensor]


def stochastic(mask: Tensor, p: float, key: Key, values: Tensor | None = None, *, refresh: int = 100) -> Tensor:
    """Soft refresh: redraw floor(n / refresh) distinct random entries from Bernoulli(p), leave the others.

    The draw is made on the CPU, in O(n / refresh), whatever device the mask is on: masks are equal everywhere.

    >>> stochastic(torch.zeros(6, dtype=torch.bool), 1.0, Key(0, 0, 0), refresh=3).sum()
    tensor(2)
    """
    n = mask.numel()
    k = n // refresh  # literally: no entry moves when refresh > n
    if k:
        chosen = distinct_indices(n, k, key)
        drawn = bernoulli(k, p, key)
        mask = mask.contiguous()  # it is not if the model was moved to another memory format since the last step
        mask.view(-1)[chosen.to(mask.device, non_blocking=True)] = drawn.to(mask.device, non_blocking=True)
    return mask


def deterministic(mask: Tensor, p: float, key: Key, values: Tensor | None = None) -> Tensor:
    """Freeze the floor(p n) weights whose |w| is nearest to 1, chosen anew; of equals the first ones.

    >>> deterministic(torch.zeros(4, dtype=torch.bool), 0.5, Key(0, 0, 0), torch.tensor([0.1, -0.9, 1.2, 4.0]))
    tensor([False,  True,  True, False])
    """
    assert values is not None, "the Freezer asks for deterministic masks on weights only"
    distance = (values.detach().abs() - 1.0).abs().flatten()
    count = int(p * distance.numel())
    if count == 0:
        return mask.zero_()
    farthest = distance.kthvalue(count).values
    nearer = distance < farthest
    ties = (distance == farthest).nonzero().flatten()
    nearer[ties[: count - int(nearer.sum())]] = True
    return nearer.view(mask.shape)


POLICIES: dict[str, Policy] = {"stochastic": stochastic, "deterministic": deterministic}


def resolve_policy(policy: str | Policy, refresh: int) -> Policy:
    """Return the policy of that name with its refresh rate bound, or the given function.

    >>> resolve_policy("stochastic", 0)
    Traceback (most recent call last):
    stompp.errors.UsageError: refresh must be a whole number of at least 1, not 0
    """
    if not isinstance(refresh, int) or isinstance(refresh, bool) or refresh < 1:
        raise UsageError(f"refresh must be a whole number of at least 1, not {refresh!r}")
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise UsageError(
            f"unknown policy {policy!r}; known are {', '.join(POLICIES)}, or pass a function (mask, p, key, values)"
        )
    chosen: Any = POLICIES[policy]
    return partial(chosen, refresh=refresh) if policy == "stochastic" else chosen
