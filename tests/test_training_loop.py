"""The loop: what it logs, that a seed decides everything, where runs start from, and how they stop."""

from __future__ import annotations

import io
import json
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from stompp.core.freeze import fully_binary, sites
from stompp.core.freezer import Freezer
from stompp.data import load
from stompp.errors import Diverged, UsageError
from stompp.recipes import Recipe, get
from stompp.training import checkpoint, loop
from stompp.training.build import build_model, evaluation_batches, open_run
from stompp.training.evaluate import Score, both_views, evaluate, recalibrated
from stompp.training.folder import RunFolder
from stompp.training.loop import train
from stompp.training.monitor import TimeSplit
from stompp.training.options import MachineOptions, RunOptions

METHODS = ("bnn-stompp", "bnn-ste", "bwn-stompp", "bnn-hybrid-aw", "float-relu")
PARTS = {"data", "masks", "forward", "backward", "optimizer"}


def tiny(method: str = "bnn-stompp", **changes: Any) -> Recipe:
    """Return a run of a second: 3 epochs of 8 steps, at most 13 sites."""
    base = get("resnet8-digits-bnn-stompp" if method == "float-relu" else f"resnet8-digits-{method}")
    rule = {"weights": "float", "activations": "relu"} if method == "float-relu" else {}
    small = {"width": 4, "limit_train": 256, "batch_size": 32, "epochs": 3, "eval_train": 100}
    return replace(base, **(rule | small | changes), name=f"tiny-{method}")


def options(runs: Path, **changes: Any) -> RunOptions:
    return RunOptions(**({"runs": runs, "device": "cpu", "tensorboard": False} | changes))


def run(recipe: Recipe, runs: Path, **changes: Any) -> tuple[RunFolder, str]:
    """Train, and return the folder and what was said."""
    said = io.StringIO()
    outcome = train(recipe, options(runs, **changes), Console(file=said, width=200))
    assert outcome.finished
    return outcome.folder, said.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    runs = tmp_path_factory.mktemp("runs")
    return {method: run(tiny(method), runs)[0] for method in METHODS if "bwn" not in method} | {
        "bwn-stompp": run(tiny("bnn-stompp", activations="clip"), tmp_path_factory.mktemp("bwn"))[0]
    }


@pytest.mark.parametrize("method", METHODS)
def test_row_has_both_views_of_both_splits(trained: dict[str, RunFolder], method: str) -> None:
    rows = trained[method].read_metrics()
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert [row["step"] for row in rows] == [8, 16, 24]
    for row in rows:
        for split in ("test", "train"):
            assert row[split].keys() == {"current", "binary"}
            for score in row[split].values():
                assert 0 <= score["accuracy"] <= 100
                assert score["loss"] > 0
        assert 0 <= row["accuracy"] <= 100


def test_evaluations_within_an_epoch_change_nothing_else(trained: dict[str, RunFolder], tmp_path: Path) -> None:
    folder, _ = run(tiny("bnn-stompp", evals_per_epoch=4), tmp_path)
    assert folder.model_file.read_bytes() == trained["bnn-stompp"].model_file.read_bytes()
    for row, without in zip(folder.read_metrics(), trained["bnn-stompp"].read_metrics()):
        start = row["step"] - 8
        assert [point["step"] for point in row["between"]] == [start + 2, start + 4, start + 6]
        assert "between" not in without
        assert (row["test"], row["train"], row["loss"]) == (without["test"], without["train"], without["loss"])
    first = folder.read_metrics()[0]["between"][0]
    assert first.keys() == {"step", "current", "binary"}
    assert first["current"] != first["binary"]


def test_an_evaluation_within_an_epoch_scores_the_net_of_that_step(tmp_path: Path) -> None:
    """The point after 2 of 8 steps is what the end of an epoch of 2 steps tells (of the same images, in any order)."""
    whole, _ = run(tiny("bnn-ste", evals_per_epoch=4, epochs=1), tmp_path / "whole")
    scores = []

    def stop_at(self: Any, images: Any, labels: Any, epoch: int) -> None:
        step(self, images, labels, epoch)
        if self.t == 2:
            scores.append(both_views(self.model, self.evaluations["test"])["binary"].accuracy)

    step = loop.Training._step
    with mock.patch.object(loop.Training, "_step", stop_at):
        run(tiny("bnn-ste", epochs=1), tmp_path / "stopped")
    assert whole.read_metrics()[0]["between"][0]["binary"] == pytest.approx(scores[0], abs=1e-3)


@pytest.mark.parametrize("method", ["bnn-ste", "float-relu"])
def test_views_are_equal_where_nothing_is_scheduled(trained: dict[str, RunFolder], method: str) -> None:
    for row in trained[method].read_metrics():
        assert row["sites"] == {}
        assert row["test"]["current"] == row["test"]["binary"]
        assert row["train"]["current"] == row["train"]["binary"]


@pytest.mark.parametrize("method", ["bnn-stompp", "bwn-stompp", "bnn-hybrid-aw"])
def test_views_differ_while_sites_move_and_are_equal_at_the_end(trained: dict[str, RunFolder], method: str) -> None:
    first, _, last = trained[method].read_metrics()
    assert first["test"]["current"] != first["test"]["binary"]
    assert last["test"]["current"] == last["test"]["binary"]
    assert set(last["sites"].values()) == {1.0}


def test_row_tells_the_fraction_of_every_site(trained: dict[str, RunFolder]) -> None:
    rows = trained["bnn-stompp"].read_metrics()
    for row in rows:
        fractions = list(row["sites"].values())
        assert len(fractions) == 13
        assert fractions == sorted(fractions, reverse=True)  # layerwise: input before output
        assert len(row["moving"]) <= 1
    ends = [(i + 1) * 24 // 13 for i in range(13)]
    assert [sum(f == 1.0 for f in row["sites"].values()) for row in rows] == [
        sum(e <= n for e in ends) for n in (8, 16, 24)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_time_is_split_into_its_parts(trained: dict[str, RunFolder], method: str) -> None:
    for row in trained[method].read_metrics():
        assert row["time"].keys() == PARTS
        assert sum(row["time"].values()) == pytest.approx(1.0, abs=1e-3)
        assert all(share > 0 for share in row["time"].values())


@pytest.mark.parametrize("minutes", [0.0, 5.0])
def test_writing_checkpoints_is_nobodys_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    """Neither the checkpoint at an epoch's end nor one within it may count as the next step's data time."""
    saved, lost = checkpoint.save, 0.0

    def slow(path: Path, state: dict[str, Any]) -> None:
        nonlocal lost
        lost += 1e6  # seconds that pass on the clock of the time split
        saved(path, state)

    monkeypatch.setattr(checkpoint, "save", slow)
    monkeypatch.setattr(TimeSplit, "_now", lambda split: time.perf_counter() + lost)
    folder, _ = run(tiny("bnn-ste"), tmp_path, checkpoint_minutes=minutes)
    assert lost
    assert all(0 < share < 0.99 for row in folder.read_metrics() for share in row["time"].values())


def test_epoch_that_was_interrupted_has_the_time_of_both_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, clock, late = Freezer.step, time.monotonic, 0.0

    def stopping(freezer: Freezer, t: int) -> None:
        nonlocal late
        step(freezer, t)
        if t in (3, 5):
            late += 1000  # seconds pass
        if t == 4 and late == 1000:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Freezer, "step", stopping)
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock() + late)
    assert not train(tiny(), options(tmp_path), Console(quiet=True)).finished
    late = 5e5  # the machine has been off
    folder, _ = run(tiny(), tmp_path)
    first, second, _ = folder.read_metrics()
    assert 2000 <= first["seconds"] < 2100
    assert first["images_per_second"] == pytest.approx(256 / first["seconds"], abs=0.06)
    assert second["seconds"] < 100


def test_same_seed_gives_the_same_bits_and_another_does_not(trained: dict[str, RunFolder], tmp_path: Path) -> None:
    again, _ = run(tiny(), tmp_path)
    other, _ = run(tiny(), tmp_path, seed=1)
    first = trained["bnn-stompp"].model_file.read_bytes()
    assert again.model_file.read_bytes() == first
    assert other.model_file.read_bytes() != first


def test_seed_decides_the_first_weights(tmp_path: Path) -> None:
    recipe = tiny("bnn-ste", lr=1e-30)  # steps too small to move anything
    a, b = (load_file(run(recipe, tmp_path, seed=seed)[0].model_file)["fc.weight"] for seed in (0, 1))
    assert not torch.equal(a, b)


def test_how_a_run_is_watched_does_not_change_it(trained: dict[str, RunFolder], tmp_path: Path) -> None:
    watched, _ = run(tiny(), tmp_path, monitor_every=1, checkpoint_minutes=0.0, tensorboard=True)
    assert watched.model_file.read_bytes() == trained["bnn-stompp"].model_file.read_bytes()


def test_finished_run_says_so_and_touches_nothing(tmp_path: Path) -> None:
    folder, _ = run(tiny("bnn-ste"), tmp_path)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in [folder.path, *folder.path.rglob("*")]}
    again, said = run(tiny("bnn-ste"), tmp_path)
    assert again.path == folder.path
    assert said == f"{folder.path} is finished already; nothing to do\n"
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in [folder.path, *folder.path.rglob("*")]} == before


@pytest.mark.parametrize(
    "there, told",
    [
        (lambda r: (replace(r, lr=0.5), 0), r"lr is 0\.5 there and 0\.05 here"),
        (lambda r: (r, 7), "seed is 7 there and 0 here"),
        (lambda r: (replace(r, order="global", refresh=9), 0), r"order is 'global' there.*refresh is 9 there"),
    ],
    ids=["recipe", "seed", "both"],
)
def test_folder_of_another_run_is_refused_unharmed(tmp_path: Path, there: Any, told: str) -> None:
    theirs, seed = there(tiny())
    folder = RunFolder.of(tiny(), 0, tmp_path)
    folder.path.mkdir(parents=True)
    folder.recipe_file.write_text(json.dumps({"recipe": theirs.to_dict(), "seed": seed}))
    content = folder.recipe_file.read_bytes()
    with pytest.raises(UsageError, match=told):
        train(tiny(), options(tmp_path))
    assert [p.name for p in folder.path.iterdir()] == ["recipe.json"]
    assert folder.recipe_file.read_bytes() == content


def test_folder_with_foreign_files_is_refused_unharmed(tmp_path: Path) -> None:
    folder = RunFolder.of(tiny(), 0, tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"has files in it but no recipe\.json; it stays as it is"):
        train(tiny(), options(tmp_path))
    assert [p.name for p in folder.path.iterdir()] == ["thesis.tex"]


def test_changed_field_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    a, _ = run(tiny("bnn-ste"), tmp_path)
    b, _ = run(tiny("bnn-ste").changed(lr=0.01), tmp_path)
    assert (a.path.parent.name, b.path.parent.name) == ("tiny-bnn-ste", "tiny-bnn-ste+lr=0.01")


def test_loss_that_blows_up_stops_with_step_site_and_learning_rate(tmp_path: Path) -> None:
    recipe = tiny(lr=1e30)
    with pytest.raises(Diverged, match=r"not finite at step \d+ of 24 \(.* moving, learning rate 1e\+30\)") as caught:
        train(recipe, options(tmp_path, monitor_every=1))
    assert "there is no checkpoint yet" in str(caught.value)
    folder = RunFolder.of(recipe, 0, tmp_path)
    assert not folder.done
    assert folder.divergence() == str(caught.value)


def test_run_that_finishes_after_it_broke_down_is_finished(tmp_path: Path) -> None:
    folder, _ = run(tiny(), tmp_path)
    folder.done_file.unlink()
    folder.diverged_file.write_text('{"reason": "the loss is not finite"}\n')
    assert folder.divergence() == "the loss is not finite"
    run(tiny(), tmp_path)
    assert folder.divergence() is None
    assert not folder.diverged_file.exists()


@pytest.mark.parametrize("every", [1, 1000])
def test_message_names_the_site_that_moved_when_the_loss_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """However long after the bad step it is noticed."""
    from stompp.training import loop

    calls, true_loss = 0, loop.F.cross_entropy

    class Functional:
        @staticmethod
        def cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return true_loss(*args, **kwargs) * (float("nan") if calls == 11 else 1.0)

    monkeypatch.setattr(loop, "F", Functional)
    with pytest.raises(UsageError, match=r"the loss is not finite at step 10 of 24 \(layer2\.0\.conv1\.weight moving"):
        train(tiny(), options(tmp_path, monitor_every=every))
    folder = RunFolder.of(tiny(), 0, tmp_path)
    state = checkpoint.load(folder.checkpoint_file, torch.device("cpu"), pytest.fail)
    assert state is not None
    assert state["t"] == 8  # the end of the epoch before
    assert all(v.isfinite().all() for v in state["model"].values())
    monkeypatch.setattr(loop, "F", torch.nn.functional)
    resumed, _ = run(tiny(), tmp_path)
    assert len(resumed.read_metrics()) == 3


def test_broken_weights_that_sign_hides_never_reach_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sign(NaN) is -1, so an STE net can go on with a fine loss and a broken weight."""
    from stompp.training.loop import Training

    step = Training._step

    def breaking(self: Training, *args: Any) -> None:
        step(self, *args)
        if self.t == 12:
            with torch.no_grad():
                self.model.get_parameter("layer1.0.conv1.weight")[0, 0, 0, 0] = float("nan")

    monkeypatch.setattr(Training, "_step", breaking)
    with pytest.raises(UsageError, match=r"'layer1\.0\.conv1\.weight' is not finite at step 15 of 24"):
        train(tiny("bnn-ste"), options(tmp_path))
    state = checkpoint.load(tmp_path / "tiny-bnn-ste/seed0/checkpoint.pt", torch.device("cpu"), pytest.fail)
    assert state is not None
    assert state["t"] == 8


def test_init_from_a_folder_or_a_recipes_name_starts_from_its_weights(tmp_path: Path) -> None:
    source, _ = run(replace(tiny("bnn-ste"), name="resnet8-digits-bnn-ste"), tmp_path)
    weights = load_file(source.model_file)
    for i, given in enumerate((str(source.path), "resnet8-digits-bnn-ste")):
        # steps too small to move anything: what comes out is what went in
        folder, _ = run(replace(tiny(init_from=given, lr=1e-30), name=f"from-{i}"), tmp_path)
        assert folder.read_environment()["started_from"] == str(source.path)
        for name, value in load_file(folder.model_file).items():
            assert torch.equal(value, weights[name]) or "running" in name or "num_batches" in name, name


def test_init_from_is_needed_only_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stompp.training.loop import Training

    source, _ = run(tiny("bnn-ste"), tmp_path)
    recipe = replace(tiny(init_from=str(source.path)), name="from")
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, options(tmp_path))
    source.model_file.unlink()
    folder, _ = run(recipe, tmp_path)
    assert json.loads(folder.env_file.read_text())["started_from"] == str(source.path)


@pytest.mark.parametrize("damage", ["unfinished", "missing", "other width", "damaged", "no weights"])
def test_init_from_a_run_that_does_not_fit_is_refused(tmp_path: Path, damage: str) -> None:
    source, _ = run(tiny("bnn-ste", width=8 if damage == "other width" else 4), tmp_path)
    given = str(source.path)
    if damage == "unfinished":
        source.done_file.unlink()
    elif damage == "missing":
        given = str(tmp_path / "nowhere")
    elif damage == "damaged":
        source.model_file.write_bytes(source.model_file.read_bytes()[:-100])
    elif damage == "no weights":
        source.model_file.unlink()
    told = {
        "unfinished": "is not finished; train it first with `stompp train tiny-bnn-ste --seed 0`",
        "missing": "neither a run folder nor a recipe's name",
        "other width": r"of another model: .* is \(8,",
        "damaged": r"model\.safetensors is damaged",
        "no weights": r"model\.safetensors is missing",
    }[damage]
    with pytest.raises(UsageError, match=told) as caught:
        train(replace(tiny(init_from=given), name="from"), options(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "from").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"label_smoothing": 0.2},
        {"optimizer": "adamw", "lr": 0.01},
        {"weights": "ste", "surrogate": "approxsign"},
        {"frozen_grad": "ste", "surrogate": "clip"},
        {"ovsw": True},
        {"hold_frozen": True},
        {"momentum": 0.0},
        {"order": "reverse"},
        {"schedule": "flipped_quadratic", "order": "global"},
        {"activations": "relu", "policy": "deterministic"},
        {"granularity": "epoch", "epochs": 14, "limit_train": 64},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_every_choice_trains_to_a_binary_net(tmp_path: Path, trained: dict[str, RunFolder], changes: Any) -> None:
    folder, said = run(tiny(**changes), tmp_path)
    if changes == {"ovsw": True}:  # acts on weights that have long kept their sign, of which a run of a second has none
        saved = torch.load(folder.checkpoint_file, weights_only=True)["ovsw"]
        assert any((flips < 1).any() for flips in saved["flips"].values())
        return
    assert "6 layers saw only ±1" in said or changes.get("activations") == "relu"
    last = folder.read_metrics()[-1]
    assert last["test"]["current"] == last["test"]["binary"]
    assert folder.model_file.read_bytes() != trained["bnn-stompp"].model_file.read_bytes()


def test_label_smoothing_is_part_of_the_training_loss_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lr next to nothing, smoothing changes the loss that is trained on and not the one that is reported."""
    rows = [
        run(tiny("bnn-ste", lr=1e-30, epochs=1, label_smoothing=s), tmp_path / str(s))[0].read_metrics()[0]
        for s in (0.0, 0.3)
    ]
    assert rows[0]["loss"] != rows[1]["loss"]
    assert rows[0]["test"] == rows[1]["test"]


def test_deterministic_option_gives_the_same_run(trained: dict[str, RunFolder], tmp_path: Path) -> None:
    try:
        folder, _ = run(tiny(), tmp_path, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert folder.model_file.read_bytes() == trained["bnn-stompp"].model_file.read_bytes()


def test_environment_tells_versions_threads_and_commit(trained: dict[str, RunFolder]) -> None:
    told = trained["bnn-stompp"].read_environment()
    assert told["torch"] == torch.__version__
    assert (told["device"], told["threads"]) == ("cpu", 1)
    assert told.keys() >= {"stompp", "python", "platform", "cpu", "commit", "command"}


# --- evaluation


@pytest.fixture(scope="module")
def half_frozen() -> torch.nn.Module:
    """A net in the middle: some sites frozen, one moving, BatchNorm statistics of its own."""
    model = build_model(tiny(), (1, 8, 8), 10, seed=0)
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.5)
            module.running_var.uniform_(0.5, 2)
    for site in sites(model)[:4]:
        site.freeze()
    moving = sites(model)[4]
    moving.begin()
    moving.mask = torch.rand(moving.shape) < 0.5
    return model


def test_evaluate_equals_a_slow_obvious_loop(half_frozen: torch.nn.Module) -> None:
    data = load("digits")
    batches = evaluation_batches(tiny(), data)["test"]
    score = evaluate(half_frozen, batches.epoch(0))
    half_frozen.eval()
    losses, right = [], 0
    images = (data.test.images.float() / 255 - torch.tensor(data.mean)[:, None, None]) / torch.tensor(data.std)[0]
    with torch.no_grad():
        for image, label in zip(images, data.test.labels):
            logits = half_frozen(image[None])[0]
            losses.append(-(logits - logits.logsumexp(0))[label].item())
            right += int(logits.argmax()) == int(label)
    half_frozen.train()
    assert score.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert score.accuracy == pytest.approx(100 * right / len(losses), abs=0.3)  # a tie may fall either way


def test_evaluate_covers_every_image_once_and_restores_the_mode(half_frozen: torch.nn.Module) -> None:
    batches = evaluation_batches(tiny(eval_train=101), load("digits", limit_train=256))
    assert sum(len(labels) for _, labels in batches["test"].epoch(0)) == 360
    assert sum(len(labels) for _, labels in batches["train"].epoch(0)) == 101
    half_frozen.train()
    half_frozen.get_submodule("bn1").eval()
    evaluate(half_frozen, batches["test"].epoch(0))
    assert half_frozen.training
    assert not half_frozen.get_submodule("bn1").training
    half_frozen.train()


def test_both_views_scores_the_binary_view_of_the_same_net(half_frozen: torch.nn.Module) -> None:
    batches = evaluation_batches(tiny(), load("digits"))["test"]
    views = both_views(half_frozen, batches)
    with fully_binary(half_frozen):
        assert views["binary"] == evaluate(half_frozen, batches.epoch(0))
    assert views["current"] == evaluate(half_frozen, batches.epoch(0))
    assert views["current"] != views["binary"]


def test_recalibrated_equals_a_slow_twin_and_restores_everything(half_frozen: torch.nn.Module) -> None:
    batches = list(evaluation_batches(tiny(), load("digits"))["test"].epoch(0))
    norms = {n: m for n, m in half_frozen.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    before = {name: value.clone() for name, value in half_frozen.state_dict().items()}
    half_frozen.train()
    with fully_binary(half_frozen):
        # the twin: see what goes into each norm, and average its batches' moments
        seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in norms}
        handles = [
            norm.register_forward_pre_hook(
                lambda m, args, name=name: seen[name].append((args[0].mean((0, 2, 3)), args[0].var((0, 2, 3))))
            )
            for name, norm in norms.items()
        ]
        with torch.no_grad():
            for images, _ in batches:
                half_frozen(images)
        for handle in handles:
            handle.remove()
        half_frozen.load_state_dict(before)
        with recalibrated(half_frozen, batches):
            for name, norm in norms.items():
                means, variances = (torch.stack(part).mean(0) for part in zip(*seen[name]))
                torch.testing.assert_close(norm.running_mean, means, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(norm.running_var, variances, rtol=1e-4, atol=1e-5)
                assert norm.momentum == 0.1
                assert norm.training
            assert not torch.equal(norms["bn1"].running_mean, before["bn1.running_mean"])
    for name, value in half_frozen.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(norm.momentum == 0.1 and norm.training for norm in norms.values())


def test_recalibrated_restores_after_an_error(half_frozen: torch.nn.Module) -> None:
    before = {name: value.clone() for name, value in half_frozen.state_dict().items()}

    def broken() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield torch.randn(8, 1, 8, 8), torch.zeros(8)
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), recalibrated(half_frozen, broken()):
        pass
    for name, value in half_frozen.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("changes", [{}, {"recalibrate_bn": True}, {"precision": "bf16"}], ids=["plain", "bn", "bf16"])
def test_saved_net_gives_the_accuracy_that_was_logged(tmp_path: Path, changes: Any) -> None:
    """What `stompp eval` scores is what metrics.jsonl and DONE say of the binary view."""
    folder, _ = run(tiny(**changes), tmp_path)
    recipe, seed, data, model = open_run(folder.path, MachineOptions(device="cpu"), torch.device("cpu"))
    assert (recipe, seed) == (tiny(**changes), 0)
    autocast = torch.bfloat16 if recipe.precision == "bf16" else None
    logged = json.loads(folder.done_file.read_text())
    for split, batches in evaluation_batches(recipe, data).items():
        assert evaluate(model, batches.epoch(0), autocast=autocast) == Score(**logged[split]["binary"])


# --- TensorBoard, compile


def test_tensorboard_has_each_epochs_scalars_once_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save

    def dying(path: Path, state: dict[str, Any]) -> None:
        if state["t"] == 16:
            raise KeyboardInterrupt  # the second epoch is told everywhere, and the checkpoint does not know of it
        save(path, state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), options(tmp_path, tensorboard=True))
    folder, said = run(tiny(), tmp_path, tensorboard=True)
    assert "going on with" in said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder.path / "tensorboard"))
        events.Reload()
    rows = folder.read_metrics()
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    tags = set(events.Tags()["scalars"])
    assert tags >= {"train/loss", "test_current/accuracy", "test_binary/loss", "train_binary/accuracy", "frozen/mean"}
    for tag in tags:
        assert [event.step for event in events.Scalars(tag)] == [0, 1, 2], tag
    told = [event.value for event in events.Scalars("test_binary/accuracy")]
    assert told == pytest.approx([row["test"]["binary"]["accuracy"] for row in rows])


@pytest.mark.slow
def test_compiled_run_ends_close_to_the_eager_one(tmp_path: Path) -> None:
    """Not to the bit: the compiler fuses, and a sign may fall the other way."""
    recipe = replace(tiny("bnn-ste", surrogate="clip", epochs=6), name="tiny-ste")
    eager, _ = run(recipe, tmp_path / "eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled, _ = run(recipe, tmp_path / "compiled", compile=True)
    a, b = (f.read_metrics()[0] for f in (eager, compiled))
    assert a["loss"] == pytest.approx(b["loss"], rel=0.05)
    last = [f.read_metrics()[-1] for f in (eager, compiled)]
    assert last[0]["accuracy"] == pytest.approx(last[1]["accuracy"], abs=15)
    _, said = run(tiny(), tmp_path / "stompp", compile=True)
    assert "6 layers saw only ±1" in said


def test_weights_with_a_flipped_bit_are_refused(tmp_path: Path) -> None:
    recipe = get("resnet8-digits-bnn-stompp").changed(epochs=1)
    folder = train(recipe, RunOptions(runs=tmp_path, tensorboard=False, threads=1)).folder
    content = bytearray(folder.model_file.read_bytes())
    content[-5] ^= 4
    folder.model_file.write_bytes(content)
    with pytest.raises(UsageError, match="checksum"):
        open_run(folder.path, MachineOptions(), torch.device("cpu"))
