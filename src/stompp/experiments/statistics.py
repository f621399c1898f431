"""How sure a difference of means is: Welch's t-test for any weighted sum of means, one-sided.

Few seeds give wide tails, which Student's distribution accounts for; a mean of one run says nothing about its spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Samples = Sequence[float]


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of means, its standard error, and the confidence that its true value is above zero."""

    value: float
    error: float | None  # None where some sample has one value only
    confidence: float | None


def contrast(*terms: tuple[float, Samples], constant: float = 0.0) -> Contrast:
    """Return the sum of weight × mean over the terms, plus a constant; Welch's degrees of freedom.

    >>> c = contrast((1, [3.0, 3.2, 3.4]), (-1, [1.0, 1.4, 1.8]))
    >>> round(c.value, 6), round(c.error, 3), round(c.confidence, 3)
    (1.8, 0.258, 0.997)
    """
    value = constant + sum(w * statistics.fmean(x) for w, x in terms)
    if any(len(x) < 2 for _, x in terms):
        return Contrast(value, None, None)
    parts = [(w * w * statistics.variance(x) / len(x), len(x) - 1) for w, x in terms]
    variance = sum(v for v, _ in parts)
    if variance == 0:
        return Contrast(value, 0.0, 1.0 if value > 0 else 0.0 if value < 0 else 0.5)
    freedom = variance**2 / sum(v * v / n for v, n in parts)
    error = math.sqrt(variance)
    return Contrast(value, error, student(value / error, freedom))


def slope(x: Samples, y: Samples) -> Contrast:
    """Return the slope of y over x by least squares, with the confidence that it is above zero.

    >>> slope([1, 2, 3, 4], [1.0, 2.1, 2.9, 4.0]).confidence > 0.99
    True
    """
    if len(set(x)) < 2:
        raise ValueError("a slope needs points at two places")
    middle, level = statistics.fmean(x), statistics.fmean(y)
    spread = sum((a - middle) ** 2 for a in x)
    value = sum((a - middle) * (b - level) for a, b in zip(x, y)) / spread
    if len(x) < 3:
        return Contrast(value, None, None)
    rest = sum((b - level - value * (a - middle)) ** 2 for a, b in zip(x, y))
    error = math.sqrt(rest / (len(x) - 2) / spread)
    if error == 0:
        return Contrast(value, 0.0, 1.0 if value > 0 else 0.0 if value < 0 else 0.5)
    return Contrast(value, error, student(value / error, len(x) - 2))


def student(t: float, freedom: float) -> float:
    """Return the probability that Student's t is below `t`.

    With t² = freedom · tan²θ the density becomes a power of cos θ, smooth and bounded, which Simpson's rule
    integrates.

    >>> round(student(2.920, 2), 4), round(student(-1.812, 10), 4)
    (0.95, 0.05)
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    steps = 2_000
    width = angle / steps
    heights = [math.cos(i * width) ** (freedom - 1) for i in range(steps + 1)]
    area = width / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return 0.5 + math.copysign(min(scale * area, 0.5), t)
