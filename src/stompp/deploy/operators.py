"""What each PyTorch operator means for a packed network: one short function per operator, listed at the end."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stompp.deploy.nodes import adaptive_spans, spans

if TYPE_CHECKING:
    from stompp.deploy.lower import Lowering


def operator_of(n: torch.fx.Node) -> str:
    """Return the plain name of what a node calls, such as conv2d."""
    return n.target.__name__ if n.target is operator.getitem else str(n.target).removeprefix("aten.").split(".")[0]


def _argument(n: torch.fx.Node, index: int, name: str, default: Any = None) -> Any:
    return n.args[index] if len(n.args) > index else n.kwargs.get(name, default)


def _pair(value: Any, default: int | None = None) -> tuple[int, int]:
    if value is None or (isinstance(value, (list, tuple)) and not value):
        value = default
    if isinstance(value, (list, tuple)):
        return (int(value[0]), int(value[-1]))
    return (int(value), int(value))  # type: ignore[arg-type]


def _conv(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    weight = low.constant(n.args[1], n)
    assert weight is not None
    if weight.ndim != 4:
        low.refuse(n, f"it is a convolution over {weight.ndim - 2} dimensions, and images have 2")
    kernel, dilation = weight.shape[2:], _pair(_argument(n, 5, "dilation"), 1)
    padding = _argument(n, 4, "padding", 0)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        sides = (total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2)
    else:
        top, left = _pair(0 if padding == "valid" else padding, 0)
        sides = (top, left, top, left)
    low.add(
        n,
        value,
        "conv",
        [n.args[0]],  # type: ignore[list-item]
        weight=weight.transpose(0, 2, 3, 1),
        bias=low.constant(_argument(n, 2, "bias"), n),
        stride=_pair(_argument(n, 3, "stride"), 1),
        padding=sides,
        dilation=dilation,
        groups=_argument(n, 6, "groups", 1),
    )


def _linear(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if value.ndim != 2:
        low.refuse(n, f"a linear layer over an input of shape {tuple(low.env[n.args[0]].shape)}; flatten it first")  # type: ignore[index]
    weight = low.constant(n.args[1], n)
    assert weight is not None
    low.add(
        n,
        value,
        "conv",
        [n.args[0]],  # type: ignore[list-item]
        weight=weight[:, None, None, :],
        bias=low.constant(_argument(n, 2, "bias"), n),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        groups=1,
    )


def _batch_norm(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    x, (gamma, beta, mean, var) = n.args[0], (low.constant(a, n) for a in n.args[1:5])
    if n.args[5] or mean is None or var is None:
        low.refuse(n, "it normalises with each batch's own statistics, not with running ones")
    if value.ndim not in (2, 4):
        low.refuse(n, f"its input has shape {tuple(value.shape)}")
    # In float32 and in this order, as PyTorch's own inference does it: then ties fall the same way.
    slope = np.float32(1) / np.sqrt(np.asarray(var, np.float32) + np.float32(n.args[7]))  # type: ignore[arg-type]
    if gamma is not None:
        slope = slope * gamma
    shift = (np.float32(0) if beta is None else beta) - np.asarray(mean) * slope
    low.add(n, value, "affine", [x], mul=slope.astype(np.float32), bias=shift.astype(np.float32))  # type: ignore[list-item]


def _compare(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if isinstance(n.args[1], (int, float)) and n.args[1] == 0:
        low.compared[n] = low.name_of(n.args[0], n)


def _where_scalars(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    condition, yes, no = n.args[:3]
    if condition not in low.compared or (yes, no) != (1.0, -1.0):
        low.refuse(n, "it selects; only `x >= 0` giving 1.0 or -1.0 can be packed, which is sign")
    low.write(n, value, "sign", [low.compared[condition]])  # type: ignore[index]


def _clamp(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    name = operator_of(n).rstrip("_")
    if name == "relu":
        bounds: tuple[Any, Any] = (0.0, None)
    elif name == "relu6":
        bounds = (0.0, 6.0)
    elif name == "hardtanh":
        bounds = (_argument(n, 1, "min_val", -1.0), _argument(n, 2, "max_val", 1.0))
    else:
        bounds = (_argument(n, 1, "min"), _argument(n, 2, "max"))
    if not all(b is None or isinstance(b, (int, float)) for b in bounds):
        low.refuse(n, "its bounds must be numbers")
    if bounds[0] is None or bounds[0] == -math.inf:
        low.refuse(n, "it clamps without a lower bound")
    clamp = tuple(None if b is None or b == math.inf else float(np.float32(b)) for b in bounds)
    low.add(n, value, "clamp", [n.args[0]], clamp=clamp)  # type: ignore[list-item]


def _add(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if n.kwargs.get("alpha", 1) != 1 or not all(isinstance(a, torch.fx.Node) for a in n.args[:2]):
        low.refuse(n, "it adds something other than two values")
    a, b = n.args[:2]
    if low.env[a].shape != low.env[b].shape:  # type: ignore[index]
        low.refuse(n, f"it adds values of shapes {tuple(low.env[a].shape)} and {tuple(low.env[b].shape)}")  # type: ignore[index]
    low.add(n, value, "add", [a, b])  # type: ignore[list-item]


def _pool(low: Lowering, n: torch.fx.Node, value: Any) -> None:
    name = operator_of(n)
    x = low.env[n.args[0]]  # type: ignore[index]
    if x.ndim != 4:
        low.refuse(n, f"it pools a value of shape {tuple(x.shape)}")
    size = tuple(x.shape[2:])
    reduce = "max" if "max" in name else "mean"
    if name.startswith("adaptive"):
        value = value[0] if reduce == "max" else value  # the other is the places of the maxima
        rows, cols = (adaptive_spans(s, o) for s, o in zip(size, value.shape[2:]))
    elif name in ("mean", "amax"):
        dims = sorted(d % 4 for d in _argument(n, 1, "dim") or range(4))
        if dims != [2, 3]:
            low.refuse(n, f"it reduces the dimensions {dims}; rows and columns together, [2, 3], can be")
        rows, cols = (adaptive_spans(s, 1) for s in size)
    else:
        kernel = _pair(n.args[1])
        stride, padding = _pair(_argument(n, 2, "stride") or n.args[1]), _pair(_argument(n, 3, "padding"), 0)
        if reduce == "max":
            if _pair(_argument(n, 4, "dilation"), 1) != (1, 1):
                low.refuse(n, "its windows are dilated")
            ceil, counts = bool(_argument(n, 5, "ceil_mode", False)), True
        else:
            if _argument(n, 6, "divisor_override") is not None:
                low.refuse(n, "it has a divisor of its own")
            ceil, counts = bool(_argument(n, 4, "ceil_mode", False)), bool(_argument(n, 5, "count_include_pad", True))
        rows, cols = (
            spans(s, k, t, p, ceil=ceil, count_padding=counts) for s, k, t, p in zip(size, kernel, stride, padding)
        )
    low.add(n, value, "pool", [n.args[0]], reduce=reduce, rows=rows, cols=cols)  # type: ignore[list-item]


def _reshape(low: Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    x = low.env[n.args[0]]  # type: ignore[index]
    if x.shape[:2] == value.shape[:2] and (x.shape == value.shape or x[0].numel() == x.shape[1]):
        return low.alias(n, n.args[0])  # type: ignore[arg-type]
    if x.shape[0] != value.shape[0] or value.ndim != 2:
        low.refuse(n, f"it reshapes {tuple(x.shape)} to {tuple(value.shape)}; flattening to (batch, features) can be")
    low.add(n, value, "flatten", [n.args[0]])  # type: ignore[list-item]
    return None


def _pass(low: Lowering, n: torch.fx.Node, value: Any) -> None:
    if "dropout" in operator_of(n) and n.args[2]:
        low.refuse(n, "it drops at random even in eval mode")
    low.alias(n, n.args[0])  # type: ignore[arg-type]


def _item(low: Lowering, n: torch.fx.Node, value: Any) -> None:
    if n.args[1] == 0:  # the values; the places of the maxima stay nameless, which is an error only where they are used
        low.alias(n, n.args[0])  # type: ignore[arg-type]


PACKABLE = (
    "packable are conv2d, linear, batch_norm, sign (as x >= 0), clamp, relu, add, max and mean pooling, flatten, mean"
)
HINTS = {
    "sign": "torch.sign has three values; a binary one is torch.where(x >= 0, 1.0, -1.0), or stompp's own activation",
    "pad": "give the padding to the convolution itself, if it is of zeros",
    "max_pool2d_with_indices": "leave out return_indices",
}

TRANSLATIONS: dict[str, Callable[[Lowering, torch.fx.Node, Any], None]] = {
    "conv2d": _conv,
    "conv1d": _conv,
    "conv3d": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "ge": _compare,
    "where": _where_scalars,
    "relu": _clamp,
    "relu6": _clamp,
    "hardtanh": _clamp,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clip": _clamp,
    "add": _add,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _pool,
    "adaptive_max_pool2d": _pool,
    "mean": _pool,
    "amax": _pool,
    "getitem": _item,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "to": _pass,
    "dropout": _pass,
    "feature_dropout": _pass,
    "alpha_dropout": _pass,
    "feature_alpha_dropout": _pass,
    "contiguous": _pass,
    "clone": _pass,
    "detach": _pass,
    "alias": _pass,
    "_assert_tensor_metadata": lambda low, n, value: None,
}
