"""The parts of the report that need no script: overview, tables and bars, as HTML. All text from files is escaped.

Each function returns one section's inside. A section is an entry of `report.SECTIONS`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import Any

from stompp.data.catalog import shape_of

from .payload import slots
from .results import Gain, Group, Row, Score
from .runs import Found, Run

# Parts of an epoch's time, each with a colour. A CUDA graph is forward, backward and optimizer in one.
PARTS = {"data": 3, "masks": 4, "forward": 0, "backward": 1, "optimizer": 2, "graph": 6, "evaluation": 5}
MOST_FACTS = 4  # different values shown of each, such as of commits
_STRIP_WIDTH, _STRIP_MARGIN = 270, 12


def overview(found: Found, groups: list[Group]) -> str:
    """Return what ran: totals, recipes × seeds, hardware and versions, and whatever was left out."""
    runs = found.runs
    done = sum(run.ended for run in runs)
    recipes = sum(len(group.rows) for group in groups)
    spent = sum(run.seconds for run in runs)
    epochs = sum(len(run.epochs) for run in runs)
    seeds = len({run.seed for run in runs})
    tiles = [
        ("runs ended", f"{done} <small>of {len(runs)}</small>"),
        ("recipes", f"{recipes} <small>on {_count(len(groups), 'net')}</small>"),
        ("seeds", str(seeds)),
        ("epochs trained", f"{epochs:,}"),
        ("time, all runs added", _duration(spent)),
    ]
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return (
        f'<dl class="tiles">{shown}</dl>{_warnings(found.notes)}'
        f'<div class="pair"><div class="card">{_matrix(groups)}</div>'
        f'<div class="card"><h3>Where it ran</h3>{_facts(runs)}</div></div>'
    )


def results(groups: list[Group]) -> str:
    """Return a table per net: n, test accuracy of the binary view, and the gain over STE."""
    told = (
        "<p>Test accuracy of the <strong>binary view</strong> after the last epoch: everything scheduled is ±1. "
        "Mean ± sample standard deviation over the finished runs; n counts them, and a single run has no ±. "
        "Gains are differences of means, ± their standard error where both sides have two runs or more. "
        "STE's gradient through sign() is a choice, its surrogate: gains are given over the identity, "
        "and over the strongest STE that ran.</p>"
    )
    colours = slots(groups)
    return told + "".join(f'<div class="card">{_result_table(group, colours)}</div>' for group in groups)


def time(groups: list[Group]) -> str:
    """Return where an epoch's time goes, a bar per recipe."""
    spent = [_epoch_seconds(row.runs) for group in groups for row in group.rows]
    used = {p: slot for p, slot in PARTS.items() if p != "graph" or any(parts[p] for parts in spent)}
    slots = used.items()
    keys = "".join(f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{_square(s)}</svg>{p}</li>' for p, s in slots)
    tables = "".join(_time_table(group, used) for group in groups)
    return (
        "<p>Mean over all epochs of all runs of a recipe. Bars are to one scale within a net. Runs that shared a "
        f'machine with others are slower for it.</p><ul class="key">{keys}</ul>{tables}'
    )


def title(groups: list[Group]) -> tuple[str, str]:
    """Return the page's headline and the sentence under it."""
    told = [sentence for group in reversed(groups) for row in group.rows if (sentence := _against_ste(row, group))]
    lead = " ".join(told[:3]) or "What was trained, what came out, and what happened inside."
    return "Binary networks, run by run", lead


def _against_ste(row: Row, group: Group) -> str:
    """Say how plain StoMPP did on a net beside STE, if both have finished there with the usual settings."""
    if row.label != "StoMPP" or row.gain is None or row.gain_over_best is None:
        return ""
    strongest = ""
    if row.gain_over_best.over != row.gain.over:
        strongest = f", {_signed(row.gain_over_best.difference)} over the strongest, {escape(row.gain_over_best.over)}"
    return (
        f"{escape(group.title)}: StoMPP {row.score.mean:.1f} %, {_signed(row.gain.difference)} points over "
        f"{escape(row.gain.over)}{strongest} (n = {row.score.n})."
    )


def _warnings(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<aside class="card warnings"><h3>Left out or damaged</h3><ul>{items}</ul></aside>'


def _matrix(groups: list[Group]) -> str:
    seeds = sorted({run.seed for group in groups for row in group.rows for run in row.runs})
    head = "".join(f'<th scope="col">seed {seed}</th>' for seed in seeds)
    body = []
    for group in groups:
        body.append(f'<tr class="sub"><th scope="rowgroup" colspan="{len(seeds) + 1}">{escape(group.title)}</th></tr>')
        for row in group.rows:
            cells = "".join(_cell(row, seed) for seed in seeds)
            body.append(f'<tr title="{escape(row.recipe.name)}"><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    caption = _caption(
        "What ran", "✓ test accuracy of a finished run's binary view, %; ◔ epochs so far of an unfinished one"
    )
    return _scroll(
        "What ran",
        f'<table id="runs">{caption}<thead><tr><th scope="col">recipe</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>",
    )


def _cell(row: Row, seed: int) -> str:
    run = next((run for run in row.runs if run.seed == seed), None)
    if run is None:
        return '<td><span class="soft" aria-label="not run">–</span></td>'
    if run.diverged is not None:
        return f'<td><span class="broken" title="{escape(run.diverged)}">diverged</span></td>'
    if run.done:
        return f'<td><span class="done"><span class="sr">finished: </span>{run.final():.1f}</span></td>'
    epochs = run.epochs[-1].number if run.epochs else 0
    told = f'<span class="sr">unfinished, epochs: </span>{epochs}/{run.recipe.epochs}'
    return f'<td><span class="pending">{told}</span></td>'


def _facts(runs: list[Run]) -> str:
    names = (
        ("processor", "cpu"),
        ("device", "device"),
        ("threads per run", "threads"),
        ("stompp", "stompp"),
        ("PyTorch", "torch"),
        ("Python", "python"),
        ("system", "platform"),
        ("commit", "commit"),
    )
    known = [run.environment for run in runs if run.environment]
    items = []
    for shown, name in names:
        counts = Counter(str(environment.get(name) or "not recorded")[:200] for environment in known)
        parts = [
            escape(v) + (f" ({_count(n, 'run')})" if len(counts) > 1 else "") for v, n in counts.most_common(MOST_FACTS)
        ]
        if len(counts) > MOST_FACTS:
            parts.append(f"and {len(counts) - MOST_FACTS} more")
        items.append(f"<dt>{shown}</dt><dd>{'; '.join(parts)}</dd>")
    if len(known) < len(runs):
        items.append(f"<dt>not recorded</dt><dd>{_count(len(runs) - len(known), 'run')}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _result_table(group: Group, colours: dict[str, int]) -> str:
    chance = 100 / shape_of(group.rows[0].recipe.data)[1]
    highest = max((v for row in group.rows for v in row.score.values), default=0.0)
    top = min(100, 10 * math.ceil((max(highest, chance) + 3) / 10))
    rows = "".join(_result_row(row, top, chance, colours[row.label]) for row in group.rows)
    zero = f'<text x="{_STRIP_MARGIN}" y="20" text-anchor="middle">0</text>'
    axis = (
        f'<svg class="strip" viewBox="0 0 {_STRIP_WIDTH} 24" role="img" aria-label="axis from 0 to {top} percent">'
        f"{zero if chance > 0.15 * top else ''}"
        f'<text x="{_place(chance, top):.1f}" y="20" text-anchor="middle">chance</text>'
        f'<text x="{_STRIP_WIDTH - _STRIP_MARGIN}" y="20" text-anchor="middle">{top} %</text></svg>'
    )
    head = (
        '<th scope="col">rule</th><th scope="col">n</th><th scope="col">test accuracy, %</th>'
        '<th scope="col">over STE<br>(identity)</th><th scope="col">over the<br>strongest STE</th>'
        f'<th scope="col"><span class="sr">each run</span>{axis}</th>'
    )
    caption = _caption(
        group.title, f"{group.settings}, unless the rule says otherwise. ◔ runs not finished, not counted."
    )
    return _scroll(
        f"Results, {group.title}",
        f'<table class="results">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>',
    )


def _result_row(row: Row, top: float, chance: float, slot: int) -> str:
    n = str(row.score.n)
    if row.unfinished:
        n += f'<br><small class="pending">+{len(row.unfinished)}<span class="sr"> unfinished</span></small>'
    return (
        f'<tr data-recipe="{escape(row.recipe.name)}">{_row_head(row)}<td>{n}</td>'
        f'<td class="main">{_score(row.score)}</td><td>{_gain(row.gain)}</td>'
        f"<td>{_gain(row.gain_over_best, name=True)}</td><td>{_strip(row.score, top, chance, slot)}</td></tr>"
    )


def _row_head(row: Row) -> str:
    return f'<th scope="row">{escape(row.label)}<small>{escape(row.recipe.name)}</small></th>'


def _score(score: Score) -> str:
    if score.mean is None:
        return '<span class="soft">none finished</span>'
    spread = "" if score.sd is None else f" <small>± {score.sd:.2f}</small>"
    return f"{score.mean:.2f}{spread}"


def _gain(gain: Gain | None, name: bool = False) -> str:
    if gain is None:
        return '<span class="soft" aria-label="does not apply">–</span>'
    error = "" if gain.error is None else f" <small>± {gain.error:.1f}</small>"
    over = f"<br><small>{escape(gain.over.split(' · ')[0])}</small>" if name else ""
    way = "same" if abs(gain.difference) < 0.05 else "up" if gain.difference > 0 else "down"
    return f'<span class="{way}">{_signed(gain.difference)}</span>{error}{over}'


def _signed(value: float) -> str:
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}".replace("-", "−")


def _strip(score: Score, top: float, chance: float, slot: int) -> str:
    """Return the finished runs as dots on the net's axis, their mean as a tick."""
    if score.mean is None:
        return ""
    dots = "".join(f'<circle class="dot f{slot}" cx="{_place(v, top):.1f}" cy="12" r="4.5"/>' for v in score.values)
    x = _place(score.mean, top)
    mean = f'<line class="mean f{slot}" x1="{x:.1f}" x2="{x:.1f}" y1="3" y2="21"/>' if score.n > 1 else ""
    c = _place(chance, top)
    told = ", ".join(f"{v:.1f}" for v in score.values)
    return (
        f'<svg class="strip" viewBox="0 0 {_STRIP_WIDTH} 24" role="img" aria-label="each run: {told} percent">'
        f'<line class="axis" x1="{_STRIP_MARGIN}" x2="{_STRIP_WIDTH - _STRIP_MARGIN}" y1="12" y2="12"/>'
        f'<line class="chance" x1="{c:.1f}" x2="{c:.1f}" y1="2" y2="22"/>{mean}{dots}</svg>'
    )


def _place(value: float, top: float) -> float:
    return _STRIP_MARGIN + (_STRIP_WIDTH - 2 * _STRIP_MARGIN) * value / top


def _time_table(group: Group, used: dict[str, int]) -> str:
    """Return seconds per epoch and their split, as a table whose bars are to one scale."""
    lines = [(row, _epoch_seconds(row.runs)) for row in group.rows if any(run.epochs for run in row.runs)]
    longest = max((sum(parts.values()) for _, parts in lines), default=0.0)
    if not longest:
        return ""
    head = "".join(f'<th scope="col">{p}</th>' for p in used)
    rows = []
    for row, parts in lines:
        total = sum(parts.values())
        rate = [e.images_per_second for run in row.runs for e in run.epochs if e.images_per_second]
        x, bars = 0.0, []
        for part, slot in used.items():
            width = 100 * parts[part] / longest
            bars.append(f'<rect class="f{slot}" x="{x:.2f}" y="0" width="{width:.2f}" height="10"/>')
            x += width
        cells = "".join(f"<td>{100 * parts[p] / (total or 1):.0f} %</td>" for p in used)
        box = 'viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"'
        bar = f'<svg class="split" {box}>{"".join(bars)}</svg>'
        speed = f"{sum(rate) / len(rate):,.0f}" if rate else "–"
        rows.append(
            f'<tr><th scope="row">{escape(row.label)}</th><td>{total:.1f} s</td><td>{speed}</td>'
            f"<td>{bar}</td>{cells}</tr>"
        )
    caption = _caption(group.title, "Shares of the time of an epoch with its evaluation")
    return (
        '<div class="card">'
        + _scroll(
            f"Time, {group.title}",
            f'<table class="times">{caption}<thead><tr><th scope="col">rule</th><th scope="col">per epoch</th>'
            '<th scope="col">images/s in training</th><th scope="col"><span class="sr">bar</span></th>'
            f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
        )
        + "</div>"
    )


def _epoch_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Return the mean seconds of an epoch by part."""
    epochs = [e for run in runs for e in run.epochs]
    found = dict.fromkeys(PARTS, 0.0)
    for epoch in epochs:
        for part, share in epoch.time.items():
            if part in found and math.isfinite(share) and share > 0:
                found[part] += share * epoch.seconds / len(epochs)
        found["evaluation"] += epoch.evaluation_seconds / len(epochs)
    return found


def _square(slot: int) -> str:
    return f'<rect class="f{slot}" width="12" height="12" rx="2"/>'


def _caption(heading: str, told: str) -> str:
    return f"<caption><span><b>{escape(heading)}</b>{escape(told)}</span></caption>"


def _scroll(name: str, table: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{table}</div>'


def _count(n: int, thing: Any) -> str:
    return f"{n} {thing}" + ("" if n == 1 else "s")


def _duration(seconds: float) -> str:
    """Return a time in the unit that fits.

    >>> _duration(59), _duration(3660), _duration(200_000)
    ('59 s', '1 h 1 min', '2 d 8 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{hours} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"
