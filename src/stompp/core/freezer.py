"""The Freezer: moves the sites of a prepared model through their phases, one training step at a time.

    freezer = Freezer(model, total_steps=T)
    for t in range(T):
        freezer.step(t)          # before the forward pass of step t
        ...

A site whose window is [start, end) has, at step t inside it, the local step tau = t - start + 1 of T_i = end - start.
It is `open` before start, `moving` with p = schedule(tau / T_i) while tau < T_i, and `frozen` from tau = T_i on, all
entries at once. So from step T - 1 on everything is frozen, and the net evaluated at the end is fully binary.

What decides a mask is (seed, site, step) and the mask before. There is no generator whose state would have to be saved,
and every rank of a distributed run computes the same masks without talking to the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stompp.errors import UsageError

from .freeze import Site, sites
from .orders import Order, windows
from .policies import Policy, resolve_policy
from .randomness import Key
from .schedules import Schedule, resolve_schedule


class Freezer:
    """Freezes the scheduled sites of `model` over `total_steps` steps.

    order: "layerwise" (input to output), "global", "reverse", or a function (sites, steps) -> windows.
    schedule: "cubic" and the others of `stompp.core.schedules`, or a function p(u).
    policy: "stochastic" (soft refresh of one in `refresh` entries each step), "deterministic" (weights nearest to ±1),
        or a function (mask, p, key, values) -> mask.
    granularity: "step", or "epoch" for whole epochs per site, which needs `steps_per_epoch`.
    hold_frozen: keep frozen weights constant while their site is still moving. As the paper writes it (False), a frozen
        weight gets zero gradient and is otherwise left to the optimizer, whose momentum or decay may still move it.

    A model without scheduled sites (float, or trained with STE) is fine: then there is nothing to do. Making a Freezer
    puts every scheduled site back to `open`.
    """

    def __init__(
        self,
        model: nn.Module,
        total_steps: int,
        *,
        order: str | Order = "layerwise",
        schedule: str | Schedule = "cubic",
        refresh: int = 100,
        policy: str | Policy = "stochastic",
        granularity: str = "step",
        steps_per_epoch: int | None = None,
        hold_frozen: bool = False,
        seed: int = 0,
    ) -> None:
        self.sites = sites(model)
        self.total_steps = total_steps
        self.hold_frozen = hold_frozen
        self.seed = seed
        self.windows = windows(
            order, len(self.sites), total_steps, granularity=granularity, steps_per_epoch=steps_per_epoch
        )
        self._schedule = resolve_schedule(schedule)
        self._policy = resolve_policy(policy, refresh)
        self._weights = _site_weights(model)
        self._any_parameter = next(model.parameters(), None)  # lives where masks of activations should live
        self._t = -1
        self._settings = {
            "total_steps": total_steps,
            "order": _label(order),
            "schedule": _label(schedule),
            "refresh": refresh,
            "policy": _label(policy),
            "granularity": granularity,
            "steps_per_epoch": steps_per_epoch,
            "hold_frozen": hold_frozen,
            "seed": seed,
            "sites": [site.name for site in self.sites],
        }
        if policy == "deterministic":
            for site in self.sites:
                if site.kind == "activation":
                    raise UsageError(
                        f"policy 'deterministic' ranks weights by their distance from ±1, and {site.name!r} is an "
                        "activation: use policy='stochastic', or Binarize(activations='clip') for binary weights only"
                    )
        if hold_frozen:
            for site in self.sites:
                if site.surrogate is not None:
                    raise UsageError(
                        f"hold_frozen=True keeps frozen entries constant, but site {site.name!r} trains them with a "
                        "surrogate gradient: use frozen_grad='zero' or hold_frozen=False"
                    )
        for site in self.sites:
            site.reset()

    def step(self, t: int) -> None:
        """Bring every site to where it is at step t (0-based); call it before the forward pass of step t.

        Steps come one by one. The same step again changes nothing.
        """
        if t == self._t >= 0:
            return
        if t != self._t + 1:
            raise UsageError(
                f"Freezer.step({t}) came after step {self._t}: masks depend on the masks before, so steps come one by "
                f"one. Call step({self._t + 1}), or load_state_dict() with the state saved after step {t - 1}"
            )
        self._t = t
        for index, (site, (start, end)) in enumerate(zip(self.sites, self.windows)):
            if t < start or site.phase == "frozen":
                continue
            if t >= end - 1:
                self._freeze(site)
            else:
                self._move(site, index, self._schedule((t - start + 1) / (end - start)))

    @property
    def moving(self) -> list[tuple[Site, float]]:
        """The sites that are moving now, each with the fraction p aimed at."""
        return [
            (site, self._schedule((self._t - start + 1) / (end - start)))
            for site, (start, end) in zip(self.sites, self.windows)
            if site.phase == "moving"
        ]

    def _move(self, site: Site, index: int, p: float) -> None:
        weight = self._weights.get(site)
        if site.phase == "open":
            site.begin(self._device(site))
        assert site.mask is not None
        if self.hold_frozen and weight is not None:
            self._restore(site, weight)
        site.mask = self._policy(site.mask, p, Key(self.seed, index, self._t), weight)
        if self.hold_frozen and weight is not None:
            site.held = weight.detach().clone()

    def _freeze(self, site: Site) -> None:
        weight = self._weights.get(site)
        if weight is not None:
            if self.hold_frozen:
                self._restore(site, weight)
            if site.surrogate is None:
                weight.grad = None  # so that an optimizer skips it from now on, whatever its momentum or weight decay
        site.freeze()

    @staticmethod
    def _restore(site: Site, weight: nn.Parameter) -> None:
        """Undo what the optimizer did to entries that were frozen during its last step."""
        if site.held is not None and site.mask is not None:
            with torch.no_grad():
                weight.copy_(torch.where(site.mask, site.held, weight))

    def _device(self, site: Site) -> torch.device | None:
        parameter = self._weights.get(site, self._any_parameter)
        return None if parameter is None else parameter.device

    def state_dict(self) -> dict[str, Any]:
        """Return everything that continues the freezing bit for bit: the step, masks, held weights, the settings."""
        return {
            "t": self._t,
            "settings": dict(self._settings),
            "masks": {s.name: s.mask.clone() for s in self.sites if s.mask is not None},
            "held": {s.name: s.held.clone() for s in self.sites if s.held is not None},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a Freezer with the same settings stopped."""
        if not isinstance(state, dict) or not {"t", "settings", "masks", "held"} <= state.keys():
            raise UsageError("this is no state of a Freezer; give what Freezer.state_dict() returned")
        for name, ours in self._settings.items():
            if name not in state["settings"] or state["settings"][name] != ours:
                theirs = state["settings"].get(name)
                raise UsageError(
                    f"the saved Freezer has {name}={_shorten(theirs)}, this one {name}={_shorten(ours)}: make the "
                    "Freezer with the settings it was saved with"
                )
        t = self._t = int(state["t"])
        for site, (start, end) in zip(self.sites, self.windows):
            site.reset()
            if t >= end - 1:
                site.freeze()
            elif t >= start:
                site.begin(self._device(site))
                assert site.mask is not None
                site.mask.copy_(state["masks"][site.name])
                if site.name in state["held"]:
                    site.held = state["held"][site.name].to(site.mask.device, copy=True)


def _site_weights(model: nn.Module) -> dict[Site, nn.Parameter]:
    """Return the parameter behind every weight site."""
    found = {}
    for module in model.modules():
        site = getattr(module, "site", None)
        if isinstance(site, Site):
            assert isinstance(module.weight, nn.Parameter)
            found[site] = module.weight
    return found


def _label(choice: object) -> str:
    return choice if isinstance(choice, str) else getattr(choice, "__qualname__", type(choice).__qualname__)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
