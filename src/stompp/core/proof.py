"""Proof of binarity: what every scheduled layer really saw in the binary view, checked value by value."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stompp.errors import UsageError

from .freeze import fully_binary, sites
from .layers import _BinaryLayer
from .trace import evaluating, first_argument, not_compiled, run_example


@dataclass(frozen=True)
class Proof:
    """How many layers were watched, and what they saw."""

    layers: int
    weights: int  # entries, all of them +1 or -1
    inputs: int  # entries of the example's activations, all of them +1 or -1
    unfrozen: int = 0  # sites that are not frozen yet: the net is binary in its binary view alone


def assert_binary(model: nn.Module, example: Any) -> Proof:
    """Run the example in the binary view; return what was seen, or name the layer that saw anything but ±1.

    Every binary layer's weight must be ±1 in every entry, and its input too in a BNN. Zero padding that the layer adds
    by itself is not part of its input. Works on prepared and on converted models. What is proved is the binary view;
    the net as it is now is the same one only if the proof counts no `unfrozen` sites.
    """
    proof, problems = _watch(model, example)
    if problems:
        raise UsageError("; ".join(f"layer {name!r} is not binary: {what}" for name, what in problems))
    if not proof.layers:
        raise UsageError("the model has no binary layer; call stompp.prepare on it first")
    return proof


def find_not_binary(model: nn.Module, example: Any) -> list[tuple[str, str]]:
    """Return (layer, what it saw) for every binary layer that saw something else than ±1, in forward order."""
    return _watch(model, example)[1]


def _watch(model: nn.Module, example: Any) -> tuple[Proof, list[tuple[str, str]]]:
    model = not_compiled(model)
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, _BinaryLayer)]
    problems: dict[str, str] = {}
    reached: set[str] = set()
    weights = inputs = 0

    def hook(name: str) -> Any:
        def check(layer: _BinaryLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal weights, inputs
            if name not in reached:
                reached.add(name)
                weights += layer.weight.numel()
            if odd := _not_binary(layer.effective_weight()):
                problems.setdefault(name, f"its weight has {odd}")
            if layer.binary_input:
                given = first_argument(args, kwargs)
                inputs += given.numel()
                if odd := _not_binary(given):
                    problems.setdefault(name, f"its input has {odd}")

        return check

    with ExitStack() as stack:
        for name, layer in layers:
            stack.callback(layer.register_forward_pre_hook(hook(name), with_kwargs=True).remove)
        stack.enter_context(fully_binary(model))
        stack.enter_context(evaluating(model))
        run_example(model, example)
    for name, _ in layers:
        if name not in reached:
            problems.setdefault(name, "the forward pass never called it")
    unfrozen = sum(site.phase != "frozen" for site in sites(model))
    return Proof(len(layers), weights, inputs, unfrozen), list(problems.items())


def _not_binary(values: Tensor) -> str:
    odd = values[values.abs() != 1.0]
    if not odd.numel():
        return ""
    return f"{odd.numel()} of {values.numel()} entries other than ±1 ({odd.flatten()[0].item():g}, for one)"
