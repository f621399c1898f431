"""What is kept of runs: of each that has ended the small files, whole, and nothing outside the folder for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_runs import write_run
from stompp.errors import UsageError
from stompp.experiments.collect import collect
from stompp.experiments.runs import find_runs

SMALL = ["DONE", "env.json", "metrics.jsonl", "recipe.json"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_collect_keeps_the_small_files_of_what_has_ended(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "runs", seed=0)
    (whole / "checkpoint.pt").write_text("large")
    write_run(tmp_path / "runs", seed=1, upto=3)
    write_run(tmp_path / "runs", seed=2, upto=1, diverged="boom")
    zero, two = collect([tmp_path / "runs"], tmp_path / "kept")
    assert names(zero) == SMALL
    assert names(two) == ["DIVERGED", "env.json", "metrics.jsonl", "recipe.json"]
    assert all((zero / name).read_bytes() == (whole / name).read_bytes() for name in SMALL)
    assert [run.seed for run in find_runs([tmp_path / "kept"]).runs] == [0, 2]


def test_collect_leaves_alone_what_is_there_and_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "runs")
    (kept,) = collect([tmp_path / "runs"], tmp_path / "kept")
    before = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert collect([tmp_path / "runs"], tmp_path / "kept") == []
    assert collect([tmp_path / "kept"], tmp_path / "kept") == []
    assert {path: path.stat().st_mtime_ns for path in kept.iterdir()} == before


def test_collect_replaces_a_run_as_a_whole(tmp_path: Path) -> None:
    """Trained again it broke down before its first epoch: nothing of the old run may stay beside that."""
    write_run(tmp_path / "old")
    (kept,) = collect([tmp_path / "old"], tmp_path / "kept")
    again = write_run(tmp_path / "new", upto=0, diverged="boom")
    (again / "metrics.jsonl").unlink()
    assert collect([tmp_path / "new"], tmp_path / "kept") == [kept]
    assert names(kept) == ["DIVERGED", "env.json", "recipe.json"]
    assert find_runs([tmp_path / "kept"]).runs[0].diverged == "boom"


def test_collect_that_is_killed_leaves_no_run_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "old")
    (kept,) = collect([tmp_path / "old"], tmp_path / "kept")
    new = write_run(tmp_path / "new", changes={"lr": 0.5})

    def killed(path: Path, content: bytes) -> None:
        if path.name == "metrics.jsonl":
            raise KeyboardInterrupt
        path.write_bytes(content)

    monkeypatch.setattr("stompp.experiments.collect.write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        collect([tmp_path / "new"], tmp_path / "kept")
    assert not find_runs([tmp_path / "kept"]).runs[0].ended
    monkeypatch.undo()
    assert collect([tmp_path / "new"], tmp_path / "kept") == [kept]
    assert (kept / "metrics.jsonl").read_bytes() == (new / "metrics.jsonl").read_bytes()


def test_collect_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs")
    recipe = folder / "recipe.json"
    recipe.write_text(recipe.read_text().replace("resnet8-digits-bnn-stompp", "../../escaped"))
    with pytest.raises(UsageError, match="leads out of"):
        collect([tmp_path / "runs"], tmp_path / "kept")
    assert names(tmp_path) == ["runs"]
