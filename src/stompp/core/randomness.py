"""Randomness without state: every draw is a pure function of a key, the same on every rank, device and resume.

Two pieces: a hash of integers to 64 bits, and distinct indices drawn through a keyed permutation of [0, n). Both draw
for many keys at once, a row each, and cost time in proportion to what is drawn, not to what it is drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_MASK64 = 0xFFFFFFFFFFFFFFFF
_SORTED = 1024
_ROUNDS = 6  # a balanced Feistel network is a good pseudo-random permutation from four on
_COINS, _ORDER = 0, 1  # what a draw is for; a permutation takes one purpose per round, from _ORDER on


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


def coins(count: int, keys: Sequence[Key]) -> Tensor:
    """Draw `count` uniform numbers below 2**31 per key; `heads` makes booleans of them.

    >>> coins(4, [Key(0, 0, 0), Key(0, 0, 1)]).shape
    torch.Size([2, 4])
    """
    return _upper(_hash(torch.arange(count), _column(keys, _COINS))).int()


def heads(tossed: Tensor, p: float) -> Tensor:
    """Return which of the numbers fall below the share p: independent booleans, true with probability p.

    >>> heads(coins(3, [Key(0, 0, 0)]), 1.0), heads(coins(3, [Key(0, 0, 0)]), 0.0)
    (tensor([[True, True, True]]), tensor([[False, False, False]]))
    """
    return tossed <= int(p * 2**31) - 1


def distinct_indices(n: int, k: int, keys: Sequence[Key]) -> Tensor:
    """Draw k distinct indices below n per key, every one as likely as another, in O(k) time: a tensor (keys, k).

    [0, n) lies in a rectangle of about sqrt(n) by sqrt(n), which a keyed Feistel network permutes; k of its cells, in
    order, are sent through. The few that come out at n or more go through again until they fall below n (cycle
    walking), which keeps the whole a permutation of [0, n). On few entries such a network favours some pairs, so up to
    1024 of them are all sorted by a hash instead.

    >>> sorted(distinct_indices(10, 10, [Key(0, 0, 0)])[0].tolist()) == list(range(10))
    True
    """
    if n <= _SORTED:
        return _hash(torch.arange(n), _column(keys, _ORDER)).argsort(dim=1)[:, :k]  # one-to-one: there are no ties
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    rounds = [_column(keys, _ORDER + r) for r in range(_ROUNDS)]
    drawn = _permute(torch.arange(k).expand(len(keys), k), rows, columns, rounds)
    outside = (drawn >= n).nonzero(as_tuple=True)
    while outside[0].numel():
        again = _permute(drawn[outside], rows, columns, [column[outside[0], 0] for column in rounds])
        drawn[outside] = again
        left = again >= n
        outside = (outside[0][left], outside[1][left])
    return drawn


def _permute(x: Tensor, rows: int, columns: int, rounds: list[Tensor]) -> Tensor:
    """Send cells, row * columns + column, through the network: row and column by turns are shifted by the other's hash.

    The shifts are modulo the number of rows, or of columns, so that the cells stay within the rectangle.
    """
    row = x.div(columns, rounding_mode="floor")
    column = x - row * columns
    for r, subkey in enumerate(rounds):
        if r % 2:
            column = _shifted(column, _hash(row, subkey), columns)
        else:
            row = _shifted(row, _hash(column, subkey), rows)
    return row.mul_(columns).add_(column)


def _shifted(x: Tensor, bits: Tensor, size: int) -> Tensor:
    """Return (x + a uniform number below size) modulo size."""
    x = _upper(bits).mul_(size).bitwise_right_shift_(31).add_(x)
    return x.sub_((x >= size).long().mul_(size))


def _hash(x: Tensor, subkey: Tensor) -> Tensor:
    """Hash int64 values one-to-one: add the key, multiply, fold the upper half onto the lower, multiply."""
    x = (x + subkey).mul_(_signed(0x9E3779B97F4A7C15))
    return x.bitwise_xor_((x >> 32).bitwise_and_(0xFFFFFFFF)).mul_(_signed(0xBF58476D1CE4E5B9))


def _upper(bits: Tensor) -> Tensor:
    """Return the upper 31 bits, the best-mixed ones of a product."""
    return (bits >> 33).bitwise_and_(0x7FFFFFFF)


def _column(keys: Sequence[Key], purpose: int) -> Tensor:
    """Return the keys' subkeys for a purpose, one below the other."""
    return torch.tensor([_signed(key.subkey(purpose)) for key in keys]).unsqueeze(1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
