"""The results by net and where the time goes, as HTML that needs no script, and what such parts are made of.

A section is an entry of `report.SECTIONS`. All text from files is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from stompp.data.catalog import shape_of

from .payload import slots
from .results import SURROGATES, Gain, Group, Row, Score
from .runs import Run

# Parts of an epoch's time, each with a colour. A CUDA graph is forward, backward and optimizer in one.
PARTS = {"data": 3, "masks": 4, "forward": 0, "backward": 1, "optimizer": 2, "graph": 6, "evaluation": 5}
MOST_OPEN = 40  # recipes; of more, every net's table is closed at first
STES = tuple(f"STE ({surrogate})" for surrogate in SURROGATES.values())
FIND = '<div class="find"></div>'  # where the script puts the filter
_STRIP_WIDTH, _STRIP_MARGIN = 270, 12


def results(groups: list[Group]) -> str:
    """Return a table per net: n, test accuracy of the binary view, and the gain over STE."""
    told = (
        "<p>Test accuracy of the <strong>binary view</strong> after the last epoch: everything scheduled is ±1. "
        "Mean ± sample standard deviation over the runs that ended; n counts them, and a single run has no ±. "
        "A run that broke down counts as guessing, and is marked ✕. "
        "Gains are differences of means, ± their standard error where both sides have two runs or more. "
        "STE's gradient through sign() is a choice, its surrogate: gains are given over the identity, "
        "and over the strongest STE that ran.</p>"
    )
    colours = slots(groups)
    tables = "".join(
        fold(escape(g.title), _headline(g), _result_table(g, colours), few(groups), "card net") for g in groups
    )
    return f"{told}{FIND}{tables}"


def time(groups: list[Group]) -> str:
    """Return where an epoch's time goes, a bar per recipe."""
    spent = [_epoch_seconds(row.runs) for group in groups for row in group.rows]
    used = {p: slot for p, slot in PARTS.items() if p != "graph" or any(parts[p] for parts in spent)}
    slots = used.items()
    keys = "".join(f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{_square(s)}</svg>{p}</li>' for p, s in slots)
    tables = "".join(_time_table(group, used, few(groups)) for group in groups)
    return (
        "<p>Mean over all epochs of all runs of a recipe. Bars are to one scale within a net. Runs that shared a "
        f'machine with others are slower for it.</p><ul class="key">{keys}</ul>{FIND}{tables}'
    )


def title(groups: list[Group]) -> tuple[str, str]:
    """Return the page's headline and the sentence under it."""
    told = [sentence for group in reversed(groups) for row in group.rows if (sentence := _against_ste(row, group))]
    lead = " ".join(told[:3]) or "What was trained, what came out, and what happened inside."
    return "Binary networks, run by run", lead


def _against_ste(row: Row, group: Group) -> str:
    """Say how plain StoMPP did on a net beside STE, if both have ended there with the usual settings."""
    best = row.gain_over_best
    if row.label != "StoMPP" or best is None:
        return ""
    over = escape(best.over)
    told = f"{_signed(best.difference)} points over {over}, the strongest STE there"
    if row.gain is not None and row.gain.over != best.over:
        usual = f"{_signed(row.gain.difference)} points over {escape(row.gain.over)}"
        told = f"{usual}, {_signed(best.difference)} over the strongest, {over}"
    n = next(other.score.n for other in group.rows if other.label == best.over)
    against = "" if n == row.score.n else f" against {n}"
    return f"{escape(group.title)}: StoMPP {row.score.mean:.1f}\u00a0%, {told} (n = {row.score.n}{against})."


def fold(heading: str, told: str, inside: str, opened: bool, kind: str = "card") -> str:
    """Return a part under its own heading that opens and closes; `heading` and `told` are HTML."""
    return (
        f'<details class="fold {kind}"{" open" if opened else ""}><summary><h3>{heading}</h3>'
        f'<span class="soft">{told}</span></summary>{inside}</details>'
    )


def few(groups: list[Group]) -> bool:
    """Say whether the recipes are so few that all tables can be open at once."""
    return sum(len(group.rows) for group in groups) <= MOST_OPEN


def find(row: Row, group: Group) -> str:
    """Return the attribute by which the filter finds a row."""
    return f'data-find="{escape(f"{group.title} {row.label} {row.recipe.name}".lower())}"'


def _result_table(group: Group, colours: dict[str, int]) -> str:
    chance = 100 / shape_of(group.rows[0].recipe.data)[1]
    highest = max((v for row in group.rows for v in row.score.values), default=0.0)
    top = min(100, 10 * math.ceil((max(highest, chance) + 3) / 10))
    rows = "".join(_result_row(row, group, top, chance, colours[row.label]) for row in group.rows)
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
    told = f"{group.settings}, unless the rule says otherwise. ◔ runs not finished, not counted."
    return scroll(
        f"Results, {group.title}",
        f'<table class="results">{caption("", told)}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>',
    )


def _headline(group: Group) -> str:
    """Return what is known of a net at a glance: StoMPP, the strongest STE, float."""
    rows = [row for row in group.rows if row.score.mean is not None]
    stompp = next((row for row in rows if row.label == "StoMPP"), None)
    rivals = [row for row in rows if row.label in STES]
    ste = max(rivals, key=lambda row: row.score.mean or 0, default=None)
    floats = next((row for row in rows if row.label.startswith("float")), None)
    shown = [f"{escape(row.label)} {row.score.mean:.1f}" for row in (stompp, ste, floats) if row is not None]
    return " · ".join([count(len(group.rows), "recipe"), *shown])


def _result_row(row: Row, group: Group, top: float, chance: float, slot: int) -> str:
    n = str(row.score.n)
    if row.unfinished:
        n += f'<br><small class="pending">+{len(row.unfinished)}<span class="sr"> unfinished</span></small>'
    return (
        f'<tr {find(row, group)} data-recipe="{escape(row.recipe.name)}">{_row_head(row)}<td>{n}</td>'
        f'<td class="main">{_score(row.score)}</td><td>{_gain(row.gain)}</td>'
        f"<td>{_gain(row.gain_over_best, name=True)}</td><td>{_strip(row, top, chance, slot)}</td></tr>"
    )


def _row_head(row: Row) -> str:
    return f'<th scope="row">{escape(row.label)}<small>{escape(row.recipe.name)}</small></th>'


def _score(score: Score) -> str:
    if score.mean is None:
        return '<span class="soft">none finished</span>'
    spread = "" if score.sd is None else f" <small>± {score.sd:.2f}</small>"
    return f"{score.mean:.2f}{spread}{diverged(score)}"


def diverged(score: Score) -> str:
    """Return the mark of a score with runs that broke down."""
    if not score.diverged:
        return ""
    many = "" if score.diverged == score.n else f"{score.diverged} of {score.n} "
    return f'<br><small class="broken">{many}diverged</small>'


def _gain(gain: Gain | None, name: bool = False) -> str:
    if gain is None:
        return '<span class="soft" aria-label="does not apply">–</span>'
    error = "" if gain.error is None else f" <small>± {gain.error:.1f}</small>"
    over = f"<br><small>{escape(gain.over.split(' · ')[0])}</small>" if name else ""
    way = "same" if abs(gain.difference) < 0.05 else "up" if gain.difference > 0 else "down"
    return f'<span class="{way}">{_signed(gain.difference)}</span>{error}{over}'


def _signed(value: float) -> str:
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}".replace("-", "−")


def _strip(row: Row, top: float, chance: float, slot: int) -> str:
    """Return the runs that ended as dots on the net's axis, crosses where they broke down, their mean as a tick."""
    score = row.score
    if score.mean is None:
        return ""
    marks, told = [], []
    for run in row.runs:
        if not run.ended or (value := run.final()) is None:
            continue
        x = _place(value, top)
        if run.diverged is None:
            marks.append(f'<circle class="dot f{slot}" cx="{x:.1f}" cy="12" r="4.5"/>')
            told.append(f"{value:.1f}")
        else:
            marks.append(f'<path class="cross" d="M{x - 4:.1f} 8l8 8m-8 0l8-8"/>')
            told.append("diverged")
    x, c = _place(score.mean, top), _place(chance, top)
    mean = f'<line class="mean f{slot}" x1="{x:.1f}" x2="{x:.1f}" y1="3" y2="21"/>' if score.n > 1 else ""
    return (
        f'<svg class="strip" viewBox="0 0 {_STRIP_WIDTH} 24" role="img" '
        f'aria-label="each run, in percent: {", ".join(told)}">'
        f'<line class="axis" x1="{_STRIP_MARGIN}" x2="{_STRIP_WIDTH - _STRIP_MARGIN}" y1="12" y2="12"/>'
        f'<line class="chance" x1="{c:.1f}" x2="{c:.1f}" y1="2" y2="22"/>{mean}{"".join(marks)}</svg>'
    )


def _place(value: float, top: float) -> float:
    return _STRIP_MARGIN + (_STRIP_WIDTH - 2 * _STRIP_MARGIN) * value / top


def _time_table(group: Group, used: dict[str, int], opened: bool) -> str:
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
            f'<tr {find(row, group)}><th scope="row">{escape(row.label)}</th><td>{total:.1f} s</td><td>{speed}</td>'
            f"<td>{bar}</td>{cells}</tr>"
        )
    told = "Shares of the time of an epoch with its evaluation"
    table = scroll(
        f"Time, {group.title}",
        f'<table class="times">{caption("", told)}<thead><tr><th scope="col">rule</th><th scope="col">per epoch</th>'
        '<th scope="col">images/s in training</th><th scope="col"><span class="sr">bar</span></th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
    )
    seconds = sorted(sum(parts.values()) for _, parts in lines)
    few, many = f"{seconds[0]:.1f}", f"{seconds[-1]:.1f}"
    span = f"{few} s per epoch" if few == many else f"{few} to {many} s per epoch"
    return fold(escape(group.title), span, table, opened, "card net")


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


def caption(heading: str, told: str) -> str:
    """Return a table's caption, with a heading if it has none elsewhere."""
    shown = f"<b>{escape(heading)}</b>" if heading else ""
    return f"<caption><span>{shown}{escape(told)}</span></caption>"


def scroll(name: str, table: str) -> str:
    """Return a table that scrolls by itself where it is wider than the page."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{table}</div>'


def count(n: int, thing: str) -> str:
    """Return a number of things, in the plural where it is."""
    return f"{n} {thing}" + ("" if n == 1 else "s")
