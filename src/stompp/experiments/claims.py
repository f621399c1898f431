"""The paper's claims as comparisons that runs decide: each holds, does not, or is undecided, with its confidence.

A claim is a few statements "this is above that", each a one-sided Welch test on the final test accuracy of the binary
view, seeds being the replicates. It holds if every statement is at least 95 % sure, does not if it is at least 95 %
sure that one of them is wrong, and is undecided otherwise. "At least level" allows `MARGIN` points less. The paper's
STE has the identity surrogate; where a claim compares with it, the verdict against the strongest STE stands beside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

from stompp.recipes.grids import BIREALS, LEARNING_RATES, REFRESH_RATES, RESNETS, SCHEDULES, Scale, Spec

from .catalog import EXPERIMENTS, recipe_of
from .dynamics import folded, site_count, swoop, tooth
from .evidence import MARGIN, Claim, Evidence, Statement, compare
from .runs import Run
from .statistics import slope

EQUIVALENT = 3.0  # points within which orders of a BWN count as the same


def _c1(e: Evidence) -> Claim:
    def statements(data: str, rival: Callable[[Spec], Spec]) -> list[Statement]:
        ours = [Spec(n, "bnn-stompp", data) for n in RESNETS]
        theirs = [rival(Spec(n, "bnn-ste", data)) for n in RESNETS]
        told = _on(e, data)
        found = [e.above(o, t, f"{e.name(o)}{told}: StoMPP above STE ({e.surrogate(t)})") for o, t in zip(ours, theirs)]
        for i in (1, 2):
            text = f"the gain on {e.name(ours[i])} is larger than on {e.name(ours[0])}{told}"
            found.append(e.compare(text, (1, ours[i]), (-1, theirs[i]), (-1, ours[0]), (1, theirs[0])))
        return found

    known = _sets_with(e, "bnn-stompp")
    return Claim(
        "C1",
        "BNN: StoMPP beats STE, and the gain grows with depth",
        tuple(s for d in known for s in statements(d, lambda spec: spec)),
        tuple(s for d in known for s in statements(d, e.strongest)),
    )


def _c2(e: Evidence) -> Claim:
    pairs = [(Spec(n, "bwn-stompp", d), Spec(n, "bwn-ste", d)) for d in _sets_with(e, "bwn-stompp") for n in RESNETS]
    return Claim(
        "C2",
        "BWN: StoMPP is at least level with STE",
        tuple(e.level(o, t, f"{e.name(o)}{_on(e, o.data)}: StoMPP at least level with STE") for o, t in pairs),
    )


def _sets_with(e: Evidence, method: str) -> list[str]:
    """Return the data sets of the main table that a method was trained on, or the first of them."""
    sets = ["cifar10"] if e.scale == "mini" else ["cifar10", "cifar100", "imagenet"]
    return [d for d in sets if any(e.accuracy(Spec(n, method, d)) for n in RESNETS)] or sets[:1]


def _on(e: Evidence, data: str) -> str:
    return "" if e.scale == "mini" else f" on {data}"


def _nets(e: Evidence) -> tuple[str, ...]:
    return RESNETS if e.scale == "mini" else ("resnet18", "resnet50")


def _c3(e: Evidence) -> Claim:
    nets = _nets(e)
    by = {(n, o): Spec(n, order=o) for n in nets for o in ("layerwise", "global", "reverse")}
    found = []
    for n in nets:
        name = e.name(by[n, "layerwise"])
        found.append(
            e.level(by[n, "layerwise"], by[n, "global"], f"{name}: layerwise order at least level with global")
        )
        found.append(e.above(by[n, "global"], by[n, "reverse"], f"{name}: global order above reverse"))
    last, first = nets[-1], nets[0]
    deep = e.name(by[last, "layerwise"])
    half = "reverse order keeps less than half of what layerwise gains over chance"
    found.append(
        e.compare(
            f"{deep}: {half}",
            (0.5, by[last, "layerwise"]),
            (-1, by[last, "reverse"]),
            constant=0.5 * e.chance(by[last, "layerwise"]),
        )
    )
    found.append(
        e.compare(
            f"the spread between orders is larger on {deep} than on {e.name(by[first, 'layerwise'])}",
            (1, by[last, "layerwise"]),
            (-1, by[last, "reverse"]),
            (-1, by[first, "layerwise"]),
            (1, by[first, "reverse"]),
        )
    )
    return Claim(
        "C3",
        "BNN order: layerwise ≥ global > reverse, and reverse collapses; the spread grows with depth",
        tuple(found),
    )


def _c4(e: Evidence) -> Claim:
    found = []
    for n in _nets(e):
        base = Spec(n, "bwn-stompp")
        for order in ("global", "reverse"):
            other = replace(base, order=order)
            found.append(e.level(base, other, f"{e.name(base)}: layerwise not below {order} order", EQUIVALENT))
            found.append(e.level(other, base, f"{e.name(base)}: {order} not below layerwise order", EQUIVALENT))
    return Claim("C4", "BWN is insensitive to order", tuple(found))


def _c5(e: Evidence) -> Claim:
    """Not in reverse order, where the paper's own numbers say the contrary (66.6 against 68.4 on ResNet-50)."""
    n = _nets(e)[-1]
    found = []
    for order in ("layerwise", "global"):
        ours = Spec(n, "bwn-stompp", order=order)
        text = f"{e.name(ours)}, {order}: stochastic policy at least level with deterministic"
        found.append(e.level(ours, replace(ours, policy="deterministic"), text))
    return Claim("C5", "BWN: stochastic ≥ deterministic at depth, in layerwise and in global order", tuple(found))


def _c6(e: Evidence) -> Claim:
    plain, strong = [], []
    for n in RESNETS:
        ste = Spec(n, "bnn-ste")
        best = e.strongest(ste)
        name = e.name(ste)
        for method, told in (("bnn-hybrid-aw", "A/W"), ("bnn-hybrid-wa", "W/A (identity)")):
            plain.append(e.above(Spec(n, method), ste, f"{name}: hybrid {told} above STE (identity)"))
        for method, told in (("bnn-hybrid-aw", "A/W"), ("bnn-hybrid-wa-clip", "W/A (clip)")):
            strong.append(e.above(Spec(n, method), best, f"{name}: hybrid {told} above STE ({e.surrogate(best)})"))
    return Claim("C6", "Both hybrids beat pure STE", tuple(plain), tuple(strong))


def _c7(e: Evidence) -> Claim:
    def statements(rival: Callable[[Spec], Spec]) -> tuple[Statement, ...]:
        ours = {lr: Spec(lr=lr) for lr in LEARNING_RATES}
        theirs = {lr: rival(Spec(method="bnn-ste", lr=lr)) for lr in LEARNING_RATES}
        found = [
            e.above(ours[lr], theirs[lr], f"lr {lr:g}: StoMPP above STE ({e.surrogate(theirs[lr])})")
            for lr in LEARNING_RATES
        ]
        low, *others = LEARNING_RATES
        for high in others:
            text = f"the gain at lr {low:g} is larger than at lr {high:g}"
            found.append(e.compare(text, (1, ours[low]), (-1, theirs[low]), (-1, ours[high]), (1, theirs[high])))
        return tuple(found)

    return Claim(
        "C7",
        "StoMPP beats STE at every learning rate of {0.001, 0.01, 0.05, 0.1}, most at the smallest",
        statements(lambda spec: spec),
        statements(e.strongest),
    )


def _c8(e: Evidence) -> Claim:
    """Schedules are the replicates: a single seed of each rate under five schedules."""

    def row(order: str, schedule: str) -> list[float] | None:
        cells = [e.accuracy(Spec(order=order, schedule=schedule, refresh=r)) for r in REFRESH_RATES]
        return [statistics.fmean(c) for c in cells] if all(cells) else None

    rows = {o: {s: r for s in SCHEDULES if (r := row(o, s)) is not None} for o in ("global", "layerwise")}
    everywhere = list(rows["global"].values())
    moderate = [statistics.fmean(r[1:3]) for r in everywhere]
    both = [s for s in SCHEDULES if s in rows["global"] and s in rows["layerwise"]]
    grid = {o: [rows[o][s] for s in both] for o in rows}  # or one order's range would be over more schedules
    found = [
        compare(
            "global order: the mean of r = 10² and 10³ is above r = 10⁴, schedule by schedule",
            (1, [m - r[3] for m, r in zip(moderate, everywhere)]),
        ),
        compare(
            f"global order: the mean of r = 10² and 10³ is at least level with r = 10 (within {MARGIN:g} point)",
            (1, [m - r[0] for m, r in zip(moderate, everywhere)]),
            constant=MARGIN,
        ),
        compare(
            "the range over refresh rates is smaller in layerwise than in global order, schedule by schedule",
            (1, [max(g) - min(g) - (max(w) - min(w)) for g, w in zip(grid["global"], grid["layerwise"])]),
        ),
        compare(
            "the range over schedules is smaller in layerwise than in global order, rate by rate",
            (1, [_range(g) - _range(w) for g, w in zip(zip(*grid["global"]), zip(*grid["layerwise"]))]),
        ),
    ]
    return Claim(
        "C8",
        "Global order: moderate r (10²–10³) is best, r = 10⁴ degrades; layerwise is less sensitive to schedule and r",
        tuple(found),
    )


def _range(values: tuple[float, ...]) -> float:
    return max(values) - min(values)


def _c9(e: Evidence) -> Claim:
    base = Spec("resnet18")
    stompp = e.runs(base)
    sites = max((site_count(run) for run in stompp), default=0)
    methods = {
        "StoMPP": base,
        "W/A (clip)": Spec(method="bnn-hybrid-wa-clip"),
        "STE (identity)": Spec(method="bnn-ste"),
        "STE (clip)": Spec(method="bnn-ste-clip"),
        "A/W": Spec(method="bnn-hybrid-aw"),
        "global StoMPP": replace(base, order="global"),
    }
    by_method: dict[str, dict[int, list[float]]] = {}  # folded curves by seed
    for name, spec in methods.items():
        own = {run.seed: (run, site_count(run) if spec.order == "layerwise" else 0) for run in e.runs(spec)}
        curves = {seed: folded(run, n or sites) for seed, (run, n) in own.items() if n or sites}
        by_method[name] = {seed: c for seed, c in curves.items() if c is not None}
    usual = by_method["StoMPP"]
    heights = {
        name: [
            height
            for seed, c in curves.items()
            if (height := tooth(c, [other for k, other in usual.items() if k != seed])) is not None
        ]
        for name, curves in by_method.items()
    }
    statements = [
        compare(f"the sawtooth of {a} is higher than that of {b}", (1, heights[a]), (-1, heights[b]))
        for a, b in (("StoMPP", "STE (identity)"), ("StoMPP", "STE (clip)"), ("W/A (clip)", "STE (clip)"))
    ]
    statements += [
        compare(
            f"the sawtooth of {b} is less than half as high as StoMPP's", (0.5, heights["StoMPP"]), (-1, heights[b])
        )
        for b in ("A/W", "global StoMPP")
    ]
    bwn = {m: [s for run in e.runs(Spec(method=m)) if (s := swoop(run)) is not None] for m in ("bwn-stompp", "bwn-ste")}
    statements.append(
        compare("BWN StoMPP gains more in the last third of training than in the middle one", (1, bwn["bwn-stompp"]))
    )
    statements.append(
        compare("and that more than BWN STE does", (1, bwn["bwn-stompp"]), (-1, bwn["bwn-ste"]))
    )  # fmt: skip
    return Claim(
        "C9",
        "Sawtooth test curve for layerwise StoMPP and for W/A, none for STE, A/W or global; BWN shows a swoop",
        tuple(statements),
    )


def _c10(e: Evidence) -> Claim:
    grid = EXPERIMENTS["epochs"].specs(e.scale)

    def series(net_name: str, method: str) -> list[tuple[float, list[float]]]:
        found = [(float(s.epochs), e.accuracy(s)) for s in grid if (s.net, s.method) == (net_name, method)]
        return sorted((epochs, values) for epochs, values in found if values)

    plain, strong = [], []
    for n in ("resnet18", "resnet50"):
        name = e.name(Spec(n))
        best = e.strongest(Spec(n, "bnn-ste")).method
        for method, told, into in (
            ("bnn-stompp", "StoMPP", (plain, strong)),
            ("bnn-ste", "STE (identity)", (plain,)),
            (best, f"STE ({e.surrogate(Spec(n, best))})", (strong,)),
        ):
            points = series(n, method)
            text = f"{name}: {told} gains with longer training, by the trend over doublings"
            doublings = [(math.log2(epochs), statistics.fmean(values)) for epochs, values in points]
            trend = slope(*zip(*doublings)) if len(doublings) > 1 else None
            for statements in into:
                statements.append(Statement(text, trend, (len(points),) if trend else ()))
        for method, told, statements in (
            ("bnn-ste", "STE (identity)", plain),
            (best, f"STE ({e.surrogate(Spec(n, best))})", strong),
        ):
            lengths = [{s.epochs for s in grid if (s.net, s.method) == (n, m)} for m in ("bnn-stompp", method)]
            early = Spec(n, epochs=min(set.intersection(*lengths)))  # whether it was trained yet or not
            text = f"{name}: StoMPP is ahead of {told} after {recipe_of(early, e.scale).epochs} epochs"
            statements.append(e.above(early, replace(early, method=method), text))
    return Claim("C10", "More epochs help both; StoMPP is ahead early", tuple(plain), tuple(strong))


def _c11(e: Evidence) -> Claim:
    def statements(rival: Callable[[Spec], Spec]) -> tuple[Statement, ...]:
        found = []
        for n in BIREALS:
            ours = Spec(n, "bnn-stompp", lr=0.06, epochs=300)
            theirs = rival(replace(ours, method="bnn-ste"))
            text = f"{e.name(ours)}: StoMPP at least level with STE ({e.surrogate(theirs)}) from scratch"
            found.append(e.level(ours, theirs, text))
            text = f"{e.name(ours)}: StoMPP from a pretrained net at least level with StoMPP from scratch"
            found.append(e.level(replace(ours, pretrained=True), ours, text))
        return tuple(found)

    return Claim(
        "C11",
        "Bi-Real: StoMPP at least level with STE from scratch; works from a pretrained net",
        statements(lambda spec: spec),
        statements(e.strongest),
    )


def _c12(e: Evidence) -> Claim:
    def spec(method: str) -> Spec:
        return Spec(method=method, data="cifar10")

    stompp, composed = spec("bnn-stompp"), spec("bnn-stompp-ovsw")
    collapse = e.compare(
        "OvSW with StoMPP keeps less than half of what StoMPP gains over chance",
        (0.5, stompp),
        (-1, composed),
        constant=0.5 * e.chance(stompp),
    )
    return Claim(
        "C12",
        "OvSW helps STE and collapses when composed naively with StoMPP",
        (e.above(spec("bnn-ste-ovsw"), spec("bnn-ste"), "OvSW above plain STE (identity)"), collapse),
        (e.above(spec("bnn-ste-clip-ovsw"), spec("bnn-ste-clip"), "OvSW above plain STE (clip)"), collapse),
    )


CLAIMS: dict[str, Callable[[Evidence], Claim]] = {
    f"C{i}": judge for i, judge in enumerate((_c1, _c2, _c3, _c4, _c5, _c6, _c7, _c8, _c9, _c10, _c11, _c12), start=1)
}


def judge(runs: Iterable[Run], scale: Scale) -> list[Claim]:
    """Return every claim, judged by the finished runs of that scale."""
    evidence = Evidence(runs, scale)
    return [claim(evidence) for claim in CLAIMS.values()]
