"""The demo goes through to its end, also where a net breaks down, and says what it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stompp import demo as module
from stompp import recipes
from stompp.recipes.schema import Recipe

QUICK = {"width": 4, "limit_train": 256, "eval_train": 50, "epochs": 3, "batch_size": 16}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make the demo's nets small; fields put under a recipe's name change it as well."""
    changes: dict[str, Any] = {}
    get = recipes.get

    def smaller(name: str) -> Recipe:
        return get(name).changed(**QUICK, **changes.get(name, {}))

    monkeypatch.setattr(module.recipes, "get", smaller)
    return changes


def test_demo_trains_tells_packs_and_reports(
    quick: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = module.demo(tmp_path / "demo")
    told = capsys.readouterr().out
    assert "What you have seen" in told
    for _, short, _ in module.ACTS:
        assert short in told
    assert "points from STE" in told
    assert "the same class for 100.0 %" in " ".join(told.split())
    assert report.read_text().count("<svg") >= 1
    assert (tmp_path / "demo" / "digits.stompp").stat().st_size > 1_000


def test_demo_goes_on_when_a_net_breaks_down(
    quick: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick["resnet20-digits-bnn-ste"] = {"lr": 1e30}
    report = module.demo(tmp_path / "demo")
    told = capsys.readouterr().out
    assert "This run broke down, which is part of the story: " in told
    assert ", then it broke down" in told
    assert told.index("broke down") < told.index("4 of 4")
    assert report.exists()


@pytest.mark.slow
def test_demo_shows_stompp_clearly_above_ste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.demo(tmp_path / "demo")
    told = " ".join(capsys.readouterr().out.split())
    gains = [float(part.split()[0]) for part in told.split("StoMPP is ")[1].replace("and ", "").split(", ")[:2]]
    assert gains[0] > 30
    assert gains[1] > 10
