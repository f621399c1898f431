"""Welch's test, slopes and Student's distribution, against tables, numpy and simulations."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stompp.experiments.statistics import Contrast, contrast, slope, student

# Upper quantiles of Student's distribution as printed in tables: by degrees of freedom, at 90, 95, 97.5, 99, 99.5 %.
LEVELS = (0.90, 0.95, 0.975, 0.99, 0.995)
TABLE = {
    1: (3.078, 6.314, 12.706, 31.821, 63.657),
    2: (1.886, 2.920, 4.303, 6.965, 9.925),
    3: (1.638, 2.353, 3.182, 4.541, 5.841),
    4: (1.533, 2.132, 2.776, 3.747, 4.604),
    5: (1.476, 2.015, 2.571, 3.365, 4.032),
    8: (1.397, 1.860, 2.306, 2.896, 3.355),
    10: (1.372, 1.812, 2.228, 2.764, 3.169),
    20: (1.325, 1.725, 2.086, 2.528, 2.845),
    30: (1.310, 1.697, 2.042, 2.457, 2.750),
    120: (1.289, 1.658, 1.980, 2.358, 2.617),
}


def integrated(t: float, freedom: float) -> float:
    """Return Student's distribution as the area under its density, the plain way."""
    x = np.linspace(-500.0 if t < 0 else 0.0, t, 400_001)
    scale = math.gamma((freedom + 1) / 2) / (math.gamma(freedom / 2) * math.sqrt(freedom * math.pi))
    y = scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    area = float(np.sum(y[1:] + y[:-1]) * (x[1] - x[0]) / 2)
    return area if t < 0 else 0.5 + area


@pytest.mark.parametrize("freedom", TABLE)
def test_student_agrees_with_printed_tables(freedom: int) -> None:
    for level, t in zip(LEVELS, TABLE[freedom]):
        assert student(t, freedom) == pytest.approx(level, abs=1e-4)
        assert student(-t, freedom) == pytest.approx(1 - level, abs=1e-4)


@pytest.mark.parametrize(
    ("t", "freedom"), [(0.3, 1.0), (2.0, 1.5), (4.3, 2.71), (-1.2, 3.9), (7.0, 5.5), (-3.0, 12.25)]
)
def test_student_agrees_with_the_area_under_its_density(t: float, freedom: float) -> None:
    assert student(t, freedom) == pytest.approx(integrated(t, freedom), abs=2e-6)


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(1.0, 200.0))
@settings(max_examples=60, deadline=None)
def test_student_is_a_symmetric_distribution(a: float, b: float, freedom: float) -> None:
    low, high = sorted((a, b))
    assert 0 <= student(low, freedom) <= student(high, freedom) + 1e-9 <= 1 + 1e-9
    assert student(-a, freedom) == pytest.approx(1 - student(a, freedom), abs=1e-12)


def test_student_has_exact_values_where_there_are_formulas() -> None:
    assert student(0.0, 3.3) == 0.5
    for t in (0.1, 1.0, 17.0):
        assert student(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)  # Cauchy
        assert student(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)
    assert student(1.96, 1e5) == pytest.approx(0.9750, abs=1e-4)  # normal


@pytest.mark.parametrize("t", [1e9, 1e16, 1.6331239353195e16, 1e17, 1e300, math.inf])
@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 3.7, 40.0])
def test_student_is_sure_far_out(t: float, freedom: float) -> None:
    assert 0.99 < student(t, freedom) <= 1.0
    assert 0.0 <= student(-t, freedom) < 0.01


def welch(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Return t, its standard error and its degrees of freedom, as textbooks write them for two samples."""
    a, b = np.var(x, ddof=1) / len(x), np.var(y, ddof=1) / len(y)
    freedom = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1))
    return float((np.mean(x) - np.mean(y)) / np.sqrt(a + b)), float(np.sqrt(a + b)), float(freedom)


def test_contrast_of_two_samples_is_welchs_test() -> None:
    dice = random.Random(0)
    for _ in range(50):
        x = [dice.gauss(0, 1) for _ in range(dice.randint(2, 6))]
        y = [dice.gauss(0.5, 3) for _ in range(dice.randint(2, 6))]
        t, error, freedom = welch(x, y)
        found = contrast((1, x), (-1, y))
        assert found.value == pytest.approx(statistics.fmean(x) - statistics.fmean(y))
        assert found.error == pytest.approx(error)
        assert found.confidence == pytest.approx(student(t, freedom))


def test_contrast_is_right_as_often_as_it_says() -> None:
    """A difference of differences that is zero: a confidence above c must come up 1 - c of the time (Welch: about)."""
    dice = np.random.default_rng(1)
    sizes, spreads, weights = (3, 3, 4, 5), (1.0, 2.0, 1.5, 0.7), (1, -1, -1, 1)
    found = []
    for _ in range(1_000):
        terms = [(w, list(dice.normal(5, s, n))) for w, s, n in zip(weights, spreads, sizes)]
        found.append(contrast(*terms).confidence)
    sure = np.array(found, dtype=float)
    for level in (0.5, 0.9, 0.95):
        assert np.mean(sure > level) == pytest.approx(1 - level, abs=0.03)


def test_contrast_weighs_its_terms() -> None:
    x, y = [4.0, 6.0, 5.0], [1.0, 3.0]
    found = contrast((0.5, x), (-2, y), constant=7.0)
    assert found.value == pytest.approx(0.5 * 5 - 2 * 2 + 7)
    assert found.error == pytest.approx(math.sqrt(0.25 * 1 / 3 + 4 * 2 / 2))
    level = contrast((1, x), (-1, [5.0, 6.0, 4.0]))
    assert (level.value, level.confidence) == (0.0, pytest.approx(0.5))


def test_one_value_has_no_spread() -> None:
    assert contrast((1, [3.0]), (-1, [1.0, 2.0]), constant=1) == Contrast(2.5, None, None)
    assert contrast((1, [3.0])) == Contrast(3.0, None, None)


@pytest.mark.parametrize(("ours", "confidence"), [(50.0, 1.0), (10.0, 0.5), (5.0, 0.0)])
def test_values_that_do_not_vary_leave_no_doubt(ours: float, confidence: float) -> None:
    assert contrast((1, [ours] * 3), (-1, [10.0] * 3)) == Contrast(ours - 10, 0.0, confidence)


def test_values_that_hardly_vary_are_nearly_sure() -> None:
    found = contrast((1, [50.0, 50.0]), (-1, [10.0, 10.000000000000002]))
    assert found.confidence == pytest.approx(1.0)


def test_collapsed_baseline_does_not_lend_its_certainty() -> None:
    """STE at guessing three times over varies not at all; the doubt is all StoMPP's."""
    ours = [50.0, 44.0, 47.0]
    found = contrast((1, ours), (-1, [10.0] * 3))
    assert found.error == pytest.approx(math.sqrt(9 / 3))
    assert found.confidence == pytest.approx(student(37 / math.sqrt(3), 2))


def test_slope_agrees_with_numpy() -> None:
    dice = random.Random(2)
    for n in (3, 4, 7):
        x = [dice.uniform(0, 5) for _ in range(n)]
        y = [2 * a + dice.gauss(0, 1) for a in x]
        (value, _), residuals, *_ = np.polyfit(x, y, 1, full=True)
        error = math.sqrt(float(residuals[0]) / (n - 2) / float(np.sum((np.array(x) - np.mean(x)) ** 2)))
        found = slope(x, y)
        assert found.value == pytest.approx(value)
        assert found.error == pytest.approx(error)
        assert found.confidence == pytest.approx(student(value / error, n - 2))


def test_slope_is_right_as_often_as_it_says() -> None:
    dice = np.random.default_rng(3)
    sure = np.array([slope([1, 2, 3, 4, 5], list(dice.normal(0, 1, 5))).confidence for _ in range(1_000)], dtype=float)
    for level in (0.5, 0.9, 0.95):
        assert np.mean(sure > level) == pytest.approx(1 - level, abs=0.03)


def test_slope_of_few_points() -> None:
    assert slope([1, 3], [1.0, 5.0]) == Contrast(2.0, None, None)  # a line goes through any two
    assert slope([1, 2, 4], [3.0, 5.0, 9.0]) == Contrast(2.0, 0.0, 1.0)
    assert slope([1, 2, 4], [3.0, 3.0, 3.0]) == Contrast(0.0, 0.0, 0.5)
    assert slope([1, 2, 4], [-3.0, -5.0, -9.0]) == Contrast(-2.0, 0.0, 0.0)
    for x in ([], [1.0], [2.0, 2.0, 2.0]):
        with pytest.raises(ValueError, match="points at two places"):
            slope(x, [1.0] * len(x))
