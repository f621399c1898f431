"""From steps to a packed graph: what follows a convolution becomes its epilogue, BatchNorm and sign its thresholds.

A convolution takes along, as far as nobody else needs what is between: BatchNorm, the addition of a shortcut, a clamp,
a sign. What comes out is one node:

    bits = acc >= threshold         if only the sign is needed and the shortcut, if any, is ±1: integers, nothing else
    y = fma(acc, mul, bias + res)   otherwise, with y, its sign bits, or both as results

`acc` is the integer sum of ±1 products. sign(mul * acc + bias) with mul > 0 is acc >= ceil(-bias / mul); a channel with
mul < 0 has its weights flipped, and one with mul = 0 has a threshold that is always or never met.

Layers with real-valued weights are computed in fp32, bf16 or int8; those that do not fit stay in fp32: grouped ones,
sums of int8 that are too long, weights beyond bf16's range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stompp.deploy.bf16 import MOST, to_bf16
from stompp.deploy.graph import MOST_INT8_TERMS, Graph
from stompp.deploy.lower import Step, Steps
from stompp.deploy.nodes import Add, Affine, Clamp, Conv, Flatten, Node, Pool, Quantize, Round, Sign, Unpack
from stompp.errors import UsageError

FLOATS = ("fp32", "bf16", "int8")


def refuse_unknown(floats: str) -> None:
    """Refuse what is none of FLOATS."""
    if floats not in FLOATS:
        raise UsageError(f"floats is {floats!r}; choose one of {', '.join(FLOATS)}")


def fold(lowered: Steps, floats: str = "fp32", meta: dict[str, str] | None = None) -> Graph:
    """Return the packed graph; `floats` says how layers with real-valued weights are computed."""
    return _Folding(lowered, floats).graph(meta or {})


def thresholds(mul: np.ndarray, bias: np.ndarray, terms: int) -> np.ndarray:
    """Return per channel the least integer acc for which mul * acc + bias >= 0, for mul >= 0; exactly.

    >>> thresholds(np.float32([0.5, 1, 0, 0]), np.float32([1.2, -3, 1, -1]), 9).tolist()
    [-2, 3, -10, 10]
    """
    slope, shift = mul.astype(np.float64), bias.astype(np.float64)
    least = np.where(shift >= 0, -terms - 1, terms + 1).astype(np.float64)
    up = slope > 0
    guess = np.ceil(np.clip(-shift[up] / slope[up], -terms - 1, terms + 1))
    # Both products are exact in float64 (24 bits each at most), so these two comparisons mend the division's rounding.
    guess = np.where((guess - 1) * slope[up] >= -shift[up], guess - 1, guess)
    guess = np.where(guess * slope[up] < -shift[up], guess + 1, guess)
    least[up] = np.clip(guess, -terms - 1, terms + 1)
    return least.astype(np.int32)


@dataclass
class _Chain:
    """A convolution and what it takes along."""

    conv: Step
    mul: np.ndarray
    bias: np.ndarray
    end: Step  # the last step before a sign
    residual: str | None = None
    clamp: tuple[float, float | None] | None = None
    sign: Step | None = None
    only_sign: bool = False  # nobody needs `end` but the sign


class _Folding:
    def __init__(self, lowered: Steps, floats: str) -> None:
        self.lowered, self.floats = lowered, floats
        self.steps = {step.name: step for step in lowered.steps}
        self.index = {step.name: i for i, step in enumerate(lowered.steps)}
        self.users: dict[str, list[Step]] = {}
        for step in lowered.steps:
            for name in step.inputs:
                self.users.setdefault(name, []).append(step)
        self.nodes: list[Node] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values = {"input": "floats"}  # what is computed so far, and its kind
        self.shapes = {"input": (*lowered.input_shape, 1, 1)[:3]}
        self.shapes |= {step.name: (*step.shape, 1, 1)[:3] for step in lowered.steps}

    def graph(self, meta: dict[str, str]) -> Graph:
        chains = self._chains()
        taken = {step.name: chain for chain in chains for step in self._members(chain)}
        for step in self.lowered.steps:
            chain = taken.get(step.name)
            if chain is None:
                self._single(step)
            elif step is (chain.sign if chain.only_sign else chain.end):
                self._conv(chain)
        result = self._as_floats(self.lowered.result)
        nodes, arrays = _shared(self.nodes, self.arrays)
        made = Graph(
            input=self.lowered.input_shape,
            output=self.lowered.output_shape,
            result=result,
            nodes=nodes,
            arrays=arrays,
            meta=meta,
        )
        made.check()
        return made

    # Which steps go together.

    def _chains(self) -> list[_Chain]:
        """Let every convolution take what it can; binary ones choose first, since theirs is the cheap epilogue."""
        convs = [step for step in self.lowered.steps if step.kind == "conv"]
        convs.sort(key=lambda step: (not _is_binary(step), self.index[step.name]))
        taken: set[str] = set()
        chains = []
        for conv in convs:
            channels = conv.settings["weight"].shape[0]
            bias = conv.settings["bias"]
            chain = _Chain(
                conv,
                np.ones(channels, np.float32),
                np.zeros(channels, np.float32) if bias is None else bias.astype(np.float32),
                end=conv,
            )
            while self._extend(chain, taken):
                pass
            taken |= {step.name for step in self._members(chain)}
            chains.append(chain)
        return chains

    def _extend(self, chain: _Chain, taken: set[str]) -> bool:
        """Take the next step along, if it can be taken."""
        users = self.users.get(chain.end.name, [])
        is_result = chain.end.name == self.lowered.result
        signs = [user for user in users if user.kind == "sign" and user.name not in taken]
        if chain.sign is None and signs:
            chain.sign = signs[0]
            chain.only_sign = len(users) == 1 and not is_result
            return False
        if len(users) != 1 or is_result or users[0].name in taken:
            return False
        (user,) = users
        if user.kind == "affine" and chain.residual is None and chain.clamp is None:
            mul, bias = user.settings["mul"], user.settings["bias"]
            chain.mul, chain.bias = chain.mul * mul, (chain.bias * mul + bias).astype(np.float32)
        elif user.kind == "add" and chain.residual is None and chain.clamp is None:
            chain.residual = next(name for name in user.inputs if name != chain.end.name)
        elif user.kind == "clamp" and chain.clamp is None:
            chain.clamp = user.settings["clamp"]
        else:
            return False
        chain.end = user
        return True

    def _members(self, chain: _Chain) -> list[Step]:
        """Return the steps of a chain."""
        members = [chain.conv]
        while members[-1] is not chain.end:
            (user,) = self.users[members[-1].name]
            members.append(user)
        return members + ([chain.sign] if chain.sign is not None else [])

    # What becomes of them.

    def _conv(self, chain: _Chain) -> None:
        conv, name = chain.conv, chain.conv.name
        weight = conv.settings["weight"]
        source = conv.inputs[0]
        flat = self.steps.get(source)
        if flat is not None and flat.kind == "flatten" and source not in self.values:
            # A linear layer over a flattened image is a convolution with a kernel as large as the image.
            source = flat.inputs[0]
            channels, height, width = self.shapes[source]
            weight = weight.reshape(len(weight), channels, height, width).transpose(0, 2, 3, 1)
        binary = bool((np.abs(weight) == 1).all())
        mul, bias = chain.mul, chain.bias
        common: dict[str, Any] = {
            "channels": len(weight),
            "weight": f"{name}.weight",
            "kernel": tuple(weight.shape[1:3]),
            "groups": conv.settings["groups"],
            **{key: conv.settings[key] for key in ("stride", "dilation", "padding")},
        }
        if binary and self.values[source] == "bits":
            common |= {"kind": "binary", "input": source}
            if self._by_threshold(chain):
                assert chain.sign is not None
                negative = mul < 0
                weight = np.where(negative[:, None, None, None], -weight, weight)
                self._add(common["weight"], weight > 0)
                levels = [None] if chain.residual is None else [-1, 1]
                terms = int(np.prod(weight.shape[1:]))
                rows = [thresholds(np.abs(mul), bias + np.float32(level or 0), terms) for level in levels]
                fits = terms < 2**15 - 1
                self._add(f"{name}.threshold", np.stack(rows).astype(np.int16 if fits else np.int32))
                bits = chain.sign.name
                self._emit(Conv(**common, threshold=f"{name}.threshold", residual=chain.residual, bits=bits), bits=bits)
                return
            self._add(common["weight"], weight > 0)
        elif binary:
            common |= {"kind": "float", "input": self._as_floats(source)}
            self._add(common["weight"], weight > 0)
        elif self.floats == "int8" and common["groups"] == 1 and weight[0].size <= MOST_INT8_TERMS:
            scale = self._scale(source, conv)
            common |= {"kind": "int8", "input": self._narrowed(source, "bytes", lambda x, y: Quantize(x, scale, y))}
            step = np.maximum(np.abs(weight).reshape(len(weight), -1).max(1), np.float32(1e-30)) / np.float32(127)
            self._add(common["weight"], np.rint(weight / step[:, None, None, None]).astype(np.int8))
            mul = (mul * step / np.float32(scale)).astype(np.float32)
        elif self.floats == "bf16" and common["groups"] == 1 and np.abs(weight).max() <= MOST:
            common |= {"kind": "bf16", "input": self._narrowed(source, "bf16", Round)}
            self._add(common["weight"], to_bf16(weight))
        else:
            common |= {"kind": "float", "input": self._as_floats(source)}
            self._add(common["weight"], np.ascontiguousarray(weight, np.float32))
        self._add(f"{name}.mul", mul)
        self._add(f"{name}.bias", bias)
        floats = None if chain.only_sign else chain.end.name
        bits = None if chain.sign is None else chain.sign.name
        node = Conv(
            **common,
            mul=f"{name}.mul",
            bias=f"{name}.bias",
            residual=chain.residual,
            clamp=chain.clamp,
            floats=floats,
            bits=bits,
        )
        self._emit(node, floats=floats, bits=bits)

    def _by_threshold(self, chain: _Chain) -> bool:
        """Say whether the sign alone is needed, and integers decide it."""
        low, high = chain.clamp if chain.clamp is not None else (-1.0, None)
        keeps_sign = low < 0 and (high is None or high >= 0)
        integers = chain.residual is None or self.values[chain.residual] == "bits"
        return chain.only_sign and keeps_sign and integers

    def _single(self, step: Step) -> None:
        """Emit a step that no convolution took along."""
        source = step.inputs[0]
        if step.kind == "flatten":
            if all(user.kind == "conv" for user in self.users.get(step.name, [])) and step.name != self.lowered.result:
                return  # a linear layer reads the image itself
            self._emit(Flatten(self._as_floats(source), step.name), floats=step.name)
        elif step.kind == "sign":
            self._emit(Sign(self._as_floats(source), step.name), bits=step.name)
        elif step.kind == "pool":
            settings = step.settings
            if self.values[source] == "bits" and settings["reduce"] == "max":
                self._emit(Pool(source, "max", settings["rows"], settings["cols"], bits=step.name), bits=step.name)
            else:
                node = Pool(self._as_floats(source), **settings, floats=step.name)
                self._emit(node, floats=step.name)
        elif step.kind == "affine":
            self._add(f"{step.name}.mul", step.settings["mul"])
            self._add(f"{step.name}.bias", step.settings["bias"])
            node = Affine(self._as_floats(source), f"{step.name}.mul", f"{step.name}.bias", step.name)
            self._emit(node, floats=step.name)
        elif step.kind == "clamp":
            self._emit(Clamp(self._as_floats(source), step.settings["clamp"], step.name), floats=step.name)
        else:
            assert step.kind == "add"
            a, b = (self._as_floats(name) for name in step.inputs)
            self._emit(Add(a, b, step.name), floats=step.name)

    def _emit(self, node: Any, floats: str | None = None, bits: str | None = None) -> None:
        self.nodes.append(node)
        for name, kind in ((floats, "floats"), (bits, "bits")):
            if name is not None:
                self.values[name] = kind

    def _add(self, name: str, array: np.ndarray) -> None:
        self.arrays[name] = np.ascontiguousarray(array)

    def _as_floats(self, name: str) -> str:
        """Return a value as floats, unpacking it where it is bits."""
        if self.values[name] == "floats":
            return name
        unpacked = f"{name}.floats"
        if unpacked not in self.values:
            self._emit(Unpack(name, unpacked), floats=unpacked)
        return unpacked

    def _scale(self, source: str, conv: Step) -> float:
        """Return the factor that takes a value's range on the example to ±127; of bits, 1."""
        if self.values[source] == "bits":
            return 1.0
        if conv.largest < 1e-30:
            raise UsageError(
                f"{conv.where} sees only zeros on the example, which says nothing of its range: give real images, or "
                "floats='fp32'"
            )
        return float(np.float32(127.0 / conv.largest))

    def _narrowed(self, source: str, kind: str, node: Callable[[str, str], Node]) -> str:
        """Return a value in another kind of numbers; `node` makes it from the names of its floats and of itself."""
        narrowed = f"{source}.{kind}"
        if narrowed not in self.values:
            self.nodes.append(node(self._as_floats(source), narrowed))
            self.values[narrowed] = kind
        return narrowed


def _shared(nodes: list[Node], arrays: dict[str, np.ndarray]) -> tuple[tuple[Node, ...], dict[str, np.ndarray]]:
    """Keep equal arrays once, such as those of a module that is called twice."""
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    name_of = {
        name: first.setdefault((array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).digest()), name)
        for name, array in arrays.items()
    }
    named = ("weight", "threshold", "mul", "bias")
    made = [
        replace(node, **{field: name_of[name] for field in named if (name := getattr(node, field, None)) is not None})
        for node in nodes
    ]
    return tuple(made), {name: arrays[name] for name in first.values()}


def _is_binary(step: Step) -> bool:
    return bool((np.abs(step.settings["weight"]) == 1).all())
