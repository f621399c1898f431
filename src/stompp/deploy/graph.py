"""A packed network in memory, and the rules that make one well formed.

Every operator reads values that exist and defines new ones. Nothing here trusts its input: `Graph.check` accepts only
what every runtime can run within known bounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stompp.deploy.bf16 import sound
from stompp.deploy.nodes import Add, Affine, Clamp, Conv, Flatten, Node, Pool, Quantize, defined
from stompp.errors import UsageError

MOST_NODES = 4096
MOST_SIDE = 1 << 14  # height or width
MOST_ELEMENTS = 1 << 26  # of one value, padding included
MOST_TOTAL = 1 << 28  # of all values
MOST_WORK = 1 << 40  # multiplications for one image
MOST_WINDOW = 4096  # kernel, stride, dilation, padding
MOST_TERMS = 1 << 24  # of one dot product: any smaller integer is exact in float32
MOST_INT8_TERMS = 66_000  # 255 · 127 times this fits in 31 bits

_KINDS = {  # of convolutions: what they read, and of what type their weights are
    "binary": ("bits", "bool"),
    "float": ("floats", "bool", "float32", "float16", "int8"),
    "int8": ("bytes", "int8"),
    "bf16": ("bf16", "uint16"),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./\-]{0,199}")


@dataclass(frozen=True)
class Value:
    """Kind and shape of one value."""

    kind: str
    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Graph:
    """A network: `input` and `output` are shapes without the batch, (channels, height, width) or (features,)."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    result: str
    nodes: tuple[Node, ...]
    arrays: dict[str, np.ndarray]
    meta: dict[str, str] = field(default_factory=dict)

    def check(self) -> dict[str, Value]:
        """All values by name, or `UsageError` naming the node that is wrong."""
        return _Check(self).values


class _Check:
    """One pass over a graph that infers every shape and refuses what does not fit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.where = "the input"
        self.values: dict[str, Value] = {}
        self.used: set[str] = set()
        self.total = self.work = 0
        self.need(len(graph.input) in (1, 3), f"a shape has one or three dimensions, not {len(graph.input)}")
        self.define("input", "floats", (*graph.input, 1, 1)[:3])
        self.where = "the graph"
        self.need(1 <= len(graph.nodes) <= MOST_NODES, f"it must have 1 to {MOST_NODES} nodes")
        for name, array in graph.arrays.items():
            self.need(_NAME.fullmatch(name) is not None, f"{name!r} is no name for an array")
            self.need(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"array {name!r} is not finite")
            self.need(array.dtype != np.uint16 or bool(sound(array).all()), f"array {name!r} is beyond bf16's range")
        for index, node in enumerate(graph.nodes):
            self.where = f"node {index} ({node.op})"
            _RULES[node.op](self, node)
        self.where = "the graph"
        result = self.read(graph.result, "floats")
        shape = (result.channels, result.height, result.width)
        self.need(
            graph.output == shape or (graph.output == shape[:1] and shape[1:] == (1, 1)),
            f"the output has shape {shape}, not {graph.output}",
        )
        unused = sorted(set(graph.arrays) - self.used)
        self.need(not unused, f"no node uses the arrays {unused[:3]}")

    def need(self, ok: bool, problem: str) -> None:
        if not ok:
            raise UsageError(f"packed network: {self.where}: {problem}")

    def define(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        self.need(_NAME.fullmatch(name) is not None, f"{name!r} is no name for a value")
        self.need(name not in self.values, f"value {name!r} is defined twice")
        channels, height, width = shape
        self.need(
            channels >= 1
            and 1 <= height <= MOST_SIDE
            and 1 <= width <= MOST_SIDE
            and math.prod(shape) <= MOST_ELEMENTS,
            f"shape {shape} is empty or too large",
        )
        self.total += math.prod(shape)
        self.need(self.total <= MOST_TOTAL, "the values need too much memory")
        self.values[name] = Value(kind, channels, height, width)

    def read(self, name: str, *kinds: str) -> Value:
        value = self.values.get(name)
        self.need(value is not None, f"no value {name!r} before it")
        assert value is not None
        self.need(value.kind in kinds, f"value {name!r} holds {value.kind}, it needs {' or '.join(kinds)}")
        return value

    def array(self, name: str | None, shape: tuple[int, ...], *dtypes: str) -> None:
        array = self.graph.arrays.get(name) if name is not None else None
        self.need(array is not None, f"no array {name!r}")
        assert array is not None
        assert name is not None
        self.need(array.shape == shape, f"array {name!r} has shape {array.shape}, not {shape}")
        self.need(array.dtype.name in dtypes, f"array {name!r} is {array.dtype.name}, not {' or '.join(dtypes)}")
        self.used.add(name)

    def bounds(self, clamp: tuple[float, float | None]) -> None:
        low, high = clamp
        for bound in clamp:
            self.need(bound is None or float(np.float32(bound)) == bound, f"{bound} is no float32")
        self.need(low is not None and (high is None or low <= high), "clamp: low must not be above high")

    def same(self, node: Any, kind: str, *reads: str) -> None:
        """An elementwise operator."""
        value = self.read(node.input, *reads)
        self.define(getattr(node, kind), kind, (value.channels, value.height, value.width))

    def conv(self, node: Conv) -> None:
        self.need(node.kind in _KINDS, f"kind {node.kind!r} is not one of {', '.join(_KINDS)}")
        reads, *dtypes = _KINDS[node.kind]
        value = self.read(node.input, reads)
        windows = (*node.kernel, *node.stride, *node.dilation)
        self.need(all(1 <= n <= MOST_WINDOW for n in windows), f"kernel, stride, dilation: 1 to {MOST_WINDOW}")
        self.need(all(0 <= n <= MOST_WINDOW for n in node.padding), f"padding: 0 to {MOST_WINDOW}")
        self.need(
            node.groups >= 1 and value.channels % node.groups == 0 and node.channels % node.groups == 0,
            f"{node.groups} groups do not divide {value.channels} and {node.channels} channels",
        )
        self.need(node.groups == 1 or node.kind in ("binary", "float"), "a convolution of int8 or bf16 has one group")
        inner = value.channels // node.groups
        terms = node.kernel[0] * node.kernel[1] * inner
        self.need(terms <= (MOST_INT8_TERMS if node.kind == "int8" else MOST_TERMS), "a dot product has too many terms")
        top, left, bottom, right = node.padding
        padded = (value.height + top + bottom, value.width + left + right)
        self.total += value.channels * padded[0] * padded[1]
        self.need(value.channels * padded[0] * padded[1] <= MOST_ELEMENTS, "the padded input is too large")
        height, width = (
            (padded[i] - (node.kernel[i] - 1) * node.dilation[i] - 1) // node.stride[i] + 1 for i in range(2)
        )
        self.need(height >= 1 and width >= 1, "the kernel is larger than the padded image")
        self.work += terms * node.channels * height * width
        self.need(self.work <= MOST_WORK, "the network has too many operations")
        self.array(node.weight, (node.channels, *node.kernel, inner), *dtypes)
        if node.threshold is not None:
            self.need(node.kind == "binary", "only a binary convolution has thresholds")
            self.need(node.bits is not None and node.floats is None, "thresholds give bits and nothing else")
            self.need(node.mul is None and node.bias is None and node.clamp is None, "thresholds stand alone")
            rows = 1 if node.residual is None else 2
            self.array(node.threshold, (rows, node.channels), "int16", "int32")
        else:
            self.array(node.mul, (node.channels,), "float32")
            self.array(node.bias, (node.channels,), "float32")
            self.need(node.bits is not None or node.floats is not None, "it defines no value")
        if node.residual is not None:
            kinds = ("bits",) if node.threshold is not None else ("bits", "floats")
            other = self.read(node.residual, *kinds)
            self.need(
                (other.channels, other.height, other.width) == (node.channels, height, width),
                f"the residual {node.residual!r} differs in shape from the output",
            )
        if node.clamp is not None:
            self.bounds(node.clamp)
        for kind, name in defined(node):
            self.define(name, kind, (node.channels, height, width))

    def quantize(self, node: Quantize) -> None:
        ok = 0 < node.scale < math.inf and float(np.float32(node.scale)) == node.scale
        self.need(ok, f"scale {node.scale} is no positive float32")
        self.same(node, "bytes", "floats")

    def affine(self, node: Affine) -> None:
        channels = self.read(node.input, "floats").channels
        self.array(node.mul, (channels,), "float32")
        self.array(node.bias, (channels,), "float32")
        self.same(node, "floats", "floats")

    def clamp(self, node: Clamp) -> None:
        self.bounds(node.clamp)
        self.same(node, "floats", "floats")

    def add(self, node: Add) -> None:
        self.need(self.read(node.input, "floats") == self.read(node.other, "floats"), "the two values differ in shape")
        self.same(node, "floats", "floats")

    def flatten(self, node: Flatten) -> None:
        value = self.read(node.input, "floats")
        self.define(node.floats, "floats", (value.channels * value.height * value.width, 1, 1))

    def pool(self, node: Pool) -> None:
        self.need(node.reduce in ("max", "mean"), f"reduce {node.reduce!r} is not max or mean")
        self.need((node.floats is None) != (node.bits is None), "it defines either floats or bits")
        kind = "floats" if node.bits is None else "bits"
        self.need(kind == "floats" or node.reduce == "max", "bits have a maximum and no mean")
        value = self.read(node.input, kind)
        for windows, size in ((node.rows, value.height), (node.cols, value.width)):
            self.need(1 <= len(windows) <= MOST_SIDE, "an axis has no windows or too many")
            ok = all(0 <= begin < end <= size and 1 <= count <= MOST_WINDOW for begin, end, count in windows)
            self.need(ok, "a window is empty, outside the image or divides by nothing")
        covered = math.prod(sum(end - begin for begin, end, _ in windows) for windows in (node.rows, node.cols))
        self.work += covered * value.channels
        self.need(self.work <= MOST_WORK, "the network has too many operations")
        for kind, name in defined(node):
            self.define(name, kind, (value.channels, len(node.rows), len(node.cols)))


_RULES: dict[str, Callable[[_Check, Any], None]] = {
    "conv": _Check.conv,
    "sign": lambda check, node: check.same(node, "bits", "floats"),
    "unpack": lambda check, node: check.same(node, "floats", "bits"),
    "quantize": _Check.quantize,
    "round": lambda check, node: check.same(node, "bf16", "floats"),
    "affine": _Check.affine,
    "clamp": _Check.clamp,
    "add": _Check.add,
    "flatten": _Check.flatten,
    "pool": _Check.pool,
}
