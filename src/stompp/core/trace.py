"""One forward pass of an example, watched: which layers and activations ran, in which order, on what shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Modules that stand for "the nonlinearity here". Those with parameters (PReLU) and gates (Sigmoid) are not among them.
ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Tanh,
)
_FUNCTIONAL = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "gelu", "silu", "mish", "hardswish",
    "hardtanh", "hardtanh_", "tanh", "tanh_",
}  # fmt: skip


@dataclass
class Call:
    """One call of a watched module: its name, itself, and the shapes of one sample going in and coming out."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


@dataclass
class Trace:
    """The calls of one forward pass in order, and the activation functions that were called outside any module."""

    calls: list[Call] = field(default_factory=list)
    functional: list[tuple[str, str]] = field(default_factory=list)  # (function, name of the module that called it)


class _FunctionalWatch(TorchFunctionMode):
    def __init__(self, trace: Trace, stack: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._trace, self._stack = trace, stack

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _FUNCTIONAL and self._stack and not isinstance(self._stack[-1][1], ACTIVATIONS):
            found = (name.rstrip("_"), self._stack[-1][0])
            if found not in self._trace.functional:
                self._trace.functional.append(found)
        return func(*args, **(kwargs or {}))


def not_compiled(model: nn.Module) -> nn.Module:
    """Return the model behind torch.compile's wrapper, whose modules can be watched; any other one as it is."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, nn.Module) else model


def run_example(model: nn.Module, example: Any) -> Any:
    """Call the model on an example: a tensor, a tuple of positional arguments, or a dict of keyword arguments."""
    if isinstance(example, dict):
        return model(**example)
    if isinstance(example, (tuple, list)):
        return model(*example)
    return model(example)


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a layer's input, given by position or by name."""
    given: Tensor = args[0] if args else next(iter(kwargs.values()))
    return given


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode without gradients, and every module back to its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def trace(model: nn.Module, example: Any, watched: tuple[type[nn.Module], ...]) -> Trace:
    """Run the example once and return the calls of the watched module types in order. The model stays as it was."""
    model = not_compiled(model)
    result = Trace()
    stack: list[tuple[str, nn.Module]] = []
    handles = []

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            stack.append((name or type(module).__name__, module))

        return hook

    def leave(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        name, _ = stack.pop()
        if isinstance(module, watched) and isinstance(output, Tensor):
            given = first_argument(args, kwargs)
            result.calls.append(Call(name, module, tuple(given.shape[1:]), tuple(output.shape[1:])))

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name)))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        with evaluating(model), _FunctionalWatch(result, stack):
            run_example(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return result
