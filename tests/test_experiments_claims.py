"""Claims judged by made-up runs that make them hold, fail, and leave them undecided.

Means are of the small scale. Where nothing else is said every setting has three seeds, a tenth of a point apart: far
closer than any two means that are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from stompp.experiments.claims import CLAIMS, judge
from stompp.experiments.comparison import paper_numbers
from stompp.experiments.evidence import MARGIN, SURE, Claim, Evidence, Statement, compare, refuted, sum_up, weakest
from stompp.experiments.runs import Epoch, Run
from stompp.experiments.statistics import Contrast
from stompp.recipes import Recipe, mini, paper
from stompp.recipes.grids import BIREALS, EPOCHS, LEARNING_RATES, REFRESH_RATES, RESNETS, SCHEDULES, STES, Scale, Spec
from test_experiments_dynamics import drawn, rise_dip_rise, teeth

R18, R34, R50 = RESNETS
Means = Mapping[Spec, float]


@cache
def recipe_at(spec: Spec, scale: Scale) -> Recipe:
    return mini.recipe(spec) if scale == "mini" else paper.recipe(spec)


def ended(recipe: Recipe, seed: int, accuracy: float, diverged: str | None = None, done: bool = True) -> Run:
    """Return a run with this test accuracy of the binary view; whatever else it has must not count."""
    scores = {("test", "binary"): accuracy, ("test", "current"): 97.0, ("train", "binary"): 98.0}
    last = Epoch(recipe.epochs, scores | {("train", "current"): 99.0}, {}, {}, {}, 1.0, 1.0, 1.0, {}, 100)
    return Run(Path("made"), recipe, seed, done and diverged is None, {}, [last], diverged=diverged)


def seeds(mean: float, n: int = 3, apart: float = 0.1) -> list[float]:
    return [mean + apart * (k - (n - 1) / 2) for k in range(n)]


def runs_of(means: Means, scale: Scale = "mini", n: int = 3, apart: float = 0.1) -> list[Run]:
    return [
        ended(recipe_at(spec, scale), seed, value)
        for spec, mean in means.items()
        for seed, value in enumerate(seeds(mean, n, apart))
    ]


def judged(name: str, means: Means, scale: Scale = "mini", n: int = 3, apart: float = 0.1) -> Claim:
    claim = CLAIMS[name](Evidence(runs_of(means, scale, n, apart), scale))
    assert claim.name == name
    return claim


def failing(statements: Iterable[Statement] | None) -> list[str]:
    return [s.text for s in statements or () if s.verdict == "does not hold"]


def on_nets(method: str, *means: float, data: str = "cifar100", nets: tuple[str, ...] = RESNETS) -> dict[Spec, float]:
    return {Spec(net, method, data): mean for net, mean in zip(nets, means)}


def world(name: str) -> dict[Spec, float]:
    """Return means with which a claim holds, against the strongest STE too."""
    if name == "C1":
        return (
            on_nets("bnn-stompp", 60, 55, 50, data="cifar10")
            | on_nets("bnn-ste", 50, 35, 20, data="cifar10")
            | on_nets("bnn-ste-clip", 55, 42, 30, data="cifar10")
            | on_nets("bnn-ste-approx", 53, 44, 25, data="cifar10")
        )
    if name == "C2":
        return on_nets("bwn-stompp", 70, 69.5, 68, data="cifar10") | on_nets("bwn-ste", 65, 70, 68, data="cifar10")
    if name == "C3":
        means = zip(RESNETS, ((55, 54, 45), (52, 52.5, 30), (50, 45, 15)))
        return {Spec(n, order=o): m for n, row in means for o, m in zip(("layerwise", "global", "reverse"), row)}
    if name == "C4":
        means = zip(RESNETS, ((70, 71, 69), (70, 72, 71), (69, 67, 66.5)))
        return {
            Spec(n, "bwn-stompp", order=o): m
            for n, row in means
            for o, m in zip(("layerwise", "global", "reverse"), row)
        }
    if name == "C5":
        pairs = (("layerwise", 69, 65), ("global", 67, 67.5))
        return {Spec(R50, "bwn-stompp", order=o): s for o, s, _ in pairs} | {
            Spec(R50, "bwn-stompp", order=o, policy="deterministic"): d for o, _, d in pairs
        }
    if name == "C6":
        return (
            on_nets("bnn-ste", 30, 20, 10)
            | on_nets("bnn-ste-clip", 45, 35, 25)
            | on_nets("bnn-hybrid-aw", 50, 45, 40)
            | on_nets("bnn-hybrid-wa", 40, 30, 15)
            | on_nets("bnn-hybrid-wa-clip", 55, 48, 42)
        )
    if name == "C7":
        rows = {"bnn-stompp": (33, 51, 54, 53), "bnn-ste": (10, 31, 47, 49), "bnn-ste-clip": (20, 45, 50, 51)}
        return {Spec(method=m, lr=lr): v for m, row in rows.items() for lr, v in zip(LEARNING_RATES, row)}
    if name == "C8":
        found = {}
        for k, s in enumerate(SCHEDULES):
            for order, row in (("global", (44, 45, 46, 20)), ("layerwise", (50, 50.5, 51, 49))):
                steepness = k * (2 if order == "global" else 0.3)
                for r, v in zip(REFRESH_RATES, row):
                    found[Spec(order=order, schedule=s, refresh=r)] = v + steepness
        return found
    if name == "C10":
        rows = {
            (R18, "bnn-stompp"): (40, 45, 50, 54, 56),
            (R18, "bnn-ste"): (20, 27, 33, 38, 42),
            (R18, "bnn-ste-clip"): (30, 35, 42, 46, 49),
            (R50, "bnn-stompp"): (0, 35, 42, 45, 48),
            (R50, "bnn-ste"): (10, 14, 17, 21, 24),
            (R50, "bnn-ste-clip"): (12, 18, 22, 27, 30),
        }
        found = {Spec(n, m, epochs=e): v for (n, m), row in rows.items() for e, v in zip(EPOCHS, row)}
        del found[Spec(R50, "bnn-stompp", epochs=50)]
        return found
    if name == "C11":
        usual = {"lr": 0.06, "epochs": 300}
        rows = {"bnn-stompp": (56, 59), "bnn-ste": (55, 50), "bnn-ste-approx": (56.5, 55)}
        found = {Spec(n, m, **usual): v for m, row in rows.items() for n, v in zip(BIREALS, row)}  # type: ignore[arg-type]
        return found | {Spec(n, pretrained=True, **usual): v for n, v in zip(BIREALS, (58, 61))}  # type: ignore[arg-type]
    assert name == "C12"
    means12 = {"bnn-ste": 30, "bnn-ste-ovsw": 40, "bnn-ste-clip": 45, "bnn-ste-clip-ovsw": 50, "bnn-stompp": 52}
    return {Spec(method=m, data="cifar10"): v for m, v in (means12 | {"bnn-stompp-ovsw": 10}).items()}


JUDGED_BY_MEANS = [name for name in CLAIMS if name != "C9"]
WITH_STRONGEST = {"C1", "C6", "C7", "C10", "C11", "C12"}


@pytest.mark.parametrize("name", JUDGED_BY_MEANS)
def test_claim_holds_where_the_runs_say_so(name: str) -> None:
    claim = judged(name, world(name))
    assert [s for s in claim.statements if s.verdict != "holds"] == []
    assert claim.verdict == "holds"
    assert claim.verdict_on_strongest == ("holds" if name in WITH_STRONGEST else None), failing(claim.strongest)
    assert (weakest(claim.statements) or 0) >= SURE
    assert claim.text


@pytest.mark.parametrize("name", CLAIMS)
def test_claim_without_runs_has_no_verdict(name: str) -> None:
    claim = judged(name, {})
    assert claim.verdict == "no runs"
    assert {s.verdict for s in claim.statements} == {"no runs"}
    assert weakest(claim.statements) is None


SWEEPS = {"C8", "C10"}  # their replicates are schedules, rates and lengths; what may be missing there is told below
SEEDED = sorted(set(JUDGED_BY_MEANS) - SWEEPS)


@pytest.mark.parametrize("name", SEEDED)
def test_claim_is_undecided_with_any_of_its_settings_missing(name: str) -> None:
    means = world(name)
    for spec in means:
        if spec.method not in ("bnn-ste-clip", "bnn-ste-approx", "bnn-hybrid-wa-clip", "bnn-ste-clip-ovsw"):
            assert judged(name, {s: v for s, v in means.items() if s != spec}).verdict == "undecided", spec


@pytest.mark.parametrize("name", SEEDED)
def test_one_seed_decides_nothing(name: str) -> None:
    claim = judged(name, world(name), n=1)
    assert claim.verdict == "undecided"
    for statement in claim.statements:
        assert statement.contrast is not None
        assert statement.contrast.value > 0
        assert statement.contrast.confidence is None
        assert set(statement.n) == {1}


@pytest.mark.parametrize("name", SEEDED)
def test_claim_is_undecided_where_seeds_scatter(name: str) -> None:
    claim = judged(name, world(name), n=2, apart=9.0)
    assert claim.verdict == "undecided"
    assert (weakest(claim.statements) or 1) < SURE


def test_sweeps_are_decided_by_one_seed_where_they_can_be() -> None:
    assert judged("C8", world("C8"), n=1).verdict == "holds"
    claim = judged("C10", world("C10"), n=1)
    trends = [s for s in claim.statements if "doubling" in s.text]
    assert {s.verdict for s in trends} == {"holds"}
    assert [s.n for s in trends] == [(5,), (5,), (4,), (5,)]
    assert claim.verdict == "undecided"  # that StoMPP is ahead early is a comparison of two runs


def lr(method: str, rate: float) -> Spec:
    return Spec(method=method, lr=rate)


def at(schedule: str, rate: int, order: str = "global") -> Spec:
    return Spec(order=order, schedule=schedule, refresh=rate)


def b(net: str, method: str, **fields: object) -> Spec:
    return Spec(net, method, lr=0.06, epochs=300, **fields)  # type: ignore[arg-type]


# What is changed in a world where the claim holds, and the statements that this must break.
BROKEN: list[tuple[str, dict[Spec, float], list[str]]] = [
    (
        "C1",
        {Spec(R34, "bnn-ste", "cifar10"): 60},
        ["ResNet-20: StoMPP above STE (identity)", "the gain on ResNet-20 is larger than on ResNet-8"],
    ),
    ("C1", {Spec(R50, "bnn-ste", "cifar10"): 45}, ["the gain on ResNet-32 is larger than on ResNet-8"]),
    ("C2", {Spec(R50, "bwn-ste", "cifar10"): 70}, ["ResNet-32: StoMPP at least level with STE (within 1 point)"]),
    ("C3", {Spec(R34, order="global"): 54}, ["ResNet-20: layerwise order at least level with global (within 1 point)"]),
    ("C3", {Spec(R18, order="reverse"): 54.5}, ["ResNet-8: global order above reverse"]),
    (
        "C3",
        {Spec(R50, order="reverse"): 35},
        ["ResNet-32: reverse order keeps less than half of what layerwise gains over chance"],
    ),
    (
        "C3",
        {Spec(R18, order="reverse"): 12},
        ["the spread between orders is larger on ResNet-32 than on ResNet-8"],
    ),
    (
        "C4",
        {Spec(R34, "bwn-stompp", order="global"): 60},
        ["ResNet-20: global not below layerwise order (within 3 points)"],
    ),
    (
        "C4",
        {Spec(R18, "bwn-stompp", order="reverse"): 74},
        ["ResNet-8: layerwise not below reverse order (within 3 points)"],
    ),
    (
        "C5",
        {Spec(R50, "bwn-stompp", policy="deterministic"): 71},
        ["ResNet-32, layerwise: stochastic policy at least level with deterministic (within 1 point)"],
    ),
    ("C6", {Spec(R50, "bnn-hybrid-wa"): 9}, ["ResNet-32: hybrid W/A (identity) above STE (identity)"]),
    ("C6", {Spec(R18, "bnn-hybrid-aw"): 29}, ["ResNet-8: hybrid A/W above STE (identity)"]),
    ("C7", {lr("bnn-ste", 0.05): 60}, ["lr 0.05: StoMPP above STE (identity)"]),
    ("C7", {lr("bnn-ste", 0.1): 20}, ["the gain at lr 0.001 is larger than at lr 0.1"]),
    ("C7", {lr("bnn-ste", 0.05): 20}, ["the gain at lr 0.001 is larger than at lr 0.05"]),
    (
        "C8",
        {at(s, 10_000): 60 for s in SCHEDULES},
        ["global order: the mean of r = 10² and 10³ is above r = 10⁴, schedule by schedule"],
    ),
    (
        "C8",
        {at(s, 10): 58 for s in SCHEDULES},
        ["global order: the mean of r = 10² and 10³ is at least level with r = 10 (within 1 point)"],
    ),
    (
        "C8",
        {at(s, 10, "layerwise"): 10 for s in SCHEDULES},
        ["the range over refresh rates is smaller in layerwise than in global order, schedule by schedule"],
    ),
    (
        "C8",
        {at("cosine", r, "layerwise"): 30 for r in REFRESH_RATES},
        ["the range over schedules is smaller in layerwise than in global order, rate by rate"],
    ),
    (
        "C10",
        {Spec(R18, "bnn-ste", epochs=e): v for e, v in zip(EPOCHS, (42, 38, 33, 27, 20))},
        [
            "ResNet-8: STE (identity) gains with longer training, by the trend over doublings",
            "ResNet-8: StoMPP is ahead of STE (identity) after 3 epochs",
        ],
    ),
    (
        "C10",
        {Spec(R50, "bnn-ste", epochs=100): 36, Spec(R50, "bnn-ste", epochs=200): 37}
        | {Spec(R50, "bnn-ste", epochs=e): v for e, v in ((350, 38), (500, 39), (50, 35))},
        ["ResNet-32: StoMPP is ahead of STE (identity) after 6 epochs"],
    ),
    (
        "C11",
        {b("bireal34", "bnn-ste"): 61},
        ["Bi-Real-34, width 16: StoMPP at least level with STE (identity) from scratch (within 1 point)"],
    ),
    (
        "C11",
        {b("bireal18", "bnn-stompp", pretrained=True): 54},
        ["Bi-Real-18, width 16: StoMPP from a pretrained net at least level with StoMPP from scratch (within 1 point)"],
    ),
    ("C12", {Spec(method="bnn-ste-ovsw", data="cifar10"): 25}, ["OvSW above plain STE (identity)"]),
    (
        "C12",
        {Spec(method="bnn-stompp-ovsw", data="cifar10"): 35},
        ["OvSW with StoMPP keeps less than half of what StoMPP gains over chance"],
    ),
]


@pytest.mark.parametrize(("name", "changes", "broken"), BROKEN)
def test_claim_does_not_hold_where_one_statement_is_wrong(
    name: str, changes: dict[Spec, float], broken: list[str]
) -> None:
    assert changes.keys() <= world(name).keys()
    claim = judged(name, {**world(name), **changes})
    assert failing(claim.statements) == broken
    assert claim.verdict == "does not hold"


def test_every_claim_by_means_is_broken_in_some_way() -> None:
    assert {name for name, _, _ in BROKEN} == set(JUDGED_BY_MEANS)


@pytest.mark.parametrize(
    ("name", "spec", "mean", "broken"),
    [
        ("C1", Spec(R18, "bnn-ste-clip", "cifar10"), 65, "ResNet-8: StoMPP above STE (clip)"),
        ("C6", Spec(R34, "bnn-ste-clip"), 46, "ResNet-20: hybrid A/W above STE (clip)"),
        ("C6", Spec(R34, "bnn-hybrid-wa-clip"), 30, "ResNet-20: hybrid W/A (clip) above STE (clip)"),
        ("C7", lr("bnn-ste-clip", 0.01), 52, "lr 0.01: StoMPP above STE (clip)"),
        (
            "C11",
            b("bireal18", "bnn-ste-approx"),
            58,
            "Bi-Real-18, width 16: StoMPP at least level with STE (ApproxSign) from scratch (within 1 point)",
        ),
        ("C12", Spec(method="bnn-ste-clip-ovsw", data="cifar10"), 44, "OvSW above plain STE (clip)"),
    ],
)
def test_verdict_against_the_strongest_ste_is_one_of_its_own(name: str, spec: Spec, mean: float, broken: str) -> None:
    claim = judged(name, {**world(name), spec: mean})
    assert claim.verdict == "holds"
    assert claim.verdict_on_strongest == "does not hold"
    assert broken in failing(claim.strongest)


def test_strongest_ste_against_early_stompp() -> None:
    changes = {Spec(R18, "bnn-ste-clip", epochs=e): v for e, v in zip(EPOCHS, (41, 42, 43, 46, 49))}
    claim = judged("C10", {**world("C10"), **changes})
    assert claim.verdict == "holds"
    assert failing(claim.strongest) == ["ResNet-8: StoMPP is ahead of STE (clip) after 3 epochs"]


def test_strongest_ste_is_chosen_setting_by_setting() -> None:
    means = world("C1")
    evidence = Evidence(runs_of(means), "mini")
    chosen = {n: evidence.strongest(Spec(n, "bnn-ste", "cifar10")) for n in RESNETS}
    assert {n: s.method for n, s in chosen.items()} == {R18: "bnn-ste-clip", R34: "bnn-ste-approx", R50: "bnn-ste-clip"}
    assert {s.data for s in chosen.values()} == {"cifar10"}
    assert [evidence.surrogate(Spec(method=m)) for m in STES] == ["identity", "clip", "ApproxSign"]
    texts = [s.text for s in judged("C1", means).strongest or ()]
    assert "ResNet-8: StoMPP above STE (clip)" in texts
    assert "ResNet-20: StoMPP above STE (ApproxSign)" in texts


def test_strongest_ste_has_the_best_mean_of_those_that_ran() -> None:
    spec = Spec(R18, "bnn-ste")
    clip, approx = replace(spec, method="bnn-ste-clip"), replace(spec, method="bnn-ste-approx")

    def strongest(*runs: Run) -> str:
        return Evidence(runs, "mini").strongest(spec).method

    assert strongest() == "bnn-ste"
    assert strongest(ended(mini.recipe(approx), 0, 30.0)) == "bnn-ste-approx"
    # a lucky seed does not make a rule the strongest
    lucky = [ended(mini.recipe(clip), k, v) for k, v in enumerate((70.0, 10.0, 10.0))]
    assert strongest(*lucky, *[ended(mini.recipe(approx), k, 40.0) for k in range(3)]) == "bnn-ste-approx"
    # of one that broke down only guessing counts, whatever it had reached
    assert strongest(ended(mini.recipe(clip), 0, 60.0, diverged="boom"), ended(mini.recipe(spec), 0, 11.0)) == "bnn-ste"


# ---- C4 and "at least level": edges of the margins ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("below", "verdict"), [(0.0, "holds"), (0.95, "holds"), (1.0, "undecided"), (1.05, "does not hold")]
)
def test_at_least_level_forgives_one_point(below: float, verdict: str) -> None:
    assert MARGIN == 1.0
    means = on_nets("bwn-stompp", 60, 60, 60, data="cifar10") | on_nets("bwn-ste", 60, 60, 60, data="cifar10")
    means[Spec(R34, "bwn-ste", "cifar10")] += below
    assert judged("C2", means, apart=0.01).verdict == verdict


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("off", "verdict"), [(2.9, "holds"), (3.0, "undecided"), (3.1, "does not hold")])
def test_orders_of_a_bwn_are_the_same_within_three_points(side: int, off: float, verdict: str) -> None:
    means = {Spec(n, "bwn-stompp", order=o): 60.0 for n in RESNETS for o in ("layerwise", "global", "reverse")}
    means[Spec(R50, "bwn-stompp", order="reverse")] += side * off
    assert judged("C4", means, apart=0.01).verdict == verdict


# ---- C8 and C10: which runs are compared --------------------------------------------------------------------------


def test_sweep_compares_the_schedules_that_both_orders_have() -> None:
    """Layerwise lacks a schedule, global another one; each schedule has a level of its own, so a mix-up would show."""
    means = {
        at(s, r, order): 20.0 + 10 * k + tilt * j
        for k, s in enumerate(SCHEDULES)
        for j, r in enumerate(REFRESH_RATES)
        for order, tilt in (("global", 1 + k), ("layerwise", k + 0.9))
    }
    for order, missing in (("layerwise", "cosine"), ("global", "flipped_quadratic")):
        for r in REFRESH_RATES:
            del means[at(missing, r, order)]
    by_rate, by_schedule = judged("C8", means, n=1).statements[2:]
    assert by_rate.n == (3,)  # linear, quadratic, cubic
    assert by_rate.contrast is not None
    assert by_rate.contrast.value == pytest.approx(3 * 0.1)
    assert by_rate.verdict == "holds"
    assert by_schedule.n == (4,)
    assert by_schedule.contrast is not None
    # both span linear to cubic, so the levels cancel; with cosine in global only they would not
    assert by_schedule.contrast.value == pytest.approx(0, abs=1e-9)


def test_sweep_leaves_a_schedule_with_a_missing_rate_out() -> None:
    means = world("C8")
    del means[at("linear", 1_000)]
    claim = judged("C8", means, n=1)
    assert [s.n for s in claim.statements] == [(4,), (4,), (4,), (4,)]
    assert claim.verdict == "holds"


def test_one_schedule_is_no_sweep() -> None:
    means = {s: v for s, v in world("C8").items() if s.schedule == "cubic"}
    claim = judged("C8", means, n=3)
    assert claim.verdict == "undecided"
    assert [s.verdict for s in claim.statements] == ["undecided"] * 4


def test_sweep_of_global_order_alone_says_what_it_can() -> None:
    claim = judged("C8", {s: v for s, v in world("C8").items() if s.order == "global"}, n=1)
    assert [s.verdict for s in claim.statements] == ["holds", "holds", "no runs", "no runs"]


def test_ahead_early_is_said_of_the_shortest_training_only() -> None:
    """Runs of the usual length alone, which every other experiment brings along, say nothing of it."""
    usual = {s: v for s, v in world("C10").items() if s.epochs == 200}
    claim = judged("C10", usual)
    assert claim.verdict == "no runs"
    early = [s.text for s in claim.statements if "ahead" in s.text]
    assert early == [
        "ResNet-8: StoMPP is ahead of STE (identity) after 3 epochs",  # 50 of the paper's
        "ResNet-32: StoMPP is ahead of STE (identity) after 6 epochs",  # 100: there are too many sites for 50
    ]


@pytest.mark.parametrize("missing", [Spec(R18, epochs=50), Spec(R50, "bnn-ste", epochs=100)])
def test_ahead_early_is_undecided_without_the_shortest_training(missing: Spec) -> None:
    claim = judged("C10", {s: v for s, v in world("C10").items() if s != missing})
    assert claim.verdict == "undecided"
    assert [s.verdict for s in claim.statements if "ahead" in s.text].count("no runs") == 1


def test_lengths_count_by_doublings() -> None:
    """A gain of 4 points with each doubling: a straight line over the logarithm, of slope 4."""
    means = {Spec(R18, "bnn-stompp", epochs=e): 4 * k + 20 for k, e in enumerate((50, 100, 200))}
    trend = judged("C10", means, n=1).statements[0]
    assert trend.contrast == Contrast(pytest.approx(4.0), pytest.approx(0, abs=1e-9), pytest.approx(1.0))  # type: ignore[arg-type]
    del means[Spec(R18, "bnn-stompp", epochs=200)]
    assert judged("C10", means, n=1).statements[0].verdict == "undecided"
    del means[Spec(R18, "bnn-stompp", epochs=100)]
    assert judged("C10", means, n=1).statements[0].verdict == "no runs"


# ---- C9: by the shapes of curves ----------------------------------------------------------------------------------

SHAPED = {
    "StoMPP": (Spec(), 13),
    "W/A (clip)": (Spec(method="bnn-hybrid-wa-clip"), 6),
    "STE (identity)": (Spec(method="bnn-ste"), 0),
    "STE (clip)": (Spec(method="bnn-ste-clip"), 0),
    "A/W": (Spec(method="bnn-hybrid-aw"), 7),
    "global": (Spec(order="global"), 13),
}
HEIGHTS = {"StoMPP": 6.0, "W/A (clip)": 5.0, "STE (identity)": 0.0, "STE (clip)": 0.3, "A/W": 1.0, "global": 0.0}
BWN, BWN_STE = Spec(method="bwn-stompp"), Spec(method="bwn-ste")


def shaped(
    heights: dict[str, float] = HEIGHTS,
    swooping: Callable[[float], float] = rise_dip_rise,
    smooth: Callable[[float], float] = lambda u: 60 * u**0.5,
    n: int = 3,
) -> list[Run]:
    """Return runs with teeth of such heights, at the windows of their own sites or of StoMPP's if they have none."""
    found = []
    for seed in range(n):
        for name, (spec, sites) in SHAPED.items():
            own = sites if sites and spec.order == "layerwise" else 13
            run = drawn(teeth(own, heights[name], 20.0), noise=0.3, seed=seed)
            run.epochs[0].sites.update({f"site{k}": 0.0 for k in range(sites)})
            found.append(replace(run, recipe=mini.recipe(spec), seed=seed))
        for spec, shape in ((BWN, swooping), (BWN_STE, smooth)):
            found.append(replace(drawn(shape, noise=0.3, seed=seed), recipe=mini.recipe(spec), seed=seed))
    return found


def c9(runs: list[Run]) -> Claim:
    return CLAIMS["C9"](Evidence(runs, "mini"))


def test_dynamics_hold_where_curves_have_these_shapes() -> None:
    claim = c9(shaped())
    assert [s.text for s in claim.statements if s.verdict != "holds"] == []
    assert claim.verdict == "holds"
    assert claim.verdict_on_strongest is None


@pytest.mark.parametrize(
    ("heights", "broken"),
    [
        (
            {"StoMPP": 0.0},
            ["the sawtooth of StoMPP is higher than that of STE (identity)", "than half as high as StoMPP's"],
        ),
        ({"STE (identity)": 9.0}, ["the sawtooth of StoMPP is higher than that of STE (identity)"]),
        ({"STE (clip)": 5.6}, ["the sawtooth of W/A (clip) is higher than that of STE (clip)"]),
        ({"A/W": 4.5}, ["the sawtooth of A/W is less than half as high as StoMPP's"]),
        ({"global": 4.5}, ["the sawtooth of global StoMPP is less than half as high as StoMPP's"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_dynamics_fail_with_a_tooth_too_few_or_too_many(heights: dict[str, float], broken: list[str]) -> None:
    claim = c9(shaped({**HEIGHTS, **heights}))
    assert claim.verdict != "holds"
    wrong = [s.text for s in claim.statements if s.verdict != "holds"]
    for text in broken:
        assert any(text in found for found in wrong)
    if len(broken) == 1:
        assert wrong == failing(claim.statements) == broken


def test_dynamics_fail_without_a_swoop() -> None:
    levelling = c9(shaped(swooping=lambda u: 60 * u**0.5))
    assert "BWN StoMPP gains more in the last third of training than in the middle one" in failing(levelling.statements)
    both = c9(shaped(smooth=lambda u: rise_dip_rise(u) + 15 * max(0.0, 3 * u - 2)))
    assert failing(both.statements) == ["and that more than BWN STE does"]


def test_dynamics_are_undecided_by_one_seed_or_without_some_rule() -> None:
    assert c9(shaped(n=1)).verdict == "undecided"
    for spec in [spec for spec, _ in SHAPED.values()] + [BWN, BWN_STE]:
        kept = [run for run in shaped() if run.recipe != mini.recipe(spec)]
        assert c9(kept).verdict == "undecided", spec


def test_dynamics_need_enough_evaluations() -> None:
    few = [replace(run, epochs=[replace(e, between=()) for e in run.epochs]) for run in shaped()]
    claim = c9(few)
    assert [s.verdict for s in claim.statements[:5]] == ["no runs"] * 5


def test_dynamics_leave_out_what_broke_down() -> None:
    runs = shaped()
    broken = [replace(r, diverged="boom") if r.recipe == mini.recipe(Spec(method="bnn-ste")) else r for r in runs]
    claim = c9(broken)
    assert claim.statements[0].verdict == "no runs"
    assert {s.verdict for s in claim.statements[1:]} == {"holds"}


# ---- runs that broke down, and runs that do not count --------------------------------------------------------------


def test_run_that_broke_down_counts_as_guessing() -> None:
    means = world("C1")
    ste = Spec(R50, "bnn-ste", "cifar10")
    diverged = [ended(mini.recipe(ste), k, 60.0, diverged="the loss is not finite") for k in range(3)]
    claim = CLAIMS["C1"](Evidence(runs_of({s: v for s, v in means.items() if s != ste}) + diverged, "mini"))
    (statement,) = [s for s in claim.statements if s.text == "ResNet-32: StoMPP above STE (identity)"]
    assert statement.contrast is not None
    assert statement.contrast.value == pytest.approx(50 - 10)
    assert statement.n == (3, 3)
    assert claim.verdict == "holds"


@pytest.mark.parametrize(("scale", "data", "chance"), [("mini", "cifar100", 10), ("paper", "cifar10", 10),
                         ("paper", "cifar100", 1), ("paper", "imagenet", 0.1)])  # fmt: skip
def test_guessing_depends_on_the_classes(scale: Scale, data: str, chance: float) -> None:
    spec = Spec(data=data)
    evidence = Evidence([ended(recipe_at(spec, scale), 0, 55.0, diverged="boom")], scale)
    assert evidence.chance(spec) == pytest.approx(chance)
    assert evidence.accuracy(spec) == [pytest.approx(chance)]


def test_stompp_that_broke_down_fails_its_claims() -> None:
    means = world("C3")
    runs = [
        replace(run, diverged="boom", done=False) if run.recipe == mini.recipe(Spec(R50)) else run
        for run in runs_of(means)
    ]
    claim = CLAIMS["C3"](Evidence(runs, "mini"))
    assert claim.verdict == "does not hold"
    assert any("reverse order keeps less than half" in text for text in failing(claim.statements))


def test_only_ended_runs_of_the_scale_and_setting_count() -> None:
    spec = Spec(R18)
    runs = [
        ended(mini.recipe(spec), 2, 52.0),
        ended(mini.recipe(spec), 0, 50.0),
        ended(mini.recipe(spec), 1, 90.0, done=False),  # not finished
        ended(mini.recipe(spec).changed(lr=0.2), 0, 91.0),  # somebody's own
        ended(paper.recipe(spec), 0, 92.0),
        ended(mini.recipe(replace(spec, order="global")), 0, 93.0),
    ]
    evidence = Evidence(runs, "mini")
    assert evidence.accuracy(spec) == [50.0, 52.0]  # by seed
    assert [run.seed for run in evidence.runs(spec)] == [0, 2]
    assert Evidence(runs, "paper").accuracy(spec) == [92.0]
    assert evidence.accuracy(replace(spec, net=R50)) == []


def test_one_setting_at_the_small_scale_serves_both_sets() -> None:
    evidence = Evidence(runs_of({Spec(data="cifar10"): 50.0}), "mini")
    assert evidence.accuracy(Spec(data="cifar100")) == evidence.accuracy(Spec(data="cifar10")) == seeds(50.0)


# ---- verdicts -----------------------------------------------------------------------------------------------------


def sure(confidence: float | None) -> Statement:
    return Statement("so", Contrast(1.0, None if confidence is None else 0.5, confidence), (3, 3))


@pytest.mark.parametrize(
    ("confidence", "verdict"),
    [
        (1.0, "holds"),
        (0.95, "holds"),
        (0.9499, "undecided"),
        (0.5, "undecided"),
        (0.0501, "undecided"),
        (0.05, "does not hold"),
        (0.0, "does not hold"),
        (None, "undecided"),
    ],
)
def test_statement_needs_95_percent(confidence: float | None, verdict: str) -> None:
    assert sure(confidence).verdict == verdict


def test_statement_without_runs_on_either_side_has_no_verdict() -> None:
    assert Statement("so").verdict == "no runs"
    assert compare("so", (1, []), (-1, [1.0, 2.0])).verdict == "no runs"
    assert compare("so", (1, [1.0, 2.0]), (-1, [])) == Statement("so")
    found = compare("so", (1, [3.0, 4.0]), (-1, [1.0, 2.0, 3.0]), constant=0.5)
    assert (found.n, found.contrast and found.contrast.value) == ((2, 3), pytest.approx(2.0))


YES, NO, OPEN, NONE = sure(0.99), sure(0.01), sure(0.7), Statement("so")


@pytest.mark.parametrize(
    ("statements", "verdict"),
    [
        ([], "no runs"),
        ([NONE, NONE], "no runs"),
        ([YES, YES], "holds"),
        ([YES, OPEN], "undecided"),
        ([YES, NONE], "undecided"),
        ([YES, NO], "does not hold"),
        ([NO, OPEN, NONE], "does not hold"),
        ([OPEN, NONE], "undecided"),
        ([sure(None), YES], "undecided"),
        ([sure(0.02), YES], "does not hold"),
        ([sure(0.02), YES, YES], "undecided"),  # one of three is that low by chance more often than one in twenty times
        ([sure(0.016), YES, YES, NONE, sure(None)], "does not hold"),  # only those count that could have been wrong
    ],
)
def test_claim_sums_its_statements_up(statements: list[Statement], verdict: str) -> None:
    assert sum_up(statements) == verdict
    assert Claim("C0", "so", tuple(statements)).verdict == verdict
    assert Claim("C0", "so", (YES,), tuple(statements)).verdict_on_strongest == verdict
    assert Claim("C0", "so", (YES,)).verdict_on_strongest is None


def test_weakest_is_the_lowest_confidence_that_there_is() -> None:
    assert weakest([YES, OPEN, NONE, sure(None)]) == 0.7
    assert weakest([NONE, sure(None)]) is None


def test_refuted_counts_the_worst_statement_once_for_each() -> None:
    assert refuted([YES, OPEN, NO, NONE, sure(None)]) == pytest.approx(1 - 3 * 0.01)
    assert refuted([OPEN, OPEN]) == 0.0
    assert refuted([NONE, sure(None)]) is None


def test_confidence_of_three_seeds_is_students() -> None:
    """Means 2 apart, each seed 1 from its mean: t = 2/√(2/3) with 4 degrees of freedom; tables have 97.5 % at 2.776."""
    means = on_nets("bwn-stompp", 61, 61, 61, data="cifar10") | on_nets("bwn-ste", 60, 60, 60, data="cifar10")
    (first, *_) = judged("C2", means, apart=1.0).statements
    assert first.contrast is not None
    assert first.contrast.value == pytest.approx(2.0)  # a point, and the margin's
    assert first.contrast.error == pytest.approx((2 / 3) ** 0.5)
    assert first.contrast.confidence == pytest.approx(0.9648, abs=1e-3)
    assert first.verdict == "holds"


# ---- the paper's own numbers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def as_published() -> dict[str, Claim]:
    """The claims judged by the paper's tables, as if each number were the mean of three close seeds."""
    by_name = {recipe.name: recipe for recipe in paper.recipes()}
    numbers = {recipe: n for (_, recipe, split), n in paper_numbers().items() if split == "test"}
    numbers |= {recipe: n for (e, recipe, split), n in paper_numbers().items() if (e, split) == ("main", "test")}
    runs = [ended(by_name[name], k, v) for name, n in numbers.items() for k, v in enumerate(seeds(n.accuracy))]
    return {claim.name: claim for claim in judge(runs, "paper")}


def test_papers_tables_bear_out_its_claims_but_for_imagenet(as_published: dict[str, Claim]) -> None:
    assert list(as_published) == list(CLAIMS)
    verdicts = {name: claim.verdict for name, claim in as_published.items()}
    assert {n for n, v in verdicts.items() if v == "holds"} == {"C3", "C4", "C5", "C6", "C7", "C11", "C12"}
    assert {n for n, v in verdicts.items() if v == "no runs"} == {"C8", "C9", "C10"}  # figures, without numbers
    assert failing(as_published["C1"].statements) == ["ResNet-18 on imagenet: StoMPP above STE (identity)"]
    level = "on imagenet: StoMPP at least level with STE (within 1 point)"
    assert failing(as_published["C2"].statements) == [f"ResNet-18 {level}"]


def test_paper_scale_judges_set_by_set(as_published: dict[str, Claim]) -> None:
    texts = [s.text for s in as_published["C1"].statements]
    assert len(texts) == 3 * 5
    assert sum("on cifar100" in text for text in texts) == 5
    only = judged("C1", on_nets("bnn-stompp", 60, 55, 50) | on_nets("bnn-ste", 50, 35, 20), "paper")
    assert len(only.statements) == 5  # of the other sets there are no runs
    assert all("on cifar100" in s.text for s in only.statements)
    assert only.verdict == "holds"
    assert len(as_published["C2"].statements) == 3 * 3


def test_judge_returns_every_claim_in_order() -> None:
    claims = judge(runs_of(world("C1")), "mini")
    assert [c.name for c in claims] == [f"C{k}" for k in range(1, 13)]
    assert claims[0].verdict == "holds"
    assert statistics.mode(c.verdict for c in claims) == "no runs"
