"""`stompp reproduce`: train an experiment's runs, then write its tables, its figures and the verdicts on its claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

from stompp.errors import UsageError
from stompp.recipes.grids import Scale
from stompp.training.folder import write_atomically

from . import comparison
from .catalog import EXPERIMENTS, get
from .claims import CLAIMS
from .evidence import Claim, Evidence, Statement, Verdict, how_sure
from .figures import NoMatplotlib, figures_of
from .grid import Job
from .runs import Run, read_run
from .tables import markdown, spread

EVERY = "all"


def chosen(names: Sequence[str]) -> list[str]:
    """Return the experiments that names on a command line mean."""
    if EVERY in names:
        return list(EXPERIMENTS)
    return list(dict.fromkeys(get(name).name for name in names))


def listing(console: Console) -> None:
    """Print every experiment: what it is in the paper, what it asks, and how many runs it takes."""
    table = Grid(Column("experiment", no_wrap=True), "", box=None, show_header=False)  # its name has to be typed
    for e in EXPERIMENTS.values():
        mini, paper = (len(e.jobs(scale)) for scale in ("mini", "paper"))
        tested = f"tests {', '.join(e.claims)}; " if e.claims else ""
        told = f"{tested}{mini} runs at scale mini, {paper} at scale paper"
        table.add_row(f"[bold]{e.name}", f"{e.source[0].upper()}{e.source[1:]}\n{e.question}\n[dim]{told}[/dim]\n")
    console.print(table, highlight=False)
    console.print("Runs are recipes with 1 to 3 seeds; what several experiments need is trained once.", style="dim")


def on_disk(scale: Scale, runs: Path) -> list[Job]:
    """Return every run of any experiment at a scale that has a folder, whichever command trained it.

    Tables and claims are made of all of them: a claim may need the runs of two experiments.
    """
    found = []
    for recipe in dict.fromkeys(recipe for e in EXPERIMENTS.values() for recipe in e.recipes(scale).values()):
        seeds = (path.name.removeprefix("seed") for path in (runs / recipe.name).glob("seed*"))
        found += [Job(recipe, seed) for seed in sorted(int(s) for s in seeds if s.isdecimal())]
    return found


def finished(jobs: Iterable[Job], runs: Path, console: Console) -> list[Run]:
    """Return the runs among the jobs that have a result, and say what is left out because it is damaged."""
    found = []
    for job in dict.fromkeys(jobs):
        folder = job.folder(runs)
        if not folder.done and folder.divergence() is None:
            continue
        try:
            folder.refuse_others(job.recipe, job.seed)
            run = read_run(folder.path)
        except UsageError as error:
            _tell(f"{job} was left out: {error}", console)
            continue
        for note in run.notes:
            _tell(f"{job}: {note}", console)
        if run.ended:
            found.append(run)
    return found


def _tell(text: str, console: Console) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def write(names: Sequence[str], scale: Scale, runs: Iterable[Run], out: Path, console: Console) -> list[Path]:
    """Write the experiments' tables and figures, print tables and verdicts; return the files written."""
    evidence = Evidence(runs, scale)
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {out} ({error.strerror}); choose another one with --out") from None
    for name in names:
        tables = comparison.tables(evidence, [name])
        if not tables:
            console.print(f"{name}: no finished runs yet", highlight=False)
            continue
        for ending, text in (
            ("md", "\n".join(comparison.markdown(table) for table in tables)),
            ("tex", "\n".join(comparison.latex(table) for table in tables)),
            ("csv", comparison.tidy(tables)),
        ):
            written.append(out / f"{name}.{ending}")
            write_atomically(written[-1], text)
        for table in tables:
            _print_table(table, console)
        for claim in (CLAIMS[c](evidence) for c in get(name).claims):
            _print_claim(claim, console)
    return written + (_draw(names, evidence, out, console) if written else [])


def _draw(names: Sequence[str], evidence: Evidence, out: Path, console: Console) -> list[Path]:
    """Draw the experiments' figures, if matplotlib is there."""
    try:
        return [path for figure in figures_of(names) for path in figure(evidence, out)]
    except NoMatplotlib as error:
        _tell(str(error), console)
        return []


def claims_markdown(claims: Iterable[Claim]) -> str:
    """Return the verdicts as a table, and every statement behind them."""
    claims = list(claims)
    lines = [verdicts_markdown(claims), "", "<details><summary>Every statement behind the verdicts</summary>", ""]
    for claim in claims:
        told = dict.fromkeys((*claim.statements, *(claim.strongest or ())))
        rows = (_statement(statement) for statement in told)
        lines += ["", f"**{claim.name}** {claim.text}", "", markdown(["statement", "difference", "sure", "n"], rows)]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def verdicts_markdown(claims: Iterable[Claim]) -> str:
    """Return the verdicts as a table: how sure each is, and the same against the strongest STE."""
    rows = []
    for claim in claims:
        row = [claim.name, claim.text, f"**{claim.verdict}**", _how_sure(claim.verdict, claim.statements)]
        strong = claim.verdict_on_strongest
        row += ["", ""] if strong is None else [f"**{strong}**", _how_sure(strong, claim.strongest or ())]
        rows.append(row)
    return markdown(["claim", "", "verdict", "sure", "against the strongest STE", "sure"], rows, "lllrlr")


def _how_sure(verdict: Verdict, statements: Sequence[Statement]) -> str:
    """Write how sure a verdict is, and for how many statements there are too few runs to be sure of anything."""
    lacking = sum(s.contrast is None or s.contrast.confidence is None for s in statements)
    told = [_sure(how_sure(verdict, statements)), f"{lacking} of {len(statements)} lack runs" if lacking else ""]
    return "; ".join(part for part in told if part)


def _statement(statement: Statement) -> tuple[str, str, str, str]:
    c = statement.contrast
    if c is None:
        return statement.text, "", "no runs", ""
    error = "" if c.error is None else f" ± {c.error:.1f}"
    return (
        statement.text,
        f"{c.value:+.1f}{error}".replace("-", "−"),
        _sure(c.confidence),
        "/".join(map(str, statement.n)),
    )


def _sure(confidence: float | None) -> str:
    """Write a confidence in percent, never rounded up to certainty.

    >>> _sure(0.9996), _sure(0.951), _sure(0.0001), _sure(None)
    ('> 99.9 %', '95.1 %', '< 0.1 %', '')
    """
    if confidence is None:
        return ""
    if confidence > 0.999:
        return "> 99.9 %"
    return "< 0.1 %" if confidence < 0.001 else f"{100 * confidence:.1f} %"


def _print_table(table: comparison.Table, console: Console) -> None:
    shown = Grid("", title=f"{table.experiment.name}: {table.title}", title_justify="left", box=None)
    for column in table.columns:
        shown.add_column(column, justify="right")
        if theirs := table.paper_column(column):
            shown.add_column(theirs, justify="right", style="dim")
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            cell = table.cells.get((row, column))
            cells.append("" if cell is None else spread(cell.ours) + (f" ({cell.ours.n})" if cell.ours.n > 1 else ""))
            if table.paper_column(column):
                cells.append("" if cell is None or cell.paper is None else comparison.shown(cell.paper.accuracy))
        shown.add_row(*cells)
    console.print(shown)
    console.print()


def _print_claim(claim: Claim, console: Console) -> None:
    sure = _sure(how_sure(claim.verdict, claim.statements))
    of = "that a statement is wrong" if claim.verdict == "does not hold" else "of the weakest statement"
    told = f"{claim.name} {claim.verdict}" + (f" ({sure} sure {of})" if sure else "")
    if claim.verdict_on_strongest is not None:
        told += f"; against the strongest STE: {claim.verdict_on_strongest}"
    console.print(f"{told}: {claim.text}", highlight=False)
