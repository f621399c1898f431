"""From a PyTorch model to a short list of steps: what `torch.export` saw, without PyTorch's many ways of saying it.

The model's own code is not looked at, only the operators that ran on the example, so any model of the supported ones
will do. What is not supported is named, with the module it stands in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from stompp.deploy.nodes import adaptive_spans, spans
from stompp.errors import UsageError


@dataclass
class Step:
    """One operation on values; `name` is also its result's, `inputs` those of other steps or "input"."""

    kind: str  # conv, affine, sign, clamp, add, pool, flatten
    name: str
    inputs: list[str]
    shape: tuple[int, ...]  # of one sample's result
    where: str  # the module it came from, for messages
    settings: dict[str, Any] = field(default_factory=dict)
    largest: float = 0.0  # of the absolute values of its (first) input on the example


@dataclass
class Steps:
    """A whole model."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    steps: list[Step]
    result: str


def lower(model: nn.Module, example: torch.Tensor) -> Steps:
    """Run the model's graph on the example and return its steps; the model is not changed."""
    model = copy.deepcopy(model).cpu().float().eval()
    example = example.detach().cpu().float()
    with torch.no_grad():
        exported = torch.export.export(model, (example,))
    return _Lowering(exported, example).result


class _Lowering(torch.fx.Interpreter):
    """Walks the exported graph with real values, so that shapes and ranges are known, and writes down steps."""

    def __init__(self, exported: Any, example: torch.Tensor) -> None:
        super().__init__(exported.graph_module, garbage_collect_values=False)
        self.extra_traceback = False  # our errors say where they are from
        signature = exported.graph_signature
        tensors = {**exported.state_dict, **exported.constants}
        sources = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._constants = {name: tensors[source].detach() for name, source in sources.items()}
        self._steps: list[Step] = []
        self._names: dict[torch.fx.Node, str] = {}  # the step whose result a node is
        self._compared: dict[torch.fx.Node, torch.fx.Node] = {}  # x >= 0  ->  x
        self._result = ""
        inputs = [n.name for n in exported.graph.nodes if n.op == "placeholder"]
        with torch.no_grad():
            output = self.run(*(self._constants.get(name, example) for name in inputs))
        (output,) = output
        if not self._result:
            raise UsageError("the model's output is not computed by a packable operator")
        self.result = Steps(tuple(example.shape[1:]), tuple(output.shape[1:]), self._steps, self._result)

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "placeholder":
            if n.name not in self._constants:
                self._names[n] = "input"
        elif n.op == "output":
            (result,) = n.args[0]  # type: ignore[misc]
            self._result = self._names.get(result, "")
        elif n.op == "call_function":
            self._translate(n, value)
        return value

    def _translate(self, n: torch.fx.Node, value: Any) -> None:
        name = str(n.target).removeprefix("aten.").split(".")[0].rstrip("_")
        translate = _TRANSLATIONS.get(name)
        if translate is None:
            raise UsageError(
                f"{_where(n)} uses the operator {name}, which cannot be packed; packable are conv2d, linear, "
                "batch_norm, sign, clip, relu, add, max and mean pooling, flatten and mean"
            )
        translate(self, n, value)

    # What the translations below are written with.

    def add(
        self, n: torch.fx.Node, value: torch.Tensor, kind: str, inputs: list[torch.fx.Node], **settings: Any
    ) -> None:
        """Write down a step for the node."""
        largest = self.env[inputs[0]].abs().max().item()
        names = [self.name_of(i, n) for i in inputs]
        self._steps.append(Step(kind, n.name, names, tuple(value.shape[1:]), _where(n), settings, largest))
        self._names[n] = n.name

    def alias(self, n: torch.fx.Node, of: torch.fx.Node) -> None:
        """Let the node be another one's result."""
        if of in self._names:
            self._names[n] = self._names[of]

    def name_of(self, i: Any, user: torch.fx.Node) -> str:
        """Return the step whose result a node is."""
        if not isinstance(i, torch.fx.Node) or i not in self._names:
            raise UsageError(f"{_where(user)} computes with a constant in a way that cannot be packed")
        return self._names[i]

    def constant(self, i: Any) -> np.ndarray | None:
        """Return a parameter's or buffer's value."""
        if i is None:
            return None
        if not isinstance(i, torch.fx.Node) or i.name not in self._constants:
            raise UsageError(f"{i} would have to be a parameter of the model")
        return self._constants[i.name].float().numpy()

    def refuse(self, n: torch.fx.Node, what: str) -> None:
        """Say what cannot be packed."""
        raise UsageError(f"{_where(n)} cannot be packed: {what}")


def _where(n: torch.fx.Node) -> str:
    stack = n.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    return f"module {paths[-1]!r}" if paths and paths[-1] else "the model"


def _argument(n: torch.fx.Node, index: int, name: str, default: Any = None) -> Any:
    return n.args[index] if len(n.args) > index else n.kwargs.get(name, default)


def _pair(value: Any, default: int | None = None) -> tuple[int, int]:
    if value is None or (isinstance(value, (list, tuple)) and not value):
        value = default
    if isinstance(value, (list, tuple)):
        return (int(value[0]), int(value[-1]))
    return (int(value), int(value))  # type: ignore[arg-type]


def _conv(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    weight = low.constant(n.args[1])
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
        bias=low.constant(_argument(n, 2, "bias")),
        stride=_pair(_argument(n, 3, "stride"), 1),
        padding=sides,
        dilation=dilation,
        groups=_argument(n, 6, "groups", 1),
    )


def _linear(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if value.ndim != 2:
        low.refuse(n, f"a linear layer over an input of shape {tuple(low.env[n.args[0]].shape)}; flatten it first")  # type: ignore[index]
    weight = low.constant(n.args[1])
    assert weight is not None
    low.add(
        n,
        value,
        "conv",
        [n.args[0]],  # type: ignore[list-item]
        weight=weight[:, None, None, :],
        bias=low.constant(_argument(n, 2, "bias")),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        groups=1,
    )


def _batch_norm(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    x, gamma, beta, mean, var = (low.constant(a) if i else a for i, a in enumerate(n.args[:5]))
    if mean is None or var is None:
        low.refuse(n, "its BatchNorm keeps no running statistics")
    # In float32 and in this order, as PyTorch's own inference does it: then ties fall the same way.
    slope = np.float32(1) / np.sqrt(np.asarray(var, np.float32) + np.float32(n.args[7]))  # type: ignore[arg-type]
    if gamma is not None:
        slope = slope * gamma
    shift = (np.float32(0) if beta is None else beta) - np.asarray(mean) * slope
    low.add(n, value, "affine", [x], mul=slope.astype(np.float32), bias=shift.astype(np.float32))  # type: ignore[list-item]


def _compare(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if n.args[1] == 0:
        low._compared[n] = n.args[0]  # type: ignore[assignment]


def _where_scalars(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    condition, yes, no = n.args[:3]
    if condition not in low._compared or (yes, no) != (1.0, -1.0):
        low.refuse(n, "it selects with where(); only x >= 0 giving +1 or -1 is a sign")
    low.add(n, value, "sign", [low._compared[condition]])  # type: ignore[index]


def _clamp(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    name = str(n.target).split(".")[1].rstrip("_")
    if name == "relu":
        bounds: tuple[Any, Any] = (0.0, None)
    elif name == "relu6":
        bounds = (0.0, 6.0)
    elif name == "hardtanh":
        bounds = (_argument(n, 1, "min_val", -1.0), _argument(n, 2, "max_val", 1.0))
    else:
        bounds = (_argument(n, 1, "min"), _argument(n, 2, "max"))
    if bounds[0] is None:
        low.refuse(n, "it clamps without a lower bound")
    clamp = tuple(None if b is None else float(np.float32(b)) for b in bounds)
    low.add(n, value, "clamp", [n.args[0]], clamp=clamp)  # type: ignore[list-item]


def _add(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    if n.kwargs.get("alpha", 1) != 1 or not all(isinstance(a, torch.fx.Node) for a in n.args[:2]):
        low.refuse(n, "it adds something other than two values")
    a, b = n.args[:2]
    if low.env[a].shape != low.env[b].shape:  # type: ignore[index]
        low.refuse(n, "it adds values of two shapes")
    low.add(n, value, "add", [a, b])  # type: ignore[list-item]


def _pool(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    name = str(n.target).split(".")[1]
    x = low.env[n.args[0]]  # type: ignore[index]
    if x.ndim != 4:
        low.refuse(n, f"it pools a value of shape {tuple(x.shape)}")
    size = tuple(x.shape[2:])
    if name == "adaptive_avg_pool2d":
        rows, cols = (adaptive_spans(s, o) for s, o in zip(size, value.shape[2:]))
        reduce = "mean"
    elif name == "mean":
        dims = sorted(d % 4 for d in n.args[1])  # type: ignore[union-attr]
        if dims != [2, 3]:
            low.refuse(n, f"it takes the mean over dimensions {dims}; over rows and columns is what can be packed")
        rows, cols = (adaptive_spans(s, 1) for s in size)
        reduce = "mean"
    else:
        kernel = _pair(n.args[1])
        stride, padding = _pair(_argument(n, 2, "stride") or n.args[1]), _pair(_argument(n, 3, "padding"), 0)
        if name == "max_pool2d":
            if _pair(_argument(n, 4, "dilation"), 1) != (1, 1):
                low.refuse(n, "its max pooling is dilated")
            ceil, counts, reduce = bool(_argument(n, 5, "ceil_mode", False)), True, "max"
        else:
            if _argument(n, 6, "divisor_override") is not None:
                low.refuse(n, "its mean pooling has a divisor of its own")
            ceil, counts = bool(_argument(n, 4, "ceil_mode", False)), bool(_argument(n, 5, "count_include_pad", True))
            reduce = "mean"
        rows, cols = (
            spans(s, k, t, p, ceil=ceil, count_padding=counts) for s, k, t, p in zip(size, kernel, stride, padding)
        )
    low.add(n, value, "pool", [n.args[0]], reduce=reduce, rows=rows, cols=cols)  # type: ignore[list-item]


def _reshape(low: _Lowering, n: torch.fx.Node, value: torch.Tensor) -> None:
    x = low.env[n.args[0]]  # type: ignore[index]
    if x.shape[0] != value.shape[0] or value.ndim != 2:
        if x.shape == value.shape:
            return low.alias(n, n.args[0])  # type: ignore[arg-type]
        low.refuse(n, f"it reshapes {tuple(x.shape)} to {tuple(value.shape)}; flattening to (batch, features) can be")
    if x.ndim == 2 or x.shape[2:] == (1, 1):
        return low.alias(n, n.args[0])  # type: ignore[arg-type]
    low.add(n, value, "flatten", [n.args[0]])  # type: ignore[list-item]
    return None


def _pass(low: _Lowering, n: torch.fx.Node, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        low.alias(n, n.args[0])  # type: ignore[arg-type]


_TRANSLATIONS: dict[str, Callable[[_Lowering, torch.fx.Node, Any], None]] = {
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
    "add": _add,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _pool,
    "mean": _pool,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "to": _pass,
    "dropout": _pass,
    "contiguous": _pass,
    "clone": _pass,
    "detach": _pass,
    "alias": _pass,
    "_assert_tensor_metadata": lambda low, n, value: None,
}
