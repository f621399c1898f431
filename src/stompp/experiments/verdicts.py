"""The parts of the report that judge: the paper's claims, and its tables with ours beside them, as HTML.

Each shows only what has runs, and is empty where no run is one of the paper's experiments, at either scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from stompp.recipes.grids import Scale

from . import comparison
from .catalog import SCALES
from .claims import judge
from .evidence import MARGIN, SURE, Claim, Evidence, Statement, Verdict, how_sure
from .page import caption, diverged, fold, scroll
from .reproduce import _statement, _sure
from .runs import Run

MARKS: dict[Verdict, str] = {"holds": "yes", "does not hold": "no", "undecided": "open", "no runs": "none"}
SHADES = 6
_WIDE = 240  # of the picture of a statement
_STATEMENTS = (
    "Of each statement: the difference in points of accuracy, ± its standard error where both sides have two runs or "
    "more, true above zero; and n, the runs on each side. Single runs give a difference but no confidence."
)


def claims(runs: list[Run]) -> str:
    """Return the verdict on each claim, how sure it is, and the statements behind it."""
    found = [(scale, judge(its, scale)) for scale, its in _by_scale(runs)]
    found = [(scale, judged) for scale, judged in found if any(_has_runs(claim) for claim in judged)]
    if not found:
        return ""
    sure = f"{100 * SURE:.0f}\u00a0%"
    told = (
        "<p>A claim is a few statements “this is above that”, each a one-sided Welch test on final test accuracies of "
        f"the binary view, seeds being the replicates. It <b>holds</b> if every statement is at least {sure} sure, "
        f"<b>does not hold</b> if it is at least {sure} sure that one of them is wrong, however many there are "
        "(Bonferroni), and is <b>undecided</b> otherwise. “At least level” forgives "
        f"{MARGIN:g} point. A run that broke down counts as guessing. The paper's STE has the identity surrogate; "
        "where that matters, the verdict against the strongest STE stands beside. Open a claim to see what it rests "
        "on.</p>"
    )
    return told + "".join(_claims_of(scale, judged, len(found) > 1) for scale, judged in found)


def experiments(runs: list[Run]) -> str:
    """Return the paper's tables: ours, the paper's number, and the difference."""
    found = [(scale, comparison.tables(Evidence(its, scale))) for scale, its in _by_scale(runs)]
    found = [(scale, tables) for scale, tables in found if tables]
    if not found:
        return ""
    small = (
        " At the small scale the paper's number is that of the setting which ours is a small version of, on other "
        "images and a larger net: compare directions, not levels."
        if any(scale == "mini" for scale, _ in found)
        else ""
    )
    told = (
        "<p>Final accuracy of the binary view in percent. Large: ours, mean ± sample standard deviation. Under it: the "
        "paper's number, and in brackets ours minus the paper's. The shade goes from a table's lowest to its highest."
        f"{small}</p>"
    )
    return told + "".join(_experiments_of(scale, tables, len(found) > 1) for scale, tables in found)


def _by_scale(runs: list[Run]) -> Iterator[tuple[Scale, list[Run]]]:
    for scale in SCALES:
        its = [run for run in runs if run.ended and comparison.scale_of(run.recipe, (scale,))]
        if its:
            yield scale, its


def _has_runs(claim: Claim) -> bool:
    return any(s.contrast is not None for s in (*claim.statements, *(claim.strongest or ())))


def _claims_of(scale: Scale, judged: list[Claim], named: bool) -> str:
    counts = Counter(claim.verdict for claim in judged)
    summary = ", ".join(
        f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in MARKS if counts[verdict]
    )
    chips = "".join(
        f'<li><a class="chip {MARKS[c.verdict]}" href="#{scale}-{c.name}"><b>{c.name}</b>'
        f'<span class="sr">: {c.verdict}</span></a></li>'
        for c in judged
    )
    items = "".join(_claim(claim, f"{scale}-{claim.name}") for claim in judged)
    return (
        f'<div class="card claims"><h3>{f"Scale {scale}: " if named else ""}{summary}</h3>'
        f'<ol class="chips" aria-label="Claims">{chips}</ol><p class="note">{_STATEMENTS}</p>'
        '<div class="claim-head" aria-hidden="true"><span>claim</span><span>verdict</span>'
        f"<span>against the strongest STE</span></div>{items}</div>"
    )


def _plural(verdict: Verdict, n: int) -> str:
    return {
        "holds": "holds" if n == 1 else "hold",
        "does not hold": "does not hold" if n == 1 else "do not hold",
        "undecided": "undecided",
        "no runs": "without runs",
    }[verdict]


def _claim(claim: Claim, anchor: str) -> str:
    strong = claim.verdict_on_strongest
    verdicts = _verdict(claim.verdict, claim.statements, "")
    if strong is not None:
        verdicts += _verdict(strong, claim.strongest or (), "against the strongest STE: ")
    else:
        verdicts += '<span class="verdict soft" aria-hidden="true">–</span>'
    groups = [("", claim.statements)]
    if claim.strongest is not None:
        groups = [("Against the paper's STE", claim.statements), ("Against the strongest STE", claim.strongest)]
    reach = max((_reach(s) for _, statements in groups for s in statements), default=0.0) or 1.0
    head = "".join(f'<th scope="col">{h}</th>' for h in ("statement", "verdict", "difference", "sure", "n"))
    body = "".join(
        f"<tbody>{_sub(heading)}{''.join(_line(s, reach) for s in statements)}</tbody>"
        for heading, statements in groups
    )
    table = (
        f'<table class="statements"><caption class="sr">Statements of {claim.name}</caption><thead><tr>{head}'
        f'<th scope="col"><span class="sr">picture</span></th></tr></thead>{body}</table>'
    )
    return (
        f'<details class="claim" id="{anchor}"><summary><span class="name">{claim.name}</span>'
        f'<span class="text">{escape(claim.text)}</span>{verdicts}</summary>'
        f"{scroll(f'Statements of {claim.name}', table)}</details>"
    )


def _sub(heading: str) -> str:
    return f'<tr class="sub"><th scope="rowgroup" colspan="6">{heading}</th></tr>' if heading else ""


def _verdict(verdict: Verdict, statements: tuple[Statement, ...], said: str) -> str:
    """Return a verdict with how sure it is, and what its statements come to."""
    counts = Counter(s.verdict for s in statements)
    told = ", ".join(f"{counts[v]} {_plural(v, counts[v])}" for v in MARKS if counts[v])
    confidence = how_sure(verdict, statements)
    sure = "" if confidence is None else f"{percent(confidence)} sure"
    if sure and verdict == "does not hold":
        sure += " that one is wrong"
    elif sure and verdict == "undecided":
        sure = f"the weakest is {sure}"
    rest = f"<small>{told}{f'; {sure}' if sure else ''}</small>" if verdict != "no runs" else ""
    badge = f'<span class="badge {MARKS[verdict]}">{verdict}</span>'
    return f'<span class="verdict"><span class="sr">{said}</span>{badge}{rest}</span>'


def percent(confidence: float) -> str:
    """Return a confidence that no line break takes apart."""
    return _sure(confidence).replace(" ", "\u00a0")


def _line(statement: Statement, reach: float) -> str:
    text, value, sure, n = (escape(cell) for cell in _statement(statement))
    mark = MARKS[statement.verdict]
    if statement.contrast is None:
        sure = ""
    elif not sure:
        sure = '<span class="soft">single run</span>'
    return (
        f'<tr><th scope="row">{text}</th><td><span class="mark {mark}">{statement.verdict}</span></td>'
        f"<td>{value}</td><td>{sure}</td><td>{n}</td><td>{_picture(statement, reach)}</td></tr>"
    )


def _reach(statement: Statement) -> float:
    c = statement.contrast
    return 0.0 if c is None else abs(c.value) + (c.error or 0.0)


def _picture(statement: Statement, reach: float) -> str:
    """Return a difference with its standard error on an axis that the claim's statements share, zero in the middle."""
    c = statement.contrast
    if c is None:
        return ""
    middle, scale = _WIDE / 2, (_WIDE / 2 - 8) / reach
    x = middle + scale * c.value
    error = ""
    if c.error:
        error = f'<line x1="{x - scale * c.error:.1f}" x2="{x + scale * c.error:.1f}" y1="10" y2="10"/>'
    return (
        f'<svg class="forest {MARKS[statement.verdict]}" viewBox="0 0 {_WIDE} 20" aria-hidden="true">'
        f'<line class="zero" x1="{middle:g}" x2="{middle:g}" y1="0" y2="20"/>{error}'
        f'<circle cx="{x:.1f}" cy="10" r="4"/></svg>'
    )


def _experiments_of(scale: Scale, tables: list[comparison.Table], named: bool) -> str:
    heading = f"<h3>Scale {scale}</h3>" if named else ""
    by_name: dict[str, list[comparison.Table]] = {}
    for table in tables:
        by_name.setdefault(table.experiment.name, []).append(table)
    return heading + "".join(_experiment(scale, its, i == 0) for i, its in enumerate(by_name.values()))


def _experiment(scale: Scale, tables: list[comparison.Table], opened: bool) -> str:
    """Return one experiment's tables, test accuracy first."""
    experiment = tables[0].experiment
    cells = tables[0].cells.values()
    ran = sum(cell.ours.n > 0 for cell in cells)
    told = f"{escape(experiment.source)} · {ran} of {len(cells)} settings have runs"
    links = ", ".join(f'<a href="#{scale}-{claim}">{claim}</a>' for claim in experiment.claims)
    tests = f"Tests {links}. " if links else ""
    curves = f'<a href="#curves" data-show="{experiment.name}">Curves of these runs</a>'
    inside = f'<p class="note">{escape(experiment.question)}. {tests}{curves}.</p>'
    return fold(experiment.name, told, f'{inside}<div class="tables">{"".join(map(_table, tables))}</div>', opened)


def _table(table: comparison.Table) -> str:
    means = [cell.ours.mean for cell in table.cells.values() if cell.ours.mean is not None]
    low, high = min(means), max(means)
    most = max(cell.ours.n for cell in table.cells.values())
    which = "Test accuracy" if table.split == "test" else "Training accuracy"
    head = "".join(_column(table, column) for column in table.columns)
    body = []
    for row in table.rows:
        cells = "".join(_cell(table.cells.get((row, column)), low, high, most) for column in table.columns)
        body.append(f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>')
    said = escape("; ".join(table.notes))
    notes = f'<p class="note">Of the paper\'s numbers: {said}.</p>' if said else ""
    told = f"n = {most}" + (" unless said otherwise" if any(0 < c.ours.n < most for c in table.cells.values()) else "")
    shown = scroll(
        f"{which} of {table.experiment.name}",
        f'<table class="paper">{caption(f"{which}, %", told)}<thead><tr><th scope="col">{_rows_are(table)}</th>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table>",
    )
    return f"<div>{shown}{notes}</div>"


def _rows_are(table: comparison.Table) -> str:
    return "schedule" if table.experiment.name.startswith("refresh") else "rule"


def _column(table: comparison.Table, column: str) -> str:
    theirs = table.paper_column(column)
    beside = "" if theirs in (None, "paper") else f"<small>{escape(theirs or '')}</small>"
    return f'<th scope="col">{escape(column)}{beside}</th>'


def _cell(cell: comparison.Cell | None, low: float, high: float, most: int) -> str:
    if cell is None:
        return "<td></td>"
    score = cell.ours
    if score.mean is None:
        ours, shade = '<span class="soft" aria-label="not run">–</span>', ""
    else:
        spread = "" if score.sd is None else f" <small>± {score.sd:.1f}</small>"
        fewer = f" <small>n = {score.n}</small>" if score.n < most else ""
        ours = f"<b>{score.mean:.1f}</b>{spread}{fewer}{diverged(score)}"
        level = round(SHADES * (score.mean - low) / (high - low)) if high > low else 0
        shade = f' class="h{level}"'
    return f"<td{shade}>{ours}{_theirs(cell)}</td>"


def _theirs(cell: comparison.Cell) -> str:
    if cell.paper is None:
        return ""
    gap = ""
    if cell.difference is not None:
        gap = f' (<span class="sr">difference </span>{cell.difference:+.1f})'.replace("-", "−")
    return f'<small class="theirs">paper {comparison.shown(cell.paper.accuracy)}{gap}</small>'
