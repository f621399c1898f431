"""From a PyTorch model to a short list of steps: what `torch.export` saw, without PyTorch's many ways of saying it.

The model's own code is not looked at, only the operators that ran on the example, so any model of the supported ones
will do. What is not supported is named, with the module it stands in.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from stompp.deploy.operators import HINTS, PACKABLE, TRANSLATIONS, operator_of
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
    # A batch of one could not be told from other dimensions of one. A copy, since the model may work in place.
    example = torch.cat([example, example]) if len(example) == 1 else example.clone()
    try:
        with torch.no_grad():
            exported = torch.export.export(model, (example,), strict=False)
    except Exception as error:  # whatever the model's own code raises, or torch.export's many errors
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"torch.export cannot follow the model on an example of shape {tuple(example.shape[1:])} each: "
            f"{type(error).__name__}: {first}"
        ) from error
    if len(exported.graph_signature.user_outputs) != 1 or exported.call_spec.out_spec.num_nodes != 1:
        raise UsageError("the model's output must be one tensor, not a tuple, list or dict: pack a module around it")
    return Lowering(exported, example).result


class Lowering(torch.fx.Interpreter):
    """Walks the exported graph with real values, so that shapes and ranges are known, and writes down steps."""

    def __init__(self, exported: Any, example: torch.Tensor) -> None:
        super().__init__(exported.graph_module)
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
        self.compared: dict[torch.fx.Node, str] = {}  # x >= 0  ->  the step whose result x is
        self._largest = {"input": example.abs().max().item()}  # absolute value among a step's results
        self._result = ""
        inputs = [n.name for n in exported.graph.nodes if n.op == "placeholder"]
        with torch.no_grad():
            output = self.run(*(self._constants.get(name, example) for name in inputs))
        (output,) = output
        if not self._result:
            raise UsageError("the model's output does not depend on its input by a packable operator")
        if not self._steps:
            raise UsageError("the model gives its input back: there is nothing to pack")
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
        name = operator_of(n)
        translate = TRANSLATIONS.get(name.rstrip("_"), TRANSLATIONS.get(name))
        if translate is None:
            raise UsageError(
                f"{where_of(n)} uses the operator {name}, which cannot be packed; {HINTS.get(name, PACKABLE)}"
            )
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float32:
            self.refuse(n, f"its result is {value.dtype}; packed networks compute in float32")
        if name.endswith("_") and not name.startswith("_"):
            self._refuse_hidden_change(n, value)
        translate(self, n, value)

    def _refuse_hidden_change(self, n: torch.fx.Node, value: torch.Tensor) -> None:
        """Let an operator work in place only where nobody later reads the same memory under another name."""
        for other, kept in self.env.items():
            shares = isinstance(kept, torch.Tensor) and _memory(kept) == _memory(value)
            if shares and other is not n.args[0] and any(user > n for user in other.users):
                self.refuse(n, "it works in place on values that are used again under another name")
        if any(user > n for user in n.args[0].users):  # type: ignore[union-attr]
            self.refuse(n, "it works in place on a value that is used again")

    # What the translations below are written with.

    def add(
        self, n: torch.fx.Node, value: torch.Tensor, kind: str, inputs: list[torch.fx.Node], **settings: Any
    ) -> None:
        """Write down a step for the node."""
        self.write(n, value, kind, [self.name_of(i, n) for i in inputs], **settings)

    def write(self, n: torch.fx.Node, value: torch.Tensor, kind: str, names: list[str], **settings: Any) -> None:
        """Write down a step that reads the results of others by name."""
        for setting in settings.values():
            if isinstance(setting, np.ndarray) and not np.isfinite(setting).all():
                self.refuse(n, "it has weights that are infinite or no numbers (its training diverged)")
        step = Step(kind, n.name, names, tuple(value.shape[1:]), where_of(n), settings, self._largest[names[0]])
        self._steps.append(step)
        self._names[n] = n.name
        self._largest[n.name] = value.abs().max().item()

    def alias(self, n: torch.fx.Node, of: torch.fx.Node) -> None:
        """Let the node be another one's result."""
        if of in self._names:
            self._names[n] = self._names[of]

    def name_of(self, i: Any, user: torch.fx.Node) -> str:
        """Return the step whose result a node is."""
        if not isinstance(i, torch.fx.Node) or i not in self._names:
            self.refuse(user, "it computes with a constant where a value that depends on the input is needed")
        return self._names[i]

    def constant(self, i: Any, user: torch.fx.Node) -> np.ndarray | None:
        """Return a parameter's or buffer's value."""
        if i is None:
            return None
        if not isinstance(i, torch.fx.Node) or i.name not in self._constants:
            self.refuse(user, f"its {i} is computed while the model runs; only parameters and buffers can be packed")
        return self._constants[i.name].float().numpy()

    def refuse(self, n: torch.fx.Node, what: str) -> NoReturn:
        """Say what cannot be packed."""
        raise UsageError(f"{where_of(n)}, operator {operator_of(n)}, cannot be packed: {what}")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def where_of(n: torch.fx.Node) -> str:
    """Return the module that a node stands in, for messages."""
    stack = list((n.meta.get("nn_module_stack") or {}).values())
    if not stack or not stack[-1][0]:
        return "the model"
    path, kind = stack[-1]
    return f"module {str(path)!r} ({kind.__name__ if isinstance(kind, type) else str(kind).rpartition('.')[2]})"
