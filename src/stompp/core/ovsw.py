"""OvSW, "overcoming silent weights": a refinement of STE that the paper composes with StoMPP.

Two corrections of the gradient of every binary weight, made after backward and before the optimizer's step:

adaptive gradient scaling    per output filter with weights w and gradient g: if |g| / |w| < delta, scale g up to that
                             ratio, so that small gradients still move signs (norms over the filter);
silence-aware decay          an exponential average of sign flips per weight; a weight whose average is below
                             `threshold` is silent and gets `decay * w` added to its gradient, a pull towards a flip.

On a StoMPP site only open entries take part; frozen ones keep their zero gradient. The method's description fixes delta
only; `momentum`, `threshold` and `decay` are ours to choose and are arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stompp.errors import UsageError

from .layers import _BinaryLayer


class OvSW:
    """Corrects the gradients of a prepared model's weight sites; call `apply()` between backward and step.

    >>> from stompp.core.prepare import Binarize, prepare
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> net = prepare(net, torch.zeros(1, 2), Binarize(weights="ste", activations="ste"))
    >>> ovsw = OvSW(net)
    >>> net(torch.ones(1, 2)).sum().backward(); ovsw.apply()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        delta: float = 0.01,
        momentum: float = 0.99,
        threshold: float = 1e-4,
        decay: float = 5e-4,
    ) -> None:
        self.delta, self.momentum, self.threshold, self.decay = delta, momentum, threshold, decay
        self._layers = {m.site.name: m for m in model.modules() if isinstance(m, _BinaryLayer) and m.site is not None}
        if not self._layers:
            raise UsageError("OvSW corrects binary weights, and this model has none: prepare it with binary weights")
        self._signs = {name: m.weight.detach() >= 0 for name, m in self._layers.items()}
        # Everything counts as lively at the start, and becomes silent by not flipping.
        self._flips = {name: torch.ones_like(m.weight.detach()) for name, m in self._layers.items()}

    @torch.no_grad()
    def apply(self) -> None:
        """Change the gradients of this step in place."""
        for name, layer in self._layers.items():
            weight = layer.weight
            signs = weight >= 0
            self._flips[name].lerp_((signs != self._signs[name]).to(weight.dtype), 1.0 - self.momentum)
            self._signs[name].copy_(signs)
            if weight.grad is not None:
                site = layer.site
                assert site is not None
                open_entries = None if site.mask is None or site.surrogate is not None else ~site.mask
                self._correct(weight, weight.grad, self._flips[name], open_entries)

    def _correct(self, weight: Tensor, grad: Tensor, flips: Tensor, open_entries: Tensor | None) -> None:
        others = tuple(range(1, weight.ndim))
        used = weight if open_entries is None else weight * open_entries
        size = used.pow(2).sum(dim=others, keepdim=True).sqrt()
        slope = grad.pow(2).sum(dim=others, keepdim=True).sqrt()
        wanted = self.delta * size
        grad.mul_(torch.where((slope < wanted) & (slope > 0), wanted / slope.clamp_min(1e-30), 1.0))
        silent = flips < self.threshold
        grad.add_(torch.where(silent, self.decay * used, 0.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the flip averages and the signs last seen."""
        return {
            "flips": {name: value.clone() for name, value in self._flips.items()},
            "signs": {name: value.clone() for name, value in self._signs.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name in self._layers:
            self._flips[name].copy_(state["flips"][name])
            self._signs[name].copy_(state["signs"][name])
