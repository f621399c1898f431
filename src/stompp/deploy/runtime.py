"""Runs a packed network: numpy in, numpy out, nothing else needed.

`load` reads a file and plans it once. With `stompp-kernels` installed a call goes straight to compiled code: no memory
is taken but for the result, the interpreter is free for other threads meanwhile, and any number of threads may call at
once. Without it, the numpy reference gives the same bits, slowly.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from typing import Any

import numpy as np

from stompp.deploy import format, reference
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Add, Affine, Clamp, Conv, Flatten, Pool, Quantize, Round, Sign, Unpack, defined
from stompp.errors import UsageError

_warned = False


def load(path: str | os.PathLike[str], *, threads: int | None = None, isa: str = "auto") -> PackedNet:
    """A packed network as a function of images.

    `threads`: most threads for one call, all usable CPUs by default. `isa`: avx512_bf16, avx512, avx2 or portable for
    the compiled kernels, reference for numpy; the best there is by default. Neither changes a bit of any result.
    """
    return PackedNet(format.read(path), threads=threads, isa=isa)


class PackedNet:
    """A graph, ready to run. Call it with float images (n, channels, height, width), or (n, features)."""

    def __init__(self, graph: Graph, *, threads: int | None = None, isa: str = "auto") -> None:
        graph.check()
        self.graph = graph
        self.threads = usable_cpus() if threads is None else threads
        if not isinstance(self.threads, int) or self.threads < 1:
            raise UsageError(f"threads is {threads!r}; use a positive number, or None for all usable CPUs")
        self._program = None if isa == "reference" else _compile(graph, isa)
        self.isa = self._program.isa if self._program is not None else "reference"

    def __call__(self, images: Any) -> np.ndarray:
        x = self._checked(images)
        if self._program is None:
            if not np.isfinite(x).all():
                raise UsageError("the input has values that are infinite or no numbers")
            return reference.run(self.graph, x)
        result = np.empty((len(x), *self.graph.output), np.float32)
        try:
            self._program.run(x, result, self.threads)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the network to a .stompp file, whole or not at all; a file of that name is replaced."""
        format.save(self.graph, path)

    def __repr__(self) -> str:
        shapes = f"{self.graph.input} -> {self.graph.output}"
        kinds = Counter(node.kind for node in self.graph.nodes if isinstance(node, Conv))
        layers = "".join(f", {count} {kind} conv" for kind, count in kinds.items())
        nodes = f"{len(self.graph.nodes)} nodes{layers}"
        return f"<packed network {shapes}, {nodes}, {self.isa}, {self.threads} threads>"

    def _checked(self, images: Any) -> np.ndarray:
        x = np.asarray(images)
        if x.dtype.kind != "f":
            raise UsageError(
                f"the input is {x.dtype}; give floats, scaled and normalised as the network's training images were"
            )
        if x.ndim == len(self.graph.input):
            raise UsageError(f"the input has shape {x.shape} without a batch dimension; write images[None]")
        if x.shape[1:] != self.graph.input:
            raise UsageError(f"the input has shape {x.shape}; this network takes (n, {str(self.graph.input)[1:]}")
        return np.ascontiguousarray(x, np.float32)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile(graph: Graph, isa: str) -> Any:
    """The graph as a program of the compiled kernels; None, with one warning, where they are not installed."""
    global _warned
    try:
        from stompp_kernels import Program
    except ImportError as error:
        if isa != "auto":
            raise UsageError(f"isa {isa!r} needs the compiled kernels: pip install stompp-kernels") from error
        if not _warned:
            _warned = True
            warnings.warn(
                "stompp-kernels is not installed, so packed networks run in numpy: the same results, very slowly. "
                "Remedy: pip install stompp-kernels",
                RuntimeWarning,
                stacklevel=4,
            )
        return None
    try:
        program = Program(*(*graph.input, 1, 1)[:3], isa)
        numbers = {"input": 0}
        for node in graph.nodes:
            results = _BUILDERS[type(node)](program, node, graph.arrays, numbers)
            for (_, name), number in zip(defined(node), results):
                numbers[name] = number
        program.finish(numbers[graph.result])
    except ValueError as error:
        raise UsageError(f"packed network: {error}") from error
    return program


def _conv(program: Any, node: Conv, arrays: dict[str, np.ndarray], numbers: dict[str, int]) -> list[int]:
    weight = arrays[node.weight]
    if node.kind == "binary":
        weight = np.packbits(weight.reshape(len(weight), -1), axis=1, bitorder="little")
    elif weight.dtype == bool:
        weight = np.where(weight, np.float32(1), np.float32(-1))
    elif node.kind == "float":
        weight = weight.astype(np.float32)
    arguments: dict[str, Any] = {
        "kernel": node.kernel,
        "stride": node.stride,
        "dilation": node.dilation,
        "padding": node.padding,
        "groups": node.groups,
        "residual": -1 if node.residual is None else numbers[node.residual],
        "want_float": node.floats is not None,
        "want_bits": node.bits is not None,
    }
    if node.threshold is not None:
        arguments["threshold"] = arrays[node.threshold].astype(np.int32)
    else:
        arguments.update(mul=arrays[node.mul], bias=arrays[node.bias])
        arguments["clamp"] = None if node.clamp is None else _bounds(node.clamp)
    build = getattr(program, f"{node.kind}_conv")
    return [number for number in build(numbers[node.input], node.channels, weight, **arguments) if number >= 0]


def _bounds(clamp: tuple[float, float | None]) -> tuple[float, float]:
    return clamp[0], np.inf if clamp[1] is None else clamp[1]


_BUILDERS: dict[type, Any] = {
    Conv: _conv,
    Sign: lambda p, node, arrays, numbers: [p.sign(numbers[node.input])],
    Unpack: lambda p, node, arrays, numbers: [p.unpack(numbers[node.input])],
    Quantize: lambda p, node, arrays, numbers: [p.quantize(numbers[node.input], node.scale)],
    Round: lambda p, node, arrays, numbers: [p.round(numbers[node.input])],
    Affine: lambda p, node, arrays, numbers: [p.affine(numbers[node.input], arrays[node.mul], arrays[node.bias])],
    Clamp: lambda p, node, arrays, numbers: [p.clamp(numbers[node.input], *_bounds(node.clamp))],
    Add: lambda p, node, arrays, numbers: [p.add(numbers[node.input], numbers[node.other])],
    Flatten: lambda p, node, arrays, numbers: [p.flatten(numbers[node.input])],
    Pool: lambda p, node, arrays, numbers: [p.pool(numbers[node.input], node.reduce, node.rows, node.cols)],
}
