"""summary: what a model costs, layer by layer, in bits and in multiply-accumulates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from .freeze import Site
from .layers import BINARY_LAYERS, _BinaryLayer
from .trace import Call, trace

_WEIGHT_LAYERS = (*BINARY_LAYERS, *BINARY_LAYERS.values())


@dataclass(frozen=True)
class LayerSummary:
    """One layer that holds weights, or all that is left over (norms, biases) in a last row named "(other)"."""

    name: str
    type: str
    output: tuple[int, ...]
    parameters: int
    bits: int  # per weight, once the net is fully binary
    size: float  # bytes of parameters and statistics at that width
    float_size: float  # bytes when every value takes 32 bits
    macs: int  # multiply-accumulates per sample in float
    binary_macs: int  # those that are xor and popcount
    frozen: float | None  # fraction of the weight's entries that are frozen now; None for a float layer


@dataclass(frozen=True)
class Summary:
    """The layers in forward order; print it for a table."""

    layers: list[LayerSummary]

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(row.parameters for row in self.layers)

    @property
    def size(self) -> float:
        """Bytes when binary weights take one bit."""
        return sum(row.size for row in self.layers)

    @property
    def float_size(self) -> float:
        """Bytes when every value takes 32 bits."""
        return sum(row.float_size for row in self.layers)

    @property
    def macs(self) -> int:
        """Float multiply-accumulates per sample."""
        return sum(row.macs for row in self.layers)

    @property
    def binary_macs(self) -> int:
        """Binary multiply-accumulates per sample."""
        return sum(row.binary_macs for row in self.layers)

    def __str__(self) -> str:
        head = ("layer", "type", "output", "parameters", "bits", "size", "MACs", "binary MACs", "frozen")
        rows = [
            (
                row.name,
                row.type,
                "×".join(map(str, row.output)) or "-",
                f"{row.parameters:,}",
                str(row.bits),
                _bytes(row.size),
                f"{row.macs:,}",
                f"{row.binary_macs:,}",
                "float" if row.frozen is None else f"{100 * row.frozen:.0f} %",
            )
            for row in self.layers
        ]
        total = (
            "total", "", "", f"{self.parameters:,}", "", _bytes(self.size), f"{self.macs:,}", f"{self.binary_macs:,}",
            "",
        )  # fmt: skip
        widths = [max(len(line[i]) for line in (head, *rows, total)) for i in range(len(head))]
        rule = "-" * (sum(widths) + 2 * len(widths) - 2)
        lines = [head, *rows, total]
        texts = [
            "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
            for line in lines
        ]
        texts[1:1] = [rule]
        texts[-1:-1] = [rule]
        texts.append(
            f"packed {_bytes(self.size)}, as float {_bytes(self.float_size)}: "
            f"{self.float_size / max(self.size, 1e-9):.1f} times smaller"
        )
        return "\n".join(texts)


def summary(model: nn.Module, example: Any) -> Summary:
    """Summarise a float, prepared or converted model by running the example once.

    Multiply-accumulates are those of Conv1d/2d/3d and Linear layers that the forward pass calls; what other modules
    multiply (attention's products, transposed convolutions) is not counted.

    >>> import torch
    >>> print(summary(nn.Sequential(nn.Linear(4, 2)), torch.zeros(1, 4)).macs)
    8
    """
    calls: dict[int, list[Call]] = {}
    for call in trace(model, example, _WEIGHT_LAYERS).calls:
        calls.setdefault(id(call.module), []).append(call)
    rows = [_row(same) for same in calls.values()]
    seen = {id(same[0].module) for same in calls.values()}
    other = sum(p.numel() for m in model.modules() if id(m) not in seen for p in m.parameters(recurse=False))
    buffers = sum(b.numel() for m in model.modules() if not isinstance(m, Site) for b in m.buffers(recurse=False))
    rest = 4.0 * (other + buffers)
    rows.append(LayerSummary("(other)", "norms, …", (), other, 32, rest, rest, 0, 0, None))
    return Summary(rows)


def _row(same: list[Call]) -> LayerSummary:
    layer = same[0].module
    binary = isinstance(layer, _BinaryLayer)
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    bias = layer.bias.numel() if isinstance(layer.bias, nn.Parameter) else 0
    macs = sum(_macs(call, weight.numel()) for call in same)
    frozen = None
    if isinstance(layer, _BinaryLayer):
        frozen = 1.0 if layer.site is None else layer.site.fraction
    fully = isinstance(layer, _BinaryLayer) and layer.binary_input
    return LayerSummary(
        name=same[0].name,
        type=type(layer).__name__,
        output=same[0].output_shape,
        parameters=weight.numel() + bias,
        bits=1 if binary else 32,
        size=weight.numel() / (8 if binary else 0.25) + 4.0 * bias,
        float_size=4.0 * (weight.numel() + bias),
        macs=0 if fully else macs,
        binary_macs=macs if fully else 0,
        frozen=frozen,
    )


def _macs(call: Call, weights: int) -> int:
    """Every output position of a conv, or every row of a linear layer, uses each weight once."""
    positions = call.output_shape[:-1] if isinstance(call.module, nn.Linear) else call.output_shape[1:]
    count = weights
    for extent in positions:
        count *= extent
    return count


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000 or unit == "MB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
