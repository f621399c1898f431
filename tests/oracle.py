"""A slow twin of the method: a whole training of a tiny net, entry by entry, from the paper's two algorithms.

It shares no code with the library: own draws (plain integers), own windows and schedules, own masks (always one flag
per entry, as algorithm 2 has them), own forward, backward and optimizer. The only thing taken over is the documented
meaning of a random key. The net is

    conv 3x3 (float) - activation - conv 3x3 - activation - flatten - linear - activation - linear (float)

on one-channel images; `OracleNet.step(t, x, y)` trains one step and returns all that was computed on the way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


# Draws, in Python's integers: what `stompp.core.randomness` documents.
def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def subkey(seed: int, site: int, step: int, purpose: int) -> int:
    state = 0
    for word in (seed, site, step, purpose):
        state = splitmix64(state ^ (word % 2**64))
    return state


def hash64(x: int, key: int) -> int:
    x = (x + key) * 0x9E3779B97F4A7C15 % 2**64
    return (x ^ (x >> 32)) * 0xBF58476D1CE4E5B9 % 2**64


@functools.lru_cache(maxsize=100_000)
def distinct(n: int, k: int, seed: int, site: int, step: int) -> list[int]:
    """k distinct indices below n: sorted by hash if few, else by a six-round Feistel permutation of a rectangle."""
    if n <= 1024:
        key = subkey(seed, site, step, 1)
        return sorted(range(n), key=lambda x: hash64(x, key) - (2**64 if hash64(x, key) >= 2**63 else 0))[:k]
    rows = math.ceil(math.sqrt(n))
    columns = math.ceil(n / rows)
    keys = [subkey(seed, site, step, 1 + r) for r in range(6)]
    found = []
    for x in range(k):
        while True:
            row, column = divmod(x, columns)
            for r, key in enumerate(keys):
                if r % 2 == 0:
                    row = (row + (hash64(column, key) >> 33) * rows // 2**31) % rows
                else:
                    column = (column + (hash64(row, key) >> 33) * columns // 2**31) % columns
            x = row * columns + column
            if x < n:
                break
        found.append(x)
    return found


@functools.lru_cache(maxsize=100_000)
def bernoulli(k: int, p: float, seed: int, site: int, step: int) -> list[bool]:
    key = subkey(seed, site, step, 0)
    return [hash64(j, key) >> 33 < int(p * 2**31) for j in range(k)]


SCHEDULES = {
    "cosine": lambda u: (1 - math.cos(math.pi * u)) / 2,
    "linear": lambda u: u,
    "quadratic": lambda u: u**2,
    "cubic": lambda u: u**3,
    "flipped_quadratic": lambda u: 2 * u - u * u,
}


@dataclass(frozen=True)
class Rule:
    """What is trained how, in the words of METHOD.md."""

    weights: str = "stompp"
    activations: str = "stompp"
    frozen_grad: str = "zero"
    surrogate: str = "identity"
    order: str = "layerwise"
    schedule: str = "cubic"
    policy: str = "stochastic"
    refresh: int = 3
    hold_frozen: bool = False
    epoch: int = 0  # steps per epoch if whole epochs are given to sites


class OracleSite:
    def __init__(self, kind: str, n: int, rule: str, frozen_slope: str | None):
        self.kind, self.n, self.rule, self.frozen_slope = kind, n, rule, frozen_slope
        self.mask = [rule == "ste"] * n
        self.all_frozen = rule == "ste"
        self.held: dict[int, float] = {}

    def value(self, i: int, u: float) -> float:
        """The first equation."""
        if self.mask[i]:
            return 1.0 if self.held.get(i, u) >= 0 else -1.0
        return u if self.kind == "weight" else max(-1.0, min(1.0, u))

    def slope(self, i: int, u: float) -> float:
        """The second equation, or a surrogate in place of its zero."""
        if not self.mask[i]:
            return 1.0 if self.kind == "weight" or abs(u) <= 1 else 0.0
        if self.frozen_slope is None:
            return 0.0
        if self.frozen_slope == "identity":
            return 1.0
        if self.frozen_slope == "clip":
            return 1.0 if abs(u) <= 1 else 0.0
        return 2 - 2 * abs(u) if abs(u) <= 1 else 0.0  # approxsign

    @property
    def cuts(self) -> bool:
        return self.all_frozen and self.frozen_slope is None


class OracleNet:
    def __init__(self, parameters: dict[str, np.ndarray], size: int, rule: Rule, total: int, seed: int, **sgd: float):
        self.w = {name: value.astype(np.float64).copy() for name, value in parameters.items()}
        self.rule, self.total, self.seed, self.sgd = rule, total, seed, sgd
        self.buffers: dict[str, np.ndarray] = {}
        channels, hidden = self.w["2.weight"].shape[0], self.w["5.weight"].shape[0]
        inputs = self.w["0.weight"].shape[0]
        self.sites: dict[str, OracleSite] = {}
        self._add("1", "activation", inputs * size * size)
        self._add("2.weight", "weight", self.w["2.weight"].size)
        self._add("3", "activation", channels * size * size)
        self._add("5.weight", "weight", self.w["5.weight"].size)
        self._add("6", "activation", hidden)
        self.scheduled = [s for s in self.sites.values() if s.rule == "stompp"]

    def _add(self, name: str, kind: str, n: int) -> None:
        rule = self.rule.weights if kind == "weight" else self.rule.activations
        if rule not in ("stompp", "ste"):
            return
        surrogate = "identity" if kind == "weight" else self.rule.surrogate
        self.sites[name] = OracleSite(
            kind, n, rule, surrogate if rule == "ste" or self.rule.frozen_grad == "ste" else None
        )

    # Algorithm 2: which site is where at step t. Algorithm 1: the mask of the one that moves.
    def window(self, i: int) -> tuple[int, int]:
        sites, total = len(self.scheduled), self.total
        if self.rule.order == "global":
            return 0, total // self.rule.epoch * self.rule.epoch if self.rule.epoch else total
        if self.rule.order == "reverse":
            i = sites - 1 - i
        if self.rule.epoch:
            each = total // self.rule.epoch // sites * self.rule.epoch
            return i * each, (i + 1) * each
        return math.floor(Fraction(i * total, sites)), math.floor(Fraction((i + 1) * total, sites))

    def freeze(self, t: int) -> None:
        for i, site in enumerate(self.scheduled):
            start, end = self.window(i)
            tau = t - start + 1
            if tau < 1:
                continue
            if tau >= end - start:
                if self.rule.hold_frozen and site.kind == "weight":
                    self._put_back(site)
                site.mask, site.all_frozen, site.held = [True] * site.n, True, {}
                continue
            p = SCHEDULES[self.rule.schedule](tau / (end - start))
            if self.rule.hold_frozen and site.kind == "weight":
                self._put_back(site)
            if self.rule.policy == "stochastic":
                k = site.n // self.rule.refresh
                drawn = bernoulli(k, p, self.seed, i, t)
                for index, frozen in zip(distinct(site.n, k, self.seed, i, t), drawn):
                    site.mask[index] = frozen
            else:
                distance = [abs(abs(u) - 1) for u in self._latent(site).flatten().tolist()]
                nearest = sorted(range(site.n), key=lambda j: (distance[j], j))[: math.floor(p * site.n)]
                site.mask = [j in set(nearest) for j in range(site.n)]
            if self.rule.hold_frozen and site.kind == "weight":
                latent = self._latent(site).flatten().tolist()
                site.held = {j: latent[j] for j in range(site.n) if site.mask[j]}

    def _latent(self, site: OracleSite) -> np.ndarray:
        return self.w[next(name for name, s in self.sites.items() if s is site)]

    def _put_back(self, site: OracleSite) -> None:
        flat = self._latent(site).reshape(-1)
        for j, value in site.held.items():
            flat[j] = value

    # Forward and backward.
    def effective(self, name: str) -> np.ndarray:
        values = self.w[name]
        site = self.sites.get(name)
        if site is None:
            return values.copy()
        return np.array([site.value(i, u) for i, u in enumerate(values.flatten().tolist())]).reshape(values.shape)

    def activate(self, name: str, u: np.ndarray) -> np.ndarray:
        site = self.sites.get(name)
        if site is None:
            return np.clip(u, -1, 1) if self.rule.activations == "clip" else np.where(u > 0, u, 0.0)
        rows = u.reshape(len(u), -1).tolist()
        return np.array([[site.value(i, e) for i, e in enumerate(row)] for row in rows]).reshape(u.shape)

    def activation_slope(self, name: str, u: np.ndarray) -> np.ndarray:
        site = self.sites.get(name)
        if site is None:
            return (np.abs(u) <= 1).astype(float) if self.rule.activations == "clip" else (u > 0).astype(float)
        rows = u.reshape(len(u), -1).tolist()
        return np.array([[site.slope(i, e) for i, e in enumerate(row)] for row in rows]).reshape(u.shape)

    def weight_slope(self, name: str) -> np.ndarray:
        values = self.w[name]
        site = self.sites.get(name)
        if site is None:
            return np.ones_like(values)
        return np.array([site.slope(i, u) for i, u in enumerate(values.flatten().tolist())]).reshape(values.shape)

    def step(self, t: int, x: np.ndarray, y: np.ndarray) -> dict[str, object]:
        self.freeze(t)
        w = self.w
        effective = {name: self.effective(name) for name in ("2.weight", "5.weight")}
        u1 = conv(x, w["0.weight"])
        a1 = self.activate("1", u1)
        u3 = conv(a1, effective["2.weight"])
        a3 = self.activate("3", u3)
        f = a3.reshape(len(x), -1)
        u6 = f @ effective["5.weight"].T + w["5.bias"]
        a6 = self.activate("6", u6)
        logits = a6 @ w["7.weight"].T + w["7.bias"]
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        loss = -np.mean([math.log(shares[b, y[b]]) for b in range(len(y))])

        signal = shares.copy()
        for b in range(len(y)):
            signal[b, y[b]] -= 1
        signal /= len(y)
        grads: dict[str, np.ndarray | None] = dict.fromkeys(w)
        grads["7.weight"], grads["7.bias"] = signal.T @ a6, signal.sum(0)

        def cut(name: str) -> bool:
            return name in self.sites and self.sites[name].cuts

        # Behind an activation that is frozen as a whole, parameters get no gradient at all.
        if not cut("6"):
            signal = (signal @ w["7.weight"]) * self.activation_slope("6", u6)
            if not cut("5.weight"):
                grads["5.weight"] = (signal.T @ f) * self.weight_slope("5.weight")
            grads["5.bias"] = signal.sum(0)
            if not cut("3"):
                back = (signal @ effective["5.weight"]).reshape(a3.shape) * self.activation_slope("3", u3)
                if not cut("2.weight"):
                    grads["2.weight"] = conv_weight_grad(a1, back) * self.weight_slope("2.weight")
                if not cut("1"):
                    first = conv_input_grad(back, effective["2.weight"]) * self.activation_slope("1", u1)
                    grads["0.weight"] = conv_weight_grad(x, first)
        self._descend(grads)
        return {
            "loss": loss,
            "logits": logits,
            "grads": grads,
            "effective": effective,
            "activations": {"1": a1, "3": a3, "6": a6},
            "masks": {name: np.array(site.mask) for name, site in self.sites.items()},
        }

    def _descend(self, grads: dict[str, np.ndarray | None]) -> None:
        """SGD with Nesterov momentum and weight decay; a parameter without gradient is passed over."""
        for name, grad in grads.items():
            if grad is None:
                continue
            g = grad + self.sgd["weight_decay"] * self.w[name]
            old = self.buffers.get(name)
            self.buffers[name] = g.copy() if old is None else self.sgd["momentum"] * old + g
            self.w[name] -= self.sgd["lr"] * (g + self.sgd["momentum"] * self.buffers[name])


def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A 3x3 convolution with padding 1."""
    size = x.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((len(x), len(w), size, size))
    for o, c, i, j in np.ndindex(w.shape):
        out[:, o] += w[o, c, i, j] * padded[:, c, i : i + size, j : j + size]
    return out


def conv_weight_grad(x: np.ndarray, signal: np.ndarray) -> np.ndarray:
    size = x.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    grad = np.zeros((signal.shape[1], x.shape[1], 3, 3))
    for o, c, i, j in np.ndindex(grad.shape):
        grad[o, c, i, j] = (signal[:, o] * padded[:, c, i : i + size, j : j + size]).sum()
    return grad


def conv_input_grad(signal: np.ndarray, w: np.ndarray) -> np.ndarray:
    size = signal.shape[2]
    padded = np.zeros((len(signal), w.shape[1], size + 2, size + 2))
    for o, c, i, j in np.ndindex(w.shape):
        padded[:, c, i : i + size, j : j + size] += w[o, c, i, j] * signal[:, o]
    return padded[:, :, 1:-1, 1:-1]
