"""Tables in Markdown, made from run folders and never typed: final accuracies with n, mean and standard deviation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from stompp.errors import UsageError
from stompp.training.folder import write_atomically

from .results import Gain, Group, Score, group
from .runs import Found, Run, find_runs


def table(groups: Iterable[Group]) -> str:
    """Return a table per net: a row per rule, test and training accuracy of the binary view, the gain over STE."""
    parts = []
    for one in groups:
        parts += [f"### {one.title}", "", f"{one.settings}.", ""]
        parts += [
            "| rule | n | test accuracy | training accuracy | over STE (identity) | over the strongest STE |",
            "|---|---|---|---|---|---|",
        ]
        for row in one.rows:
            training = Score.of(row.runs, "train")
            cells = (
                row.label,
                str(row.score.n),
                spread(row.score),
                spread(training),
                difference(row.gain),
                difference(row.gain_over_best),
            )
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


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


def difference(gain: Gain | None) -> str:
    """Return a difference of means with its standard error, if both have one.

    >>> difference(Gain(3.14, 0.5, "STE")), difference(None)
    ('+3.1 ± 0.5', '')
    """
    if gain is None:
        return ""
    return f"{gain.difference:+.1f}" + ("" if gain.error is None else f" ± {gain.error:.1f}")


def provenance(found: Found) -> str:
    """Return what the runs ran on, and how long they took."""

    def each(name: str, runs: list[Run]) -> str:
        values = Counter(str(run.environment.get(name, "unknown")) for run in runs)
        return ", ".join(value if len(values) == 1 else f"{value} ({n})" for value, n in values.most_common())

    runs = [run for run in found.runs if run.ended]
    hours = sum(run.seconds for run in runs) / 3600
    lines = [
        f"- {len(runs)} runs, {hours:.1f} hours of training and evaluation in all",
        f"- CPU: {each('cpu', runs)}; device: {each('device', runs)}; threads per run: {each('threads', runs)}",
        f"- stompp {each('stompp', runs)} (commit {each('commit', runs)}), PyTorch {each('torch', runs)}, "
        f"Python {each('python', runs)}",
    ]
    return "\n".join(lines + [f"- note: {note}" for note in found.notes]) + "\n"


def fill(page: Path, sections: dict[str, str]) -> None:
    """Put each section's text between its marks `<!-- results:NAME -->` and `<!-- /results:NAME -->` on a page."""
    text = page.read_text()
    for name, content in sections.items():
        begin, end = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise UsageError(f"{page} needs the marks {begin} and {end}, once each and in this order")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{content.strip()}\n{end}{rest.split(end)[1]}"
    write_atomically(page, text)


def publish(results: Path, page: Path, readme: Path | None = None) -> None:
    """Write the tables of a results folder into the results page, and the headline's into the README."""
    found = find_runs([results])
    groups = group(found.runs)
    fill(page, {"tables": table(groups), "provenance": provenance(found)})
    if readme is not None:
        fill(readme, {"readme": headline(groups)})


def headline(groups: list[Group]) -> str:
    """Return a small table of the plain rules on every net: nets as columns."""
    rules = ("float (ReLU)", "STE (identity)", "STE (clip)", "STE (ApproxSign)", "StoMPP")
    cells = {(row.label, one.title): row.score for one in groups for row in one.rows}
    nets = [one.title for one in groups if any(cells.get((rule, one.title)) for rule in rules)]
    rows = [
        f"| {rule} | " + " | ".join(spread(cells.get((rule, net), Score(()))) for net in nets) + " |"
        for rule in rules
        if any((rule, net) in cells for net in nets)
    ]
    counts = {score.n for (rule, _), score in cells.items() if rule in rules}
    n = f"n = {min(counts)}" if len(counts) == 1 else f"n = {min(counts)} to {max(counts)}"
    head = [f"| test accuracy in %, {n} | " + " | ".join(nets) + " |", "|---" * (len(nets) + 1) + "|"]
    return "\n".join(head + rows)
