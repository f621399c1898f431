"""Diagnosis: where the gradient still flows, and where a blockade of frozen activations has cut it off.

`GradientFlow` watches one training step and reports, for every conv and linear layer in forward order, how much of the
gradient arrives at its output and at its weight. `SignFlips` tells which share of each weight site changed its sign
since it last looked.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch  # noqa: F401  (for the doctests)
from torch import Tensor, nn

from stompp.errors import UsageError

from .freeze import sites
from .layers import BINARY_LAYERS, _BinaryLayer
from .trace import not_compiled

_WEIGHT_LAYERS = (*BINARY_LAYERS, *BINARY_LAYERS.values())


@dataclass(frozen=True)
class LayerFlow:
    """The gradient that one layer got in one backward pass; zeros where none arrived."""

    name: str
    signal_norm: float  # norm of the gradient at the layer's output
    signal_share: float  # share of that gradient's entries that are not zero
    weight_norm: float  # norm of the weight's gradient
    weight_share: float


class GradientFlow:
    """A context around forward and backward of one step; `layers()` reads the result afterwards, at any time.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> with GradientFlow(net) as flow:
    ...     net(torch.ones(1, 2)).sum().backward()
    >>> [(row.name, row.signal_share) for row in flow.layers()]
    [('0', 1.0), ('1', 1.0)]
    """

    def __init__(self, model: nn.Module) -> None:
        if not_compiled(model) is not model:
            raise UsageError("a compiled model cannot be watched layer by layer: give GradientFlow the model itself")
        self._layers = {n: m for n, m in model.named_modules() if isinstance(m, _WEIGHT_LAYERS)}
        self._signals: dict[str, tuple[Tensor, Tensor]] = {}
        self._weights: dict[str, tuple[Tensor, Tensor]] = {}
        self._order: list[str] = []
        self._handles: list[Any] = []

    def __enter__(self) -> GradientFlow:
        self._signals.clear()
        self._weights.clear()
        self._order.clear()
        for name, layer in self._layers.items():
            self._handles.append(layer.register_forward_hook(self._watch(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._look_at_weights()  # now: the optimizer's zero_grad may come before anyone reads the result

    def _watch(self, name: str) -> Any:
        def hook(layer: nn.Module, args: Any, output: Tensor) -> None:
            if name not in self._order:
                self._order.append(name)
            if output.requires_grad:
                output.register_hook(receive)  # type: ignore[no-untyped-call]

        def receive(grad: Tensor) -> None:
            self._signals[name] = (grad.norm(), (grad != 0).float().mean())

        return hook

    def _look_at_weights(self) -> None:
        for name in self._signals:  # the others got nothing; a gradient they have is of a step before
            grad = self._layers[name].weight.grad
            if isinstance(grad, Tensor):
                self._weights[name] = (grad.norm(), (grad != 0).float().mean())

    def layers(self) -> list[LayerFlow]:
        """Return one row per layer that ran, in forward order (syncs with the device)."""
        if self._handles:  # read within the context
            self._look_at_weights()
        rows = []
        for name in self._order:
            signal, weight = self._signals.get(name), self._weights.get(name)
            rows.append(
                LayerFlow(
                    name,
                    signal_norm=0.0 if signal is None else signal[0].item(),
                    signal_share=0.0 if signal is None else signal[1].item(),
                    weight_norm=0.0 if weight is None else weight[0].item(),
                    weight_share=0.0 if weight is None else weight[1].item(),
                )
            )
        return rows


class SignFlips:
    """Share of each weight site's entries whose sign changed between two looks.

    >>> from stompp.core.prepare import prepare
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> flips = SignFlips(prepare(net, torch.zeros(1, 2)))
    >>> _ = net[2].weight.data.neg_()
    >>> flips.look()
    {'2.weight': 1.0}
    """

    def __init__(self, model: nn.Module) -> None:
        order = {site: i for i, site in enumerate(sites(model, scheduled=False))}
        layers = [m for m in model.modules() if isinstance(m, _BinaryLayer) and m.site is not None]
        layers.sort(key=lambda m: order[m.site] if m.site is not None else -1)
        self._weights = {m.site.name: m.weight for m in layers if m.site is not None}
        self._last = {name: weight.detach() >= 0 for name, weight in self._weights.items()}

    def look(self) -> dict[str, float]:
        """Return the flip ratio per weight site since the last look, or since the start."""
        now = {name: weight.detach() >= 0 for name, weight in self._weights.items()}
        ratios = {name: (now[name] != self._last[name]).float().mean() for name in now}
        self._last = now
        return {name: ratio.item() for name, ratio in ratios.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the signs last looked at."""
        return {name: signs.clone() for name, signs in self._last.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Count flips from the signs in a saved state on."""
        for name, signs in self._last.items():
            signs.copy_(state[name])
