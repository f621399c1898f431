"""The paper's tables from runs: ours, the paper's number, and the difference, in Markdown, LaTeX and CSV.

`paper.csv` is the only place where the paper's numbers stand. A cell of a table is a setting, so a small run stands
beside the paper's number for the setting it is a small version of; how far apart the two are is told, not explained.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stompp.recipes import Recipe, paper
from stompp.recipes.grids import Scale, Spec

from .catalog import EXPERIMENTS, Experiment, net
from .evidence import Evidence
from .results import Score
from .tables import spread


@dataclass(frozen=True)
class PaperNumber:
    """An accuracy in the paper, in percent."""

    accuracy: float
    note: str


@dataclass(frozen=True)
class Cell:
    """One setting in one table."""

    spec: Spec
    recipe: Recipe
    row: str
    column: str
    split: str
    ours: Score
    paper: PaperNumber | None

    @property
    def difference(self) -> float | None:
        """Return ours minus the paper's."""
        return None if self.paper is None or self.ours.mean is None else self.ours.mean - self.paper.accuracy


@dataclass(frozen=True)
class Table:
    """One table of an experiment, on test or on training accuracy."""

    experiment: Experiment
    split: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]  # by (row, column)

    @property
    def title(self) -> str:
        """Return a line to put over it."""
        which = "Test" if self.split == "test" else "Training"
        return f"{which} accuracy of the binary view in percent: {self.experiment.question}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what has to be said of the paper's numbers."""
        found = (f"{c.row}, {c.column}: {c.paper.note}" for c in self.cells.values() if c.paper and c.paper.note)
        return tuple(dict.fromkeys(found))

    def paper_column(self, column: str) -> str | None:
        """Return what the paper's numbers beside a column are of, None if it has none."""
        for (_, at), cell in self.cells.items():
            if at == column and cell.paper:
                theirs = paper.recipe(cell.spec)
                same = (theirs.model, theirs.data) == (cell.recipe.model, cell.recipe.data)
                return "paper" if same else f"paper, {net(cell.spec, theirs)}, {theirs.data}"
        return None


@cache
def paper_numbers() -> dict[tuple[str, str, str], PaperNumber]:
    """Return the paper's numbers by (experiment, recipe, split)."""
    text = resources.files("stompp.experiments").joinpath("paper.csv").read_text()
    return {
        (line["experiment"], line["recipe"], line["split"]): PaperNumber(float(line["accuracy"]), line["note"])
        for line in csv.DictReader(io.StringIO(text))
    }


def tables(evidence: Evidence, names: Iterable[str] = EXPERIMENTS) -> list[Table]:
    """Return the tables of the experiments that have any finished run."""
    found = []
    for name in names:
        experiment = EXPERIMENTS[name]
        for split in ("test", "train") if experiment.train else ("test",):
            made = table(experiment, evidence, split)
            if any(cell.ours.n for cell in made.cells.values()):
                found.append(made)
    return found


def table(experiment: Experiment, evidence: Evidence, split: str = "test") -> Table:
    """Return one table, its empty cells included."""
    cells = {}
    for spec, recipe in experiment.recipes(evidence.scale).items():
        row, column = experiment.row(spec, recipe), experiment.column(spec, recipe)
        ours = Score.of(evidence.runs(spec), split)
        cells[row, column] = Cell(spec, recipe, row, column, split, ours, _paper_number(experiment, spec, split))
    rows = tuple(dict.fromkeys(row for row, _ in cells))
    columns = tuple(dict.fromkeys(column for _, column in cells))
    return Table(experiment, split, rows, columns, cells)


def _paper_number(experiment: Experiment, spec: Spec, split: str) -> PaperNumber | None:
    if spec.wide:  # a setting of our own
        return None
    return paper_numbers().get((experiment.name, paper.recipe(spec).name, split))


def markdown(table: Table) -> str:
    """Return the table for a page: the paper's number and the difference beside ours, where there is one."""
    head, rule = ["accuracy in %" if table.split == "test" else "training accuracy in %"], ["---"]
    for column in table.columns:
        theirs = table.paper_column(column)
        head += [column, *((theirs, "difference") if theirs else ())]
        rule += ["---:"] * (3 if theirs else 1)
    lines = [_line(head), _line(rule)]
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            cell = table.cells.get((row, column))
            cells.append(_ours(cell, table))
            if table.paper_column(column):
                cells += _theirs(cell)
        lines.append(_line(cells))
    counts = sorted({c.ours.n for c in table.cells.values() if c.ours.n})
    lines += ["", f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "") + "." if counts else "n = 0."]
    lines += [f"Of the paper's numbers: {note}." for note in table.notes]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """Return the table for a paper, in booktabs' style."""
    head, layout = [""], "l"
    for column in table.columns:
        theirs = table.paper_column(column)
        head += [column, *((theirs, "$\\Delta$") if theirs else ())]
        layout += "rrr" if theirs else "r"
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(table.title)}. Mean $\\pm$ standard deviation over seeds.}}",
        f"\\begin{{tabular}}{{{layout}}}",
        "\\toprule",
        " & ".join(h if h.startswith("$") else _tex(h) for h in head) + " \\\\",
        "\\midrule",
    ]
    for row in table.rows:
        cells = [_tex(row)]
        for column in table.columns:
            cell = table.cells.get((row, column))
            cells.append(_tex(_ours(cell, table)))
            if table.paper_column(column):
                cells += [text.replace("−", "$-$").replace("+", "$+$") for text in _theirs(cell)]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def tidy(tables: Iterable[Table]) -> str:
    """Return every cell as a row of CSV, to go on with in other tools."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["experiment", "row", "column", "recipe", "split", "n", "mean", "sd", "values", "paper", "difference"]
    )
    for table in tables:
        for cell in table.cells.values():
            if not cell.ours.n and cell.paper is None:
                continue
            writer.writerow(
                [
                    table.experiment.name,
                    cell.row,
                    cell.column,
                    cell.recipe.name,
                    cell.split,
                    cell.ours.n,
                    _number(cell.ours.mean),
                    _number(cell.ours.sd),
                    " ".join(f"{v:.2f}" for v in cell.ours.values),
                    "" if cell.paper is None else f"{cell.paper.accuracy:g}",
                    _number(cell.difference),
                ]
            )
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _ours(cell: Cell | None, table: Table) -> str:
    if cell is None or not cell.ours.n:
        return "" if cell is None else "—"
    most = max(c.ours.n for c in table.cells.values())
    return spread(cell.ours) + (f" (n = {cell.ours.n})" if cell.ours.n != most and cell.ours.n > 1 else "")


def _theirs(cell: Cell | None) -> list[str]:
    if cell is None or cell.paper is None:
        return ["", ""]
    difference = cell.difference
    return [shown(cell.paper.accuracy), "" if difference is None else f"{difference:+.1f}".replace("-", "−")]


def shown(accuracy: float) -> str:
    """Write a number of the paper with the digits that it has there: one after the point, once two.

    >>> shown(37.0), shown(9.85)
    ('37.0', '9.85')
    """
    text = f"{accuracy:.1f}"
    return text if float(text) == accuracy else f"{accuracy:g}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "—": "---",
}


def _tex(text: str) -> str:
    return text.translate(str.maketrans(_TEX))


def scale_of(recipe: Recipe, scales: Iterable[Scale] = ("paper", "mini")) -> Scale | None:
    """Return the scale whose experiments hold a recipe."""
    for scale in scales:
        if recipe in _all_recipes(scale):
            return scale
    return None


@cache
def _all_recipes(scale: Scale) -> frozenset[Recipe]:
    return frozenset(recipe for e in EXPERIMENTS.values() for recipe in e.recipes(scale).values())
