"""prepare, convert and the binary view: how a float model becomes one with sites, and how it ends as a binary one.

`prepare` runs an example once to learn the order in which the forward pass reaches the layers, then swaps layers and
activations in place. Which method a net is trained with is said by `Binarize` alone:

    StoMPP            Binarize()
    STE, the paper's  Binarize(weights="ste", activations="ste")
    STE, clipped      Binarize(weights="ste", activations="ste", surrogate="clip")
    hybrid A/W        Binarize(weights="ste", activations="stompp")
    hybrid W/A        Binarize(weights="stompp", activations="ste")
    scaffold          Binarize(frozen_grad="ste")
    binary weights    Binarize(activations="clip"), or "relu"
    float             Binarize(weights="float", activations="relu"), or "clip"
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from torch import nn

from stompp.errors import UsageError

from .freeze import Site, Surrogate, sites
from .layers import BINARY_LAYERS, BinaryActivation, Clip, Sign, _BinaryLayer, adopt_hooks, reset_turns
from .proof import find_not_binary
from .trace import ACTIVATIONS, Call, Trace, not_compiled, trace

Skip = Callable[[str, nn.Module], bool]
WEIGHT_LAYERS = tuple(BINARY_LAYERS)


@dataclass(frozen=True)
class Binarize:
    """What becomes binary, and by which rule.

    weights: "stompp" (frozen progressively), "ste" (binary from the first step) or "float".
    activations: "stompp", "ste", or continuous: "clip" to [-1, 1], or "relu" (left as the model has them).
    frozen_grad: gradient of frozen StoMPP entries: "zero" (the method) or "ste" (the scaffold).
    surrogate: the gradient STE gives activations: "identity", "clip" or "approxsign". For weights it is the identity.
    """

    weights: Literal["stompp", "ste", "float"] = "stompp"
    activations: Literal["stompp", "ste", "clip", "relu"] = "stompp"
    frozen_grad: Literal["zero", "ste"] = "zero"
    surrogate: Surrogate = "identity"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if getattr(self, name) not in get_args(hint):
                allowed = ", ".join(map(repr, get_args(hint)))
                raise UsageError(f"Binarize({name}={getattr(self, name)!r}): {name} is one of {allowed}")

    @property
    def binary_activations(self) -> bool:
        """True for a BNN, False for a BWN or a float net."""
        return self.activations in ("stompp", "ste")


# What the running `prepare` knows of each layer's role in the model; skip filters may ask for it through paper_policy.
_ROLES: ContextVar[dict[int, str] | None] = ContextVar("roles", default=None)
_PROJECTION = re.compile(r"(^|\.)(downsample|shortcut|projection|skip|conv_shortcut)(\.|$)")


def paper_policy(name: str, module: nn.Module) -> bool:
    """Return True for the layers the paper keeps float: the first and the last weight layer, and projections.

    First and last are by the order of the forward pass; a projection is a layer whose name has a part `downsample`,
    `shortcut`, `conv_shortcut`, `projection` or `skip`. It only works inside `prepare`, where it can be combined:
    `skip=lambda name, m: stompp.paper_policy(name, m) or name.startswith("head.")`.
    """
    roles = _ROLES.get()
    if roles is None:
        raise UsageError("paper_policy needs to know the whole model: pass it (or a function that calls it) as skip=")
    return id(module) in roles


def prepare(
    model: nn.Module,
    example: Any,
    config: Binarize | None = None,
    *,
    skip: Skip | None = paper_policy,
) -> nn.Module:
    """Give every layer and activation that should become binary its site, in place, and return the model.

    example: an input of the shape you train with, as a tensor, a tuple of arguments, or a dict of keyword arguments.
    skip: a function (name, module) -> bool that names layers and activations to leave as they are; None skips nothing.

    Parameters stay the same objects under the same state-dict keys. If something cannot be made binary, a UsageError
    names it, and the model is as it was before.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [site.name for site in sites(prepare(net, torch.zeros(1, 8)))]
    ['1', '2.weight', '3']
    """
    config = config or Binarize()
    if not isinstance(config, Binarize):
        raise UsageError(f"config is {config!r}; it must be a stompp.Binarize, such as Binarize(weights='ste')")
    if skip is not None and not callable(skip):
        raise UsageError(f"skip is {skip!r}; it must be a function (name, module) -> bool, or None")
    _refuse_unpreparable(model)
    seen = trace(model, example, (*WEIGHT_LAYERS, *ACTIVATIONS))
    chosen = _choose(model, seen, config, skip)
    if not chosen and (config.weights != "float" or config.binary_activations):
        raise UsageError(
            "nothing in the model would become binary: it has no Conv1d/2d/3d, Linear or activation module that skip= "
            "lets through"
        )
    swaps = _make_swaps(seen, chosen, config)
    undo = _swap(model, swaps)
    try:
        undo += _disable_fused_transformer(model)
        _refuse_unreached(model, example)
        if config.binary_activations and config.weights != "float":
            problems = find_not_binary(model, example)
            if problems:
                raise UsageError(_explain(problems, seen, model))
        _warn_of_leftovers(model, seen, config, skip)
    except BaseException:
        for owner, attribute, old in undo:
            setattr(owner, attribute, old)
        raise
    if any(isinstance(m, BinaryActivation) and len(m.sites) > 1 for m in model.modules()):
        model.register_forward_pre_hook(reset_turns)
    return model


def _refuse_unpreparable(model: nn.Module) -> None:
    if not_compiled(model) is not model:
        raise UsageError("the model is compiled already: prepare it first, then torch.compile what prepare returns")
    if type(model) in BINARY_LAYERS or isinstance(model, ACTIVATIONS):
        raise UsageError(
            f"the model itself is a {type(model).__name__}, which cannot be swapped in place: wrap it in nn.Sequential"
        )
    for name, module in model.named_modules():
        if isinstance(module, (Site, _BinaryLayer, BinaryActivation)):
            raise UsageError(f"this model is prepared already ({name!r} has a site); prepare a fresh one")


def _choose(model: nn.Module, seen: Trace, config: Binarize, skip: Skip | None) -> set[int]:
    """Return the ids of the modules to swap."""
    names = {id(call.module): call.name for call in seen.calls}
    modules = {id(call.module): call.module for call in seen.calls}
    with _roles(seen):
        kept = {key for key, module in modules.items() if skip is None or not skip(names[key], module)}
    wanted = set()
    for key, module in modules.items():
        if isinstance(module, WEIGHT_LAYERS):
            if config.weights != "float" and key in kept:
                if not isinstance(module._parameters.get("weight"), nn.Parameter):
                    raise UsageError(
                        f"layer {names[key]!r} has a parametrization (weight or spectral norm) that recomputes its "
                        "weight: remove it with torch.nn.utils.parametrize.remove_parametrizations, or skip the layer"
                    )
                if type(module) in BINARY_LAYERS:
                    wanted.add(key)
        elif isinstance(module, ACTIVATIONS) and config.activations != "relu" and key in kept:
            wanted.add(key)
    return wanted


@contextmanager
def _roles(seen: Trace) -> Iterator[None]:
    """Tell paper_policy which layers come first and last in the forward pass, and which are projections."""
    layers = [call for call in seen.calls if isinstance(call.module, WEIGHT_LAYERS)]
    roles = {id(call.module): "projection" for call in layers if _PROJECTION.search(call.name)}
    if layers:
        roles[id(layers[0].module)] = "first"
        roles[id(layers[-1].module)] = "last"
    token = _ROLES.set(roles)
    try:
        yield
    finally:
        _ROLES.reset(token)


def _make_swaps(seen: Trace, chosen: set[int], config: Binarize) -> dict[int, nn.Module]:
    """Make the new module for every chosen one, its sites numbered in the order of the forward pass."""
    of_module: dict[int, list[Site]] = {}
    of_weight: dict[int, Site] = {}
    calls = Counter(id(call.module) for call in seen.calls)
    swaps: dict[int, nn.Module] = {}
    position = 0
    for call in seen.calls:
        key = id(call.module)
        if key not in chosen:
            continue
        if type(call.module) in BINARY_LAYERS:
            weight = call.module.weight
            if id(weight) not in of_weight:  # layers that share one weight share its site
                of_weight[id(weight)] = _weight_site(call, config, position)
                position += 1
            if key not in swaps:
                layer_type = BINARY_LAYERS[type(call.module)]
                swaps[key] = layer_type.from_float(
                    call.module, of_weight[id(weight)], binary_input=config.binary_activations
                )
        elif config.binary_activations:
            turns = of_module.setdefault(key, [])
            name = call.name if calls[key] == 1 else f"{call.name}#{len(turns)}"
            turns.append(_activation_site(name, call, config, position))
            position += 1
        else:
            swaps[key] = Clip()
    swaps.update({key: BinaryActivation(turns) for key, turns in of_module.items()})
    return swaps


def _weight_site(call: Call, config: Binarize, position: int) -> Site:
    weight = call.module.weight
    assert isinstance(weight, nn.Parameter)
    ste = config.weights == "ste"
    surrogate: Surrogate | None = "identity" if ste or config.frozen_grad == "ste" else None
    shape = tuple(weight.shape)
    return Site(f"{call.name}.weight", "weight", shape, position=position, surrogate=surrogate, scheduled=not ste)


def _activation_site(name: str, call: Call, config: Binarize, position: int) -> Site:
    ste = config.activations == "ste"
    surrogate = config.surrogate if ste or config.frozen_grad == "ste" else None
    return Site(name, "activation", call.output_shape, position=position, surrogate=surrogate, scheduled=not ste)


def _swap(model: nn.Module, swaps: dict[int, nn.Module]) -> list[tuple[nn.Module, str, Any]]:
    undo: list[tuple[nn.Module, str, Any]] = []
    for parent in list(model.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children() would hide a second name
            if child is not None and id(child) in swaps:
                undo.append((parent, attribute, child))
                swaps[id(child)].train(child.training)
                adopt_hooks(swaps[id(child)], child)
                setattr(parent, attribute, swaps[id(child)])
    return undo


def _disable_fused_transformer(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Make torch's encoder layers call their modules in eval mode too, not a fused kernel that reads raw weights."""
    undo: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        if not any(isinstance(m, Site) for m in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            undo.append((module, "activation_relu_or_gelu", module.activation_relu_or_gelu))
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            undo.append((module, "use_nested_tensor", module.use_nested_tensor))
            module.use_nested_tensor = False
    return undo


def _refuse_unreached(model: nn.Module, example: Any) -> None:
    reached = {id(call.module) for call in trace(model, example, (Site,)).calls}
    for site in sites(model, scheduled=False):
        if id(site) not in reached:
            raise UsageError(
                f"site {site.name!r} would never be reached: the model calls the module it had there through another "
                "reference (a list or a closure). Use nn.ModuleList, or the attribute itself, in the forward pass"
            )


def _explain(problems: list[tuple[str, str]], seen: Trace, model: nn.Module) -> str:
    name, what = problems[0]
    others = f" (and {len(problems) - 1} more: {', '.join(n for n, _ in problems[1:4])})" if problems[1:] else ""
    blame = ""
    if seen.functional:
        function, where = seen.functional[0]
        blame = f"{where!r} calls the function {function}() where a module is needed: make it an nn.ReLU() of its own. "
    return (
        f"layer {name!r}{others} would not be binary: {what}. {blame}"
        "Put an activation module (such as nn.ReLU) right before the layer, or leave the layer float with skip="
    )


def _warn_of_leftovers(model: nn.Module, seen: Trace, config: Binarize, skip: Skip | None) -> None:
    if config.activations != "relu":
        for function, where in seen.functional:
            warnings.warn(
                f"{where!r} calls the function {function}(), which stays as it is: make it a module to have it "
                f"replaced by activations={config.activations!r}",
                stacklevel=3,
            )
    if config.weights == "float":
        return
    called = {id(call.module) for call in seen.calls}
    left = [
        (n, m) for n, m in model.named_modules() if isinstance(m, WEIGHT_LAYERS) and not isinstance(m, _BinaryLayer)
    ]
    with _roles(seen):
        for name, module in left:
            if skip is not None and skip(name, module):
                continue
            if type(module) not in BINARY_LAYERS:
                reason = f"it is a {type(module).__name__}, a layer of its own kind"
            elif id(module) not in called:
                reason = "the example's forward pass never calls it"
            else:
                continue
            warnings.warn(f"layer {name!r} stays float: {reason}", stacklevel=3)


def convert(model: nn.Module, *, early: bool = False) -> nn.Module:
    """End the training in place: weights become ±1 for good, activations plain sign modules; no masks, no sites.

    Every site must be frozen by then, since the net changes otherwise; `early=True` says that this is meant.
    """
    for site in sites(model, scheduled=False):
        if site.phase != "frozen" and not early:
            raise UsageError(
                f"site {site.name!r} is {site.phase}, so converting changes what the net computes: train until the "
                "Freezer's last step, or pass early=True to convert the binary view"
            )
    converted: dict[int, nn.Parameter] = {}  # layers that share a weight go on sharing it
    for module in list(model.modules()):
        if isinstance(module, _BinaryLayer) and module.site is not None:
            module.convert_weight(converted)
        for attribute, child in list(module._modules.items()):
            if isinstance(child, BinaryActivation):
                setattr(module, attribute, adopt_hooks(Sign(), child).train(child.training))
    for key, hook in list(model._forward_pre_hooks.items()):
        if hook is reset_turns:
            del model._forward_pre_hooks[key]
    return model
