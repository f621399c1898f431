"""pack, run, inspect and bench: what they print, refuse and write; hostile files; without PyTorch and other engines."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import stompp
from stompp.__main__ import main
from stompp.core.trace import evaluating
from stompp.data.catalog import names as data_sets
from stompp.data.catalog import shape_of
from stompp.deploy import commands, format, inputs, race, run, runtime
from stompp.deploy.commands import printable
from stompp.errors import UsageError
from stompp.recipes import get
from stompp.training import build
from stompp.training.build import build_model, open_run
from stompp.training.options import MachineOptions
from terminal import CONTROL

NAME = "resnet8-digits-bnn-stompp"
SMALL = ["--width", "4", "--limit-train", "256", "--batch-size", "32", "--eval-train", "50", "--epochs", "2"]
QUICK = ["--no-tensorboard", "--device", "cpu"]
EVIL = "\x1b]0;owned\x07\x1b[2J\r\n\u202eclass: fine\u2028\x9b31m\ud800"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", NAME, *SMALL, *QUICK, "--runs", str(runs)]) == 0
    return next(path.parent for path in runs.glob("*/*/DONE"))


@pytest.fixture(scope="module")
def packing(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A packed net, and what was said when it was made."""
    out, said = tmp_path_factory.mktemp("packed") / "net.stompp", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["pack", str(trained), "-o", str(out)]) == 0
    return out, said.getvalue().splitlines()


@pytest.fixture(scope="module")
def net(packing: tuple[Path, list[str]]) -> Path:
    return packing[0]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three digits as pixels and as normalised values, and one of them as a picture."""
    from PIL import Image

    from stompp.data import load

    folder = tmp_path_factory.mktemp("images")
    data = load("digits")
    pixels = data.test.images[:3, 0].numpy()  # type: ignore[attr-defined]
    values = ((pixels / np.float32(255) - np.float32(data.mean)) / np.float32(data.std))[:, None]
    np.save(folder / "one.npy", pixels[0])
    np.save(folder / "all.npy", pixels[..., None])
    np.save(folder / "one-float.npy", values[0])
    np.save(folder / "all-float.npy", values)
    Image.fromarray(pixels[0]).save(folder / "one.png")
    Image.fromarray(pixels[1].repeat(4, 0).repeat(4, 1)).convert("RGBA").save(folder / "large.png")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """Run a command that must succeed without a word on stderr, and return the lines it prints."""
    assert main([str(a) for a in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not CONTROL.search(out), out
    return out.splitlines()


def with_meta(net: Path, out: Path, /, **meta: str | None) -> Path:
    """Save a net with other texts; None takes one away."""
    graph = format.read(net)
    changed = {key: text for key, text in (graph.meta | meta).items() if text is not None}
    format.save(replace(graph, meta=changed), out)
    return out


def saved_run(folder: Path, name: str, **changes: Any) -> Path:
    """A finished run of random weights, on data that are not here."""
    recipe = replace(get(name), **changes)
    shape, classes = shape_of(recipe.data)
    save_file(build_model(recipe, shape, classes, seed=0).state_dict(), folder / "model.safetensors")
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe.to_dict(), "seed": 0}))
    (folder / "DONE").write_text("{}")
    return folder


# --- pack


def test_pack_says_sizes_and_agreement(packing: tuple[Path, list[str]], trained: Path) -> None:
    path, lines = packing
    weights, bits = commands.binary_size(format.read(path))
    _, _, _, model = open_run(trained, MachineOptions(), torch.device("cpu"))
    floats = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    size = path.stat().st_size
    assert lines == [
        f"{path}: {size:,} bytes",
        f"the same net in PyTorch: {floats:,} bytes of weights, {floats / size:.1f} × as much",
        f"binary layers: {weights:,} weights at {bits / weights:.3f} bits each, thresholds and scales included",
        lines[-1],
    ]
    assert weights == 4_608
    agreed, checked = re.fullmatch(r"same class as PyTorch on (\d+) of (\d+) test images", lines[-1]).groups()  # type: ignore[union-attr]
    assert int(checked) == 360
    assert int(agreed) >= 359


def test_pack_keeps_what_run_needs(net: Path, trained: Path) -> None:
    recipe, seed, data, model = open_run(trained, MachineOptions(), torch.device("cpu"))
    meta = format.read(net).meta
    assert meta == {
        "recipe": recipe.name,
        "seed": str(seed),
        "data": "digits",
        "classes": json.dumps(list("0123456789")),
        "mean": json.dumps(list(data.mean)),
        "std": json.dumps(list(data.std)),
    }
    x = run.example(data)
    with evaluating(model):
        np.testing.assert_allclose(stompp.load(net)(x.numpy()), model(x).numpy(), atol=1e-4)


def test_pack_counts_the_images_that_it_is_told_to(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(runtime.PackedNet):
        def __call__(self, images: Any) -> np.ndarray:
            return -super().__call__(images)

    real = run.pack
    monkeypatch.setattr(run, "pack", lambda *given, **named: Wrong(real(*given, **named).graph))
    lines = printed(capsys, "pack", trained, "-o", tmp_path / "net.stompp", "--check", 7)
    assert lines[-1] == "same class as PyTorch on 0 of 7 test images"


@pytest.mark.parametrize(
    "floats, check, reads", [("fp32", 0, False), ("fp32", 1, True), ("int8", 0, True)], ids=lambda value: str(value)
)
def test_pack_reads_data_only_if_it_needs_images(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    floats: str,
    check: int,
    reads: bool,
) -> None:
    def read(*_: object, **__: object) -> None:
        raise UsageError("the data were read")

    monkeypatch.setattr(build, "load", read)
    folder, out = saved_run(tmp_path, "resnet8-cifar10-16-bnn-stompp", width=4), tmp_path / "net.stompp"
    code = main(["pack", str(folder), "-o", str(out), "--floats", floats, "--check", str(check)])
    said, err = capsys.readouterr()
    if reads:
        assert (code, said, err) == (2, "", "stompp: the data were read\n")
        return
    assert (code, err) == (0, "")
    assert said.endswith("not compared with PyTorch, since --check is 0\n")
    graph = format.read(out)
    assert graph.input == (3, 16, 16)
    assert json.loads(graph.meta["classes"])[:2] == ["airplane", "automobile"]
    assert json.loads(graph.meta["mean"]) == [0.5071, 0.4865, 0.4409]


def test_pack_makes_the_same_file_without_data(
    capsys: pytest.CaptureFixture[str], trained: Path, net: Path, tmp_path: Path
) -> None:
    printed(capsys, "pack", trained, "-o", tmp_path / "net.stompp", "--check", 0)
    assert (tmp_path / "net.stompp").read_bytes() == net.read_bytes()


@pytest.mark.parametrize("name", data_sets())
def test_facts_are_those_of_the_data_set(name: str) -> None:
    facts = run.facts_of(name)
    if name == "imagenet":
        assert facts is None
        return
    assert facts is not None
    shape, classes = shape_of(name)
    assert (facts.image_shape, len(facts.classes)) == (shape, classes)
    assert len(facts.mean) == len(facts.std) == shape[0]


def test_facts_of_digits_are_those_of_the_loaded_set() -> None:
    data = stompp.data.load("digits")
    assert run.facts_of("digits") == run.Facts(data.image_shape, data.classes, data.mean, data.std)


def test_pack_refuses_to_overwrite(
    refused: Any, capsys: pytest.CaptureFixture[str], trained: Path, net: Path, tmp_path: Path
) -> None:
    out = tmp_path / "old.stompp"
    out.write_bytes(format.MAGIC + b"old")
    assert refused("pack", trained, "-o", out) == f"{out} is there already; --force replaces it"
    assert out.read_bytes() == format.MAGIC + b"old"
    printed(capsys, "pack", trained, "-o", out, "--force", "--check", 0)
    assert out.read_bytes() == net.read_bytes()
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    told = refused("pack", trained, "-o", thesis, "--force")
    assert told == f"{thesis} is there and is not a .stompp file; choose another name"
    assert thesis.read_text() == "years of work"
    os.mkfifo(tmp_path / "pipe")
    assert "is not a .stompp file" in refused("pack", trained, "-o", tmp_path / "pipe", "--force")
    assert (
        refused("pack", trained, "-o", tmp_path) == f"{tmp_path} is a folder; give a file such as {tmp_path}/net.stompp"
    )
    assert refused("pack", trained, "-o", tmp_path / "no" / "net.stompp").startswith(
        f"there is no folder {tmp_path}/no"
    )


def test_pack_that_cannot_write_says_where(refused: Any, trained: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "net.stompp"
    told = refused("pack", trained, "-o", out, "--check", 0)
    assert told == f"cannot write {out} (No space left on device); choose another --out"
    assert not list(tmp_path.iterdir())


def test_pack_refuses_what_is_no_finished_run(refused: Any, trained: Path, tmp_path: Path) -> None:
    out = ["-o", tmp_path / "net.stompp"]
    assert "is not a run folder: it has no recipe.json" in refused("pack", tmp_path, *out)
    assert refused("pack", trained, *out, "--check", "-1") == "check is -1; it must be at least 0"
    saved_run(tmp_path, NAME, width=4)
    (tmp_path / "DONE").unlink()
    go_on = f"`stompp train {NAME} --width 4 --seed 0 --runs {tmp_path.parent.parent}`"
    assert f"is not finished; go on with {go_on}" in refused("pack", tmp_path, *out)
    assert not (tmp_path / "net.stompp").exists()


def test_pack_lists_the_kinds_of_floats_that_there_are(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    from stompp.deploy.fold import FLOATS

    with pytest.raises(SystemExit) as end:
        main(["pack", str(trained), "--floats", "fp99"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "fp99" in said
    assert all(kind in said for kind in FLOATS)


# --- inspect


def test_inspect_shows_the_file(capsys: pytest.CaptureFixture[str], net: Path) -> None:
    graph, lines = format.read(net), printed(capsys, "inspect", net)
    size = net.stat().st_size
    assert re.fullmatch(
        rf"{net}: format version 1, {size:,} bytes, [\d,]+ of them weights, thresholds and scales", lines[0]
    )
    assert lines[1] == "takes (n, 1, 8, 8), gives (n, 10)"
    assert re.fullmatch(r"binary layers: 4,608 weights at \d\.\d{3} bits each, .*", lines[2])
    assert lines[3 : 3 + len(graph.meta)] == [f"{key}: {text}" for key, text in graph.meta.items()]
    rows = [re.split(r" *│ *", line)[1:-1] for line in lines if line.startswith("│")]
    assert len(rows) == len(graph.nodes)
    assert rows[0][0] == "float conv"
    assert rows[0][1] == "input"
    assert rows[0][3:5] == ["4×8×8", "4 × 3 × 3 × 1"]
    assert rows[-1][2:5] == [f"{graph.result} (floats)", "10×1×1", "10 × 1 × 1 × 16"]
    binary = [row for row in rows if row[0] == "binary conv"]
    weights = [graph.arrays[node.weight] for node in graph.nodes if node.op == "conv" and node.kind == "binary"]
    assert [row[4] for row in binary] == [" × ".join(map(str, weight.shape)) for weight in weights]
    assert all(int(row[5].replace(",", "")) > weight.size // 8 for row, weight in zip(binary, weights))


def test_hostile_texts_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], net: Path, images: Path, tmp_path: Path
) -> None:
    """`printed` sees to it that nothing is printed that a terminal obeys; here each text stays on its line."""
    names = [f"{EVIL}{i}" for i in range(10)]
    evil = with_meta(net, tmp_path / "evil.stompp", **{EVIL: EVIL, "classes": json.dumps(names)})
    lines = printed(capsys, "inspect", evil)
    escaped = r"\x1b]0;owned\x07\x1b[2J\r\n\u202eclass: fine\u2028\x9b31m\ud800"
    assert f"{escaped}: {escaped}" in lines
    assert len(lines) == len(printed(capsys, "inspect", net)) + 1
    (line,) = printed(capsys, "run", evil, images / "one.npy", "--top", 1)
    assert re.fullmatch(rf"one\.npy: {re.escape(escaped)}\d \d+\.\d %", line)
    bad = tmp_path / "\x1b[31mred\n.npy"
    bad.write_bytes((images / "one.npy").read_bytes())
    assert printed(capsys, "run", net, bad)[0].startswith(r"\x1b[31mred\n.npy: ")


def test_printable_leaves_nothing_else() -> None:
    whole = "".join(map(chr, range(0x3000))) + "\ud800\ue000\ufeff\U000e0001\U0010ffff"
    assert printable(whole).isprintable()
    assert printable("żółć, 猫 [red]: 100 %") == "żółć, 猫 [red]: 100 %"


def test_inspect_shortens_long_texts(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    long = with_meta(net, tmp_path / "long.stompp", note="\x07" * 600_000)
    (line,) = [line for line in printed(capsys, "inspect", long) if line.startswith("note: ")]
    assert line == "note: " + r"\x07" * 300 + "... (600,000 characters)"


# --- run


def rankings(lines: list[str]) -> tuple[list[str], list[dict[str, float]]]:
    """Return the names of the images and, for each, the percentages of the classes."""
    parts = [line.partition(": ") for line in lines]
    found = [dict(re.findall(r"(\d) (\d+\.\d) %", ranking)) for _, _, ranking in parts]
    return [name for name, _, _ in parts], [{label: float(p) for label, p in each.items()} for each in found]


def test_run_answers_as_predict_does(
    capsys: pytest.CaptureFixture[str], net: Path, trained: Path, images: Path
) -> None:
    files = [images / name for name in ("one.npy", "all.npy", "one.png", "large.png")]
    names, got = rankings(printed(capsys, "run", net, *files, "--top", 10))
    assert names == ["one.npy", "all.npy[0]", "all.npy[1]", "all.npy[2]", "one.png", "large.png"]
    wanted_names, wanted = rankings(printed(capsys, "predict", trained, *files, "--top", "10", "--device", "cpu"))
    assert names == wanted_names
    for ours, theirs in zip(got, wanted):
        assert ours.keys() == theirs.keys() == set("0123456789")
        assert all(abs(ours[label] - theirs[label]) < 0.15 for label in ours)
    assert got[0] == got[1] == got[4]  # the same digit, however it is given
    assert got[1] != got[2]


def test_run_ranks_and_counts(capsys: pytest.CaptureFixture[str], net: Path, images: Path) -> None:
    whole = printed(capsys, "run", net, images / "all.npy", "--top", 99, "--threads", 1)
    for line in whole:
        shares = [float(p) for p in re.findall(r"(\d+\.\d) %", line)]
        assert len(shares) == 10
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=0.6)
    assert [line.count("%") for line in printed(capsys, "run", net, images / "all.npy")] == [3, 3, 3]
    top = printed(capsys, "run", net, images / "all.npy", "--top", 1)
    assert all(line.startswith(short) for line, short in zip(whole, top))


def test_run_goes_on_after_a_batch(capsys: pytest.CaptureFixture[str], net: Path, images: Path, tmp_path: Path) -> None:
    pixels = np.load(images / "all.npy")
    np.save(tmp_path / "many.npy", np.concatenate([pixels] * 90))  # 270, in batches of 256
    lines = printed(capsys, "run", net, tmp_path / "many.npy")
    assert len(lines) == 270
    assert lines[-1].startswith("many.npy[269]: ")
    assert [line.partition(": ")[2] for line in lines] == [line.partition(": ")[2] for line in lines[:3]] * 90


def test_run_takes_float32_as_it_is(capsys: pytest.CaptureFixture[str], net: Path, images: Path) -> None:
    names, got = rankings(printed(capsys, "run", net, images / "all-float.npy", images / "one-float.npy", "--top", 10))
    assert names == ["all-float.npy[0]", "all-float.npy[1]", "all-float.npy[2]", "one-float.npy"]
    pixels = printed(capsys, "run", net, images / "all.npy", images / "one.npy", "--top", 10)
    assert got == rankings(pixels)[1]


def test_run_of_a_net_saved_through_the_api(
    capsys: pytest.CaptureFixture[str], refused: Any, net: Path, images: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.stompp"
    runtime.PackedNet(replace(format.read(net), meta={})).save(bare)
    lines = printed(capsys, "run", bare, images / "all-float.npy")
    assert lines == printed(capsys, "run", net, images / "all-float.npy")  # the classes' names are their numbers
    for mixed in (["all-float.npy", "one.npy"], ["one.png"]):
        told = refused("run", bare, *[images / name for name in mixed])
        assert told.startswith(
            f"{bare} does not say how its training images were normalised (it has no mean and no std)"
        )
        assert "give .npy files of float32 values of shape (N, 1, 8, 8), normalised already" in told
    half = with_meta(net, tmp_path / "half.stompp", std=None)
    assert "(it has no std)" in refused("run", half, images / "one.npy")


def test_run_of_a_net_that_takes_features(
    capsys: pytest.CaptureFixture[str], refused: Any, images: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    stompp.pack(model, torch.zeros(1, 5)).save(tmp_path / "net.stompp")
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    names, got = rankings(printed(capsys, "run", tmp_path / "net.stompp", tmp_path / "x.npy"))
    assert names == ["x.npy[0]", "x.npy[1]"]
    wanted = 100 * torch.softmax(model(torch.from_numpy(x)), 1)
    for ours, theirs in zip(got, wanted.tolist()):
        assert [ours[str(i)] for i in range(3)] == pytest.approx(theirs, abs=0.06)
    told = refused("run", tmp_path / "net.stompp", images / "one.png")
    assert "takes 5 features and no pixels; give a .npy file of float32 values of shape (N, 5)" in told


@pytest.mark.parametrize(
    "array, told",
    [
        (np.zeros((2, 1, 8, 8)), "holds float64 of shape (2, 1, 8, 8); write uint8 pixels of shape (H, W), "),
        (np.zeros((1, 8, 8), np.float16), "holds float16 of shape (1, 8, 8)"),
        (np.zeros((8, 8), np.float32), "or float32 values of shape (N, 1, 8, 8), normalised already"),
        (np.zeros((2, 8, 8, 1), np.float32), "holds float32 of shape (2, 8, 8, 1)"),
        (np.zeros((0, 1, 8, 8), np.float32), "holds float32 of shape (0, 1, 8, 8)"),
        (np.zeros((1, 8, 8), np.int64), "holds int64 of shape (1, 8, 8)"),
        (np.full((1, 8, 8), np.nan, np.float32), "has values that are infinite or no numbers"),
        (np.full((1, 8, 8), -np.inf, np.float32), "has values that are infinite or no numbers"),
        (np.zeros((8, 8, 3), np.uint8), "has 3 channels; the net takes 1"),
        (np.array([{}], object), "is not a readable .npy file"),
        (b"not an array", "is not a readable .npy file"),
        (None, "there is no image file"),
    ],
)
def test_run_refuses_other_arrays(refused: Any, net: Path, tmp_path: Path, array: Any, told: str) -> None:
    path = tmp_path / "x.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    elif array is not None:
        np.save(path, array, allow_pickle=True)
    said = refused("run", net, path)
    assert told in said
    assert "x.npy" in said


@pytest.mark.parametrize(
    "key, text",
    [
        ("mean", "[" + "9" * 400 + "]"),
        ("std", "[" + "9" * 400 + "]"),
        ("mean", "[" + "9" * 5000 + "]"),
        ("mean", "[1e39]"),
        ("mean", "[-1e300]"),
        ("mean", "[NaN]"),
        ("mean", "[Infinity]"),
        ("mean", "[0.5, 0.5]"),
        ("mean", "[]"),
        ("mean", '["0.5"]'),
        ("mean", "[true]"),
        ("mean", "[[0.5]]"),
        ("mean", "0.5"),
        ("mean", "half"),
        ("mean", "[[[["),
        ("mean", EVIL),
        ("std", "[0]"),
        ("std", "[-1]"),
        ("std", "[1e-300]"),
        ("std", "[1e-40]"),  # a float32, and what is divided by it none
        ("std", "[-0.0]"),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_numbers_that_cannot_be_used_are_named(
    refused: Any, net: Path, images: Path, tmp_path: Path, key: str, text: str
) -> None:
    bad = with_meta(net, tmp_path / "bad.stompp", **{key: text})
    told = refused("run", bad, images / "one.npy")
    shown = repr(text if len(text) <= 60 else text[:60] + "...")
    assert told.startswith(f"{bad}: its {key!r} is {shown}, not ")
    assert "; pack the net again" in told
    assert len(told) < 500 + len(str(tmp_path))
    assert main(["run", str(bad), str(images / "one-float.npy")]) == 0  # which needs neither


def test_texts_nested_too_deep_are_refused(net: Path) -> None:
    deep = replace(format.read(net), meta=dict.fromkeys(("mean", "std", "classes"), "[" * 100000))
    for reader in (inputs.normalisation, inputs.class_names):
        with pytest.raises(UsageError, match="not a JSON list of"):
            reader(net, deep)


def test_numbers_at_the_edge_are_used(
    capsys: pytest.CaptureFixture[str], net: Path, images: Path, tmp_path: Path
) -> None:
    edge = with_meta(net, tmp_path / "edge.stompp", mean="[0]", std="[1" + "0" * 38 + "]")
    assert len(printed(capsys, "run", edge, images / "one.npy")) == 1


@pytest.mark.parametrize("text", ["[]", "{}", '["a"]', "x", "[[[[", json.dumps(["x"] * 11)])
def test_classes_that_do_not_fit_are_named(refused: Any, net: Path, images: Path, tmp_path: Path, text: str) -> None:
    bad = with_meta(net, tmp_path / "bad.stompp", classes=text)
    assert "not a JSON list of 10 names; pack the net again" in refused("run", bad, images / "one.npy")


def test_run_refuses_nets_that_do_not_classify(refused: Any, images: Path, tmp_path: Path) -> None:
    stompp.pack(torch.nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 8, 8)).save(tmp_path / "net.stompp")
    told = refused("run", tmp_path / "net.stompp", images / "one-float.npy")
    assert "gives values of shape (2, 6, 6) for an image: it does not classify" in told


def test_run_refuses_results_that_are_no_numbers(refused: Any, images: Path, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    torch.nn.init.constant_(model[1].weight, 3e38)
    stompp.pack(model, torch.zeros(1, 1, 8, 8)).save(tmp_path / "net.stompp")
    np.save(tmp_path / "x.npy", np.full((1, 8, 8), 1e5, np.float32))
    told = refused("run", tmp_path / "net.stompp", tmp_path / "x.npy")
    assert "gives values that are infinite or no numbers on these images" in told


def test_bad_arguments_are_one_line(refused: Any, net: Path, images: Path, tmp_path: Path) -> None:
    image = images / "one.npy"
    assert refused("run", net) == "run needs at least one image file after the packed network"
    assert refused("run", net, image, "--top", 0) == "top is 0; it must be at least 1"
    assert "threads is 0" in refused("run", net, image, "--threads", 0)
    damaged = tmp_path / "damaged.stompp"
    damaged.write_bytes(net.read_bytes()[:-1])
    (tmp_path / "text").write_text("text")
    for command in (["run", None, image], ["inspect", None], ["bench", None]):
        for path, told in [(damaged, "cut off or added to"), (tmp_path / "text", "not a .stompp file")]:
            assert told in refused(*[path if part is None else part for part in command])
        assert "No such file" in refused(*[tmp_path / "gone" if part is None else part for part in command])


def test_missing_kernels_are_one_line_and_change_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, net: Path, images: Path
) -> None:
    wanted = printed(capsys, "run", net, images / "all.npy")
    monkeypatch.setitem(sys.modules, "stompp_kernels", None)
    monkeypatch.setattr(runtime, "_warned", False)
    assert main(["run", str(net), str(images / "all.npy")]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == wanted
    assert re.fullmatch(r"stompp: stompp-kernels is not installed.*pip install stompp-kernels\n", err)
    monkeypatch.setattr(runtime, "_warned", False)
    assert main(["bench", str(net), "--batch", "1", "--turns", "1"]) == 0
    assert "packed (numpy, without the kernels)" in capsys.readouterr().out


# --- bench


def table_rows(lines: list[str]) -> list[list[str]]:
    return [re.split(r" *│ *", line)[1:-1] for line in lines if line.startswith("│")]


def test_bench_of_a_file_times_it_alone(capsys: pytest.CaptureFixture[str], net: Path) -> None:
    lines = printed(capsys, "bench", net, "--batch", 1, 2, "--turns", 1)
    assert lines[0].startswith("A packed file is timed alone; `stompp bench RUN` ")
    titles = [line.strip() for line in lines if "per call, " in line]
    assert titles == [f"{n} per call, 1 thread: CPU time, median of 1 turn" for n in ("1 image", "2 images")]
    rows = table_rows(lines)
    assert len(rows) == 2
    for batch, (name, latency, spread, throughput, ratio, size) in zip((1, 2), rows):
        assert re.fullmatch(r"packed \(\w+\)", name)
        assert 1e3 * batch / float(latency) == pytest.approx(float(throughput.replace(",", "")), rel=0.3)
        assert (spread, ratio, size) == ("", "1.0 ×", f"{net.stat().st_size / 1000:.1f} kB")


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let these packages seem missing and the others that ONNX Runtime needs seem there, whatever is installed."""
    real = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return (None if name in packages else object()) if name in race.ONNX else real(name)

    monkeypatch.setattr(race.importlib.util, "find_spec", find_spec)


def test_bench_of_a_run_times_its_float_twin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    """Compiling takes long and is PyTorch's; that it is asked for, and what comes of it is timed, is seen here."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: compiled.append(model) or model)
    without(monkeypatch, "onnxruntime", "onnxscript")
    lines = printed(capsys, "bench", trained, "--batch", 4, 8, "--turns", 4, "--floats", "int8")
    assert len(compiled) == 2
    (twin,) = set(compiled)
    assert any(isinstance(module, torch.nn.ReLU) for module in twin.modules())
    assert not stompp.sites(twin)
    rows = table_rows(lines)
    assert [re.sub(r" \(.*", "", row[0]) for row in rows] == ["packed", "torch FP32 channels_last", "torch.compile"] * 2
    for name, latency, spread, throughput, ratio, size in rows:
        assert float(latency) > 0, name
        assert re.fullmatch(r"\d+ %", spread)
        assert int(throughput.replace(",", "")) > 0
        assert re.fullmatch(r"\d+\.\d ×", ratio)
        assert re.fullmatch(r"\d+\.\d kB", size)
    assert len({row[5] for row in rows}) == 2
    assert lines[-1] == (
        "ONNX Runtime FP32 and INT8 are left out: onnxruntime, onnxscript are not installed; "
        "pip install onnxruntime onnxscript"
    )
    assert sum("pip install" in line for line in lines) == 1  # once, not for each batch


def test_engine_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("\n\nNo working C++ compiler found in: g++\nTraceback and much more")

    monkeypatch.setattr(torch, "compile", lambda model, **_: fail)
    without(monkeypatch, *race.ONNX)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    example = torch.zeros(2, 1, 2, 2)
    left_out: list[str] = []
    results = race.race(race.float_contenders(model, example, 1), 1, 1, left_out=left_out)
    assert [result.contender.name for result in results] == ["torch FP32 channels_last"]
    assert left_out == [
        "torch.compile: left out, it fails on this net here (RuntimeError: No working C++ compiler found in: g++); it "
        "needs a C++ compiler",
        "ONNX Runtime FP32 and INT8 are left out: onnx, onnxruntime, onnxscript are not installed; "
        "pip install onnx onnxruntime onnxscript",
    ]


def test_bench_refuses_bad_arguments(
    refused: Any, net: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bad in (["--batch", 0], ["--turns", 0], ["--threads", 0], ["--batch", 1, -1]):
        assert refused("bench", net, *bad) == f"{bad[0].removeprefix('--')} is {bad[-1]}; it must be at least 1"
    assert refused("bench", net, "--floats", "int8").startswith(
        f"{net} is packed already, so --floats cannot change it"
    )
    assert re.match(r"floats is 'fp99'; choose one of fp32, .*int8", refused("bench", trained, "--floats", "fp99"))
    assert "is not a run folder" in refused("bench", tmp_path)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(race, "race", full)
    assert refused("bench", net, "--batch", 9) == "batch 9 needs more memory than there is; choose a smaller one"


def test_onnx_twins_answer_as_pytorch_and_leave_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in race.ONNX:
        pytest.importorskip(package)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 64, 10)
    ).eval()
    example = torch.randn(8, 1, 8, 8)
    from stompp.deploy.onnx_twins import onnx_contenders

    plain, quantized = onnx_contenders(model, example, 1)
    assert not list(tmp_path.iterdir())
    assert [plain.name, quantized.name] == ["ONNX Runtime FP32", "ONNX Runtime INT8"]
    assert (plain.size or 0) > race.state_bytes(model)
    for batch in (1, 8):
        x = example[:batch]
        with torch.no_grad():
            want = model(x).numpy()
        for contender, tolerance in ((plain, 1e-5), (quantized, 0.1)):
            (got,) = contender.prepare(x.numpy())()  # type: ignore[misc]
            np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max())


@pytest.mark.slow
def test_bench_with_every_engine_that_is_here(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    here = all(importlib.util.find_spec(package) for package in race.ONNX)
    assert main(["bench", str(trained), "--turns", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [re.sub(r" \(.*", "", row[0]) for row in table_rows(lines)]
    engines = ["packed", "torch FP32 channels_last", "torch.compile"]
    engines += ["ONNX Runtime FP32", "ONNX Runtime INT8"] if here else []
    assert names == engines * 2
    assert any("pip install" in line for line in lines) == (not here)


# --- help, and no PyTorch


def helped(capsys: pytest.CaptureFixture[str], command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())


def test_help_says_what_run_does_with_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "run")
    assert "Pixels: picture files, and .npy files of uint8." in text
    assert "divided by 255, and normalised by the mean and std in FILE" in text
    assert "Values: .npy files of float32. They go into the net as they are" in text


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_help_tells_every_default(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = helped(capsys, command)
    assert f"usage: stompp {command} " in text
    assert "None" not in text
    assert "(default: )" not in text


TORCHLESS = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "tensorboard"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
from stompp.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def torchless(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", TORCHLESS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_commands_run_without_torch(
    capsys: pytest.CaptureFixture[str], net: Path, images: Path, trained: Path, tmp_path: Path
) -> None:
    files = [images / name for name in ("all.npy", "large.png", "one-float.npy")]
    for arguments in (["run", net, *files], ["inspect", net]):
        done = torchless(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == printed(capsys, *arguments)
    done = torchless("bench", net, "--batch", 1, "--turns", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "packed (" in done.stdout
    for arguments in (["bench", trained], ["pack", trained, "-o", tmp_path / "net.stompp"]):
        done = torchless(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "stompp: this command needs torch: pip install torch\n"
