"""What ran, as HTML that needs no script: totals, recipes × seeds, what it ran on, what broke down or was left out."""

from __future__ import annotations

from collections import Counter
from html import escape

from .page import FIND, count, few, find, fold, scroll
from .results import Group, Row
from .runs import Found, Run

MOST_FACTS = 4  # different values shown of each, such as of commits
MOST_BROKEN = 8  # runs that broke down; of more, their table is closed at first


def overview(found: Found, groups: list[Group]) -> str:
    """Return what ran: totals, recipes × seeds, hardware and versions, and whatever was left out."""
    runs = found.runs
    ended = sum(run.ended for run in runs)
    broken = [run for run in runs if run.diverged is not None]
    recipes = sum(len(group.rows) for group in groups)
    tiles = [
        ("runs ended", f"{ended} <small>of {len(runs)}</small>"),
        *([("of these broke down", str(len(broken)))] if broken else []),
        ("recipes", f"{recipes} <small>on {count(len(groups), 'net')}</small>"),
        ("seeds", str(len({run.seed for run in runs}))),
        ("epochs trained", f"{sum(len(run.epochs) for run in runs):,}"),
        ("time, all runs added", _duration(sum(run.seconds for run in runs))),
    ]
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    matrices = "".join(fold(escape(g.title), _progress(g), _matrix(g), few(groups), "net") for g in groups)
    return (
        f'<dl class="tiles">{shown}</dl>{_warnings(found.notes)}'
        '<div class="pair"><div class="card"><h3>What ran</h3><p class="note">✓ test accuracy of a finished run\'s '
        "binary view, %; ◔ epochs so far of an unfinished one; ✕ training broke down.</p>"
        f'{FIND}<div id="runs">{matrices}</div></div>'
        f'<div class="card"><h3>Where it ran</h3>{_facts(runs)}</div></div>{_broken(broken)}'
    )


def _warnings(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<aside class="card warnings"><h3>Left out or damaged</h3><ul>{items}</ul></aside>'


def _progress(group: Group) -> str:
    """Tell in a few words how far a net's runs are."""
    runs = [run for row in group.rows for run in row.runs]
    ended, broken = sum(run.ended for run in runs), sum(run.diverged is not None for run in runs)
    parts = [count(len(group.rows), "recipe"), f"{ended} of {count(len(runs), 'run')} ended"]
    return " · ".join(parts + ([f"{broken} broke down"] if broken else []))


def _matrix(group: Group) -> str:
    seeds = sorted({run.seed for row in group.rows for run in row.runs})
    head = "".join(f'<th scope="col">seed {seed}</th>' for seed in seeds)
    body = []
    for row in group.rows:
        cells = "".join(_cell(row, seed) for seed in seeds)
        name = escape(row.recipe.name)
        body.append(f'<tr {find(row, group)} title="{name}"><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    return scroll(
        f"What ran, {group.title}",
        f'<table class="matrix"><caption class="sr">What ran, {escape(group.title)}</caption>'
        f'<thead><tr><th scope="col">rule</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>',
    )


def _cell(row: Row, seed: int) -> str:
    run = next((run for run in row.runs if run.seed == seed), None)
    if run is None:
        return '<td><span class="soft" aria-label="not run">–</span></td>'
    if run.diverged is not None:
        return f'<td><span class="broken" title="{escape(reason(run))}">diverged</span></td>'
    if run.done:
        return f'<td><span class="done"><span class="sr">finished: </span>{run.final():.1f}</span></td>'
    epochs = run.epochs[-1].number if run.epochs else 0
    told = f'<span class="sr">unfinished, epochs: </span>{epochs}/{run.recipe.epochs}'
    return f'<td><span class="pending">{told}</span></td>'


def _broken(runs: list[Run]) -> str:
    """Return a table of the runs that broke down, with what they said."""
    rows = "".join(
        f'<tr><th scope="row">{escape(run.recipe.name)}</th><td>{run.seed}</td>'
        f'<td class="text">{escape(reason(run))}</td><td>{len(run.epochs)} of {run.recipe.epochs}</td></tr>'
        for run in runs
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in ("recipe", "seed", "what broke", "whole epochs"))
    table = (
        '<table class="broken-runs"><caption class="sr">Runs that broke down</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
    told = "counted as guessing in every mean"
    inside = scroll("Runs that broke down", table)
    return fold(f"{count(len(runs), 'run')} broke down", told, inside, len(runs) <= MOST_BROKEN) if runs else ""


def reason(run: Run) -> str:
    """Return how a run broke down, without the advice that follows in its file."""
    return (run.diverged or "").split(";")[0]


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
            escape(v) + (f" ({count(n, 'run')})" if len(counts) > 1 else "") for v, n in counts.most_common(MOST_FACTS)
        ]
        if len(counts) > MOST_FACTS:
            parts.append(f"and {len(counts) - MOST_FACTS} more")
        items.append(f"<dt>{shown}</dt><dd>{'; '.join(parts)}</dd>")
    if len(known) < len(runs):
        items.append(f"<dt>not recorded</dt><dd>{count(len(runs) - len(known), 'run')}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>'


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
