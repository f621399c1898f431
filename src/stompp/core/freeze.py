"""The idea on one page: a *site* turns from continuous to binary, entry by entry, without a made-up gradient.

A site is one thing that becomes binary: a weight tensor, or one activation. Its forward map (the paper's first
equation) is, for every entry u with mask entry m,

    u' = sign(u)    where m is true   (the entry is frozen)
    u' = smooth(u)  elsewhere         (the entry is open)       smooth: identity for weights, clip for activations

and its backward map (the second equation) is what autograd makes of exactly that: nothing at all through a frozen
entry, the true derivative of `smooth` through an open one. So the gradient a StoMPP site passes on equals the numerical
derivative of its forward map; no surrogate is involved.

The straight-through estimator (STE), the method we compare with, is the same site frozen from the first step, with a
*surrogate* in place of the zero derivative of sign. That is why one class serves every row of the paper's tables: what
differs is the phase and the gradient given to frozen entries.

A mask exists only while a site is `moving`. An `open` site is its smooth function, a `frozen` one is sign; a frozen
activation with zero gradient ends the autograd graph, and everything behind it costs no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

Kind = Literal["weight", "activation"]
Phase = Literal["open", "moving", "frozen"]
Surrogate = Literal["identity", "clip", "approxsign"]
SURROGATES: tuple[Surrogate, ...] = get_args(Surrogate)


def sign(u: Tensor) -> Tensor:
    """Return +1 where u >= 0 and -1 elsewhere, so sign(0) = +1; it carries no gradient.

    >>> sign(torch.tensor([-2.0, -0.0, 0.0, 0.5]))
    tensor([-1.,  1.,  1.,  1.])
    """
    if torch.compiler.is_compiling() or u.device.type != "cpu":  # compilers fuse this, and packing knows it as sign
        return torch.where(u >= 0, 1.0, -1.0).to(u.dtype)
    return u.detach().clone().ge_(0).mul_(2).sub_(1)  # where() from two scalars takes five times as long on a CPU


def clip(u: Tensor) -> Tensor:
    """Return max(-1, min(1, u)), the smooth function of activations; its derivative is 1 where |u| <= 1, else 0.

    >>> clip(torch.tensor([-2.0, 0.3, 7.0]))
    tensor([-1.0000,  0.3000,  1.0000])
    """
    learning = u.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling() or u.device.type != "cpu" or not learning:
        return u.clamp(-1.0, 1.0)
    return ClampOnCPU.apply(u)  # type: ignore[no-any-return, no-untyped-call]


class ClampOnCPU(torch.autograd.Function):
    """u.clamp(-1, 1) with its own derivative, bit for bit, in a twentieth of the time that clamp's backward takes.

    Hardtanh's backward is the fast one. It is 0 at the limits themselves, where clamp's is 1, so it is given the next
    numbers beyond them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        return u.clamp(-1.0, 1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (u,), limit = ctx.saved_tensors, 1.0 + torch.finfo(grads[0].dtype).eps
        return torch.ops.aten.hardtanh_backward(grads[0], u, -limit, limit)  # type: ignore[no-any-return]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return torch.where(u.abs() <= 1.0, tangents[0], torch.zeros_like(u))


def surrogate_slope(u: Tensor, surrogate: Surrogate) -> Tensor:
    """Return the slope that a straight-through estimator pretends sign has at u.

    identity: 1.  clip: 1 where |u| <= 1, else 0 (BinaryNet).  approxsign: 2 - 2|u| where |u| <= 1, else 0 (Bi-Real).

    >>> surrogate_slope(torch.tensor([-2.0, -0.5, 0.25]), "approxsign")
    tensor([0.0000, 1.0000, 1.5000])
    """
    if surrogate == "identity":
        return torch.ones_like(u)
    if surrogate == "clip":
        return u.abs().le_(1.0)
    return u.abs().mul_(-2.0).add_(2.0).clamp_min_(0.0)


class SurrogateSign(torch.autograd.Function):
    """sign forward, a surrogate slope backward: the straight-through estimator, and the only place it lives."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.surrogate = surrogate
        if surrogate != "identity":
            ctx.save_for_backward(u)
        return sign(u)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        if ctx.surrogate == "identity":
            return grad, None
        (u,) = ctx.saved_tensors
        return grad * surrogate_slope(u, ctx.surrogate), None


class Site(nn.Module):
    """One thing that becomes binary; calling it applies the forward map of its phase.

    `surrogate=None` gives frozen entries zero gradient (StoMPP). A name gives them that surrogate's gradient (STE, and
    the scaffold). `scheduled` sites are moved by a `Freezer`; the others stay in the phase they are made in.

    >>> site = Site("fc.weight", "weight", (4,))
    >>> w = torch.tensor([0.5, -0.2, 3.0, 0.0])
    >>> site(w)
    tensor([ 0.5000, -0.2000,  3.0000,  0.0000])
    >>> site.begin(); site.mask = torch.tensor([True, True, False, False])
    >>> site(w), site.fraction
    (tensor([ 1., -1.,  3.,  0.]), 0.5)
    >>> site.freeze(); site(w)
    tensor([ 1., -1.,  1.,  1.])
    """

    mask: Tensor | None
    held: Tensor | None

    def __init__(
        self,
        name: str,
        kind: Kind,
        shape: tuple[int, ...],
        *,
        position: int = 0,
        surrogate: Surrogate | None = None,
        scheduled: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.kind: Kind = kind
        self.shape = shape  # of the weight, or of one sample's activation
        self.position = position  # in the order in which the forward pass reaches the sites
        self.surrogate: Surrogate | None = surrogate
        self.scheduled = scheduled
        self.phase: Phase = "open" if scheduled else "frozen"
        self.binary_view = False
        # Not persistent: the state dict of a prepared model keeps the keys of the float one. A Freezer saves masks.
        self.register_buffer("mask", None, persistent=False)
        self.register_buffer("held", None, persistent=False)

    def forward(self, u: Tensor) -> Tensor:
        if self.phase == "frozen" or self.binary_view:
            return self._hard(u)
        if self.phase == "open":
            return self._smooth(u)
        assert self.mask is not None
        if self.kind == "activation" and u.shape[1:] != self.mask.shape:
            raise ValueError(
                f"activation site {self.name!r} got a sample of shape {tuple(u.shape[1:])}, but its mask was made for "
                f"{tuple(self.mask.shape)}; call stompp.prepare with an example of the shape you train with"
            )
        return torch.where(self._aligned(self.mask, u), self._hard(u), self._smooth(u))

    def _smooth(self, u: Tensor) -> Tensor:
        return u if self.kind == "weight" else clip(u)

    def _hard(self, u: Tensor) -> Tensor:
        if self.surrogate is not None:
            return SurrogateSign.apply(u, self.surrogate)  # type: ignore[no-any-return, no-untyped-call]
        if self.held is not None:  # only with hold_frozen, while moving: the values that frozen entries froze with
            assert self.mask is not None
            u = torch.where(self.mask, self.held, u)
        return sign(u)

    def _aligned(self, mask: Tensor, u: Tensor) -> Tensor:
        """Lay the mask out in memory as u is: where() gives its result the layout of its first argument."""
        if u.is_contiguous():
            return mask
        return torch.empty_like(u if self.kind == "weight" else u[:1], dtype=torch.bool).copy_(mask)

    def begin(self, device: torch.device | None = None) -> None:
        """Enter the phase `moving` with an empty mask."""
        self.phase, self.mask = "moving", torch.zeros(self.shape, dtype=torch.bool, device=device)

    def freeze(self) -> None:
        """Enter the phase `frozen`: every entry is sign, and no mask is needed any more."""
        self.phase, self.mask, self.held = "frozen", None, None

    def reset(self) -> None:
        """Go back to the phase `open`."""
        self.phase, self.mask, self.held = "open", None, None

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(torch.Size(self.shape).numel())

    @property
    def fraction(self) -> float:
        """Share of entries that are frozen now (reads the mask: a host sync when it lives on an accelerator)."""
        if self.mask is not None:
            return self.mask.float().mean().item()
        return 1.0 if self.phase == "frozen" else 0.0

    def extra_repr(self) -> str:
        rule = "zero gradient" if self.surrogate is None else f"surrogate {self.surrogate}"
        return f"{self.name!r}, {self.kind}, {self.phase}, {rule}"


def sites(model: nn.Module, *, scheduled: bool = True) -> list[Site]:
    """Return the sites of a prepared model in the order the forward pass reaches them.

    With `scheduled=False` those that no Freezer moves (STE) are listed too.
    """
    found = [m for m in model.modules() if isinstance(m, Site) and (m.scheduled or not scheduled)]
    return sorted(found, key=lambda site: site.position)


@contextmanager
def fully_binary(model: nn.Module) -> Iterator[nn.Module]:
    """The binary view: inside this context every site of the model is sign, whatever its phase.

    >>> net = nn.Sequential(Site("0", "activation", (2,)))
    >>> with fully_binary(net):
    ...     net(torch.tensor([[0.3, -0.3]]))
    tensor([[ 1., -1.]])
    """
    before = [(site, site.binary_view) for site in sites(model, scheduled=False)]
    for site, _ in before:
        site.binary_view = True
    try:
        yield model
    finally:
        for site, view in before:
            site.binary_view = view
