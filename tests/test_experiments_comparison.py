"""The paper's tables from made-up runs, to the cell: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import statistics
from dataclasses import replace

import pytest

from stompp.experiments.catalog import EXPERIMENTS, SCALES, Experiment
from stompp.experiments.comparison import (
    PaperNumber,
    Table,
    latex,
    markdown,
    paper_numbers,
    scale_of,
    table,
    tables,
    tidy,
)
from stompp.experiments.evidence import Evidence
from stompp.experiments.runs import Epoch, Run
from stompp.recipes import Recipe, get, mini, paper
from stompp.recipes.grids import Scale, Spec
from test_experiments_claims import ended, recipe_at

BROKE = "the loss is not finite at step 7"


def accuracies(spec: Spec, *values: float, scale: Scale = "mini") -> list[Run]:
    return [ended(recipe_at(spec, scale), seed, value) for seed, value in enumerate(values)]


def broken(spec: Spec, *seeds: int, scale: Scale = "mini") -> list[Run]:
    """Return runs that broke down at an accuracy that must appear nowhere."""
    return [ended(recipe_at(spec, scale), seed, 66.6, diverged=BROKE) for seed in seeds]


def lr_runs() -> list[Run]:
    """Return runs of the table of learning rates: whole cells, one seed, broken down, and none."""
    return [
        *accuracies(Spec(lr=0.1), 50.0, 52.0, 54.0),
        *accuracies(Spec(lr=0.05), 51.25),
        *accuracies(Spec(lr=0.001), 30.0, 31.0),
        *accuracies(Spec(method="bnn-ste", lr=0.1), 40.0, 41.0),
        *broken(Spec(method="bnn-ste", lr=0.1), 2),
        *broken(Spec(method="bnn-ste", lr=0.05), 0, 1, 2),
        *accuracies(Spec(method="bnn-ste-clip", lr=0.01), 44.0, 45.0, 46.0),
    ]


@pytest.fixture
def by_lr() -> Table:
    return table(EXPERIMENTS["lr"], Evidence(lr_runs(), "mini"))


def grid_of(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_markdown_is_right_to_the_cell(by_lr: Table) -> None:
    text = markdown(by_lr)
    of_paper = "paper, ResNet-18, cifar100"
    assert grid_of(text) == [
        ["accuracy in %", "lr 0.001", of_paper, "difference", "lr 0.01", of_paper, "difference",
         "lr 0.05", of_paper, "difference", "lr 0.1", of_paper, "difference"],
        ["---", *["---:"] * 12],
        ["STE (identity)", "—", "10.4", "", "—", "30.9", "",
         "10.0, diverged", "46.8", "−36.8", "30.3 ± 17.6, 1 of 3 diverged", "48.9", "−18.6"],
        ["STE (clip)", "—", "", "", "45.0 ± 1.0", "", "", "—", "", "", "—", "", ""],
        ["STE (ApproxSign)", *["—", "", ""] * 4],
        ["StoMPP", "30.5 ± 0.7 (n = 2)", "33.2", "−2.7", "—", "51.5", "",
         "51.2", "54.2", "−3.0", "52.0 ± 2.0", "53.8", "−1.8"],
    ]  # fmt: skip
    assert text.endswith("|\n\nn = 1 to 3.\n")


def test_latex_is_right_to_the_cell(by_lr: Table) -> None:
    lines = latex(by_lr).splitlines()
    assert lines[:2] == ["\\begin{table}", "\\centering"]
    assert lines[2] == (
        "\\caption{Test accuracy of the binary view in percent: How much the learning rate matters. "
        "Mean $\\pm$ standard deviation over seeds.}"
    )
    assert lines[3] == "\\begin{tabular}{lrrrrrrrrrrrr}"
    head = " & ".join(
        f"lr {rate} & paper, ResNet-18, cifar100 & $\\Delta$" for rate in ("0.001", "0.01", "0.05", "0.1")
    )
    assert lines[4:7] == ["\\toprule", f" & {head} \\\\", "\\midrule"]
    assert lines[7:11] == [
        "STE (identity) & --- & 10.4 &  & --- & 30.9 &  & 10.0, diverged & 46.8 & $-$36.8 & "
        "30.3 $\\pm$ 17.6, 1 of 3 diverged & 48.9 & $-$18.6 \\\\",
        "STE (clip) & --- &  &  & 45.0 $\\pm$ 1.0 &  &  & --- &  &  & --- &  &  \\\\",
        "STE (ApproxSign) & --- &  &  & --- &  &  & --- &  &  & --- &  &  \\\\",
        "StoMPP & 30.5 $\\pm$ 0.7 (n = 2) & 33.2 & $-$2.7 & --- & 51.5 &  & 51.2 & 54.2 & $-$3.0 & "
        "52.0 $\\pm$ 2.0 & 53.8 & $-$1.8 \\\\",
    ]
    assert lines[11:] == ["\\bottomrule", "\\end{tabular}", "\\end{table}"]


def test_csv_is_right_to_the_cell(by_lr: Table) -> None:
    text = tidy([by_lr])
    head, *rows = csv.reader(io.StringIO(text))
    assert ",".join(head) == "experiment,row,column,recipe,split,n,mean,sd,values,paper,difference"
    ste, stompp = "resnet8-cifar10-16-bnn-ste", "resnet8-cifar10-16-bnn-stompp"
    assert rows == [
        ["lr", "STE (identity)", "lr 0.001", f"{ste}-lr0.001", "test", "0", "", "", "", "10.4", ""],
        ["lr", "STE (identity)", "lr 0.01", f"{ste}-lr0.01", "test", "0", "", "", "", "30.9", ""],
        ["lr", "STE (identity)", "lr 0.05", f"{ste}-lr0.05", "test", "3", "10.000", "0.000", "10.00 10.00 10.00",
         "46.8", "-36.800"],
        ["lr", "STE (identity)", "lr 0.1", ste, "test", "3", "30.333", "17.616", "40.00 41.00 10.00", "48.9",
         "-18.567"],
        ["lr", "STE (clip)", "lr 0.01", f"{ste}-clip-lr0.01", "test", "3", "45.000", "1.000", "44.00 45.00 46.00",
         "", ""],
        ["lr", "StoMPP", "lr 0.001", f"{stompp}-lr0.001", "test", "2", "30.500", "0.707", "30.00 31.00", "33.2",
         "-2.700"],
        ["lr", "StoMPP", "lr 0.01", f"{stompp}-lr0.01", "test", "0", "", "", "", "51.5", ""],
        ["lr", "StoMPP", "lr 0.05", f"{stompp}-lr0.05", "test", "1", "51.250", "", "51.25", "54.2", "-2.950"],
        ["lr", "StoMPP", "lr 0.1", stompp, "test", "3", "52.000", "2.000", "50.00 52.00 54.00", "53.8", "-1.800"],
    ]  # fmt: skip
    assert statistics.stdev([40, 41, 10]) == pytest.approx(17.616, abs=1e-3)


def test_values_come_by_seed_and_only_of_runs_that_ended() -> None:
    spec = Spec(lr=0.01)
    runs = [*reversed(accuracies(spec, 20.0, 21.0)), ended(mini.recipe(spec), 2, 90.0, done=False)]
    (row,) = [r for r in csv.reader(io.StringIO(tidy([made("lr", runs)]))) if r[3].endswith("stompp-lr0.01")]
    assert row[5:9] == ["2", "20.500", "0.707", "20.00 21.00"]


def made(name: str, runs: list[Run], scale: Scale = "mini", split: str = "test") -> Table:
    return table(EXPERIMENTS[name], Evidence(runs, scale), split)


def test_n_is_told_once_where_it_is_the_same() -> None:
    assert "\n\nn = 2.\n" in markdown(made("lr", accuracies(Spec(), 50.0, 51.0)))
    text = markdown(made("lr", []))
    assert text.endswith("\n\nn = 0.\n")
    assert {cell for row in grid_of(text)[2:] for cell in row[1::3]} == {"—"}


def test_training_accuracy_is_a_table_of_its_own() -> None:
    spec = Spec("resnet34", "bnn-hybrid-aw")

    def both(test: float, train: float) -> Run:
        run = ended(mini.recipe(spec), 0, test)
        scores = {**run.epochs[0].accuracy, ("train", "binary"): train}
        return replace(run, epochs=[replace(run.epochs[0], accuracy=scores)])

    test, train = tables(Evidence([both(41.0, 67.0)], "mini"), ["hybrids"])
    assert (test.split, train.split) == ("test", "train")
    for found, head, ours, theirs in (
        (test, "accuracy in %", "41.0", ["40.9", "+0.1"]),
        (train, "training accuracy in %", "67.0", ["67.6", "−0.6"]),
    ):
        grid = grid_of(markdown(found))
        assert grid[0][0] == head
        (row,) = [row for row in grid if row[0] == "hybrid A/W"]
        column = grid[0].index("ResNet-20")
        assert row[column : column + 3] == [ours, *theirs]
    assert test.title.startswith("Test accuracy of the binary view")
    assert train.title.startswith("Training accuracy of the binary view")
    assert "67.0" not in markdown(test)


def test_run_that_broke_down_counts_as_guessing_in_training_too() -> None:
    found = made("ordering", broken(Spec(order="reverse"), 0), split="train")
    cell = found.cells["BNN, reverse, stochastic", "ResNet-8"]
    assert (cell.ours.mean, cell.ours.diverged) == (10.0, 1)
    assert cell.paper == PaperNumber(28.4, "the paper calls it a collapse")
    assert cell.difference == pytest.approx(10.0 - 28.4)


def test_tables_are_of_experiments_with_runs() -> None:
    runs = [*accuracies(Spec(lr=0.01), 50.0), *accuracies(Spec("resnet34", "bnn-hybrid-aw"), 40.0)]
    found = tables(Evidence(runs, "mini"))
    assert [(t.experiment.name, t.split) for t in found] == [
        ("hybrids", "test"), ("hybrids", "train"), ("dynamics", "test"), ("lr", "test")
    ]  # fmt: skip
    assert tables(Evidence(runs, "paper")) == []
    assert tables(Evidence(runs, "mini"), ["ovsw"]) == []
    assert [t.experiment.name for t in tables(Evidence(broken(Spec(lr=0.01), 0), "mini"))] == ["lr"]


def test_setting_that_a_net_has_not_is_an_empty_cell() -> None:
    """Hybrids are in global order on one net only."""
    found = made("hybrids", accuracies(Spec(method="bnn-hybrid-aw", order="global"), 33.0))
    grid = grid_of(markdown(found))
    (row,) = [row for row in grid if row[0] == "hybrid A/W, global"]
    ours = [k for k, head in enumerate(grid[0]) if head.startswith("ResNet")]
    assert [row[k] for k in ours] == ["33.0", "", ""]
    assert latex(found).count("hybrid A/W, global & 33.0 &  &  &  &  &  &  &  &  \\\\") == 1


# ---- the paper's numbers beside ours --------------------------------------------------------------------------------


def test_papers_column_tells_what_net_it_is_of() -> None:
    main = made("main", accuracies(Spec("resnet34", "bnn-ste", "cifar10"), 40.0))
    assert main.paper_column("ResNet-20, cifar10-16") == "paper, ResNet-34, cifar10"
    assert main.paper_column("ResNet-20, width 32, cifar10-16") is None
    same = made("main", accuracies(Spec("resnet34", "bnn-ste", "imagenet"), 40.0, scale="paper"), "paper")
    assert same.paper_column("ResNet-34, imagenet") == "paper"
    assert made("ordering", []).paper_column("ResNet-20") is None  # the paper has no ResNet-34 there
    assert made("ordering", []).paper_column("ResNet-32") == "paper, ResNet-50, cifar100"
    assert made("refresh-global", []).paper_column("r = 12") is None  # a figure has no numbers


def test_wide_net_has_no_number_of_the_paper() -> None:
    wide = Spec("resnet18", "bnn-ste", "cifar10", wide=True)
    found = made("main", accuracies(wide, 40.0)).cells["STE (identity)", "ResNet-8, width 32, cifar10-16"]
    assert (found.ours.values, found.paper, found.difference) == ((40.0,), None, None)


def test_paper_scale_with_the_papers_numbers_differs_nowhere() -> None:
    by_name = {recipe.name: recipe for recipe in paper.recipes()}
    for name in {experiment for experiment, _, _ in paper_numbers()}:
        for split in ("test", "train") if EXPERIMENTS[name].train else ("test",):
            numbers = {r: n for (e, r, s), n in paper_numbers().items() if (e, s) == (name, split)}
            runs = []
            for recipe, n in numbers.items():
                run = ended(by_name[recipe], 0, 0.0)
                scores = {**run.epochs[0].accuracy, (split, "binary"): n.accuracy}
                runs.append(replace(run, epochs=[replace(run.epochs[0], accuracy=scores)]))
            found = made(name, runs, "paper", split)
            compared = [cell for cell in found.cells.values() if cell.paper is not None]
            assert len(compared) == len(numbers)
            assert {cell.difference for cell in compared} == {0.0}
            assert {found.paper_column(cell.column) for cell in compared} == {"paper"}


def test_papers_numbers_keep_their_digits_and_its_notes_are_told_once() -> None:
    found = made("ovsw", accuracies(Spec(method="bnn-stompp-ovsw", data="cifar10"), 9.85))
    (row,) = [row for row in grid_of(markdown(found)) if row[0] == "StoMPP + OvSW"]
    assert row[1:] == ["9.8", "9.85", "+0.0"]
    assert "& 9.85 & $+$0.0 \\\\" in latex(found)
    assert ",9.85,0.000\n" in tidy([found])
    notes = [line for line in markdown(found).splitlines() if line.startswith("Of the paper's numbers: ")]
    assert notes == [
        "Of the paper's numbers: STE (identity) + OvSW, ResNet-8, cifar10-16: the text does not name the net.",
        "Of the paper's numbers: StoMPP + OvSW, ResNet-8, cifar10-16: the text does not name the net.",
    ]
    assert "Of the paper's" not in markdown(made("lr", []))


def test_table_has_every_number_of_the_paper() -> None:
    """At both scales: a small run stands beside the number of the setting that it is a small version of."""
    for scale in SCALES:
        for e in EXPERIMENTS.values():
            for split in ("test", "train") if e.train else ("test",):
                numbers = [n for (name, _, s), n in paper_numbers().items() if (name, s) == (e.name, split)]
                if (e.name, scale) == ("main", "mini"):  # which has one data set
                    numbers = [n for (name, r, _), n in paper_numbers().items() if name == "main" and "-cifar10-" in r]
                shown = [c.paper for c in made(e.name, [], scale, split).cells.values() if c.paper is not None]
                assert sorted(n.accuracy for n in shown) == sorted(n.accuracy for n in numbers), (e.name, scale, split)


# ---- formats --------------------------------------------------------------------------------------------------------


def strange(text: str) -> Table:
    """Return a table whose row, column and question have a text in them."""
    odd: Experiment = replace(
        EXPERIMENTS["ovsw"],
        question=text,
        row=lambda spec, recipe: f"{text} {spec.method}",
        column=lambda spec, recipe: text,
    )
    return table(odd, Evidence(accuracies(Spec(data="cifar10"), 50.0, 51.0), "mini"))


def test_latex_escapes_what_latex_would_read() -> None:
    text = latex(strange("50 % of a_1 & b#2 {x} $y$ ~ ^ \\n"))
    told = "50 \\% of a\\_1 \\& b\\#2 \\{x\\} \\$y\\$ \\textasciitilde{} \\textasciicircum{} \\textbackslash{}n"
    assert text.count(told) == 1 + 1 + 7  # caption, column, rows
    body = text.replace("\\textasciitilde{}", "").replace("\\textasciicircum{}", "").replace("\\textbackslash{}", "")
    assert re.search(r"(?<!\\)[%#~^]", body) is None
    rows = [line for line in body.splitlines() if "bnn-" in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {3}
    assert all(line.endswith(" \\\\") for line in rows)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
@pytest.mark.parametrize("scale", SCALES)
def test_every_table_is_whole_in_every_format(scale: Scale, experiment: Experiment) -> None:
    specs = experiment.specs(scale)
    runs = [run for k, spec in enumerate(specs) for run in accuracies(spec, 20 + k / 2, 21 + k / 2, scale=scale)]
    runs += broken(specs[-1], 2, scale=scale)
    for found in tables(Evidence(runs, scale), [experiment.name]):
        grid = grid_of(markdown(found))
        assert {len(row) for row in grid} == {len(grid[0])}
        assert len(grid) == len(found.rows) + 2
        text = latex(found)
        assert text.isascii(), [c for c in text if not c.isascii()]  # whatever the engine, it can print this
        body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
        layout = re.search(r"tabular}{(l[r]+)}", text)
        assert layout is not None
        assert {line.count("&") + 1 for line in body} == {len(layout[1])} == {len(grid[0])}
        rows = list(csv.DictReader(io.StringIO(tidy([found]))))
        assert [r["recipe"] for r in rows] == [c.recipe.name for c in found.cells.values()]
        assert len({(r["row"], r["column"]) for r in rows}) == len(specs)
        assert {r["n"] for r in rows} == {"2", "3"}
        assert "nan" not in markdown(found) + text


def test_markdown_escapes_bars() -> None:
    text = markdown(strange("a | b"))
    assert "| a \\| b bnn-ste |" in text
    assert {len(row) for row in grid_of(text)} == {4}


def test_csv_quotes_what_has_commas() -> None:
    rows = list(csv.DictReader(io.StringIO(tidy([strange('a, "b"')]))))
    assert rows[-1]["column"] == 'a, "b"'
    assert {None} != set(rows[0].values())


def test_csv_of_several_tables_has_one_head() -> None:
    runs = accuracies(Spec("resnet34", "bnn-hybrid-aw"), 40.0)
    text = tidy(tables(Evidence(runs, "mini"), ["hybrids"]))
    assert text.count("experiment,row,column") == 1
    assert {row["split"] for row in csv.DictReader(io.StringIO(text))} == {"test", "train"}


# ---- scales ---------------------------------------------------------------------------------------------------------


def test_scale_of_a_recipe() -> None:
    assert scale_of(paper.recipe(Spec())) == "paper"
    assert scale_of(mini.recipe(Spec())) == "mini"
    assert scale_of(get("resnet8-digits-bnn-ste")) is None
    assert scale_of(mini.recipe(Spec()).changed(lr=0.3)) is None
    assert scale_of(mini.recipe(Spec()), ["paper"]) is None


def test_run_without_a_line_of_metrics_is_no_value() -> None:
    """One that broke down before its first epoch counts; one that has a DONE and no metrics is not read as ended."""
    recipe: Recipe = mini.recipe(Spec())
    nothing: list[Epoch] = []
    early = replace(ended(recipe, 0, 0.0, diverged=BROKE), epochs=nothing)
    assert Evidence([early], "mini").accuracy(Spec()) == [10.0]
    empty = replace(ended(recipe, 0, 0.0), epochs=nothing)
    assert made("lr", [empty]).cells["StoMPP", "lr 0.1"].ours.n == 0
