"""bf16 numbers of a packed network: the upper halves of float32, as uint16, since numpy has no type for them.

Their magnitudes are 0, or from 2⁻⁵⁰ to the last one under 2⁶⁴. Then the product of two is a float32, exactly, and no
sum of products is subnormal: CPUs differ in what they do beyond.
"""

from __future__ import annotations

import numpy as np

LEAST = np.float32(2.0**-50)
MOST = np.float32(2.0**64 - 2.0**56)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even, to the range's ends beyond it and to 0 below it; what is no number becomes −MOST.

    >>> to_floats(to_bf16(np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1e-30, 1e30]))).tolist()
    [1.0, 1.015625, 0.0, 1.8374686479671624e+19]
    """
    raised = np.where(values > -MOST, values, -MOST)
    bits = np.where(raised < MOST, raised, MOST).astype(np.float32).view(np.uint32)
    half = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.abs(to_floats(half)) >= LEAST, half, np.uint16(0))


def to_floats(halves: np.ndarray) -> np.ndarray:
    """Return the same numbers as float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def sound(halves: np.ndarray) -> np.ndarray:
    """Say which are numbers of the range."""
    magnitude = np.abs(to_floats(halves))
    return (magnitude == 0) | ((magnitude >= LEAST) & (magnitude <= MOST))
