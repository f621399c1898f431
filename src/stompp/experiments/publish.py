"""Make the published results again: `python -m stompp.experiments.publish [--collect RUNS]` in the repository's root.

Collects finished runs into results/mini, then writes what they say into docs/results.md and the README: a section for
each experiment, and the figures. Everything between marks is made here; the words around it are the page's own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from stompp.data.catalog import shape_of, train_images_of
from stompp.errors import UsageError
from stompp.recipes import Recipe, paper
from stompp.recipes.grids import RESNETS, STES, Scale, Spec

from . import comparison
from .catalog import EXPERIMENTS, Experiment, net, recipe_of
from .claims import CLAIMS
from .collect import collect
from .evidence import Evidence
from .figures import FIGURES, README, Figure, figures_of
from .reproduce import claims_markdown, verdicts_markdown
from .results import Score, rule
from .runs import Found, find_runs
from .tables import fill, markdown, provenance, spread, told_n, told_time

SCALE: Scale = "mini"

# The first trial of the method on these nets, before this program was written: one seed, its settings as noted then.
TRIAL_IMAGES, TRIAL_REFRESH = 40_000, 100
TRIAL = {
    ("resnet18", "float-relu"): 65.8,
    ("resnet18", "bnn-ste"): 30.0,
    ("resnet18", "bnn-stompp"): 50.1,
    ("resnet34", "bnn-ste"): 10.0,
    ("resnet34", "bnn-stompp"): 44.8,
}


@dataclass(frozen=True)
class Arguments:
    """Where results are, and what is written from them."""

    collect: Path | None = None
    """folder of runs whose finished ones are copied into the results first"""
    results: Path = Path("results/mini")
    """folder of the results that are kept"""
    page: Path = Path("docs/results.md")
    """page whose marked parts are written"""
    readme: Path = Path("README.md")
    """page that gets the headline table"""
    figures: Path = Path("docs/figures")
    """folder for the figures"""


def main(given: Arguments) -> None:
    """Collect, then write."""
    if given.collect is not None:
        print(f"{len(collect([given.collect], given.results))} runs are new or changed in {given.results}")
    found = find_runs([given.results])
    evidence = Evidence(found.runs, SCALE)
    drawn = [figure for figure in (*FIGURES.values(), README) if figure(evidence, given.figures, ["svg"])]
    lacking = [figure.name for figure in (*FIGURES.values(), README) if figure not in drawn]
    fill(given.page, sections(found, evidence, drawn))
    fill(given.readme, {"readme": headline(evidence)})
    names = ", ".join(figure.name for figure in drawn) or "none"
    print(f"wrote {given.page}, {given.readme}; figures in {given.figures}: {names}")
    if lacking:
        print(f"there are no runs yet for {', '.join(lacking)}")


def sections(found: Found, evidence: Evidence, drawn: Iterable[Figure]) -> dict[str, str]:
    """Return the marked parts of the page by name."""
    drawn = {figure.name for figure in drawn}
    parts = {"claims": verdicts_markdown(judge(evidence) for judge in CLAIMS.values())}
    shown: set[str] = set()
    for name, experiment in EXPERIMENTS.items():
        figures = [figure for figure in figures_of([name]) if figure.name in drawn - shown]
        shown |= {figure.name for figure in figures}
        parts[name] = section(experiment, evidence, figures)
    parts["scale"] = settings(evidence.scale)
    parts["trial"] = trial(evidence)
    parts["provenance"] = provenance(found)
    return parts


def section(experiment: Experiment, evidence: Evidence, figures: Iterable[Figure]) -> str:
    """Return an experiment's part: which runs are there, figures, tables with the paper's numbers, verdicts."""
    parts = [f"In the paper: {experiment.source}. {there(experiment, evidence)}"]
    parts += [f"![{figure.caption}](figures/{figure.name}.svg)" for figure in figures]
    for table in comparison.tables(evidence, [experiment.name]):
        for part in _parts(table):
            which = "Test" if part.split == "test" else "Training"
            parts += [f"{which} accuracy of the binary view:", comparison.markdown(part)]
    if experiment.claims:
        parts.append(claims_markdown(CLAIMS[name](evidence) for name in experiment.claims))
    return "\n\n".join(part.strip() for part in parts)


def there(experiment: Experiment, evidence: Evidence) -> str:
    """Say how many of an experiment's runs are there, which are not, and what they took."""
    recipes = experiment.recipes(evidence.scale)
    runs = {(run.recipe, run.seed): run for spec in recipes for run in evidence.runs(spec)}
    jobs = experiment.jobs(evidence.scale)
    have = Counter(job.seed for job in jobs if (job.recipe, job.seed) in runs)
    wanted = Counter(job.seed for job in jobs)
    if not runs:
        return f"None of its {len(jobs)} runs is there yet."
    if have.total() == len(jobs):
        told = f"All of its {len(jobs)} runs are there"
    else:
        seeds = ", ".join(f"seed {seed}: {have[seed]} of {count}" for seed, count in sorted(wanted.items()))
        told = f"Runs there: {have.total()} of {len(jobs)} ({seeds}); missing: {len(jobs) - have.total()}"
    devices = Counter(str(run.environment.get("device", "unknown")) for run in runs.values())
    each = [f"{n} on {device}" if len(devices) > 1 else device for device, n in devices.most_common()]
    return f"{told}. They took {told_time(runs.values())}, added up, on {', '.join(each)}."


def headline(evidence: Evidence) -> str:
    """Return the plain rules on the nets of growing depth, for the README."""
    specs = [Spec(n, data="cifar10", wide=wide) for wide in (False, True) for n in RESNETS]
    specs = [spec for spec in specs if evidence.runs(spec)]
    if not specs:
        return "No runs yet."
    methods = ("float-relu", *STES, "bnn-stompp")
    scores = {m: [_score(evidence, replace(spec, method=m)) for spec in specs] for m in methods}
    head = [f"test accuracy in %, {told_n(s.n for its in scores.values() for s in its)}", *map(evidence.name, specs)]
    rows = [[_rule(evidence, m), *map(spread, its)] for m, its in scores.items() if any(s.n for s in its)]
    recipe = recipe_of(specs[0], evidence.scale)
    told = f"{recipe.data} ({_pixels(recipe)} pixels), {recipe.epochs} epochs"
    return f"{markdown(head, rows)}\n\nBinary view, mean ± standard deviation over n seeds; {told}."


def settings(scale: Scale) -> str:
    """Return what a scale makes of the paper's settings, net by net."""
    specs = [Spec(n, data="cifar10") for n in RESNETS]
    pairs = [(spec, paper.recipe(spec), recipe_of(spec, scale)) for spec in specs]
    everywhere = [replace(spec, order="global") for spec in specs]
    rows = [
        [name, *(f"{told(theirs)} → {told(ours)}" for _, theirs, ours in pairs)]
        for name, told in {
            "image": _pixels,
            "epochs": lambda r: f"{r.epochs}",
            "batch": lambda r: f"{r.batch_size}",
            "steps": lambda r: f"{r.epochs * (train_images_of(r.data) // r.batch_size):,}",
            "learning rate": lambda r: f"{r.lr:g}",
            "refresh rate, layerwise": lambda r: f"{r.refresh}",
        }.items()
    ]
    rates = (f"{paper.recipe(spec).refresh} → {recipe_of(spec, scale).refresh}" for spec in everywhere)
    head = ["the paper's → ours", *(f"{net(spec, theirs)} → {net(spec, ours)}" for spec, theirs, ours in pairs)]
    return markdown(head, [*rows, ["refresh rate, global", *rates]])


def trial(evidence: Evidence) -> str:
    """Return the rules of the first trial on its two nets, its numbers beside ours, and how the settings differ."""
    specs = [Spec(n, data="cifar10") for n in ("resnet18", "resnet34")]
    rows, counts, head = [], [], [""]
    for spec in specs:
        head += [evidence.name(spec), "first trial", "difference"]
    for method in ("float-relu", "bnn-ste", "bnn-ste-clip", "bnn-stompp"):
        row = [_rule(evidence, method)]
        for spec in specs:
            score, then = _score(evidence, replace(spec, method=method)), TRIAL.get((spec.net, method))
            counts.append(score.n)
            row += [spread(score), "" if then is None else f"{then:.1f}"]
            row.append("" if then is None or score.mean is None else f"{score.mean - then:+.1f}".replace("-", "−"))
        rows.append(row)
    head[0] = f"test accuracy in %, {told_n(counts)}"
    recipe = recipe_of(specs[0], evidence.scale)
    images = train_images_of(recipe.data)
    rates = " and ".join(f"{recipe_of(s, evidence.scale).refresh} on {evidence.name(s)}" for s in specs)
    told = (
        f"The first trial had one seed. It trained on {TRIAL_IMAGES:,} of the images, ours on all {images:,}: "
        f"{images / TRIAL_IMAGES - 1:.0%} more steps in the same epochs, and more to learn from. It redrew one mask "
        f"entry in {TRIAL_REFRESH} each step, whatever the net; ours one in {rates}, so that a mask is redrawn as "
        f"often over its site's window as in the paper. Nets, epochs ({recipe.epochs}), batch ({recipe.batch_size}) "
        f"and learning rate ({recipe.lr:g}) are the same. How its images were augmented was not noted; ours are "
        f"cropped from a padding of {recipe.crop_pad} pixels{' and mirrored at random' if recipe.flip else ''}."
    )
    return f"{markdown(head, rows)}\n\n{told}"


def _parts(table: comparison.Table) -> list[comparison.Table]:
    """Split off the columns of the wider nets, which the paper has not: side by side they are too many to read."""
    wide = {column for (_, column), cell in table.cells.items() if cell.spec.wide}
    parts = []
    for chosen in (set(table.columns) - wide, wide):
        cells = {at: cell for at, cell in table.cells.items() if at[1] in chosen}
        if any(cell.ours.n for cell in cells.values()):
            columns = tuple(column for column in table.columns if column in chosen)
            rows = tuple(row for row in table.rows if any(at[0] == row for at in cells))
            parts.append(replace(table, rows=rows, columns=columns, cells=cells))
    return parts


def _rule(evidence: Evidence, method: str) -> str:
    return rule(recipe_of(Spec(method=method), evidence.scale))


def _pixels(recipe: Recipe) -> str:
    return "×".join(map(str, shape_of(recipe.data)[0][1:]))


def _score(evidence: Evidence, spec: Spec) -> Score:
    return Score.of(evidence.runs(spec))


if __name__ == "__main__":
    try:
        main(tyro.cli(Arguments))
    except UsageError as error:
        sys.exit(f"stompp: {error}")
