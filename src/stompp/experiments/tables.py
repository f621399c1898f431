"""Parts of the published pages, made from runs and never typed: how numbers are told, tables, marks to fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stompp.errors import UsageError
from stompp.training.folder import write_atomically

from .results import Score
from .runs import Found, Run

_ENVIRONMENT = ("device", "cpu", "threads", "stompp", "commit", "torch", "python")
_PLATFORM = ("device", "CPU", "threads of a run", "stompp", "commit", "PyTorch", "Python", "runs", "time")


def spread(score: Score) -> str:
    """Return mean ± sd in percent; one run has no spread. Runs that broke down count as guessing, and are told.

    >>> spread(Score((50.0, 52.0))), spread(Score((50.0,))), spread(Score(()))
    ('51.0 ± 1.4', '50.0', '—')
    >>> spread(Score((10.0, 10.0), diverged=2)), spread(Score((10.0, 30.0), diverged=1))
    ('10.0, diverged', '20.0 ± 14.1, 1 of 2 diverged')
    """
    if score.mean is None:
        return "—"
    if score.diverged == score.n:
        return f"{score.mean:.1f}, diverged"
    told = f", {score.diverged} of {score.n} diverged" if score.diverged else ""
    return f"{score.mean:.1f}" + ("" if score.sd is None else f" ± {score.sd:.1f}") + told


def told_n(counts: Iterable[int]) -> str:
    """Say how many runs are behind each of some numbers, leaving out those with none.

    >>> told_n([3, 3]), told_n([1, 3, 0]), told_n([])
    ('n = 3', 'n = 1 to 3', 'n = 0')
    """
    some = sorted({n for n in counts if n}) or [0]
    return f"n = {some[0]}" if len(some) == 1 else f"n = {some[0]} to {some[-1]}"


def told_seeds(seeds: Iterable[int]) -> str:
    """Say which seeds runs have.

    >>> told_seeds([0, 0]), told_seeds([0, 1, 2]), told_seeds([0, 4])
    ('seed 0', 'seeds 0 to 2', 'seeds 0, 4')
    """
    some = sorted(set(seeds))
    if len(some) == 1:
        return f"seed {some[0]}"
    in_a_row = len(some) > 2 and some == list(range(some[0], some[-1] + 1))
    return "seeds " + (f"{some[0]} to {some[-1]}" if in_a_row else ", ".join(map(str, some)))


def told_time(runs: Iterable[Run]) -> str:
    """Say how long runs were at training and evaluation, added up."""
    seconds = sum(run.seconds for run in runs)
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], layout: str = "") -> str:
    """Return a table; `layout` has l or r for each column, else the first is set to the left and the rest to the right.

    >>> print(markdown(["net", "n"], [["ResNet-8", "3"]]))
    | net | n |
    | --- | ---: |
    | ResNet-8 | 3 |
    """
    align = ["---:" if side == "r" else "---" for side in layout or "l" + "r" * (len(head) - 1)]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in (head, align, *rows))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in escaped)


def provenance(found: Found) -> str:
    """Return what the runs ran on and how long they took, a row for each setup, and what is wrong with their files."""
    setups: dict[tuple[str, ...], list[Run]] = {}
    for run in found.runs:
        if run.ended:
            setup = tuple(str(run.environment.get(name, "unknown")) for name in _ENVIRONMENT)
            setups.setdefault(setup, []).append(run)
    most_first = sorted(setups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [[*setup, str(len(runs)), told_time(runs)] for setup, runs in most_first]
    parts = [markdown(_PLATFORM, rows, "l" * len(_ENVIRONMENT) + "rr")]
    if len({setup[0] for setup in setups}) > 1:
        parts.append(
            "The runs come from more than one device. The recipe decides the order of the images and every mask, "
            "wherever it runs; sums are rounded differently, so that the same seed on another device is another sample "
            "of the same experiment."
        )
    parts.append("Times are added up over the runs, several of which shared a device.")
    if unfinished := sum(not run.ended for run in found.runs):
        parts.append(f"Not ended, and counted nowhere: {unfinished}.")
    parts += [f"Note: {note}" for note in found.notes]
    return "\n\n".join(parts)


def fill(page: Path, sections: Mapping[str, str]) -> None:
    """Put each section's text between its marks `<!-- results:NAME -->` and `<!-- /results:NAME -->` on a page."""
    text = page.read_text(encoding="utf-8")
    for name, content in sections.items():
        begin, end = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise UsageError(f"{page} needs the marks {begin} and {end}, once each and in this order")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{content.strip()}\n{end}{rest.split(end)[1]}"
    write_atomically(page, text)
