"""The page itself: what is in it, that it is well-formed, and that nothing in a run's files can become markup."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from report_runs import write_run
from stompp import recipes
from stompp.cli import main
from stompp.errors import UsageError
from stompp.experiments import comparison
from stompp.experiments.catalog import EXPERIMENTS
from stompp.experiments.claims import judge
from stompp.experiments.evidence import Evidence
from stompp.experiments.payload import MISSING, MOST_BETWEEN, MOST_COLUMNS, TOP, to_script
from stompp.experiments.report import SECTIONS, write_report
from stompp.experiments.runs import find_runs

VOID = {"meta", "br", "input", "img", "hr", "link"}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


class Page(HTMLParser):
    """The page as a list of elements; complains where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report_of(root: Path) -> Page:
    return Page(write_report([root], root / "out" / "report.html").read_text(encoding="utf-8"))


def data_of(page: Page) -> dict[str, Any]:
    """Read the data as the page does: lists are kept once, a view that is left out is the current one."""
    data = json.loads(page.scripts[0])
    lists = data["lists"]
    for run in (run for net in data["nets"] for series in net["series"] for run in series["runs"]):
        run["epoch"], run["at"] = lists[run["epoch"]], lists[run["at"]]
        run["history"]["epoch"] = lists[run["history"]["epoch"]]
        for part in run["history"]["parts"]:
            part["rows"] = lists[part["rows"]]
        for views in run["accuracy"].values():
            views.setdefault("binary", views["current"])
    return dict(data)


def runs_of(page: Page) -> list[dict[str, Any]]:
    return [run for net in data_of(page)["nets"] for series in net["series"] for run in series["runs"]]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_grid(root: Path, *names: str, seeds: int = 1) -> None:
    """Write the small runs of some of the paper's experiments."""
    for job in dict.fromkeys(job for name in names for job in EXPERIMENTS[name].jobs("mini", seeds)):
        write_run(root, job.recipe, job.seed, between=2)


def history_of(run: dict[str, Any]) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """Unpack a run's matrices as the page does."""
    cells, columns, found, at = zlib.decompress(base64.b64decode(run["history"]["bytes"])), 0, {}, 0
    columns = len(run["history"]["epoch"])
    for part in run["history"]["parts"]:
        rows = [cells[at + i * columns : at + (i + 1) * columns] for i in range(len(part["rows"]))]
        found[part["name"]] = (part, rows)
        at += columns * len(rows)
    assert at == len(cells)
    return found


def test_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    write_run(tmp_path)
    page = report_of(tmp_path)
    assert not page.all("link")
    assert not page.all("img")
    assert all("src" not in script for script in page.all("script"))
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    urls = re.findall(r"https?://[^\s\"'`)]+", (tmp_path / "out" / "report.html").read_text())
    assert set(urls) <= {"http://www.w3.org/2000/svg"}


def test_report_has_headings_captions_and_scopes(tmp_path: Path) -> None:
    write_run(tmp_path)
    page = report_of(tmp_path)
    assert len(page.all("h1")) == 1
    judged = {"claims", "paper"}  # these runs are of none of the paper's experiments
    assert [s["id"] for s in page.all("section")] == [s.id for s in SECTIONS if s.id not in judged]
    assert len(page.all("caption")) == len(page.all("table")) > 2
    assert all(th.get("scope") for th in page.all("th"))
    assert all(svg.get("role") == "img" or svg.get("aria-hidden") for svg in page.all("svg"))


def test_report_shows_the_numbers_of_the_files(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=s) for s in (0, 1)]
    page = report_of(tmp_path)
    (series,) = data_of(page)["nets"][0]["series"]
    finals = []
    for folder, run in zip(folders, series["runs"], strict=True):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        finals.append(lines[-1]["test"]["binary"]["accuracy"])
        assert run["epoch"] == [line["epoch"] + 1 for line in lines]
        for split in ("test", "train"):
            for view in ("current", "binary"):
                assert run["accuracy"][split][view] == [round(line[split][view]["accuracy"], 3) for line in lines]
        assert f"{finals[-1]:.1f}" in page.text
    assert f"{sum(finals) / 2:.2f} ±" in page.text


def test_curves_hold_the_evaluations_within_epochs(tmp_path: Path) -> None:
    folder = write_run(tmp_path, between=3)
    (run,) = runs_of(report_of(tmp_path))
    lines = lines_of(folder)
    assert run["at"] == [e + k / 4 for e in range(len(lines)) for k in (1, 2, 3, 4)][: len(run["at"])]
    for view in ("current", "binary"):
        expected = [
            v for line in lines for v in (*(b[view] for b in line["between"]), round(line["test"][view]["accuracy"], 3))
        ]
        assert run["accuracy"]["test"][view] == expected
    assert len(run["accuracy"]["train"]["current"]) == len(run["epoch"]) == len(lines)


def test_curves_leave_out_evaluations_at_impossible_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path, between=3, upto=2)
    lines = lines_of(folder)
    lines[1]["between"][0]["step"] = 10
    lines[1]["between"][2]["step"] = 10_000
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert runs_of(report_of(tmp_path))[0]["at"] == [0.25, 0.5, 0.75, 1, 1.5, 2]


def test_curves_of_a_long_run_are_thinned_and_keep_every_epoch(tmp_path: Path) -> None:
    write_run(tmp_path, recipes.get("resnet8-digits-bnn-stompp").changed(epochs=300), between=10, sites=2)
    (run,) = runs_of(report_of(tmp_path))
    assert len(run["at"]) <= MOST_BETWEEN + 300
    assert set(run["epoch"]) == set(range(1, 301)) <= set(run["at"])
    assert run["at"] == sorted(run["at"])


def test_page_keeps_what_runs_share_once(tmp_path: Path) -> None:
    sizes = []
    for seed in range(3):
        write_run(tmp_path, "resnet50-cifar10-bnn-ste", seed, sites=97, upto=20)
        sizes.append(write_report([tmp_path], tmp_path / "report.html").stat().st_size)
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert max(first, second) < 25_000
    page = Page((tmp_path / "report.html").read_text())
    assert "binary" not in json.loads(page.scripts[0])["nets"][0]["series"][0]["runs"][0]["accuracy"]["test"]


def test_history_keeps_zeros_and_ones_exactly_and_the_rest_closely(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    history = history_of(data_of(report_of(tmp_path))["nets"][0]["series"][0]["runs"][0])
    part, rows = history["frozen"]
    for name, row in zip(part["rows"], rows, strict=True):
        for line, byte in zip(lines, row, strict=True):
            value = line["sites"][name]
            assert (byte == 0, byte == TOP) == (value == 0, value == 1)
            assert byte / TOP == pytest.approx(value, abs=1 / TOP)
    part, rows = history["signal_norm"]
    for name, row in zip(part["rows"], rows, strict=True):
        for line, byte in zip(lines, row, strict=True):
            value = line["flow"][name][0]
            assert (byte == 0) == (value == 0)
            if byte:
                log = part["low"] + (part["high"] - part["low"]) * (byte - 1) / (TOP - 1)
                assert 10**log == pytest.approx(value, rel=0.03)


def test_history_marks_what_is_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    name = next(iter(lines[0]["flow"]))
    lines[1]["flow"][name][0] = float("inf")
    del lines[2]["flow"][name]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    history = history_of(data_of(report_of(tmp_path))["nets"][0]["series"][0]["runs"][0])
    assert list(history["signal_norm"][1][0][1:3]) == [MISSING, MISSING]


def test_history_of_a_long_run_is_thinned_and_keeps_its_end(tmp_path: Path) -> None:
    write_run(tmp_path, recipes.get("resnet8-digits-bnn-stompp").changed(epochs=2 * MOST_COLUMNS + 1), sites=2)
    run = data_of(report_of(tmp_path))["nets"][0]["series"][0]["runs"][0]
    assert run["history"]["every"] == 3
    assert len(run["history"]["epoch"]) <= MOST_COLUMNS
    assert run["history"]["epoch"][-1] == 2 * MOST_COLUMNS + 1 == len(run["epoch"])


def test_report_escapes_what_comes_from_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path, changes={"name": "evil"})
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["recipe"]["name"] = EVIL
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "env.json").write_text(json.dumps({"cpu": EVIL, "torch": {"a": EVIL}, "command": EVIL}))
    metrics = (folder / "metrics.jsonl").read_text()
    inside = json.dumps(EVIL)[1:-1]
    (folder / "metrics.jsonl").write_text(metrics.replace("layer0.0.relu", inside) + "broken\n")
    page = report_of(tmp_path)
    assert len(page.scripts) == 2  # the data and the program
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert EVIL in page.text  # shown as it is
    assert data_of(page)["nets"][0]["series"][0]["recipe"] == EVIL
    assert EVIL in data_of(page)["nets"][0]["series"][0]["runs"][0]["history"]["parts"][0]["rows"]


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&lt;", "\u2028"])
def test_to_script_cannot_leave_its_element(text: str) -> None:
    made = to_script({"a": text})
    assert not set(made) & set("<>&\u2028")
    assert json.loads(made) == {"a": text}


def test_report_marks_unfinished_runs_and_shows_no_spread_of_one(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, upto=7)
    write_run(tmp_path, "resnet8-digits-float-relu", upto=0)
    page = report_of(tmp_path)
    assert "7/40" in page.text
    assert "0/40" in page.text
    assert "none finished" in page.text
    table = (tmp_path / "out" / "report.html").read_text().split('<table class="results">')[1].split("</table>")[0]
    assert "±" not in table.split("<tbody>")[1]


WHY = "the loss is not finite at step 7 of 40 (nothing moving); there is no checkpoint yet. Try a lower --lr"


def result_row(root: Path, recipe: str) -> str:
    html = (root / "out" / "report.html").read_text()
    (row,) = re.findall(f'<tr [^>]*data-recipe="{recipe}">.*?</tr>', html)
    return row


def test_report_counts_and_marks_runs_that_broke_down(tmp_path: Path) -> None:
    write_run(tmp_path, "resnet8-digits-bnn-stompp", 0)
    write_run(tmp_path, "resnet8-digits-bnn-stompp", 1, upto=5, diverged=WHY)
    for seed in (0, 1):
        write_run(tmp_path, "resnet8-digits-bnn-ste", seed, upto=0, diverged=WHY)
    page = report_of(tmp_path)
    assert "3 runs broke down" in page.text
    assert page.text.count("the loss is not finite at step 7 of 40 (nothing moving)") == 3
    assert "Try a lower" not in page.text
    stompp, ste = (result_row(tmp_path, f"resnet8-digits-bnn-{m}") for m in ("stompp", "ste"))
    assert "1 of 2 diverged" in stompp
    assert (stompp.count('class="dot'), stompp.count('class="cross"')) == (1, 1)
    assert ">diverged<" in ste
    assert "10.00" in ste  # guessing
    assert ste.count('class="cross"') == 2
    assert "none finished" not in page.text
    (net,) = data_of(page)["nets"]
    lost, drawn = net["series"]
    assert (lost["lost"], lost["runs"]) == ([0, 1], [])
    assert [(run["state"], len(run["epoch"])) for run in drawn["runs"]] == [("done", 40), ("broken", 5)]
    assert drawn["runs"][1]["why"] == WHY.split(";")[0]


def test_report_of_nothing_but_broken_runs_has_its_tables(tmp_path: Path) -> None:
    write_run(tmp_path, upto=0, diverged=WHY)
    page = report_of(tmp_path)
    assert "diverged" in page.text
    assert not {"curves", "anatomy"} & {s["id"] for s in page.all("section")}


def test_claims_on_the_page_are_those_of_the_judge(tmp_path: Path) -> None:
    write_grid(tmp_path, "main", "lr", seeds=2)
    page = report_of(tmp_path)
    html = (tmp_path / "out" / "report.html").read_text()
    judged = judge(find_runs([tmp_path]).runs, "mini")
    assert len(judged) == 12
    for claim in judged:
        (shown,) = re.findall(f'<details class="claim" id="mini-{claim.name}">.*?</details>', html)
        badges = re.findall(r'<span class="badge [a-z]+">([a-z ]+)</span>', shown)
        assert badges == [v for v in (claim.verdict, claim.verdict_on_strongest) if v is not None]
        marks = re.findall(r'<span class="mark [a-z]+">([a-z ]+)</span>', shown)
        assert marks == [s.verdict for s in (*claim.statements, *(claim.strongest or ()))]
        for statement in (*claim.statements, *(claim.strongest or ())):
            if statement.contrast is not None:
                assert f"{statement.contrast.value:+.1f}".replace("-", "−") in shown
    assert "C8" in page.text


def test_paper_tables_show_ours_the_papers_and_the_difference(tmp_path: Path) -> None:
    write_grid(tmp_path, "main", "ordering")
    report_of(tmp_path)
    html = (tmp_path / "out" / "report.html").read_text()
    tables = comparison.tables(Evidence(find_runs([tmp_path]).runs, "mini"))
    shown = re.findall(r'<table class="paper">.*?</table>', html)
    assert len(shown) == len(tables) > 3
    assert {"train", "test"} == {table.split for table in tables}
    compared = 0
    for table, text in zip(tables, shown, strict=True):
        for cell in table.cells.values():
            if cell.ours.mean is not None:
                assert f"<b>{cell.ours.mean:.1f}</b>" in text
            if cell.paper is not None and cell.difference is not None:
                assert f"paper {comparison.shown(cell.paper.accuracy)}" in text
                assert f"{cell.difference:+.1f}".replace("-", "−") in text
                compared += 1
    assert compared > 10
    assert "not run" in html


def test_claims_and_paper_tables_are_left_out_without_runs_of_theirs(tmp_path: Path) -> None:
    write_run(tmp_path)
    page = report_of(tmp_path)
    assert not {"claims", "paper"} & {s["id"] for s in page.all("section")}
    assert not any("#claims" in (a["href"] or "") for a in page.all("a"))


def test_links_on_the_page_lead_somewhere(tmp_path: Path) -> None:
    write_grid(tmp_path, "lr")
    page = report_of(tmp_path)
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {(a["href"] or "").removeprefix("#") for a in page.all("a")} <= ids
    assert len(ids) == sum("id" in attributes for _, attributes in page.elements)


def test_report_notes_damage_on_the_page(tmp_path: Path) -> None:
    with open(write_run(tmp_path, upto=4) / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 4, "te')
    assert "1 damaged line of metrics.jsonl skipped (line 5)" in report_of(tmp_path).text


def test_report_of_runs_without_any_epoch_has_its_tables(tmp_path: Path) -> None:
    write_run(tmp_path, upto=0)
    assert "0/40" in report_of(tmp_path).text


def test_write_report_refuses_a_folder_as_its_file(tmp_path: Path) -> None:
    write_run(tmp_path / "runs")
    with pytest.raises(UsageError, match=r"is a folder; give the page a name"):
        write_report([tmp_path / "runs"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot make the folder"):
        write_report([tmp_path / "runs"], tmp_path / "file" / "report.html")


def test_report_command_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert "page.html" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_report_command_of_an_empty_folder_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("stompp: no runs found")
    assert told.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
