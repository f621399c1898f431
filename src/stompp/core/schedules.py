"""Freezing schedules: p(u), the fraction of a site that should be frozen after a share u of its window has passed.

Every schedule is a pure function that rises from p(0) = 0 to p(1) = 1. Pass a name, or a function of your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from stompp.errors import UsageError

Schedule = Callable[[float], float]


def cosine(u: float) -> float:
    """Return (1 - cos(pi u)) / 2.

    >>> round(cosine(0.5), 6)
    0.5
    """
    return 0.5 - 0.5 * math.cos(math.pi * u)


def linear(u: float) -> float:
    """Return u.

    >>> linear(0.25)
    0.25
    """
    return u


def quadratic(u: float) -> float:
    """Return u squared.

    >>> quadratic(0.5)
    0.25
    """
    return u * u


def cubic(u: float) -> float:
    """Return u cubed, the paper's default: most of a site stays open until late in its window.

    >>> cubic(0.5)
    0.125
    """
    return u * u * u


def flipped_quadratic(u: float) -> float:
    """Return 2u - u squared: fast at first, slow at the end.

    >>> flipped_quadratic(0.5)
    0.75
    """
    return 2.0 * u - u * u


SCHEDULES: dict[str, Schedule] = {f.__name__: f for f in (cosine, linear, quadratic, cubic, flipped_quadratic)}


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """Return the schedule of that name, or the given function after a check that it is one.

    >>> resolve_schedule("cubic")(1.0)
    1.0
    >>> resolve_schedule(lambda u: 1 - u)
    Traceback (most recent call last):
    stompp.errors.UsageError: schedule <lambda> gives p(0) = 1 and p(1) = 0; a schedule rises from 0 to 1
    """
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise UsageError(
                f"unknown schedule {schedule!r}; known are {', '.join(SCHEDULES)}, or pass a function p(u)"
            )
        return SCHEDULES[schedule]
    name = getattr(schedule, "__name__", repr(schedule))
    values = [float(schedule(i / 64)) for i in range(65)]
    if abs(values[0]) > 1e-9 or abs(values[-1] - 1.0) > 1e-9:
        raise UsageError(
            f"schedule {name} gives p(0) = {values[0]:g} and p(1) = {values[-1]:g}; a schedule rises from 0 to 1"
        )
    for i, (before, after) in enumerate(pairwise(values)):
        if not before <= after <= 1.0:
            raise UsageError(
                f"schedule {name} goes from {before:g} to {after:g} between u = {i}/64 and {i + 1}/64; "
                "a schedule never falls and stays within [0, 1]"
            )
    return schedule
