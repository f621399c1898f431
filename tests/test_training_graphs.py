"""Steps as CUDA graphs end with the bits of steps launched kernel by kernel. Needs an NVIDIA GPU."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from stompp.errors import UsageError
from stompp.recipes import get
from stompp.training import graphs
from stompp.training.folder import RunFolder
from stompp.training.loop import train
from stompp.training.options import RunOptions

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")

RULES: dict[str, dict[str, Any]] = {
    "layerwise": {},
    "global": {"order": "global"},
    "deterministic": {"activations": "clip", "policy": "deterministic"},
    "held": {"hold_frozen": True},
    "ovsw": {"ovsw": True},
    "ste": {"weights": "ste", "activations": "ste", "surrogate": "clip"},
    "scaffold": {"frozen_grad": "ste", "surrogate": "clip"},
    "bf16": {"precision": "bf16"},
}


def trained(runs: Path, cuda_graphs: bool, **changes: Any) -> RunFolder:
    small = {"width": 8, "epochs": 3, "limit_train": 1_280, "eval_train": 100, "refresh": 3, "batch_size": 16}
    recipe = replace(get("resnet8-digits-bnn-stompp"), **(small | changes), name="tiny")
    options = RunOptions(
        runs=runs, device="cuda", cuda_graphs=cuda_graphs, deterministic=True, tensorboard=False, monitor_every=7
    )
    outcome = train(recipe, options, Console(file=io.StringIO()))
    assert outcome.finished
    return outcome.folder


@needs_gpu
@pytest.mark.parametrize("rule", RULES)
def test_recorded_steps_give_the_bits_of_plain_ones(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = 0
    call = graphs.StepGraph.__call__

    def counted(self: Any, *inputs: Any) -> Any:
        nonlocal replayed
        found = call(self, *inputs)
        replayed += self._current
        return found

    plain = trained(tmp_path / "plain", False, **RULES[rule])
    monkeypatch.setattr(graphs.StepGraph, "__call__", counted)
    recorded = trained(tmp_path / "recorded", True, **RULES[rule])
    assert replayed > 150  # of 240 steps
    assert recorded.model_file.read_bytes() == plain.model_file.read_bytes()
    for ours, theirs in zip(recorded.read_metrics(), plain.read_metrics(), strict=True):
        assert {k: ours[k] for k in ("loss", "accuracy", "test", "train", "flow", "flips", "sites")} == {
            k: theirs[k] for k in ("loss", "accuracy", "test", "train", "flow", "flips", "sites")
        }
        assert "graph" in json.dumps(ours["time"])


def test_graphs_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    recipe = replace(get("resnet8-digits-bnn-stompp"), epochs=1, name="tiny")
    with pytest.raises(UsageError, match=r"cuda_graphs .* on a CUDA device"):
        train(recipe, RunOptions(runs=tmp_path, device="cpu", cuda_graphs=True), Console(file=io.StringIO()))
