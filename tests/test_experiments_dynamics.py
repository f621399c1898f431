"""Sawtooth and swoop on curves whose shape is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stompp.core.orders import windows
from stompp.experiments.dynamics import Point, curve, folded, freezes, site_count, swoop, tooth
from stompp.experiments.runs import SPLITS, VIEWS, Epoch, Run
from stompp.recipes import METHODS, get

Shape = Callable[[float], float]  # accuracy over the share of training that is done


def drawn(
    shape: Shape, epochs: int = 12, per_epoch: int = 8, steps: int = 390, noise: float = 0.0, seed: int = 0
) -> Run:
    """Return a run whose current view follows a shape; at the small scale there are 8 evaluations per epoch."""
    dice = random.Random(seed)
    total = epochs * steps

    def accuracy(step: int) -> float:
        return min(100.0, max(0.0, shape(step / total) + dice.gauss(0, noise)))

    lines = []
    for e in range(epochs):
        between = [e * steps + steps * k // per_epoch for k in range(1, per_epoch)]
        points = tuple((step, accuracy(step), 10.0) for step in between)
        end = (e + 1) * steps
        scores = {(split, view): 10.0 for split in SPLITS for view in VIEWS} | {("test", "current"): accuracy(end)}
        lines.append(Epoch(e + 1, scores, {}, {}, {}, 1.0, 1.0, 1.0, {}, end, points))
    return Run(Path("made"), get("resnet8-digits-bnn-stompp"), seed, True, {}, lines)


def teeth(sites: int, height: float, level: float = 40.0) -> Shape:
    """Return a curve that falls by `height` as a site starts to move, and climbs back until it is frozen."""
    return lambda u: level + height * (1 - (-u * sites) % 1)


def height(run: Run, sites: int, like: Run | None = None) -> float:
    """Return a run's tooth, read where another run's is."""
    window, other = folded(run, sites), folded(like or run, sites)
    assert window is not None
    assert other is not None
    return tooth(window, [other]) or 0.0


def test_curve_has_every_evaluation_in_order() -> None:
    points = curve(drawn(lambda u: 50 * u, epochs=3, per_epoch=4, steps=100))
    assert [p.step for p in points] == [25, 50, 75, 100, 125, 150, 175, 200, 225, 250, 275, 300]
    assert points[3] == Point(100, pytest.approx(50 / 3), 10.0)
    assert curve(drawn(lambda u: 0, epochs=0)) == []


@pytest.mark.parametrize(
    ("sites", "epochs", "per_epoch"),
    [(6, 12, 8), (12, 12, 8), (13, 12, 8), (24, 12, 8), (17, 200, 1), (33, 200, 1), (49, 200, 1)],
)
def test_sawtooth_has_three_quarters_of_the_teeths_height(sites: int, epochs: int, per_epoch: int) -> None:
    """A straight tooth is at 1/8, 3/8, 5/8, 7/8 of its height in the middle of its quarters."""
    for high in (2.0, 10.0):
        found = height(drawn(teeth(sites, high), epochs, per_epoch), sites)
        assert found == pytest.approx(0.75 * high, rel=0.05)


@pytest.mark.parametrize("high", [0.0, 4.0])
def test_sawtooth_is_not_moved_by_the_trend(high: float) -> None:
    def rising(u: float) -> float:
        return 10 + 50 * (1 - math.exp(-4 * u)) + teeth(13, high, 0)(u)

    assert height(drawn(rising), 13) == pytest.approx(0.75 * high, abs=0.15)


def test_sawtooth_of_other_swings_is_small() -> None:
    for cycles in (3, 5.5, 21, 29):
        swinging = drawn(lambda u: 40 + 5 * math.sin(2 * math.pi * cycles * u))  # noqa: B023
        assert height(swinging, 13) < 0.12 * 10, cycles


def test_tooth_is_read_where_other_runs_have_theirs() -> None:
    assert tooth([1.0, 2.0, 4.0, 8.0], [[0.0, 0.0, 3.0, -1.0], [5.0, 0.0, 3.0, -9.0]]) == 4.0 - 8.0
    assert tooth([1.0, 2.0, 4.0, 8.0], [[-1.0, 0.0, 0.0, 1.0]]) == 7.0
    assert tooth([1.0, 2.0, 4.0, 8.0], []) is None


def test_sawtooth_comes_through_noise_and_noise_alone_has_none() -> None:
    """Noise of two points a time, far more than 2,000 test images have: a tooth of five points stands out of none."""
    like = drawn(teeth(13, 5.0), noise=2.0, seed=99)
    with_teeth = [height(drawn(teeth(13, 5.0), noise=2.0, seed=k), 13, like) for k in range(30)]
    without = [height(drawn(lambda u: 40.0, noise=2.0, seed=k), 13, like) for k in range(30)]
    assert statistics.fmean(with_teeth) == pytest.approx(3.75, abs=0.5)
    assert min(with_teeth) > max(without)
    assert statistics.fmean(without) == pytest.approx(0, abs=0.3)


def test_sawtooth_uses_the_windows_of_the_freezer() -> None:
    """Teeth that turn where sites really freeze, windows being whole steps."""
    total = 12 * 390
    spans = windows("layerwise", 13, total)

    def shape(u: float) -> float:
        step = round(u * total)
        start, end = next(s for s in spans if s[0] < step <= s[1])
        return 40 + 10 * (step - start) / (end - start)

    assert height(drawn(shape), 13) == pytest.approx(7.5, rel=0.03)


def test_sawtooth_needs_two_points_a_window_and_a_step_a_site() -> None:
    assert folded(drawn(teeth(61, 5.0)), 61) is None  # a ResNet-32: 96 evaluations, 61 windows
    assert folded(drawn(teeth(37, 5.0)), 37) is not None  # a ResNet-20
    assert folded(drawn(teeth(13, 5.0), epochs=1, per_epoch=1), 13) is None
    assert folded(drawn(teeth(13, 5.0), epochs=0), 13) is None
    assert folded(drawn(teeth(13, 5.0), epochs=12, per_epoch=1, steps=1), 13) is None  # fewer steps than sites


def rise_dip_rise(u: float) -> float:
    return 60 * min(3 * u, 1) - 9 * max(0.0, min(3 * u - 1, 1)) + 24 * max(0.0, 3 * u - 2)


def test_swoop_is_the_last_thirds_gain_over_the_middle_ones() -> None:
    assert swoop(drawn(rise_dip_rise)) == pytest.approx(24 - (-9), abs=1.5)
    assert swoop(drawn(lambda u: 30 + 40 * u)) == pytest.approx(0, abs=0.2)
    assert swoop(drawn(lambda u: 35.0)) == 0
    assert swoop(drawn(lambda u: 20 + 60 * u * u)) == pytest.approx(60 * (1 - 2 * 4 / 9 + 1 / 9), abs=0.2)


def test_swoop_of_a_curve_that_levels_off_is_negative() -> None:
    assert (swoop(drawn(lambda u: 60 * (1 - math.exp(-4 * u)))) or 0) < -5
    assert (swoop(drawn(lambda u: 60 * math.sqrt(u))) or 0) < -1


def test_swoop_comes_through_noise() -> None:
    found = [swoop(drawn(rise_dip_rise, noise=1.0, seed=k)) or 0 for k in range(20)]
    levelling = [swoop(drawn(lambda u: 60 * math.sqrt(u), noise=1.0, seed=k)) or 0 for k in range(20)]
    assert statistics.fmean(found) == pytest.approx(33, abs=1.5)
    assert min(found) > 20
    assert max(levelling) < 2


def test_swoop_needs_six_points() -> None:
    assert swoop(drawn(rise_dip_rise, epochs=5, per_epoch=1)) is None
    assert swoop(drawn(rise_dip_rise, epochs=6, per_epoch=1)) is not None


def test_line_without_a_step_is_passed_over() -> None:
    run = drawn(teeth(13, 5.0))
    run.epochs[5] = replace(run.epochs[5], step=0)
    assert height(run, 13) == pytest.approx(3.75, rel=0.05)


def test_run_that_broke_down_has_no_shape() -> None:
    """Its curve ends early, so nothing of it is where the windows and thirds of a whole training are."""
    whole = drawn(teeth(13, 5.0), epochs=6)
    broken = Run(whole.path, whole.recipe, 0, False, {}, whole.epochs, diverged="the loss is not finite at step 2400")
    assert folded(whole, 13) is not None
    assert swoop(whole) is not None
    assert folded(broken, 13) is None
    assert swoop(broken) is None


def test_site_count_is_that_of_the_scheduled_sites() -> None:
    run = drawn(lambda u: 50, epochs=2)
    assert site_count(run) == 0
    run.epochs[0].sites.update({"layer1.relu": 0.1, "layer1.conv.weight": 0.0})
    assert site_count(run) == 2
    assert site_count(drawn(lambda u: 50, epochs=0)) == 0


@pytest.mark.parametrize("method", METHODS)
def test_freezes_where_the_method_has_scheduled_sites(method: str) -> None:
    assert freezes(get(f"resnet8-digits-{method}")) == ("stompp" in method or "hybrid" in method)
