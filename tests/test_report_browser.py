"""The page in a real browser, at a phone's and a desktop's width: drawn, silent, and telling the files' numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, find_chromium
from report_runs import write_run
from stompp.experiments.report import write_report

WIDTHS = (390, 1280)
CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
EVIL = "</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    made = Browser(CHROMIUM, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in ("bnn-stompp", "bnn-ste", "bnn-ste-clip", "float-relu"):
        for seed in (0, 1):
            write_run(root, f"resnet8-digits-{method}", seed)
    write_run(root, "resnet8-digits-bnn-stompp", 2, upto=9)
    write_run(root, "resnet8-digits-bwn-stompp", upto=0)
    write_run(root, "resnet20-digits-bnn-stompp", sites=37)
    return root


@pytest.fixture(scope="module")
def report(runs: Path) -> Path:
    return write_report([runs], runs / "report.html")


def complaints(browser: Browser) -> list[str]:
    return browser.complaints + json.loads(browser.read("document.documentElement.dataset.errors ?? '[]'"))


def last_line(runs: Path, recipe: str, seed: int) -> dict:
    return json.loads((runs / recipe / f"seed{seed}" / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("width", WIDTHS)
def test_page_draws_all_figures_without_a_complaint(browser: Browser, report: Path, width: int) -> None:
    seconds = browser.open(report, width)
    assert complaints(browser) == []
    assert seconds < 3
    assert browser.read("document.querySelectorAll('.plot > svg').length") == 1 + 4  # curves; a run's four
    assert browser.read("document.querySelectorAll('#curve-plot .series').length") > 5
    assert browser.read("document.querySelectorAll('#panels image').length") == 3
    assert browser.read("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    heights = "[...document.querySelectorAll('svg text')].map((t) => t.getBoundingClientRect().height)"
    assert min(height for height in browser.read(heights) if height) > 10  # hidden ones have none


@pytest.mark.parametrize("width", WIDTHS)
def test_curves_read_back_from_the_picture_are_those_of_the_files(
    browser: Browser, report: Path, runs: Path, width: int
) -> None:
    browser.open(report, width)
    browser.read(
        "[...document.querySelectorAll('#curve-controls button')].find((b) => b.textContent == 'each').click()"
    )
    ends = browser.read(
        """(() => {
          const svg = document.querySelector('#curve-plot svg');
          const marks = [...svg.querySelectorAll('text')]
            .filter((t) => t.getAttribute('text-anchor') == 'end' && !isNaN(t.textContent));
          const at = (text) => +marks.find((t) => t.textContent == text).getAttribute('y') - 4;
          const scale = (at('0') - at('60')) / 60;
          return [...svg.querySelectorAll('.series path:first-child')].map((p) =>
            (at('0') - +p.getAttribute('d').split(' ').at(-1)) / scale);
        })()"""
    )
    expected = []
    for method, seeds in (("float-relu", 2), ("bnn-ste", 2), ("bnn-ste-clip", 2), ("bnn-stompp", 3)):
        for view in ("current", "binary"):
            for seed in range(seeds):
                expected.append(last_line(runs, f"resnet8-digits-{method}", seed)["test"][view]["accuracy"])
    assert ends == pytest.approx(expected, abs=0.2)


def test_mean_has_a_band_only_where_there_are_two_finished_runs(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    assert browser.read("document.querySelectorAll('#curve-plot path[fill-opacity]').length") == 5
    browser.read(
        "(() => { const s = document.getElementById('curve-net'); s.value = '1'; s.onchange; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    assert "ResNet-20" in browser.read("document.querySelector('#curve-plot svg').getAttribute('aria-label')")
    assert browser.read("document.querySelectorAll('#curve-plot path[fill-opacity]').length") == 0


def test_legend_hides_a_recipe_and_keeps_the_focus(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    before = browser.read("document.querySelectorAll('#curve-plot .series').length")
    browser.read("document.querySelector('#curve-legend button').click()")
    assert browser.read("document.querySelectorAll('#curve-plot .series').length") == before - 2
    assert browser.read("document.activeElement.getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("width", WIDTHS)
def test_arrow_keys_read_values_aloud(browser: Browser, report: Path, runs: Path, width: int) -> None:
    browser.open(report, width)
    browser.read("document.querySelector('#curve-plot svg').focus()")
    press(browser, "End")
    told = browser.read("document.getElementById('curve-live').textContent")
    finals = [last_line(runs, "resnet8-digits-bnn-ste", s)["test"]["binary"]["accuracy"] for s in (0, 1)]
    assert told.startswith("Epoch 40. ")
    assert f"STE (identity) {sum(finals) / 2:.1f}" in told
    browser.read("document.querySelectorAll('#panels svg[tabindex]')[0].focus()")
    press(browser, "ArrowRight")
    told = browser.read("document.getElementById('anatomy-live').textContent")
    assert told.startswith("Epoch 2. layer0.0.relu")
    box = browser.read(
        "(() => { const b = document.querySelector('.tip').getBoundingClientRect(); return [b.left, b.right]; })()"
    )
    assert 0 <= box[0] < box[1] <= width
    assert complaints(browser) == []


def test_freeze_wave_in_the_picture_is_that_of_the_file(browser: Browser, report: Path, runs: Path) -> None:
    browser.open(report, 1280)
    assert "ResNet-20" in browser.read("document.querySelector('#panels .note').textContent")
    colours = browser.read(
        """(async () => {
          const image = document.querySelector('#panels image');
          const picture = new Image();
          picture.src = image.getAttribute('href');
          await picture.decode();
          const canvas = document.createElement('canvas');
          canvas.width = picture.width; canvas.height = picture.height;
          const pen = canvas.getContext('2d');
          pen.drawImage(picture, 0, 0);
          return Array.from({length: 37}, (_, r) => Array.from({length: 40}, (_, c) =>
            [...pen.getImageData((c + 0.5) * canvas.width / 40, (r + 0.4) * canvas.height / 37, 1, 1).data].join()));
        })()"""
    )
    folder = runs / "resnet20-digits-bnn-stompp" / "seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    opened, frozen = colours[-1][0], colours[0][-1]
    assert opened != frozen
    for r, name in enumerate(lines[0]["sites"]):
        for c, line in enumerate(lines):
            value = line["sites"][name]
            assert (colours[r][c] == opened, colours[r][c] == frozen) == (value == 0, value == 1), (name, c)


def test_any_run_can_be_chosen_and_put_beside_another(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    runs = browser.read("[...document.getElementById('run-a').options].map((o) => o.value)")
    assert len(runs) == 10  # the one without an epoch has nothing to show
    for place, other in zip(runs, reversed(runs)):
        for name, value in (("run-a", place), ("run-b", other)):
            browser.read(
                f"(() => {{ const s = document.getElementById('{name}'); s.value = '{value}'; "
                "s.dispatchEvent(new Event('change')); })()"
            )
        browser.read("new Promise((done) => setTimeout(done, 60))")
        assert browser.read("document.querySelectorAll('#panels article').length") == 2
        assert browser.read("document.querySelectorAll('#panels figure').length") == 8
    for kind in ("signal_share", "weight_norm", "weight_share"):
        browser.read(
            f"(() => {{ const s = document.getElementById('flow-kind'); s.value = '{kind}'; "
            "s.dispatchEvent(new Event('change')); })()"
        )
    browser.read("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    browser.read("new Promise((done) => setTimeout(done, 100))")
    assert browser.read("document.querySelectorAll('details table').length") >= 3
    assert complaints(browser) == []


def test_theme_follows_the_system_and_the_button(browser: Browser, report: Path) -> None:
    for asked in ("dark", "light"):
        feature = {"name": "prefers-color-scheme", "value": asked}
        browser.send("Emulation.setEmulatedMedia", features=[feature])
        browser.open(report, 390)
        assert browser.read("document.documentElement.dataset.theme") == asked
    browser.read("document.getElementById('theme').click()")
    assert browser.read("document.documentElement.dataset.theme") == "dark"
    assert complaints(browser) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_strange_runs_draw_too_and_run_no_script(browser: Browser, tmp_path: Path, width: int) -> None:
    folder = write_run(tmp_path, "resnet8-digits-float-relu", upto=1)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["recipe"]["name"] = EVIL
    (folder / "recipe.json").write_text(json.dumps(recipe))
    lines = (folder / "metrics.jsonl").read_text().replace("layer0.0.conv", json.dumps(EVIL)[1:-1])
    (folder / "metrics.jsonl").write_text(lines)
    browser.open(write_report([tmp_path], tmp_path / "report.html"), width)
    browser.read("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.read("document.title") == "stompp report"
    assert browser.read("document.querySelectorAll('img').length") == 0
    assert complaints(browser) == []
    (folder / "metrics.jsonl").write_text("")
    browser.open(write_report([tmp_path], tmp_path / "report.html"), width)
    assert browser.read("document.querySelectorAll('table').length") >= 2
    assert complaints(browser) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_sixty_large_runs_are_small_and_appear_at_once(browser: Browser, tmp_path: Path, width: int) -> None:
    methods = ("bnn-stompp", "bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bwn-ste", "bwn-stompp")
    for method in methods:
        for seed in range(10):
            write_run(tmp_path, f"resnet50-cifar10-{method}", seed, sites=97)
    report = write_report([tmp_path], tmp_path / "report.html")
    assert report.stat().st_size < 8_000_000
    assert browser.open(report, width) < 3
    assert complaints(browser) == []


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)
