"""Reading run folders and summing them up."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from report_runs import write_run
from stompp import recipes
from stompp.errors import UsageError
from stompp.experiments.results import group, rule
from stompp.experiments.runs import find_runs


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_find_runs_reads_what_the_files_hold(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a" / "b", seed=3)
    (run,) = find_runs([tmp_path]).runs
    assert (run.path, run.seed, run.done) == (folder, 3, True)
    assert run.recipe == recipes.get("resnet8-digits-bnn-stompp")
    for line, epoch in zip(lines_of(folder), run.epochs, strict=True):
        assert epoch.number == line["epoch"] + 1
        for split in ("test", "train"):
            for view in ("current", "binary"):
                assert epoch.accuracy[split, view] == line[split][view]["accuracy"]
        assert (epoch.sites, epoch.flips, epoch.flow) == (line["sites"], line["flips"], line["flow"])


def test_find_runs_takes_a_run_folder_itself_and_each_run_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs")
    assert len(find_runs([folder]).runs) == 1
    found = find_runs([folder, tmp_path, tmp_path / "runs"])
    assert (len(found.runs), found.notes) == (1, [])


def test_find_runs_counts_copies_of_a_run_once_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "one", upto=3)
    whole = write_run(tmp_path / "two")
    found = find_runs([tmp_path])
    assert [run.path for run in found.runs] == [whole]
    assert "same recipe and seed" in found.notes[0]


@pytest.mark.parametrize("folders", [["empty"], ["missing"], ["empty", "missing"], []])
def test_find_runs_refuses_folders_without_runs(tmp_path: Path, folders: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no runs found|there is no folder"):
        find_runs([tmp_path / name for name in folders])


DAMAGE = {
    "cut off": '{"epoch": 2, "step',
    "not json": "\x00\xff garbage",
    "a list": "[1, 2]",
    "no accuracy": '{"epoch": 2, "test": {}}',
    "accuracy not finite": None,
    "step not finite": None,
    "epoch not a number": '{"epoch": "2"}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_find_runs_skips_a_damaged_line_with_a_note(tmp_path: Path, damage: str) -> None:
    folder = write_run(tmp_path, upto=6)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    bad = DAMAGE[damage]
    if bad is None:
        line = json.loads(lines[2])
        if damage == "accuracy not finite":
            line["test"]["binary"]["accuracy"] = float("nan")
        else:
            line["between"] = [{"step": float("inf"), "current": 50.0, "binary": 50.0}]
        bad = json.dumps(line)
    lines[2] = bad
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = find_runs([tmp_path])
    assert [e.number for e in found.runs[0].epochs] == [1, 2, 4, 5, 6]
    assert found.notes == ["resnet8-digits-bnn-stompp, seed 0: 1 damaged line of metrics.jsonl skipped (line 3)."]


def test_find_runs_keeps_going_past_an_unreadable_recipe_and_environment(tmp_path: Path) -> None:
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad", seed=1)
    (bad / "recipe.json").write_text('{"recipe": {"name": "x", "magic": 1}, "seed": 0}')
    (good / "env.json").write_text("{")
    found = find_runs([tmp_path])
    assert [run.path for run in found.runs] == [good]
    assert found.runs[0].environment == {}
    assert any("was left out" in note for note in found.notes)
    assert any("env.json is damaged" in note for note in found.notes)


def test_find_runs_does_not_believe_a_mark_of_completion_that_the_metrics_deny(tmp_path: Path) -> None:
    folder = write_run(tmp_path, upto=6)
    (folder / "DONE").write_text("{}")
    found = find_runs([tmp_path])
    assert not found.runs[0].done
    assert "end at epoch 6 of 40" in found.notes[0]


def test_score_counts_finished_runs_alone_and_has_no_spread_for_one(tmp_path: Path) -> None:
    finals = [lines_of(write_run(tmp_path, seed=s))[-1]["test"]["binary"]["accuracy"] for s in range(3)]
    write_run(tmp_path, seed=3, upto=10)
    alone = write_run(tmp_path, "resnet8-digits-bwn-stompp")
    (net,) = group(find_runs([tmp_path]).runs)
    full, single = net.rows
    assert (full.score.n, len(full.unfinished)) == (3, 1)
    assert full.score.mean == pytest.approx(statistics.fmean(finals))
    assert full.score.sd == pytest.approx(statistics.stdev(finals))
    assert single.score.n == 1
    assert single.score.mean == lines_of(alone)[-1]["test"]["binary"]["accuracy"]
    assert single.score.sd is None


def test_gain_is_over_ste_of_the_same_mode_and_settings(tmp_path: Path) -> None:
    stompp, ste, clip = (
        statistics.fmean(
            lines_of(write_run(tmp_path, f"resnet8-digits-{m}", s))[-1]["test"]["binary"]["accuracy"] for s in (0, 1)
        )
        for m in ("bnn-stompp", "bnn-ste", "bnn-ste-clip")
    )
    write_run(tmp_path, recipes.get("resnet8-digits-bnn-stompp").changed(lr=0.01))
    write_run(tmp_path, "resnet8-digits-bwn-stompp")
    write_run(tmp_path, "resnet8-digits-float-relu")
    (net,) = group(find_runs([tmp_path]).runs)
    rows = {row.label: row for row in net.rows}
    assert list(rows)[:3] == ["float (ReLU)", "STE (identity)", "STE (clip)"]
    gain, strongest = rows["StoMPP"].gain, rows["StoMPP"].gain_over_best
    assert gain is not None
    assert strongest is not None
    assert (gain.over, gain.difference) == ("STE (identity)", pytest.approx(stompp - ste))
    assert gain.error is not None
    assert strongest.difference == pytest.approx(stompp - max(ste, clip))
    for label in ("StoMPP · lr 0.01", "BWN StoMPP", "float (ReLU)", "STE (identity)"):
        assert rows[label].gain is None, label


def test_every_recipe_has_a_rule_and_a_label_of_its_own_in_its_net() -> None:
    assert len({rule(recipe) for recipe in recipes.all_recipes().values()}) > 15
    for recipe in recipes.all_recipes().values():
        assert rule(recipe)
        if recipe.activations == "ste":
            assert any(s in rule(recipe) for s in ("identity", "clip", "ApproxSign")), recipe.name


def test_labels_tell_all_recipes_of_a_net_apart(tmp_path: Path) -> None:
    for name in recipes.all_recipes():
        if name.startswith("resnet18-cifar100"):
            write_run(tmp_path, name, upto=1, sites=2)
    (net,) = group(find_runs([tmp_path]).runs)
    labels = [row.label for row in net.rows]
    assert len(labels) > 50
    assert len(set(labels)) == len(labels)
    assert not any("resnet18" in label for label in labels)
