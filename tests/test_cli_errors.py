"""Bad input on the command line: one clear line on stderr, exit code 2, never a traceback."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stompp.cli import main
from stompp.experiments.report import write_report
from stompp.training import checkpoint
from stompp.training.folder import RunFolder

NAME = "resnet8-digits-bnn-stompp"
SMALL = ["--width", "4", "--limit-train", "128", "--batch-size", "32", "--eval-train", "50", "--epochs", "4"]
FOLDER = f"{NAME}+width=4+limit_train=128+epochs=4+batch_size=32+eval_train=50"
QUICK = ["--no-tensorboard", "--device", "cpu"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", NAME, *SMALL, *QUICK, "--runs", str(runs)]) == 0
    return runs / FOLDER / "seed0"


@pytest.fixture
def finished(pristine: Path, tmp_path: Path) -> Path:
    """A finished run to do harm to."""
    return Path(shutil.copytree(pristine, tmp_path / "runs" / FOLDER / "seed0"))


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """The same, as it was before the end."""
    (finished / "DONE").unlink()
    (finished / "model.safetensors").unlink()
    return finished


def train_small(runs: Path, *more: str) -> list[str]:
    return ["train", NAME, *SMALL, *QUICK, "--runs", str(runs), *more]


# --- what is written on the command line

TRAIN = f"train {NAME} --no-tensorboard --device cpu --runs unused"


@pytest.mark.parametrize(
    "line, told",
    [
        ("trian", "there is no command 'trian'; did you mean 'train'? Commands are train, list"),
        ("dance", "there is no command 'dance'; commands are train, list"),
        ("train", "train needs the name of a recipe; `stompp list` shows them"),
        ("train resnet8-digits-bnn-stomp", f"there is no recipe 'resnet8-digits-bnn-stomp'; did you mean {NAME}"),
        ("train zzzzz", "there is no recipe 'zzzzz'; see them all with `stompp list`"),
        (f"train --epochs 3 {NAME}", "the recipe's name comes first: write stompp train NAME --epochs"),
        ("show nothing-like-it", "there is no recipe 'nothing-like-it'"),
        ("show", "show takes 1 name, not 0; usage: stompp show NAME: print a recipe's fields"),
        ("show digits", "`stompp list digits` shows the"),
        ("reproduce main --jobs 0", "jobs is 0; it must be at least 1"),
        ("reproduce main --minutes 0", "minutes is 0; it must be more than 0"),
        ("reproduce main --minutes -1 --dry-run", "minutes is -1; it must be more than 0"),
        ("reproduce nosuch", "there is no experiment 'nosuch'; known are main"),
        (f"{TRAIN} --resized-crop", "set crop_pad to 0 (--crop-pad 0)"),
        ("run . image.npy", ". is a folder, not a packed network"),
        ("inspect .", ". is a folder, not a packed network"),
        (f"show {NAME} {NAME}", "show takes 1 name, not 2"),
        (f"summary {NAME} --width 8", "summary has no flag '--width'; usage: stompp summary NAME"),
        ("list no-such-word", "no recipe's name holds all of no-such-word; `stompp list` shows them all"),
        (f"{TRAIN} --epochs 0", "epochs is 0; it must be at least 1"),
        (f"{TRAIN} --epochs -3", "epochs is -3; it must be at least 1"),
        (f"{TRAIN} --lr -0.1", "lr is -0.1; it must be a finite number above 0"),
        (f"{TRAIN} --lr 0", "lr is 0.0; it must be a finite number above 0"),
        (f"{TRAIN} --lr nan", "lr is nan; it must be a finite number above 0"),
        (f"{TRAIN} --lr inf", "lr is inf; it must be a finite number above 0"),
        (f"{TRAIN} --momentum 1.5", "momentum is 1.5; it must be finite, at least 0 and below 1"),
        (f"{TRAIN} --weight-decay -1", "weight_decay is -1.0; it must be finite, at least 0"),
        (f"{TRAIN} --label-smoothing 1", "label_smoothing is 1.0; it must be finite, at least 0 and below 1"),
        (f"{TRAIN} --refresh 0", "refresh is 0; it must be at least 1"),
        (f"{TRAIN} --batch-size 0", "batch_size is 0; it must be at least 1"),
        (f"{TRAIN} --batch-size 5000", "batch_size is 5000, and digits has 1437 training images"),
        (f"{TRAIN} --limit-train 32", "batch_size is 64, and digits has 32 training images with this limit_train"),
        (f"{TRAIN} --limit-train 99999", "limit_train is 99999; digits has 1 to 1437 training images"),
        (f"{TRAIN} --crop-pad -1", "crop_pad is -1; it must be at least 0"),
        (f"{TRAIN} --model resnet19", "model is 'resnet19'; known are resnet18"),
        (f"{TRAIN} --data mnist", "data is 'mnist'; known are digits"),
        (f"{TRAIN} --model resnet18 --width 8", "Bi-Real nets; model 'resnet18' has a fixed width"),
        (f"{TRAIN} --model resnet18", "model 'resnet18' takes images of 3 channels and data 'digits' has 1"),
        (f"{TRAIN} --granularity epoch --epochs 5", "5 epochs are too few for 13 sites at one epoch each: "),
        (f"{TRAIN} --epochs 1 --batch-size 700", "2 steps are too few for 13 sites"),
        (f"{TRAIN} --policy deterministic", "is an activation: use policy='stochastic'"),
        (f"{TRAIN} --hold-frozen --frozen-grad ste", "hold_frozen=True keeps frozen entries constant, but site"),
        (f"{TRAIN} --ovsw --weights float --activations clip", "OvSW corrects binary weights, and this model has none"),
        (f"{TRAIN} --init-from nowhere", "init_from is 'nowhere', which is neither a run folder nor a recipe's name"),
        (f"{TRAIN} --init-from resnet8-digits-bnn-ste", "with `stompp train resnet8-digits-bnn-ste --seed 0`"),
        (f"{TRAIN} --seed -1", "seed is -1; it must be at least 0"),
        (f"{TRAIN} --threads 0", "threads is 0; it must be at least 1"),
        (f"{TRAIN} --monitor-every 0", "monitor_every is 0; it must be at least 1"),
        (f"{TRAIN} --checkpoint-minutes nan", "checkpoint_minutes is nan; it must be at least 0"),
        (f"{TRAIN} --device tpu9", "device 'tpu9' is not to be had here"),
        (f"{TRAIN} --device meta", "device 'meta' is not to be had here"),
        ("eval nowhere", "nowhere is not a run folder: it has no recipe.json; give the folder that"),
        ("eval .", ". is not a run folder: it has no recipe.json"),
        ("predict nowhere picture.png", "nowhere is not a run folder"),
        ("predict nowhere", "predict needs at least one image file after the run folder"),
        ("predict nowhere x.png --top 0", "top is 0; it must be at least 1"),
    ],
)  # fmt: skip
def test_mistake_on_the_command_line_gives_one_line(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in refused(*line.split())
    assert list(tmp_path.iterdir()) == []  # a mistake leaves nothing behind


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_named(refused: Any, tmp_path: Path) -> None:
    told = refused("train", NAME, "--device", "cuda", "--runs", tmp_path)
    assert told.startswith("device 'cuda' is not to be had here (")
    assert told.endswith("); write --device cpu")


@pytest.mark.parametrize(
    "line, told",
    [
        (f"{TRAIN} --epoch 3", ["--epoch", "--epochs"]),  # suggests the nearest
        (f"{TRAIN} --epochs three", ["--epochs", "'three'"]),
        (f"{TRAIN} --epochs 2.5", ["--epochs", "'2.5'"]),
        (f"{TRAIN} --lr fast", ["--lr", "'fast'"]),
        (f"{TRAIN} --schedule cubik", ["--schedule", "'cubik'", "'cubic'"]),
        (f"{TRAIN} --name mine", ["--name"]),
        (f"{TRAIN} extra", ["extra"]),
        ("eval", ["RUN"]),
        ("eval run --seed 3", ["--seed"]),  # not ignored
        ("eval run --compile", ["--compile"]),
    ],
)
def test_flag_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], line: str, told: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    for word in told:
        assert word in err


def test_no_command_gives_the_usage_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "stompp train NAME" in err


# --- data


def cifar(root: Path, kind: str) -> Path:
    folder = root / f"cifar-10-batches-{kind}"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / (name + (".bin" if kind == "bin" else ""))).write_bytes(b"\0" * 3073)
    return folder


def test_missing_data_tells_where_it_looked(refused: Any, tmp_path: Path) -> None:
    told = refused(
        "train", "resnet8-cifar10-16-bnn-ste", "--no-download", "--data-root", tmp_path, "--runs", tmp_path / "r"
    )
    assert "cifar10 is not there" in told
    assert str(tmp_path) in told
    assert not (tmp_path / "r").exists()


def test_truncated_data_names_the_file(refused: Any, tmp_path: Path) -> None:
    folder = cifar(tmp_path, "bin")
    told = refused(
        "train", "resnet8-cifar10-16-bnn-ste", "--no-download", "--data-root", tmp_path, "--runs", tmp_path / "r"
    )
    assert f"{folder}/data_batch_1.bin has 3073 bytes, expected 30730000: it is cut short" in told


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.target}",))


def test_pickle_bomb_for_data_does_not_go_off(refused: Any, tmp_path: Path) -> None:
    folder = cifar(tmp_path, "py")
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Bomb(tmp_path / "boom")}, 2))
    told = refused(
        "train", "resnet8-cifar10-16-bnn-ste", "--no-download", "--data-root", tmp_path, "--runs", tmp_path / "r"
    )
    assert f"{folder}/data_batch_1" in told
    assert not (tmp_path / "boom").exists()


# --- a run folder that was harmed


def damage_file(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_bytes(content)

    return damage


def damage_version(run: Path) -> None:
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save({**state, "version": 99}, run / "checkpoint.pt")


def damage_both(run: Path) -> None:
    for path in (run / "checkpoint.pt", checkpoint.previous_of(run / "checkpoint.pt")):
        path.write_bytes(path.read_bytes()[:5000])


def damage_recipe(run: Path) -> None:
    content = json.loads((run / "recipe.json").read_text())
    content["recipe"]["epochs"] = 0
    (run / "recipe.json").write_text(json.dumps(content))


def damage_field(run: Path) -> None:
    content = json.loads((run / "recipe.json").read_text())
    content["recipe"]["colour"] = "red"
    (run / "recipe.json").write_text(json.dumps(content))


def damage_pickle(run: Path) -> None:
    for path in (run / "checkpoint.pt", checkpoint.previous_of(run / "checkpoint.pt")):
        torch.save({"version": 1, "t": Bomb(run / "boom")}, path)


@pytest.mark.parametrize(
    "damage, told",
    [
        (damage_version, "is a checkpoint of version 99, and this stompp reads version 2: use"),
        (damage_both, "checkpoint.prev.pt is damaged (File is not a zip file); move the run folder away to start anew"),
        (damage_pickle, "checkpoint.pt is damaged (Weights only load failed"),
        (damage_recipe, "recipe.json is damaged, or of another version (epochs is 0; it must be at least 1)"),
        (damage_field, "recipe.json is damaged, or of another version (a recipe has no field 'colour'"),
        (damage_file("recipe.json", b"{}"), "recipe.json is damaged, or of another version (it has no 'recipe')"),
        (damage_file("recipe.json", b"{"), "recipe.json is damaged, or of another version"),
        (damage_file("recipe.json", b"\xff\xfe\0"), "recipe.json is damaged, or of another version"),
        (damage_file("recipe.json", b"[1, 2]"), "recipe.json is damaged, or of another version"),
        (damage_file("metrics.jsonl", b""), "metrics.jsonl has lost lines: it has 0 bytes, and "),
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl has lost lines: it has 0 bytes, and "),
        (lambda run: (run / "recipe.json").unlink(), "has files in it but no recipe.json; it stays as it is"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "told",
)  # fmt: skip
def test_damaged_run_is_not_gone_on_with(
    refused: Any, unfinished: Path, damage: Callable[[Path], None], told: str
) -> None:
    damage(unfinished)
    kept = {p.name: p.read_bytes() for p in unfinished.iterdir() if p.name not in (".lock", "env.json")}
    kept.setdefault("metrics.jsonl", b"")
    assert told in refused(*train_small(unfinished.parent.parent))
    for name, content in kept.items():
        assert not (unfinished / name).exists() or (unfinished / name).read_bytes() == content, name
    assert not (unfinished / "boom").exists()
    assert not (unfinished / "DONE").exists()


def test_damaged_line_of_metrics_is_named(refused: Any, unfinished: Path) -> None:
    content = (unfinished / "metrics.jsonl").read_bytes()
    (unfinished / "metrics.jsonl").write_bytes(b"?" * 20 + content[20:])
    assert "line 1 of " in refused(*train_small(unfinished.parent.parent))
    assert not (unfinished / "DONE").exists()


def test_damaged_environment_does_not_matter(unfinished: Path) -> None:
    (unfinished / "env.json").write_text("{")
    assert main(train_small(unfinished.parent.parent)) == 0
    assert json.loads((unfinished / "env.json").read_text())["torch"] == torch.__version__


def test_damaged_checkpoint_falls_back_with_a_note(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (unfinished / "checkpoint.pt").write_bytes(b"torn")
    assert main(train_small(unfinished.parent.parent)) == 0
    said = capsys.readouterr().out
    assert "the run goes on from the checkpoint before it" in said
    assert "going on with" in said


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_unfinished_run_says_how_to_go_on(refused: Any, unfinished: Path, tmp_path: Path, command: str) -> None:
    image = tmp_path / "image.npy"
    np.save(image, np.zeros((8, 8), np.uint8))
    told = refused(command, unfinished, *([image] if command == "predict" else []))
    assert "is not finished; go on with `stompp train " in told
    words = shlex.split(told.split("`")[1])
    assert words[-2:] == ["--runs", str(unfinished.parent.parent)]
    name, *flags = words[2:-4]
    changed = dict(pair.split("=") for pair in unfinished.parent.name.split("+")[1:])
    assert name == unfinished.parent.name.split("+")[0]
    assert dict(zip(flags[::2], flags[1::2])) == {f"--{k.replace('_', '-')}": v for k, v in changed.items()}


@pytest.mark.parametrize("command", ["eval", "predict", "pack", "bench"])
def test_run_that_broke_down_says_so(refused: Any, unfinished: Path, tmp_path: Path, command: str) -> None:
    RunFolder(unfinished).note_divergence("'fc.weight' is not finite at step 3; try a lower --lr", 3)
    more = {"predict": [tmp_path / "image.npy"], "pack": ["-o", tmp_path / "net.stompp"]}.get(command, [])
    np.save(tmp_path / "image.npy", np.zeros((8, 8), np.uint8))
    told = refused(command, unfinished, *more)
    assert "has no trained net: 'fc.weight' is not finite at step 3; try a lower --lr" in told


def test_report_overwrites_reports_alone(refused: Any, unfinished: Path, tmp_path: Path) -> None:
    page, mine = tmp_path / "report.html", tmp_path / "mine.npy"
    for _ in range(2):
        write_report([unfinished], page)
    mine.write_bytes(b"mine")
    assert "is there and is no report of stompp" in refused("report", unfinished, "--out", mine)
    assert mine.read_bytes() == b"mine"


def test_run_folder_one_level_up_suggests_the_right_one(refused: Any, finished: Path) -> None:
    assert f"did you mean {finished}?" in refused("eval", finished.parent)


@pytest.mark.parametrize("damage", ["cut", "missing", "other"])
def test_damaged_weights_are_named(refused: Any, finished: Path, damage: str) -> None:
    path = finished / "model.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10] if damage == "cut" else b"x" * 100)
    told = refused("eval", finished)
    assert "model.safetensors is " + ("missing" if damage == "missing" else "damaged") in told


# --- pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Files that are no pictures, or not ones this net takes."""
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "text.png").write_text("not a picture")
    (folder / "empty.png").touch()
    Image.new("RGB", (64, 64), (9, 9, 9)).save(folder / "good.png")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:60])
    (folder / "text.npy").write_text("not an array")
    (folder / "empty.npy").touch()
    np.save(folder / "float.npy", np.zeros((8, 8)))
    np.save(folder / "colour.npy", np.zeros((8, 8, 3), np.uint8))
    np.save(folder / "nothing.npy", np.zeros((0, 8, 8, 1), np.uint8))
    np.save(folder / "flat.npy", np.zeros((0, 8), np.uint8))
    np.save(folder / "line.npy", np.zeros(8, np.uint8))
    np.save(folder / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    np.savez(folder / "several", a=np.zeros((8, 8), np.uint8))
    (folder / "several.npz").rename(folder / "several.npy")
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999, 8, 8, 1), }"
    (folder / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    (folder / "folder.png").mkdir()
    return folder


@pytest.mark.parametrize(
    "name, told",
    [
        ("gone.png", "there is no image file "),
        ("folder.png", "there is no image file "),
        ("text.png", "is not a picture that Pillow can read"),
        ("empty.png", "is not a picture that Pillow can read"),
        ("cut.png", "is not a picture that Pillow can read"),
        ("text.npy", "is not a readable .npy file"),
        ("empty.npy", "is not a readable .npy file"),
        ("objects.npy", "is not a readable .npy file"),
        ("several.npy", "is not a readable .npy file"),
        ("huge.npy", "is not a readable .npy file"),
        ("float.npy", "holds float64 of shape (8, 8); write uint8 pixels"),
        ("colour.npy", "colour.npy has 3 channels; the net takes 1"),
        ("nothing.npy", "holds uint8 of shape (0, 8, 8, 1)"),
        ("flat.npy", "holds uint8 of shape (0, 8)"),
        ("line.npy", "holds uint8 of shape (8,)"),
    ],
)
def test_file_that_is_no_picture_is_named(refused: Any, pristine: Path, pictures: Path, name: str, told: str) -> None:
    assert told in refused("predict", pristine, pictures / name)


# --- places that cannot be written to


def test_runs_below_a_file_is_refused(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "(Not a directory); choose another --runs" in refused(*train_small(tmp_path / "file" / "runs"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody may write")
def test_unwritable_runs_is_refused(refused: Any) -> None:
    assert refused(*train_small(Path("/proc/runs"))).startswith("cannot write to /proc/runs/")


def test_path_that_is_too_long_is_refused(refused: Any, tmp_path: Path) -> None:
    assert "File name too long" in refused(*train_small(tmp_path / ("x" * 300)))


def test_tensorboard_that_cannot_be_written_is_refused(refused: Any, unfinished: Path) -> None:
    (unfinished / "tensorboard").touch()
    told = refused(*[a for a in train_small(unfinished.parent.parent) if a != "--no-tensorboard"])
    assert str(unfinished / "tensorboard") in told


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from stompp.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "limit, told",
    [
        (100, "recipe.json (File too large); nothing is lost"),
        (1500, "metrics.jsonl (File too large)"),
        (20_000, "checkpoint.pt (File too large); there was none before. Make room"),
    ],
)
def test_full_disk_is_one_line(tmp_path: Path, limit: int, told: str) -> None:
    """A limit on the size of files stands for the disk; it fails in the same calls."""
    command = [sys.executable, "-c", LIMITED, str(limit), *train_small(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.rglob("*.tmp"))
    assert main(train_small(tmp_path)) == 0  # with room again, the same command goes on


NO_ROOM_FOR_CURVES = """
import resource, sys
from stompp.training import checkpoint, monitor
checkpoint.save = lambda path, state: None
monitor.Metrics.append = lambda self, row: None
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
from stompp.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_disk_that_is_full_for_tensorboard_is_one_line(tmp_path: Path) -> None:
    arguments = [a for a in train_small(tmp_path, "--epochs", "12") if a != "--no-tensorboard"]
    command = [sys.executable, "-c", NO_ROOM_FOR_CURVES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    assert re.fullmatch(
        r"stompp: cannot write \S+/tensorboard \(File too large\); the last checkpoint .*\n", done.stderr
    )


def test_loss_that_is_not_finite_is_one_line(refused: Any, tmp_path: Path) -> None:
    told = refused(*train_small(tmp_path, "--lr", "1e30"))
    assert "is not finite at step" in told
    assert "learning rate 1e+30); there is no checkpoint yet. Try a lower --lr" in told
    assert "moving" in told


def test_console_script_gives_the_exit_code(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("stompp")
    done = subprocess.run([script, "show", "nope"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
