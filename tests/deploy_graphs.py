"""Random packed networks, shared by the tests of `stompp.deploy`."""

from __future__ import annotations

import numpy as np

from stompp.deploy.bf16 import to_bf16
from stompp.deploy.graph import Graph, Value
from stompp.deploy.nodes import (
    Add,
    Affine,
    Clamp,
    Conv,
    Flatten,
    Pool,
    Quantize,
    Round,
    Sign,
    Unpack,
    adaptive_spans,
    defined,
    spans,
)


class Builder:
    """Adds nodes one by one; names values and arrays, draws weights, tracks shapes."""

    def __init__(self, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        self.shape, self.rng = shape, rng
        self.nodes: list = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values = {"input": Value("floats", *(*shape, 1, 1)[:3])}

    def array(self, value: np.ndarray) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = value
        return name

    def normal(self, *shape: int) -> str:
        return self.array(self.rng.standard_normal(shape).astype(np.float32))

    def add(self, node, *shape: int) -> str:
        self.nodes.append(node)
        for kind, name in defined(node):
            self.values[name] = Value(kind, *shape)
        return defined(node)[0][1]

    def name(self) -> str:
        return f"v{len(self.nodes)}"

    def conv(self, kind: str, source: str, channels: int, *, outputs: str = "bits", threshold: bool = False,
             dtype: str = "", residual: str | None = None, clamp=None, **window) -> str:  # fmt: skip
        value = self.values[source]
        window = {"kernel": (1, 1), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": 1} | window
        shape = (channels, *window["kernel"], value.channels // window["groups"])
        terms = int(np.prod(shape[1:]))
        dtype = dtype or {"binary": "bool", "float": "float32", "int8": "int8", "bf16": "uint16"}[kind]
        if dtype == "bool":
            weight = self.rng.integers(0, 2, shape).astype(bool)
        elif dtype == "int8":
            weight = self.rng.integers(-128, 128, shape).astype(np.int8)
        elif dtype == "uint16":
            weight = to_bf16(self.rng.standard_normal(shape).astype(np.float32))
        else:
            weight = self.rng.standard_normal(shape).astype(dtype)
        fields: dict = {"weight": self.array(weight)}
        if threshold:
            spread = int(2 * np.sqrt(terms)) + 2  # some lie outside the range of the sum
            limits = self.rng.integers(-spread, spread + 1, (1 if residual is None else 2, channels))
            limits[:, self.rng.random(channels) < 0.05] = 32767
            fields |= {"threshold": self.array(limits.astype(np.int16)), "bits": self.name()}
        else:
            scale = np.float32(terms**-0.5 * (1e-2 if kind == "int8" else 1))
            mul = self.rng.standard_normal(channels).astype(np.float32) * scale
            mul[self.rng.random(channels) < 0.05] = 0
            fields |= {"mul": self.array(mul), "bias": self.normal(channels), "clamp": clamp}
            name = self.name()
            fields |= {
                k: f"{name}.{k}" if outputs == "both" else name for k in ("floats", "bits") if outputs in (k, "both")
            }
        node = Conv(kind=kind, input=source, channels=channels, residual=residual, **fields, **window)
        size = [
            (side + before + after - (k - 1) * d - 1) // s + 1
            for side, k, d, s, before, after in zip(
                (value.height, value.width), node.kernel, node.dilation, node.stride, node.padding[:2], node.padding[2:]
            )
        ]
        return self.add(node, channels, *size)

    def same(self, kind, source: str, **fields) -> str:
        value = self.values[source]
        key = {Sign: "bits", Quantize: "bytes", Round: "bf16"}.get(kind, "floats")
        return self.add(kind(input=source, **{key: self.name()}, **fields), value.channels, value.height, value.width)

    def pool(self, source: str, reduce: str, rows, cols) -> str:
        value = self.values[source]
        node = Pool(input=source, reduce=reduce, rows=rows, cols=cols, **{value.kind: self.name()})
        return self.add(node, value.channels, len(rows), len(cols))

    def graph(self, result: str) -> Graph:
        value = self.values[result]
        shape = (value.channels, value.height, value.width)
        output = shape[:1] if shape[1:] == (1, 1) else shape
        return Graph(self.shape, output, result, tuple(self.nodes), self.arrays, {"made by": "tests"})


def one_conv(rng: np.random.Generator, kind: str, shape: tuple[int, int, int], channels: int, **options) -> Graph:
    """A network of one convolution, its residual (from the input, by another convolution) included."""
    b = Builder(shape, rng)
    residual = options.pop("residual", None)
    window = {key: options[key] for key in ("kernel", "stride", "dilation", "padding") if key in options}
    source = {
        "binary": lambda: b.same(Sign, "input"),
        "float": lambda: "input",
        "int8": lambda: b.same(Quantize, "input", scale=30.0),
        "bf16": lambda: b.same(Round, "input"),
    }[kind]()
    if residual:
        options["residual"] = b.conv("float", "input", channels, outputs=residual, **window)
    out = b.conv(kind, source, channels, **options)
    if b.values[out].kind == "bits":
        out = b.same(Unpack, out)
    elif options.get("outputs") == "both":
        out = b.same(Add, out, other=b.same(Unpack, b.nodes[-1].bits))
    return b.graph(out)


def random_graph(rng: np.random.Generator) -> Graph:
    """A network of any operators in any order that fits."""
    shape = (int(rng.integers(1, 9)), int(rng.integers(5, 11)), int(rng.integers(5, 11)))
    b = Builder(shape, rng)
    current = b.conv("float", "input", int(rng.integers(2, 50)), kernel=(3, 3), padding=(1, 1, 1, 1), outputs="both")
    for _ in range(int(rng.integers(4, 9))):
        current = _step(b, rng, current)
    value = b.values[current]
    if value.kind == "bits":
        current = b.same(Unpack, current)
    if rng.random() < 0.5:
        current = b.add(Flatten(current, b.name()), value.channels * value.height * value.width, 1, 1)
    return b.graph(b.conv("float", current, 10, outputs="floats", dtype=str(rng.choice(["float32", "float16"]))))


def _step(b: Builder, rng: np.random.Generator, current: str) -> str:
    value = b.values[current]
    alike = [name for name, v in b.values.items() if (v.channels, v.height, v.width) ==
             (value.channels, value.height, value.width)]  # fmt: skip
    floats = [name for name in alike if b.values[name].kind == "floats"]
    bits = [name for name in alike if b.values[name].kind == "bits"]
    outputs = str(rng.choice(["bits", "floats", "both"]))
    if value.kind == "bits":
        move = int(rng.integers(0, 5))
        if move == 0:
            return b.conv("binary", current, value.channels, kernel=(3, 3), padding=(1, 1, 1, 1), threshold=True,
                          residual=str(rng.choice(bits)) if rng.random() < 0.5 else None)  # fmt: skip
        if move == 1:
            clamp = (-1.0, 1.0) if rng.random() < 0.5 else None
            return b.conv("binary", current, value.channels, kernel=(3, 3), padding=(1, 1, 1, 1), outputs=outputs,
                          residual=str(rng.choice(floats + bits)), clamp=clamp)  # fmt: skip
        if move == 2 and min(value.height, value.width) > 3:
            return b.conv("binary", current, int(rng.integers(1, 80)), kernel=(3, 2), stride=(2, 1), threshold=True)
        if move == 3 and min(value.height, value.width) > 3:
            return b.pool(current, "max", spans(value.height, 3, 2, 1), spans(value.width, 2, 2, ceil=True))
        return b.same(Unpack, current)
    move = int(rng.integers(0, 9))
    if move == 0:
        return b.same(Affine, current, mul=b.normal(value.channels), bias=b.normal(value.channels))
    if move == 1:
        return b.same(Clamp, current, clamp=(0.0, None))
    if move == 2:
        return b.same(Add, current, other=str(rng.choice(floats)))
    if move == 3:
        reduce = str(rng.choice(["max", "mean"]))
        return b.pool(current, reduce, adaptive_spans(value.height, 3), adaptive_spans(value.width, 2))
    if move == 4:
        quantized = b.same(Quantize, current, scale=25.5)
        return b.conv("int8", quantized, int(rng.integers(1, 40)), outputs=outputs, clamp=(-1.0, None))
    if move == 5:
        return b.conv("float", current, 2 * value.channels, kernel=(2, 3), padding=(0, 1, 1, 1), dtype="bool",
                      groups=2 if value.channels % 2 == 0 else 1, outputs=outputs)  # fmt: skip
    if move == 6:
        rounded = b.same(Round, current)
        return b.conv("bf16", rounded, int(rng.integers(1, 40)), kernel=(2, 2), padding=(1, 1, 0, 0), outputs=outputs)
    return b.same(Sign, current)
