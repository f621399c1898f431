"""Layers of a prepared model: a conv or linear layer whose weight passes through a site, and activation sites.

Each binary layer is a subclass of the float one and takes over its very `__dict__`: the same Parameter objects, hooks,
flags and state-dict keys, so optimizers, checkpoints and user code keep working. What changes is the forward pass,
where `self.weight` goes through `self.site` first. After `convert` the weight itself is ±1 and the site is gone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch  # noqa: F401  (for the doctests)
from torch import Tensor, nn

from .freeze import Site, clip, fully_binary, sign

LayerT = TypeVar("LayerT", bound="_BinaryLayer")


class _BinaryLayer(nn.Module):
    """What the four binary layers have in common."""

    weight: Tensor  # declared as torch does it; a Parameter on a real layer
    site: Site | None
    binary_input: bool  # True if in the binary view the input must be ±1 as well

    @classmethod
    def from_float(cls: type[LayerT], layer: nn.Module, site: Site | None, *, binary_input: bool) -> LayerT:
        """Make the binary layer out of a float one, sharing its parameters and everything else it has."""
        made = cls.__new__(cls)  # not cls(...): that would draw new weights
        made.__dict__ = dict(layer.__dict__)
        made._modules = dict(layer._modules)
        made.site = site
        made.binary_input = binary_input
        return made

    def to_float(self) -> nn.Module:
        """Make the float layer that shares this one's parameters: the latent weights, or ±1 after `convert`."""
        float_type: type[nn.Module] = type(self).__bases__[1]
        made: nn.Module = object.__new__(float_type)
        made.__dict__ = {k: v for k, v in self.__dict__.items() if k not in ("site", "binary_input")}
        made._modules = {k: v for k, v in self._modules.items() if k != "site"}
        return made

    def effective_weight(self) -> Tensor:
        """Return the weight that the forward pass uses now."""
        if self.site is None:
            return self.weight
        weight: Tensor = self.site(self.weight)
        return weight

    def convert_weight(self, converted: dict[int, nn.Parameter]) -> None:
        """Replace the latent weight by its binary view, for good; `converted` maps ids of latent weights to theirs."""
        assert self.site is not None
        if id(self.weight) not in converted:
            with fully_binary(self.site):
                converted[id(self.weight)] = nn.Parameter(self.site(self.weight).detach(), requires_grad=False)
        self.weight = converted[id(self.weight)]
        self.site = None


class BinaryConv1d(_BinaryLayer, nn.Conv1d):
    """nn.Conv1d with a weight site."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, self.effective_weight(), self.bias)
        return output


class BinaryConv2d(_BinaryLayer, nn.Conv2d):
    """nn.Conv2d with a weight site."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, self.effective_weight(), self.bias)
        return output


class BinaryConv3d(_BinaryLayer, nn.Conv3d):
    """nn.Conv3d with a weight site."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, self.effective_weight(), self.bias)
        return output


class BinaryLinear(_BinaryLayer, nn.Linear):
    """nn.Linear with a weight site."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.effective_weight(), self.bias)


BINARY_LAYERS: dict[type[nn.Module], type[_BinaryLayer]] = {
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.Conv3d: BinaryConv3d,
    nn.Linear: BinaryLinear,
}


class Clip(nn.Module):
    """The continuous activation of a binary-weight net: clip to [-1, 1].

    >>> Clip()(torch.tensor([-3.0, 0.5]))
    tensor([-1.0000,  0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return clip(input)


class Sign(nn.Module):
    """The activation of a converted net: +1 where the input is at least 0, else -1.

    >>> Sign()(torch.tensor([-3.0, 0.0]))
    tensor([-1.,  1.])
    """

    def forward(self, input: Tensor) -> Tensor:
        return sign(input)


class BinaryActivation(nn.Module):
    """An activation with one site per call in a forward pass.

    Many nets call one ReLU module several times (torchvision's ResNet block does). Each of these calls is a site of its
    own; they are told apart by their turn. `reset_turns` starts the count anew before every forward pass of the whole
    model, so an interrupted one leaves nothing behind.
    """

    def __init__(self, sites: list[Site]) -> None:
        super().__init__()
        self.sites = nn.ModuleList(sites)
        self.turn = 0

    def forward(self, input: Tensor) -> Tensor:
        if len(self.sites) == 1:
            return self.sites[0](input)  # type: ignore[no-any-return]
        site = self.sites[self.turn]
        self.turn = (self.turn + 1) % len(self.sites)
        return site(input)  # type: ignore[no-any-return]


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def adopt_hooks(module: ModuleT, replaced: nn.Module) -> ModuleT:
    """Give a module the hooks of the one it replaces: the same dicts, so that their handles still remove them."""
    for name, value in vars(replaced).items():
        if "_hooks" in name and not name.startswith(("_state_dict", "_load_state_dict")):
            vars(module)[name] = value
    return module


def reset_turns(model: nn.Module, args: Any) -> None:
    """Start counting calls anew; registered as a forward pre-hook of a model whose activations take turns."""
    for module in model.modules():
        if isinstance(module, BinaryActivation):
            module.turn = 0


__all__ = [
    "BINARY_LAYERS",
    "BinaryActivation",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryConv3d",
    "BinaryLinear",
    "Clip",
    "Sign",
    "adopt_hooks",
]
