"""The paper's figures: all are drawn, show what the runs' files hold, leave out what is not there, and stay legible."""

from __future__ import annotations

import io
import itertools
import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from report_runs import write_run
from stompp.experiments import reproduce
from stompp.experiments.catalog import EXPERIMENTS, recipe_of
from stompp.experiments.comparison import paper_numbers
from stompp.experiments.evidence import Evidence
from stompp.experiments.figures import FIGURES, README, figures_of, look
from stompp.experiments.runs import Run, find_runs
from stompp.recipes.grids import REFRESH_RATES, STES, Scale, Spec

pytest.importorskip("matplotlib")

EVERY = {**FIGURES, README.name: README}
DOCS = Path(__file__).parents[1] / "docs"
SITES = 3  # few, so that files are small


def write(root: Path, spec: Spec, seed: int = 0, **options: Any) -> Path:
    return write_run(root, recipe_of(spec, "mini"), seed, sites=SITES, **options)


def evidence_of(root: Path) -> Evidence:
    return Evidence(find_runs([root]).runs, "mini")


def break_down(folder: Path, after: int) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:after]))
    (folder / "DONE").unlink()
    (folder / "DIVERGED").write_text(json.dumps({"reason": "the loss is nan"}))


def finals(evidence: Evidence, spec: Spec) -> list[float]:
    return [run.epochs[-1].accuracy["test", "binary"] for run in evidence.runs(spec)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Every run of the experiments that have a figure, seed 0; two of them with a second seed, two that broke down."""
    root = tmp_path_factory.mktemp("runs")
    specs = dict.fromkeys(s for f in FIGURES.values() for e in f.experiments for s in EXPERIMENTS[e].specs("mini"))
    for recipe in dict.fromkeys(recipe_of(spec, "mini") for spec in specs):
        write_run(root, recipe, sites=SITES)
    for spec in (Spec(), Spec("resnet34", "bnn-ste-clip")):
        write(root, spec, 1)
    for net in ("resnet34", "resnet50"):
        break_down(root / recipe_of(Spec(net, "bnn-ste"), "mini").name / "seed0", after=3)
    return find_runs([root]).runs


@pytest.fixture(scope="module")
def full(runs: list[Run]) -> Evidence:
    return Evidence(runs, "mini")


@pytest.fixture
def drawn(full: Evidence) -> Iterator[Callable[[str], Any]]:
    """Draw a figure by its name, in the style it is written in."""
    with look.style():
        yield lambda name: EVERY[name].draw(full)


def lines_of(axes: Any) -> dict[str, Any]:
    """Return the lines that stand for runs or numbers, by label."""
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def titles(figure: Any) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes]


@pytest.mark.parametrize("name", EVERY)
def test_figure_is_written_twice_with_the_same_bytes_and_no_date(name: str, full: Evidence, tmp_path: Path) -> None:
    import matplotlib

    once = EVERY[name](full, tmp_path / "once")
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "lines.linewidth": 9}):
        twice = EVERY[name](full, tmp_path / "twice")
        assert matplotlib.rcParams["font.size"] == 20
    assert [path.name for path in once] == [f"{name}.svg", f"{name}.pdf"]
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in twice]
    root = ET.fromstring(once[0].read_text())
    assert root.findtext("{http://www.w3.org/2000/svg}title") == EVERY[name].caption
    assert b"dc:date" not in once[0].read_bytes()
    assert b"CreationDate" not in once[1].read_bytes()


@pytest.mark.parametrize("name", EVERY)
def test_no_text_of_a_figure_overlaps_another_or_leaves_it(
    name: str, drawn: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.text import Text

    figure = drawn(name)
    shown: dict[Text, None] = {}  # what is drawn, not what only exists, like labels of ticks beyond an axis
    draw = Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, renderer: (shown.setdefault(text), draw(text, renderer)))
    figure.draw_without_rendering()
    boxes = {text: text.get_window_extent() for text in shown if text.get_visible() and text.get_text().strip()}
    assert len(boxes) > 10
    for text, box in boxes.items():
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text
    for a, b in itertools.combinations(boxes, 2):
        assert not boxes[a].overlaps(boxes[b]), (a, b)


@pytest.mark.parametrize("name", EVERY)
def test_every_panel_tells_n_and_chance_and_starts_at_zero(name: str, drawn: Callable[[str], Any]) -> None:
    figure = drawn(name)
    panels = [axes for axes in figure.axes if lines_of(axes)]
    assert panels
    for axes in panels:
        theirs = axes.get_title("left").startswith("the paper")
        assert axes.get_title("right").startswith("n = ") != theirs
        assert axes.get_ylim()[0] == 0
        chance = [line for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
        assert [list(line.get_ydata()) for line in chance] == [
            [1.0, 1.0] if "cifar100" in axes.get_title("left") else [10.0, 10.0]
        ]
        highest = max(max(line.get_ydata()) for line in lines_of(axes).values())
        assert highest <= axes.get_ylim()[1]
    assert "seed" in figure._supxlabel.get_text()


@pytest.mark.parametrize("name", EVERY)
def test_figure_without_runs_is_not_there(name: str, tmp_path: Path) -> None:
    assert EVERY[name](Evidence([], "mini"), tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", EVERY)
def test_figure_of_a_single_run_leaves_out_all_others(name: str, runs: list[Run]) -> None:
    spec = _setting(name, "mini")
    recipe = recipe_of(spec, "mini")
    with look.style():
        figure = EVERY[name].draw(Evidence([r for r in runs if r.recipe == recipe and r.seed == 0], "mini"))
    ours = [axes for axes in figure.axes if lines_of(axes) and not axes.get_title("left").startswith("the paper")]
    assert len(ours) == 1
    assert "One run each, seed 0." in figure._supxlabel.get_text()


def _setting(name: str, scale: Scale) -> Spec:
    """Return a setting that the figure shows."""
    if name == README.name:
        return Spec("resnet34", "bnn-stompp", "cifar10")
    method = {"hybrids": "bnn-hybrid-aw", "bwn": "bwn-stompp"}.get(name, "bnn-stompp")
    return next(s for e in FIGURES[name].experiments for s in EXPERIMENTS[e].specs(scale) if s.method == method)


@pytest.mark.parametrize("name", FIGURES)
def test_figure_draws_at_the_papers_scale(name: str, tmp_path: Path) -> None:
    spec = _setting(name, "paper")
    write_run(tmp_path, replace(recipe_of(spec, "paper"), epochs=5), sites=SITES)
    (run,) = find_runs([tmp_path]).runs
    whole = replace(run, recipe=recipe_of(spec, "paper"))
    with look.style():
        assert EVERY[name].draw(Evidence([whole], "paper")) is not None


def test_every_figure_of_the_paper_and_every_experiment_with_curves_has_one() -> None:
    assert all(figure.name == name for name, figure in FIGURES.items())
    assert {e for figure in FIGURES.values() for e in figure.experiments} <= EXPERIMENTS.keys()
    for name, experiment in EXPERIMENTS.items():
        assert figures_of([name]) or "Figure" not in experiment.source


def test_curves_show_the_mean_of_the_files_in_both_views(drawn: Callable[[str], Any], full: Evidence) -> None:
    lines = lines_of(drawn("dynamics").axes[0])
    runs = full.runs(Spec())
    assert len(runs) == 2
    for label, view in (("StoMPP", "current"), ("StoMPP, binary view", "binary")):
        both = [[e.accuracy["test", view] for e in run.epochs] for run in runs]
        assert lines[label].get_ydata() == pytest.approx([(a + b) / 2 for a, b in zip(*both, strict=True)])
        assert list(lines[label].get_xdata()) == [e.number for e in runs[0].epochs]
    assert lines["StoMPP"].get_linestyle() == "-"
    assert lines["StoMPP, binary view"].get_linestyle() == "--"
    assert "STE (clip), binary view" not in lines  # it is the same as the other


def test_curves_band_spans_the_runs(drawn: Callable[[str], Any], full: Evidence) -> None:
    axes = drawn("dynamics").axes[0]
    (band,) = axes.collections
    ys = [y for path in band.get_paths() for _, y in path.vertices]
    currents = [e.accuracy["test", "current"] for run in full.runs(Spec()) for e in run.epochs]
    assert (min(ys), max(ys)) == pytest.approx((min(currents), max(currents)))


def test_curves_take_the_evaluations_within_epochs(tmp_path: Path) -> None:
    folder = write(tmp_path, Spec())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["between"] = [{"step": line["step"] - 5, "current": 55.0, "binary": 22.0}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with look.style():
        drawn = lines_of(FIGURES["dynamics"].draw(evidence_of(tmp_path)).axes[0])
    assert list(drawn["StoMPP"].get_xdata())[:3] == [0.5, 1.0, 1.5]
    assert list(drawn["StoMPP"].get_ydata())[::2] == [55.0] * len(lines)
    assert list(drawn["StoMPP, binary view"].get_ydata())[::2] == [22.0] * len(lines)


def test_broken_run_is_guessing_from_its_last_evaluation_on(tmp_path: Path) -> None:
    ste, stompp = (Spec("resnet34", method) for method in ("bnn-ste", "bnn-stompp"))
    break_down(write(tmp_path, ste), after=0)
    break_down(write(tmp_path, ste, 1), after=2)
    break_down(write(tmp_path, stompp, 1), after=4)
    write(tmp_path, stompp)
    evidence = evidence_of(tmp_path)
    with look.style():
        figure = FIGURES["dynamics"].draw(evidence)
    lines = lines_of(figure.axes[0])
    whole, broken = evidence.runs(stompp)
    ys = list(lines["StoMPP"].get_ydata())
    for e, y in zip(whole.epochs, ys, strict=True):
        then = [b.accuracy["test", "current"] for b in broken.epochs if b.number == e.number] or [10.0]
        assert y == pytest.approx((e.accuracy["test", "current"] + then[0]) / 2)
    xs, ys = (list(values) for values in (lines["STE (identity)"].get_xdata(), lines["STE (identity)"].get_ydata()))
    assert (xs[0], ys[0], xs[-1], ys[-1]) == (0, 10, 12, 10)
    assert {x for x, y in zip(xs, ys) if y > 10} == {1, 2}
    crosses = [tuple(line.get_xydata()[0]) for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
    assert sorted(crosses) == [(0, 10), (2, 10), (4, 10)]
    assert "×: training broke down" in figure._supxlabel.get_text()


def test_depth_shows_finals_and_the_papers_numbers(drawn: Callable[[str], Any], full: Evidence) -> None:
    figure = drawn("depth")
    panels = dict(zip(titles(figure), figure.axes))
    nets = ("resnet18", "resnet34", "resnet50")
    ours = lines_of(panels["BNN"])
    assert set(ours) == {"float (ReLU)", "STE (identity)", "STE (clip)", "STE (ApproxSign)", "StoMPP"}
    means = [sum(found) / len(found) for found in (finals(full, Spec(n, data="cifar10")) for n in nets)]
    assert ours["StoMPP"].get_ydata() == pytest.approx(means)
    assert list(ours["STE (identity)"].get_ydata())[1:] == [10.0, 10.0]
    theirs = lines_of(panels["the paper: BNN, cifar10"])
    assert set(theirs) == {"STE (identity)", "StoMPP"}
    numbers = [paper_numbers()["main", f"{n}-cifar10-bnn-stompp", "test"].accuracy for n in nets]
    assert list(theirs["StoMPP"].get_ydata()) == numbers
    assert [t.get_text() for t in panels["BNN"].get_xticklabels()] == ["ResNet-8", "ResNet-20", "ResNet-32"]


def test_refresh_shows_both_rates_and_a_line_for_each_schedule(drawn: Callable[[str], Any], full: Evidence) -> None:
    figure = drawn("refresh")
    panels = dict(zip(titles(figure), figure.axes))
    for order in ("global", "layerwise"):
        axes = panels[f"ResNet-8, {order}"]
        recipes = [recipe_of(Spec(order=order, refresh=r), "mini") for r in REFRESH_RATES]
        labels = [t.get_text() for t in axes.get_xticklabels()]
        assert labels == [f"{r:,}\n({recipe.refresh:,})" for r, recipe in zip(REFRESH_RATES, recipes)]
        assert axes.get_xscale() == "log"
        for schedule in ("cosine", "linear", "quadratic", "cubic", "flipped_quadratic"):
            line = lines_of(axes)[schedule]
            cells = [finals(full, Spec(order=order, schedule=schedule, refresh=r)) for r in REFRESH_RATES]
            assert list(line.get_xdata()) == list(REFRESH_RATES)
            assert line.get_ydata() == pytest.approx([sum(cell) / len(cell) for cell in cells])


def test_epochs_show_test_solid_and_training_dashed(drawn: Callable[[str], Any], full: Evidence) -> None:
    axes = drawn("epochs").axes[0]
    lines = lines_of(axes)
    assert (lines["StoMPP"].get_linestyle(), lines["StoMPP, training"].get_linestyle()) == ("-", "--")
    lengths = {epochs: recipe_of(Spec(epochs=epochs), "mini").epochs for epochs in (50, 100, 200, 350, 500)}
    assert list(lines["StoMPP"].get_xdata()) == list(lengths.values())
    for epochs, x, y in zip(lengths, lines["StoMPP, training"].get_xdata(), lines["StoMPP, training"].get_ydata()):
        runs = full.runs(Spec(epochs=epochs))
        assert x == lengths[epochs]
        assert y == pytest.approx(sum(run.epochs[-1].accuracy["train", "binary"] for run in runs) / len(runs))


def test_learning_rates_are_on_a_log_axis_with_the_papers_beside(drawn: Callable[[str], Any], full: Evidence) -> None:
    ours, theirs = drawn("lr").axes
    for method, name in (*zip(STES, ("STE (identity)", "STE (clip)", "STE (ApproxSign)")), ("bnn-stompp", "StoMPP")):
        line = lines_of(ours)[name]
        cells = [finals(full, Spec(method=method, lr=lr)) for lr in line.get_xdata()]
        assert line.get_ydata() == pytest.approx([sum(cell) / len(cell) for cell in cells])
    assert ours.get_xscale() == theirs.get_xscale() == "log"
    assert ours.get_ylim() == theirs.get_ylim()
    assert set(lines_of(theirs)) == {"STE (identity)", "StoMPP"}


def test_missing_run_leaves_a_gap_and_says_n(runs: list[Run]) -> None:
    gone = recipe_of(Spec(lr=0.01), "mini")
    with look.style():
        ours, _ = FIGURES["lr"].draw(Evidence([run for run in runs if run.recipe != gone], "mini")).axes
    assert list(lines_of(ours)["StoMPP"].get_xdata()) == [0.001, 0.05, 0.1]
    assert ours.get_title("right") == "n = 1 to 2"


def test_one_rule_has_one_colour_everywhere(drawn: Callable[[str], Any]) -> None:
    from matplotlib.colors import to_hex

    seen: dict[str, set[str]] = {}
    for name in FIGURES:
        for axes in drawn(name).axes:
            for label, line in lines_of(axes).items():
                rule = label.removesuffix(", binary view").removesuffix(", training")
                seen.setdefault(rule, set()).add(to_hex(line.get_color()).upper())
    assert all(len(colours) == 1 for colours in seen.values())
    assert all(seen[rule] == {colour} for rule, colour in look.COLOURS.items() if rule in seen)


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen without one kind of cones.
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def _lab(colour: str, matrix: tuple[tuple[float, ...], ...]) -> list[float]:
    import numpy as np

    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(matrix) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_of_a_panel_stay_apart_without_a_kind_of_cones(kind: str, drawn: Callable[[str], Any]) -> None:
    import math

    from matplotlib.colors import to_hex

    for name in ("dynamics", "hybrids", "orders", "bireal", "refresh"):
        for axes in drawn(name).axes:
            colours = {to_hex(line.get_color()) for line in lines_of(axes).values()}
            for a, b in itertools.combinations(sorted(colours), 2):
                assert math.dist(_lab(a, BLINDNESS[kind]), _lab(b, BLINDNESS[kind])) > 15, (name, a, b)


def test_reproduce_writes_figures_beside_the_tables(runs: list[Run], tmp_path: Path) -> None:
    written = reproduce.write(["lr", "scaffold"], "mini", runs, tmp_path, Console(file=io.StringIO()))
    assert {path.name for path in written} == {
        *(f"{name}.{ending}" for name in ("lr", "scaffold") for ending in ("md", "tex", "csv")),
        "lr.svg",
        "lr.pdf",
    }
    assert all(path.parent == tmp_path and path.stat().st_size for path in written)


def test_reproduce_without_matplotlib_says_once_what_to_install(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = reproduce.write(["lr", "refresh-global"], "mini", runs, tmp_path, Console(width=200))
    assert capsys.readouterr().out.count("pip install 'stompp[report]'") == 1
    assert not [path for path in written if path.suffix in (".svg", ".pdf")]
    assert (tmp_path / "lr.md").exists()


def test_published_figures_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "figures").glob("*")}
    assert sizes
    assert all(name.endswith(".svg") for name in sizes)
    assert sum(sizes.values()) < 2_000_000
