"""The command `stompp reproduce`: what it lists, plans, refuses, and leaves behind."""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from report_runs import write_run
from stompp.cli import main
from stompp.errors import UsageError
from stompp.experiments import catalog
from stompp.experiments import reproduce as experiments
from stompp.experiments.catalog import EXPERIMENTS
from stompp.experiments.evidence import Claim, Statement
from stompp.experiments.grid import Job
from stompp.experiments.statistics import Contrast
from stompp.recipes import Recipe, all_recipes, mini
from stompp.recipes.grids import GRIDS, Spec
from test_experiments_claims import ended, runs_of, world
from test_experiments_grid_processes import small

# ---- list and plan --------------------------------------------------------------------------------------------------


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a terminal that is wide enough for whole names."""
    monkeypatch.setenv("COLUMNS", "250")


def test_list_shows_every_table_and_figure(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out.splitlines()
    for name, e in EXPERIMENTS.items():
        (first,) = [k for k, line in enumerate(told) if line.split()[:1] == [name]]
        source, question, runs = (line.strip() for line in told[first : first + 3])
        assert source.split(maxsplit=1)[1].lower() == e.source.lower()
        assert question == e.question
        assert runs.startswith(f"tests {', '.join(e.claims)}; " if e.claims else "")
        assert runs.endswith(f"{len(e.jobs('mini'))} runs at scale mini, {len(e.jobs('paper'))} at scale paper")
    for source in ("Table 1", "Table 2", "Table 3", "Figure: epochs", "Table: learning rate", "Table: Bi-Real nets"):
        assert any(source in line for line in told)


def test_list_fits_a_small_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 80
    assert len(told) < 7 * len(EXPERIMENTS)


def test_dry_run_tells_the_runs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    assert main(["reproduce", "lr", "--dry-run", "--runs", str(runs), "--out", str(out)]) == 0
    *each, total = capsys.readouterr().out.splitlines()
    recipes = [r.name for r in EXPERIMENTS["lr"].recipes("mini").values()]
    steps = "4,680 steps"  # 12 epochs of 390
    assert each == [f"new         {name}, seed {seed}: {steps}" for seed in range(3) for name in recipes]
    assert total == f"48 runs: 48 new; {48 * 4680:,} steps to train"
    assert list(tmp_path.iterdir()) == []


def test_dry_run_at_the_papers_scale_and_of_some_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"reproduce ovsw --scale paper --seeds 2 --dry-run --runs {tmp_path} --executor slurm"
    assert main(shlex.split(command)) == 0
    *each, total = capsys.readouterr().out.splitlines()
    assert each[0] == "new         resnet18-cifar10-bnn-ste, seed 0: 39,000 steps"  # 200 epochs of 195
    assert [line.split("seed ")[1][0] for line in each] == ["0"] * 7 + ["1"] * 7
    assert total.startswith("14 runs: 14 new; ")


def test_dry_run_of_several_experiments_names_each_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def names(*arguments: str) -> list[str]:
        assert main(["reproduce", *arguments, "--dry-run", "--seeds", "1", "--runs", str(tmp_path)]) == 0
        return [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]]

    both = names("ovsw", "hybrids", "ovsw")
    assert len(both) == len(set(both))
    assert set(both) == set(names("ovsw")) | set(names("hybrids"))
    every = names("all", "lr")
    assert len(every) == len(set(every))
    assert set(every) == {f"{r.name}," for e in EXPERIMENTS.values() for r in e.recipes("mini").values()}


def test_dry_run_knows_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stompp, ste = mini.recipe(Spec(data="cifar10")), mini.recipe(Spec(method="bnn-ste", data="cifar10"))
    write_run(tmp_path, stompp, 0)
    write_run(tmp_path, ste, 0, upto=4)
    assert main(["reproduce", "ovsw", "--seeds", "1", "--dry-run", "--runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"finished    {stompp.name}, seed 0: nothing to do\n" in told
    assert f"unfinished  {ste.name}, seed 0: 3,120 steps after epoch 4\n" in told
    assert "7 runs: 1 unfinished, 5 new, 1 finished; " in told


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that must fail, and return the one line it says; it must have trained and written nothing."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> str:
        assert main(["reproduce", *shlex.split(line)]) == 2
        told, said = capsys.readouterr()
        assert said.startswith("stompp: ")
        assert said.endswith("\n")
        assert said.count("\n") == 1, said
        assert told == ""
        assert list(tmp_path.iterdir()) == []
        return said[len("stompp: ") : -1]

    return run


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("orderin", "there is no experiment 'orderin'; did you mean ordering?"),
        ("orderin --dry-run", "did you mean ordering?"),
        ("main refreshglobal", "there is no experiment 'refreshglobal'; did you mean refresh-global?"),
        ("xyz", "known are main, ordering, "),
        ("''", "known are main, ordering, "),
        ("", "needs the name of an experiment, or all; `stompp reproduce --list` shows them"),
        ("--dry-run", "needs the name of an experiment"),
        ("lr --seeds 0", "seeds is 0; it must be at least 1"),
        ("lr --seeds -1 --dry-run", "seeds is -1; it must be at least 1"),
        ("lr --seed 2", "write --seeds for their number"),
        ("lr --jobs 0", "is 0; it must be at least 1"),
        ("lr --jobs -2", "is -2; it must be at least 1"),
        ("lr --minutes 0", "it must be more than 0"),
        ("lr --minutes -5", "it must be more than 0"),
        ("lr --minutes nan", "it must be more than 0"),
        ("lr --threads 0", "threads is 0; it must be at least 1"),
        ("lr --slurm.minutes 0", "slurm.minutes is 0; it must be at least 1"),
        ("lr --executor slurm --slurm.gpus -1", "slurm.gpus is -1; it must be at least 0"),
        ("lr --slurm.cpus 0", "slurm.cpus is 0; it must be at least 1"),
        ("lr --slurm.memory-gb 0", "slurm.memory_gb is 0; it must be at least 1"),
        ("lr --slurm.at-once 0", "slurm.at_once is 0; it must be at least 1"),
    ],
)
def test_mistake_is_told_in_one_line(refused: Callable[..., str], line: str, told: str) -> None:
    assert told in refused(line)


def test_cluster_without_slurm_is_told(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "There is no SLURM here; leave --executor out to train on this machine" in refused("lr --executor slurm")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("lr --seeds two", ["--seeds", "two"]),
        ("lr --jobs many", ["--jobs", "many"]),
        ("lr --minutes soon", ["--minutes", "soon"]),
        ("lr --scale big", ["--scale", "big", "mini", "paper"]),
        ("lr --executor cloud", ["--executor", "cloud", "local", "slurm"]),
        ("lr --slurm.gpus one", ["--slurm.gpus", "one"]),
        ("lr --slurm.cluster moon", ["--slurm.cluster", "moon"]),
        ("lr --bogus 1", ["--bogus"]),
    ],
)
def test_flag_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], line: str, told: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["reproduce", *shlex.split(line)])
    assert error.value.code == 2
    out, said = capsys.readouterr()
    assert all(word in out + said for word in told)
    assert "Traceback" not in out + said


# ---- from runs to tables --------------------------------------------------------------------------------------------


def shown_by(write: Callable[[Console], object]) -> str:
    console = Console(file=io.StringIO(), width=250)
    write(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_write_leaves_tables_and_prints_them_with_the_verdicts(tmp_path: Path) -> None:
    runs = runs_of(world("C12"))
    written: list[Path] = []
    told = shown_by(lambda c: written.extend(experiments.write(["ovsw"], "mini", runs, tmp_path / "a" / "b", c)))
    assert {f.name for f in written} >= {"ovsw.md", "ovsw.tex", "ovsw.csv"}
    assert {f.parent for f in written} == {tmp_path / "a" / "b"}
    page, tex = ((tmp_path / "a" / "b" / f"ovsw.{ending}").read_text() for ending in ("md", "tex"))
    assert "| STE (identity) + OvSW | 40.0 ± 0.1 | 91.3 | −51.3 |" in page
    assert "STE (identity) + OvSW & 40.0 $\\pm$ 0.1 & 91.3 & $-$51.3 \\\\" in tex
    (line,) = [row for row in rows_of(tmp_path / "a" / "b" / "ovsw.csv") if row["row"] == "StoMPP + OvSW"]
    assert (line["n"], line["values"], line["paper"]) == ("3", "9.90 10.00 10.10", "9.85")
    assert "ovsw: Test accuracy of the binary view in percent" in told
    assert "40.0 ± 0.1 (3)" in told
    assert "C12 holds (> 99.9 % sure of the weakest statement); against the strongest STE: holds: OvSW helps" in told
    again = {f.name: f.read_bytes() for f in written if f.suffix in (".md", ".tex", ".csv")}
    shown_by(lambda c: experiments.write(["ovsw"], "mini", reversed(runs), tmp_path / "c", c))
    assert {name: (tmp_path / "c" / name).read_bytes() for name in again} == again


def test_write_has_both_tables_of_an_experiment_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "figures_of", lambda names: [])  # which are tested elsewhere, and take time
    shown_by(lambda c: experiments.write(["hybrids"], "mini", runs_of(world("C6")), tmp_path, c))
    page = (tmp_path / "hybrids.md").read_text()
    assert page.count("| accuracy in % |") == page.count("| training accuracy in % |") == 1
    assert (tmp_path / "hybrids.tex").read_text().count("\\begin{table}") == 2
    splits = [row["split"] for row in rows_of(tmp_path / "hybrids.csv")]
    assert set(splits) == {"test", "train"}


def test_write_without_runs_says_so(tmp_path: Path) -> None:
    unfinished = [ended(mini.recipe(Spec(method="bnn-ste")), 0, 50.0, done=False)]
    told = shown_by(lambda c: experiments.write(["lr", "ovsw"], "mini", unfinished, tmp_path, c))
    assert told == "lr: no finished runs yet\novsw: no finished runs yet\n"
    assert list(tmp_path.iterdir()) == []


def test_write_into_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        experiments.write(["lr"], "mini", [], tmp_path / "file" / "x", Console(quiet=True))


def test_finished_are_the_jobs_with_a_result(tmp_path: Path) -> None:
    recipes = [mini.recipe(Spec(method=m)) for m in ("bnn-ste", "bnn-ste-clip", "bnn-stompp", "bwn-ste")]
    write_run(tmp_path, recipes[0], 0)
    write_run(tmp_path, recipes[1], 0, upto=3)
    broken = write_run(tmp_path, recipes[2], 0, upto=2)
    (broken / "DIVERGED").write_text('{"reason": "the loss is not finite at step 9"}')
    write_run(tmp_path, recipes[0], 5)  # nobody asked for it
    jobs = [Job(recipe, 0) for recipe in recipes]
    found = experiments.finished([*jobs, jobs[0]], tmp_path, Console(quiet=True))
    assert [(run.recipe, run.seed) for run in found] == [(recipes[0], 0), (recipes[2], 0)]
    assert found[1].final() == 10.0


def test_on_disk_is_every_run_of_every_experiment_whichever_command_trained_it(tmp_path: Path) -> None:
    swept, usual = mini.recipe(Spec(schedule="linear", refresh=10)), mini.recipe(Spec(method="bwn-ste"))
    for recipe, seed in ((swept, 0), (usual, 7), (usual, 10)):
        write_run(tmp_path, recipe, seed)
    (tmp_path / usual.name / "seed-old").mkdir()
    write_run(tmp_path, "resnet8-digits-bnn-stompp", 0)  # of no experiment
    assert set(experiments.on_disk("mini", tmp_path)) == {Job(swept, 0), Job(usual, 7), Job(usual, 10)}
    assert experiments.on_disk("paper", tmp_path) == []
    assert experiments.on_disk("mini", tmp_path / "nowhere") == []


def test_finished_leaves_out_what_is_damaged_or_a_copy_and_says_so(tmp_path: Path) -> None:
    """A run of another seed must not count twice, nor one bad folder take the tables from the others."""
    recipe = mini.recipe(Spec(method="bnn-ste"))
    whole = write_run(tmp_path, recipe, 0)
    shutil.copytree(whole, whole.with_name("seed1"))
    cut = write_run(tmp_path, recipe, 2)
    (cut / "recipe.json").write_text((cut / "recipe.json").read_text()[:50])
    short = write_run(tmp_path, recipe, 3)
    (short / "metrics.jsonl").write_bytes((short / "metrics.jsonl").read_bytes()[:-40])
    console = Console(file=io.StringIO(), width=80)
    found = experiments.finished(experiments.on_disk("mini", tmp_path), tmp_path, console)
    assert [run.seed for run in found] == [0]
    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any(f"{recipe.name}, seed 1 was left out" in line and "seed is 0 there and 1 here" in line for line in told)
    assert any(f"{recipe.name}, seed 2 was left out" in line and "is damaged" in line for line in told)
    assert any(f"{recipe.name}, seed 3: it is marked as finished" in line for line in told)


def test_chosen_are_known_experiments_each_once() -> None:
    assert experiments.chosen(["lr", "main", "lr"]) == ["lr", "main"]
    assert experiments.chosen(["lr", "all"]) == list(EXPERIMENTS)
    with pytest.raises(UsageError, match="did you mean epochs"):
        experiments.chosen(["lr", "epoch"])


def test_claims_page_tells_verdicts_and_what_they_rest_on() -> None:
    sure = Statement("this is above that", Contrast(12.34, 0.56, 0.99987), (3, 2))
    wrong = Statement("that is level with this", Contrast(-2.0, 1.0, 0.021), (3, 3))
    single = Statement("one run of each", Contrast(1.0, None, None), (1, 1))
    page = experiments.claims_markdown(
        [Claim("C1", "first", (sure,), (sure, wrong)), Claim("C2", "second", (single, Statement("nothing")))]
    )
    lines = page.splitlines()
    (first,) = [line for line in lines if line.startswith("| C1 |")]
    (second,) = [line for line in lines if line.startswith("| C2 |")]
    assert [cell.strip() for cell in first.split("|")[1:-1]][:6] == [
        "C1", "first", "**holds**", "> 99.9 %", "**does not hold**", "95.8 %"
    ]  # fmt: skip
    assert "**undecided**" in second
    assert page.count("| this is above that | +12.3 ± 0.6 | > 99.9 % | 3/2 |") == 1  # though it stands in both
    assert "| that is level with this | −2.0 ± 1.0 | 2.1 % | 3/3 |" in page
    assert "| one run of each | +1.0 |  | 1/1 |" in page
    assert "| nothing |  | no runs |  |" in page


# ---- the whole way --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Spec]]:
    """Make `ovsw` a grid of two rules, trained for an epoch on a few digits."""
    all_recipes()  # or they would be made, and kept, with what follows

    def recipe(spec: Spec) -> Recipe:
        return small(spec.method, epochs=1)

    specs = [Spec(method=method, data="cifar10") for method in ("bnn-ste", "bnn-ste-ovsw")]
    monkeypatch.setattr(mini, "recipe", recipe)
    monkeypatch.setitem(GRIDS, "ovsw", lambda scale: specs)
    catalog.recipe_of.cache_clear()
    yield specs
    catalog.recipe_of.cache_clear()


def test_reproduce_trains_a_grid_and_ends_with_its_tables(
    tiny: list[Spec], wide: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    command = ["reproduce", "ovsw", "--seeds", "2", "--runs", str(runs), "--out", str(out), "--device", "cpu"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "4 finished of 4 runs in " in told
    assert f"tables are in {out / 'mini-tables'}" in told
    assert "C12 " in told
    rows = rows_of(out / "mini-tables" / "ovsw.csv")
    assert [(r["row"], r["column"], r["n"]) for r in rows] == [
        ("STE (identity)", "ResNet-8, width 4, digits", "2"),
        ("STE (identity) + OvSW", "ResNet-8, width 4, digits", "2"),
    ]
    for row in rows:
        values = [float(value) for value in row["values"].split()]
        assert len(values) == 2
        assert all(0 < value < 100 for value in values)
        for seed, value in enumerate(values):
            assert f"finished  {row['recipe']}, seed {seed}: test accuracy {value:.2f} %" in told
        assert float(row["mean"]) == pytest.approx(sum(values) / 2, abs=0.006)
    assert rows[1]["paper"] == "91.3"
    page = (out / "mini-tables" / "ovsw.md").read_text()
    assert page.startswith("| accuracy in % | ResNet-8, width 4, digits | paper, ResNet-18, cifar10 | difference |")
    assert "\nn = 2.\n" in page
    assert "\\begin{tabular}{lrrr}" in (out / "mini-tables" / "ovsw.tex").read_text()

    before = {path: path.stat().st_mtime_ns for path in runs.rglob("metrics.jsonl")}
    assert len(before) == 4
    assert main(command) == 0  # nothing is trained again
    assert "start " not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("metrics.jsonl")} == before


@pytest.mark.slow
def test_reproduce_that_was_stopped_has_the_tables_of_what_there_is(
    tiny: list[Spec], wide: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of four runs is there; the deadline comes before there is a second."""
    runs = tmp_path / "runs"
    write_run(runs, small("bnn-ste", epochs=1), 0)
    command = f"reproduce ovsw --seeds 2 --runs {runs} --out {tmp_path} --device cpu --minutes 0.00001 --jobs 1"
    assert main(shlex.split(command)) == 130
    told = capsys.readouterr().out
    assert "the deadline has come" in told
    assert "the same command goes on from here" in told
    rows = {row["row"]: row["n"] for row in rows_of(tmp_path / "mini-tables" / "ovsw.csv")}
    assert rows["STE (identity)"] in ("1", "2")
    assert list(rows) == ["STE (identity)", "STE (identity) + OvSW"]


def test_reproduce_tells_of_what_failed_and_tabulates_the_rest(
    tiny: list[Spec], wide: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is trained: of two rules one has its run, and the other's failed before."""
    good, bad = (small(spec.method, epochs=1) for spec in tiny)
    write_run(tmp_path, good, 0)
    folder = Job(bad, 0).folder(tmp_path)
    folder.path.mkdir(parents=True)
    folder.failed_file.write_text("ValueError: it hurt\n")
    assert main(shlex.split(f"reproduce ovsw --seeds 1 --runs {tmp_path} --out {tmp_path / 'out'}")) == 1
    told = capsys.readouterr().out
    assert f"failed: {bad.name}, seed 0: ValueError: it hurt" in told
    assert "--retry-failed tries it again" in told
    page = (tmp_path / "out" / "mini-tables" / "ovsw.md").read_text()
    assert "| STE (identity) + OvSW | — | 91.3 |  |" in page
