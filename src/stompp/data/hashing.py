"""Random numbers without a generator: every draw is a pure function of (seed, epoch, purpose, image index).

A stateful generator has to be saved, replayed and kept in step over workers and ranks. A counter-based hash has no
state: image 17 of epoch 3 gets the same crop whatever the batch size, the rank that sees it, the device, or the step
at which a killed run came back. The hash is splitmix64 (Steele, Lea and Flood, 2014): a counter times an odd constant,
then a mixing function. Only integer operations are used, so that CPU and GPU agree bit for bit.
"""

from __future__ import annotations

import torch

from stompp.core.randomness import fold

__all__ = ["CROP", "ORDER", "RESIZED_CROP", "below", "draw", "fold", "permutation", "uniform"]

ORDER, CROP, RESIZED_CROP = 1, 2, 3  # what a draw is for; draws for different purposes are independent

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def draw(key: int, counter: torch.Tensor) -> torch.Tensor:
    """Gives 64 random bits (as int64) for every entry of `counter`, on its device.

    >>> counter = torch.arange(4)
    >>> bool((draw(fold(0), counter)[2:] == draw(fold(0), counter[2:])).all())
    True
    """
    z = counter * _signed(_GOLDEN) + _signed((key + _GOLDEN) & _MASK)
    z = (z ^ _shift(z, 30)) * _signed(_MIX_A)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_B)
    return z ^ _shift(z, 31)


def below(bits: torch.Tensor, field: int, n: int | torch.Tensor) -> torch.Tensor:
    """Turns the 21-bit field number `field` (0, 1 or 2) of the random bits into an integer in [0, n).

    21 bits leave a bias below n / 2**21, which no crop of an image can show.

    >>> values = below(draw(fold(7), torch.arange(1000)), 0, 9)
    >>> int(values.min()), int(values.max())
    (0, 8)
    """
    return (_field(bits, field) * n) >> 21


def uniform(bits: torch.Tensor, field: int) -> torch.Tensor:
    """Turns the 21-bit field number `field` into a float64 in (0, 1), the same on every device."""
    return (_field(bits, field).double() + 0.5) / (1 << 21)


def permutation(key: int, n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Gives a permutation of 0 … n-1: the indices sorted by their hash.

    >>> permutation(fold(0), 5).sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    bits = draw(key, torch.arange(n, device=device))
    return torch.argsort(bits, stable=True)  # stable: equal hashes, if ever, order alike on every device


def _field(bits: torch.Tensor, field: int) -> torch.Tensor:
    return (bits >> (21 * field)) & ((1 << 21) - 1)


def _shift(z: torch.Tensor, n: int) -> torch.Tensor:
    # torch's >> on int64 copies the sign bit; splitmix wants zeros there
    return (z >> n) & ((1 << (64 - n)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
