"""What the commands print, at a terminal and elsewhere, and what an import of stompp brings along."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stompp import __version__
from stompp.cli import COMMANDS, main
from stompp.recipes import all_recipes, find, get
from stompp.recipes.schema import Recipe
from stompp.training.options import RunOptions

NAME = "resnet8-digits-bnn-stompp"
SMALL = ["--width", "4", "--limit-train", "128", "--batch-size", "32", "--eval-train", "50", "--epochs", "4"]
FOLDER = f"{NAME}+width=4+limit_train=128+epochs=4+batch_size=32+eval_train=50"
VIEWS = r"test +\d+\.\d %, binary +\d+\.\d %"
EPOCH = rf"epoch +\d/4  loss +\d+\.\d{{3}}  train +\d+\.\d %  {VIEWS}  frozen \d+/13  [\d,]+ images/s"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    assert main(["train", NAME, *SMALL, "--device", "cpu", "--no-tensorboard", "--runs", str(made)]) == 0
    return made


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """Run a command that must succeed without a word on stderr, and return the lines it prints."""
    assert main([str(a) for a in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    return out.splitlines()


def test_train_tells_of_fields_that_have_no_effect(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["--width", "4", "--limit-train", "64", "--batch-size", "32", "--eval-train", "50", "--epochs", "7"]
    options = ["--no-tensorboard", "--device", "cpu", "--runs", str(tmp_path)]
    assert main(["train", "resnet8-digits-bnn-stompp", *small, "--surrogate", "clip", *options]) == 0
    said = capsys.readouterr().err
    assert "stompp: --surrogate has no effect on this run: no activation has a surrogate gradient\n" in said
    assert said.count("has no effect") == 1


def test_train_prints_a_plain_line_per_epoch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = printed(capsys, "train", NAME, *SMALL, "--device", "cpu", "--no-tensorboard", "--runs", tmp_path)
    assert len(lines) == 5
    for line in lines[:4]:
        assert re.fullmatch(EPOCH, line), line
    assert re.fullmatch(
        rf"finished {re.escape(str(tmp_path / FOLDER / 'seed0'))}: test accuracy [\d.]+ %; 6 layers saw only ±1",
        lines[4],
    )
    again = printed(capsys, "train", NAME, *SMALL, "--device", "cpu", "--no-tensorboard", "--runs", tmp_path)
    assert again == [f"{tmp_path / FOLDER / 'seed0'} is finished already; nothing to do"]


@pytest.mark.parametrize("words", [(), ("digits",), ("bireal18", "pretrained"), ("resnet8-digits-bnn-ste-ovsw",)])
def test_list_prints_a_name_per_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert printed(capsys, "list", *words) == [recipe.name for recipe in find(*words)]


def test_show_prints_every_field_and_what_is_special(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(printed(capsys, "show", NAME))
    for field, value in get(NAME).to_dict().items():
        if field != "name":
            assert re.search(rf"\b{field} +│ {re.escape(str(value))} ", text), field
    assert re.search(r"epochs +│ 40 +│ 200 ", text)


@pytest.mark.parametrize("name", [NAME, "resnet8-cifar10-16-bwn-ste", "resnet18-cifar100-bnn-stompp"])
def test_summary_prints_the_net_without_reading_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("STOMPP_DATA", str(tmp_path / "nothing"))
    lines = printed(capsys, "summary", name)
    assert lines[0].split()[:2] == ["layer", "type"]
    assert any(line.startswith("total") for line in lines)
    assert re.fullmatch(r"\d+ sites are frozen progressively", lines[-1])


def test_eval_prints_what_training_logged(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    run = runs / FOLDER / "seed0"
    lines = printed(capsys, "eval", run, "--device", "cpu")
    assert lines[0] == f"{FOLDER}, seed 0"
    assert re.fullmatch(r"test      360 images  loss \d\.\d{4}  accuracy \d+\.\d\d %", lines[1])
    assert re.fullmatch(r"train      50 images  loss \d\.\d{4}  accuracy \d+\.\d\d %", lines[2])
    assert lines[3] == "binary: 4,608 weights in 6 layers are all ±1, and so is all that they saw"
    logged = re.findall(r'"accuracy": ([\d.]+)', (run / "DONE").read_text())
    assert f"accuracy {float(logged[1]):.2f} %" in lines[1]


def test_predict_ranks_the_classes_of_each_image(
    capsys: pytest.CaptureFixture[str], runs: Path, tmp_path: Path
) -> None:
    from PIL import Image

    from stompp.data import load

    pixels = load("digits").test.images[:3, 0].numpy()  # type: ignore[attr-defined]
    np.save(tmp_path / "one.npy", pixels[0])
    np.save(tmp_path / "all.npy", pixels[..., None])
    Image.fromarray(pixels[0]).save(tmp_path / "one.png")
    Image.fromarray(pixels[0].repeat(4, 0).repeat(4, 1)).convert("RGBA").save(tmp_path / "large.png")
    files = [tmp_path / name for name in ("one.npy", "all.npy", "one.png", "large.png")]
    lines = printed(capsys, "predict", runs / FOLDER / "seed0", *files, "--top", "2", "--device", "cpu")
    names = [line.partition(": ")[0] for line in lines]
    assert names == ["one.npy", "all.npy[0]", "all.npy[1]", "all.npy[2]", "one.png", "large.png"]
    rankings = [line.partition(": ")[2] for line in lines]
    assert all(re.fullmatch(r"\d \d+\.\d %, \d \d+\.\d %", ranking) for ranking in rankings)
    assert rankings[0] == rankings[1] == rankings[4]  # the same picture, however it is given
    assert len({*rankings[1:4]}) == 3


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version") == [f"stompp {__version__}"]
    for ask in ("--help", "-h", "help"):
        text = "\n".join(printed(capsys, ask))
        for command in COMMANDS:
            assert f"  stompp {command} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"stompp {command}" in out


def test_train_help_tells_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], [NAME, "--help"]):
        with pytest.raises(SystemExit):
            main(["train", *arguments])
        out = capsys.readouterr().out
        for field in [*Recipe.__dataclass_fields__, *RunOptions.__dataclass_fields__]:
            assert (f"--{field.replace('_', '-')}" in out) == (field != "name"), field


def at_terminal(*arguments: str, columns: int = 80) -> tuple[int, str]:
    """Run the console script at a terminal of its own, and return its exit code and what it shows, without colours."""
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")}
    environment |= {"COLUMNS": str(columns), "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    script = Path(sys.executable).with_name("stompp")
    process = subprocess.Popen([script, *arguments], stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_list_at_a_terminal_keeps_names_whole() -> None:
    code, shown = at_terminal("list", "cifar100", "stompp", columns=80)
    assert code == 0
    for recipe in find("cifar100", "stompp"):
        assert f" {recipe.name} " in shown
    assert "…" not in shown


def test_train_at_a_terminal_shows_progress_and_leaves_the_lines(tmp_path: Path) -> None:
    options = ["--monitor-every", "1", "--no-tensorboard", "--device", "cpu", "--threads", "1"]
    code, shown = at_terminal("train", NAME, *SMALL, *options, "--runs", str(tmp_path), columns=120)
    assert code == 0
    assert len(re.findall(EPOCH, shown)) == 4
    assert re.search(r"\d/4 [━╺╸ ]+ \d+ % loss +\d\.\d+ +.*images/s", shown)
    assert "Traceback" not in shown


def test_reader_that_has_seen_enough_is_no_error() -> None:
    script = Path(sys.executable).with_name("stompp")
    process = subprocess.Popen([script, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("use", ["", "stompp.prepare", "stompp.Freezer; stompp.models; stompp.summary"])
def test_import_touches_no_optional_package(use: str) -> None:
    optional = {"plotly", "matplotlib", "PIL", "tensorboard", "tyro", "rich", "safetensors", "submitit", "torchvision"}
    code = f"import sys, stompp\n{use}\nprint(*sorted({optional} & set(sys.modules)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(bool(use))]  # torch alone, and only once it is needed


def test_commands_that_need_no_net_do_not_wait_for_tensorboard() -> None:
    code = (
        "import sys; from stompp.cli import main; main(['list', 'digits']); print('tensorboard' in sys.modules)\n"
        "print('plotly' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["False", "False False"]
    assert len(done.stdout.splitlines()) == len([n for n in all_recipes() if "digits" in n]) + 2
