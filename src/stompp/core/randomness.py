"""Randomness without state: every draw is a pure function of a key, the same on every rank, device and resume.

Two pieces: a hash of integers to 32 bits, and distinct indices drawn through a keyed permutation of [0, n). Both work
on whole tensors at once and cost time in proportion to what is drawn, not to what it is drawn from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_SORTED = 1024
_ROUNDS = 6  # a balanced Feistel network is a good pseudo-random permutation from four on


class Key(NamedTuple):
    """What a draw depends on, and all it depends on."""

    seed: int
    site: int
    step: int

    def subkey(self, purpose: int) -> int:
        """Return 64 well-mixed bits for one purpose, so that different draws of one key are independent.

        >>> Key(0, 0, 0).subkey(0) == Key(0, 0, 0).subkey(1)
        False
        """
        return fold(self.seed, self.site, self.step, purpose)


def fold(*words: int) -> int:
    """Fold integers into one well-mixed 64-bit number; their order matters.

    >>> fold(0, 1) == fold(0, 1), fold(0, 1) == fold(1, 0)
    (True, False)
    """
    state = 0
    for word in words:
        state = _splitmix64(state ^ (word & _MASK64))
    return state


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def hash32(x: Tensor, subkey: int) -> Tensor:
    """Hash int64 values below 2**32 to uniform 32-bit values: two keyed rounds of an avalanche mixer.

    >>> hash32(torch.arange(3), 7).max() < 2**32
    tensor(True)
    """
    x = _mix32(x ^ (subkey & _MASK32))
    return _mix32((x + (subkey >> 32)) & _MASK32)


def _mix32(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def bernoulli(count: int, p: float, key: Key) -> Tensor:
    """Draw `count` independent booleans that are true with probability p.

    >>> bernoulli(4, 1.0, Key(0, 0, 0))
    tensor([True, True, True, True])
    """
    return hash32(torch.arange(count), key.subkey(0)) < int(p * 2**32)


def distinct_indices(n: int, k: int, key: Key) -> Tensor:
    """Draw k distinct indices below n, every one as likely as another, in O(k) time.

    A keyed permutation of the next power of two is applied to 0..k-1; a result of n or more is permuted again until it
    falls below n (cycle walking), which keeps the whole a permutation of [0, n). On few entries a Feistel network
    favours some pairs, so up to 1024 of them are all sorted by a hash instead.

    >>> sorted(distinct_indices(10, 10, Key(0, 0, 0)).tolist()) == list(range(10))
    True
    """
    if n <= _SORTED:
        return hash32(torch.arange(n), key.subkey(1)).argsort()[:k]  # the hash is one-to-one: there are no ties
    bits = (n - 1).bit_length()
    subkeys = [key.subkey(1 + r) for r in range(_ROUNDS)]
    drawn = _permute(torch.arange(k), bits, subkeys)
    outside = (drawn >= n).nonzero().flatten()
    while outside.numel():
        drawn[outside] = _permute(drawn[outside], bits, subkeys)
        outside = outside[drawn[outside] >= n]
    return drawn


def _permute(x: Tensor, bits: int, subkeys: list[int]) -> Tensor:
    """Apply a Feistel network over `bits` bits: each half in turn is changed by a hash of the other one."""
    low = bits // 2
    left, right = x >> low, x & ((1 << low) - 1)
    for r, subkey in enumerate(subkeys):
        if r % 2:
            right = right ^ (hash32(left, subkey) & ((1 << low) - 1))
        else:
            left = left ^ (hash32(right, subkey) & ((1 << (bits - low)) - 1))
    return (left << low) | right
