"""What a packed network computes, in numpy: slow, obvious, exact to the last bit.

This is the meaning of a file. The compiled kernels are tested for equality with it, and it stands in for them where
they are not installed. Values are arrays of (image, channel, row, column): float32, those of bf16 too, or integers for
bits (−1, +1) and bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stompp.deploy.bf16 import to_bf16, to_floats
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Add, Affine, Clamp, Conv, Flatten, Pool, Quantize, Round, Sign, Unpack, defined


def run(graph: Graph, images: np.ndarray) -> np.ndarray:
    """The outputs for a batch of inputs, both float32."""
    values = {"input": images.reshape(len(images), *(*graph.input, 1, 1)[:3]).astype(np.float32)}
    with np.errstate(all="ignore"):  # sums may overflow to infinity, here as in the kernels
        for node in graph.nodes:
            for (_, name), result in zip(defined(node), _OPERATORS[type(node)](node, graph, values)):
                values[name] = result
    return values[graph.result].reshape(len(images), *graph.output)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a·b + c with one rounding, in float32.

    In float64 the product is exact. The sum is then rounded to odd (if it is inexact and its last bit is 0, the
    neighbour towards the exact value is taken), after which rounding to float32 cannot round twice.

    >>> a = np.float32(1 + 2**-12)
    >>> float(fma(a, a, np.float32(-1))) == 2**-11 + 2**-24, float(a * a - np.float32(1)) == 2**-11
    (True, True)
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    shift = total - product
    error = (product - (total - shift)) + (addend - shift)  # total + error is the exact sum (Knuth)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    return np.where(inexact & even, odd, total).astype(np.float32)


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1, -1)


def _bounded(x: np.ndarray, clamp: tuple[float, float | None]) -> np.ndarray:
    low, high = np.float32(clamp[0]), np.float32(np.inf if clamp[1] is None else clamp[1])
    raised = np.where(x > low, x, low)
    return np.where(raised < high, raised, high)


def _windows(node: Conv, x: np.ndarray) -> list[list[np.ndarray]]:
    """For each kernel row and column, what it sees: (image, channel, output row, output column)."""
    top, left, bottom, right = node.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (kh, kw), (sy, sx), (dy, dx) = node.kernel, node.stride, node.dilation
    height = (padded.shape[2] - (kh - 1) * dy - 1) // sy + 1
    width = (padded.shape[3] - (kw - 1) * dx - 1) // sx + 1
    return [[padded[:, :, ky * dy :: sy, kx * dx :: sx][:, :, :height, :width] for kx in range(kw)] for ky in range(kh)]


def _integer_dot(node: Conv, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sums of products of integers; in float64, where all of them are exact."""
    inner, outer = weight.shape[3], node.channels // node.groups
    windows = _windows(node, x.astype(np.float64))
    shape = (len(x), node.channels, *windows[0][0].shape[2:])
    total = np.zeros(shape)
    for group in range(node.groups):
        out, into = slice(group * outer, (group + 1) * outer), slice(group * inner, (group + 1) * inner)
        for ky in range(node.kernel[0]):
            for kx in range(node.kernel[1]):
                tap = weight[out, ky, kx].astype(np.float64)
                total[:, out] += np.einsum("nchw,oc->nohw", windows[ky][kx][:, into], tap, optimize=True)
    return total.astype(np.int64)


def _float_dot(node: Conv, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """One chain of fma an output, in the order kernel row, kernel column, input channel; see `_order` for bf16."""
    inner, outer = weight.shape[3], node.channels // node.groups
    windows = _windows(node, x)
    total = np.zeros((len(x), node.channels, *windows[0][0].shape[2:]), np.float32)
    group_of = np.arange(node.channels) // outer * inner
    for ky in range(node.kernel[0]):
        for kx in range(node.kernel[1]):
            for c in _order(node.kind, inner):
                term = windows[ky][kx][:, group_of + c]
                total = fma(term, weight[:, ky, kx, c].astype(np.float32)[:, None, None], total)
    return total


def _order(kind: str, channels: int) -> list[int]:
    """One by one; but of bf16, of each pair the second first."""
    if kind == "float":
        return list(range(channels))
    return [c for first in range(0, channels, 2) for c in (first + 1, first) if c < channels]


def _conv(node: Conv, graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    arrays, x = graph.arrays, values[node.input]
    weight = arrays[node.weight]
    if weight.dtype == bool:
        weight = np.where(weight, 1, -1)
    elif weight.dtype == np.uint16:
        weight = to_floats(weight)
    dot = (_float_dot if node.kind in ("float", "bf16") else _integer_dot)(node, x, weight)
    if node.threshold is not None:
        threshold = arrays[node.threshold][:, :, None, None].astype(np.int64)
        if node.residual is None:
            return [np.where(dot >= threshold[0], 1, -1)]
        return [np.where(dot >= np.where(values[node.residual] > 0, threshold[1], threshold[0]), 1, -1)]
    mul, addend = arrays[node.mul][:, None, None], arrays[node.bias][:, None, None]
    if node.residual is not None:
        addend = addend + values[node.residual].astype(np.float32)
    y = fma(dot.astype(np.float32), mul, addend)
    if node.clamp is not None:
        y = _bounded(y, node.clamp)
    return [y if kind == "floats" else _sign(y) for kind, _ in defined(node)]


def _quantize(node: Quantize, graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    scaled = values[node.input] * np.float32(node.scale)
    return [np.rint(_bounded(scaled, (-127.0, 127.0))).astype(np.int64)]


def _affine(node: Affine, graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    mul, bias = (graph.arrays[name][:, None, None] for name in (node.mul, node.bias))
    return [fma(values[node.input], mul, bias)]


def _flatten(node: Flatten, graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    x = values[node.input]
    return [x.reshape(len(x), math.prod(x.shape[1:]), 1, 1)]


def _pool(node: Pool, graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Row by row within a window, one rounding for each addition, then one division."""
    x = values[node.input]
    out = np.empty((*x.shape[:2], len(node.rows), len(node.cols)), x.dtype)
    for i, (top, bottom, row_count) in enumerate(node.rows):
        for j, (left, right, col_count) in enumerate(node.cols):
            pixels = [x[:, :, y, z] for y in range(top, bottom) for z in range(left, right)]
            total = pixels[0]
            for pixel in pixels[1:]:
                total = total + pixel if node.reduce == "mean" else np.where(pixel > total, pixel, total)
            if node.reduce == "mean":
                total = total / (np.float32(row_count) * np.float32(col_count))
            out[:, :, i, j] = total
    return [out]


_OPERATORS: dict[type, Any] = {
    Conv: _conv,
    Sign: lambda node, graph, values: [_sign(values[node.input])],
    Unpack: lambda node, graph, values: [values[node.input].astype(np.float32)],
    Quantize: _quantize,
    Round: lambda node, graph, values: [to_floats(to_bf16(values[node.input]))],
    Affine: _affine,
    Clamp: lambda node, graph, values: [_bounded(values[node.input], node.clamp)],
    Add: lambda node, graph, values: [values[node.input] + values[node.other]],
    Flatten: _flatten,
    Pool: _pool,
}
