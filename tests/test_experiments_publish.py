"""The published pages: every mark is filled from the runs' files, what is missing is told, and all is repeatable."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from report_runs import write_run
from stompp.errors import UsageError
from stompp.experiments import publish
from stompp.experiments.catalog import EXPERIMENTS, get, recipe_of
from stompp.experiments.claims import CLAIMS
from stompp.experiments.evidence import Evidence
from stompp.experiments.figures import FIGURES, README
from stompp.experiments.publish import Arguments, headline, main, section, sections, settings, there, trial
from stompp.experiments.reproduce import claims_markdown, verdicts_markdown
from stompp.experiments.runs import Found, find_runs
from stompp.experiments.tables import fill, provenance
from stompp.recipes.grids import Spec

ROOT = Path(__file__).parents[1]
BASE = Spec("bireal18", lr=0.06, epochs=300)  # of runs that belong to one figure only, so that a test draws only one


def write(root: Path, spec: Spec, seed: int = 0, **options: object) -> Path:
    return write_run(root, recipe_of(spec, "mini"), seed, sites=3, **options)


def found_in(root: Path) -> tuple[Found, Evidence]:
    found = find_runs([root])
    return found, Evidence(found.runs, "mini")


def final(folder: Path, split: str = "test") -> float:
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return float(last[split]["binary"]["accuracy"])


def break_down(folder: Path) -> None:
    (folder / "DONE").unlink()
    (folder / "DIVERGED").write_text(json.dumps({"reason": "the loss is nan"}))


def inside(page: str, name: str) -> str:
    """Return what stands between a section's marks."""
    match = re.search(f"<!-- results:{name} -->\n(.*?)\n?<!-- /results:{name} -->", page, re.DOTALL)
    assert match, name
    return match[1]


@pytest.fixture
def pages(tmp_path: Path) -> Arguments:
    """Copies of the project's own pages, with something stale between all marks."""
    given = Arguments(
        results=tmp_path / "results",
        page=tmp_path / "docs" / "results.md",
        readme=tmp_path / "README.md",
        figures=tmp_path / "docs" / "figures",
    )
    given.page.parent.mkdir()
    for source, copy in ((ROOT / "docs" / "results.md", given.page), (ROOT / "README.md", given.readme)):
        stale = re.sub(
            r"(<!-- results:(\S+) -->).*?(<!-- /results:\2 -->)", r"\1\nstale\n\3", source.read_text(), flags=re.DOTALL
        )
        copy.write_text(stale)
        assert "stale" in stale
    return given


def test_publish_fills_every_mark_of_the_projects_pages(pages: Arguments, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(pages.results, BASE)
    main(pages)
    told = capsys.readouterr().out
    page, readme = pages.page.read_text(), pages.readme.read_text()
    assert "stale" not in page + readme
    assert set(EXPERIMENTS) <= set(re.findall(r"<!-- results:(\S+) -->", page))
    assert f"| {final(folder):.1f} | 56.6 |" in inside(page, "bireal")  # the paper's number beside ours
    assert inside(readme, "readme") == "No runs yet."
    assert [path.name for path in pages.figures.iterdir()] == ["bireal.svg"]
    assert f"figures in {pages.figures}: bireal\n" in told
    assert "no runs yet for depth, " in told
    for image in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page):
        assert (pages.page.parent / image).is_file()


def test_publish_again_changes_no_byte(pages: Arguments) -> None:
    write(pages.results, BASE)
    main(pages)
    files = [pages.page, pages.readme, pages.figures / "bireal.svg"]
    before = [file.read_bytes() for file in files]
    main(pages)
    assert [file.read_bytes() for file in files] == before


def test_publish_collects_first(pages: Arguments, tmp_path: Path) -> None:
    folder = write(tmp_path / "runs", Spec(method="bnn-ste-ovsw", data="cifar10"))
    (folder / "checkpoint.pt").write_text("large")
    main(replace(pages, collect=tmp_path / "runs"))
    kept = pages.results / folder.parent.name / "seed0"
    assert sorted(path.name for path in kept.iterdir()) == ["DONE", "env.json", "metrics.jsonl", "recipe.json"]
    assert f"{final(folder):.1f}" in inside(pages.page.read_text(), "ovsw")


def test_the_projects_page_shows_every_figure_once(tmp_path: Path) -> None:
    write(tmp_path, Spec())
    found, evidence = found_in(tmp_path)
    text = "\n".join(sections(found, evidence, FIGURES.values()).values())
    for name in FIGURES:
        assert text.count(f"(figures/{name}.svg)") == 1
    assert README.name not in text


def test_section_says_which_runs_are_there_and_which_are_not(tmp_path: Path) -> None:
    experiment = get("ovsw")
    specs = experiment.specs("mini")
    for spec in specs[:3]:
        write(tmp_path, spec)
    write(tmp_path, specs[0], 2)
    _, evidence = found_in(tmp_path)
    told = there(experiment, evidence)
    assert told.startswith("Runs there: 4 of 21 (seed 0: 3 of 7, seed 1: 0 of 7, seed 2: 1 of 7); missing: 17.")
    assert there(get("lr"), Evidence([], "mini")) == "None of its 48 runs is there yet."


def test_section_of_a_finished_experiment_says_so(tmp_path: Path) -> None:
    for spec in get("refresh-global").specs("mini"):
        write(tmp_path, spec)
    _, evidence = found_in(tmp_path)
    assert there(get("refresh-global"), evidence).startswith("All of its 20 runs are there. They took ")


def test_section_of_main_has_the_wide_nets_in_a_table_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, Spec(data="cifar10"))
    write(tmp_path, Spec(data="cifar10", wide=True))
    _, evidence = found_in(tmp_path)
    text = section(get("main"), evidence, [])
    heads = [line for line in text.splitlines() if line.startswith("| accuracy in %")]
    assert len(heads) == 2
    assert "width 32" not in heads[0]
    assert "paper" in heads[0]
    assert all("width 32" in column for column in heads[1].split("|")[2:-1])
    assert "| BWN STE |" in text.split(heads[0])[1].split(heads[1])[0]
    assert "| BWN STE |" not in text.split(heads[1])[1]


def test_headline_has_the_means_of_the_files(tmp_path: Path) -> None:
    for net in ("resnet18", "resnet50"):
        folders = [write(tmp_path, Spec(net, data="cifar10"), seed) for seed in range(3)]
    broken = write(tmp_path, Spec("resnet50", "bnn-ste", "cifar10"))
    break_down(broken)
    _, evidence = found_in(tmp_path)
    lines = headline(evidence).splitlines()
    values = [final(folder) for folder in folders]
    assert lines[0] == "| test accuracy in %, n = 1 to 3 | ResNet-8 | ResNet-32 |"
    assert lines[2] == "| STE (identity) | — | 10.0, diverged |"
    assert lines[3].endswith(f"| {statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} |")
    assert lines[-1].endswith("cifar10-16 (16×16 pixels), 12 epochs.")


def test_trial_table_stands_beside_the_first_trial_and_tells_the_difference(tmp_path: Path) -> None:
    folders = [write(tmp_path, Spec("resnet34", data="cifar10"), seed) for seed in range(3)]
    _, evidence = found_in(tmp_path)
    text = trial(evidence)
    mean = statistics.fmean(map(final, folders))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert list(rows)[2:] == ["float (ReLU)", "STE (identity)", "STE (clip)", "StoMPP"]
    then = publish.TRIAL["resnet34", "bnn-stompp"]
    assert rows["StoMPP"].endswith(f" | {then:.1f} | {mean - then:+.1f} |".replace("-", "−"))
    assert f"n = {len(folders)}" in text
    for number in ("40,000", "50,000", "25%", "one in 30 on ResNet-8 and 21 on ResNet-20"):
        assert number in text


def test_settings_are_those_of_the_recipes() -> None:
    lines = settings("mini").splitlines()
    assert lines[0].startswith("| the paper's → ours | ResNet-18 → ResNet-8 |")
    for net, column in (("resnet18", 1), ("resnet34", 2), ("resnet50", 3)):
        shown = {line.split("|")[1].strip(): line.split("|")[1 + column].strip() for line in lines[2:]}
        layerwise, together = (recipe_of(Spec(net, order=order), "mini") for order in ("layerwise", "global"))
        assert shown["refresh rate, layerwise"] == f"100 → {layerwise.refresh}"
        assert shown["refresh rate, global"] == f"100 → {together.refresh}"
        assert shown["epochs"] == "200 → 12"
        assert shown["image"] == "32×32 → 16×16"


def test_verdicts_tell_how_many_statements_lack_runs(tmp_path: Path) -> None:
    for seed in range(2):
        for method in ("bnn-stompp", "bnn-ste"):
            write(tmp_path, Spec("resnet18", method, "cifar10"), seed)
    _, evidence = found_in(tmp_path)
    claim = CLAIMS["C1"](evidence)
    row = verdicts_markdown([claim]).splitlines()[2]
    assert row.startswith("| C1 | ")
    assert "**undecided**" in row
    assert "; 4 of 5 lack runs |" in row
    details = claims_markdown([claim])
    assert details.startswith(verdicts_markdown([claim]))
    assert all(statement.text in details for statement in (*claim.statements, *claim.strongest))


def test_provenance_tells_setups_apart_and_that_there_are_several_devices(tmp_path: Path) -> None:
    one, other, broken = (write(tmp_path, Spec(), seed) for seed in range(3))
    write(tmp_path, Spec(), 3, upto=3)
    break_down(broken)
    found, _ = found_in(tmp_path)
    assert "more than one device" not in provenance(found)
    environment = json.loads((other / "env.json").read_text())
    (other / "env.json").write_text(json.dumps(environment | {"device": "A|B", "torch": "2.11.0"}))
    with open(one / "metrics.jsonl", "a") as file:
        file.write("damage\n")
    found, _ = found_in(tmp_path)
    text = provenance(found)
    rows = text.split("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[-2] for row in rows] == ["2", "1"]
    assert "| A\\|B | A processor | 1 | 0.1.0 | unknown | 2.11.0 |" in text
    assert "The runs come from more than one device." in text
    assert "Not ended, and counted nowhere: 1." in text
    assert "damaged line" in text


def test_fill_refuses_a_page_without_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- results:a -->\nold\n<!-- /results:a -->\nkept\n")
    fill(page, {"a": "new"})
    assert page.read_text() == "<!-- results:a -->\nnew\n<!-- /results:a -->\nkept\n"
    for text in ("", "<!-- /results:a --><!-- results:a -->", page.read_text() * 2):
        page.write_text(text)
        with pytest.raises(UsageError, match="needs the marks <!-- results:a -->"):
            fill(page, {"a": "new"})
        assert page.read_text() == text


def test_publish_of_a_folder_without_runs_is_a_clear_error(pages: Arguments) -> None:
    pages.results.mkdir()
    before = pages.page.read_text()
    with pytest.raises(UsageError, match="no runs found"):
        main(pages)
    assert pages.page.read_text() == before
    shutil.rmtree(pages.results)
    with pytest.raises(UsageError, match="there is no folder"):
        main(pages)
