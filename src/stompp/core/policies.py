"""Policies: which entries of a moving site are frozen. A policy maps (mask, p, key, values) to the next mask.

`mask` is the mask of the step before, `p` the fraction to aim at, `key` all the randomness there is, `values` the
weights (None for an activation). A policy may change the mask in place and return it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stompp.errors import UsageError

from .randomness import Key, coins, distinct_indices, heads

Policy = Callable[[Tensor, float, Key, "Tensor | None"], Tensor]

MOST_STEPS_AHEAD = 64  # a draw of a few entries costs what calling its operations costs: share that between steps
ENTRIES_AHEAD = 1 << 14  # beyond, nothing is gained


class SoftRefresh:
    """The stochastic policy: redraw floor(n / refresh) distinct random entries from Bernoulli(p), leave the others.

    The draws are made on the CPU, in O(n / refresh), whatever device the mask is on: masks are equal everywhere. They
    depend on the key alone, so those of many small steps are made at once and kept until their steps have passed; that
    changes nothing but the time it takes.

    >>> SoftRefresh(3)(torch.zeros(6, dtype=torch.bool), 1.0, Key(0, 0, 0)).sum()
    tensor(2)
    """

    def __init__(self, refresh: int = 100) -> None:
        self.refresh = refresh
        self._ahead: dict[tuple[int, int, int], _Draws] = {}  # by (seed, site, entries)

    def __call__(self, mask: Tensor, p: float, key: Key, values: Tensor | None = None) -> Tensor:
        n = mask.numel()
        if n < self.refresh:  # literally: no entry moves
            return mask
        draws = self._draws(n, key, mask.device)
        chosen, tossed = draws.chosen[key.step - draws.first], draws.tossed[key.step - draws.first]
        mask = mask.contiguous()  # it is not if the model was moved to another memory format since the last step
        mask.view(-1)[chosen] = heads(tossed, p)
        return mask

    def _draws(self, n: int, key: Key, device: torch.device) -> _Draws:
        name = (key.seed, key.site, n)
        found = self._ahead.get(name)
        if found is None or not found.holds(key.step) or found.chosen.device != device:
            self._ahead = {name: draws for name, draws in self._ahead.items() if draws.holds(key.step)}
            k = n // self.refresh
            steps = max(1, min(MOST_STEPS_AHEAD, ENTRIES_AHEAD // k))
            first = key.step - key.step % steps
            keys = [key._replace(step=step) for step in range(first, first + steps)]
            found = _Draws(first, distinct_indices(n, k, keys).to(device), coins(k, keys).to(device))
            self._ahead[name] = found
        return found


class _Draws(NamedTuple):
    """The draws of some steps, a row each."""

    first: int
    chosen: Tensor
    tossed: Tensor

    def holds(self, step: int) -> bool:
        return self.first <= step < self.first + len(self.chosen)


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


POLICIES = ("stochastic", "deterministic")


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
    return SoftRefresh(refresh) if policy == "stochastic" else deterministic
