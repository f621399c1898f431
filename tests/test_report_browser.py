"""The page in a real browser, at a phone's and a desktop's width: drawn, silent, and telling the files' numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, find_chromium
from report_runs import write_run
from stompp.experiments.catalog import EXPERIMENTS
from stompp.experiments.report import write_report

WIDTHS = (390, 1280)
CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
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


WHY = "the loss is not finite at step 7 of 40 (nothing moving); there is no checkpoint yet. Try a lower --lr"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report with many recipes: small runs of the paper's experiments, some of which broke down."""
    root = tmp_path_factory.mktemp("grid")
    jobs = dict.fromkeys(job for name in ("main", "hybrids", "lr") for job in EXPERIMENTS[name].jobs("mini", 2))
    for job in jobs:
        broken = job.recipe.name.startswith("resnet32-") and job.recipe.name.endswith("-bnn-ste")
        upto = (0, 2)[job.seed] if broken else None
        write_run(root, job.recipe, job.seed, upto=upto, diverged=WHY if broken else None, between=3)
    return write_report([root], root / "report.html")


def choose(browser: Browser, select: str, value: str) -> None:
    browser.read(
        f"(() => {{ const s = document.getElementById('{select}'); s.value = '{value}'; "
        "s.dispatchEvent(new Event('change')); })()"
    )


def complaints(browser: Browser) -> list[str]:
    return browser.complaints + json.loads(browser.read("document.documentElement.dataset.errors ?? '[]'"))


def last_line(runs: Path, recipe: str, seed: int) -> dict:
    return json.loads((runs / recipe / f"seed{seed}" / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("width", WIDTHS)
def test_page_draws_all_figures_without_a_complaint(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width)
    assert complaints(browser) == []
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
    choose(browser, "curve-net", "1")
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
        choose(browser, "run-a", place)
        choose(browser, "run-b", other)
        browser.read("new Promise((done) => setTimeout(done, 60))")
        assert browser.read("document.querySelectorAll('#panels article').length") == 2
        assert browser.read("document.querySelectorAll('#panels figure').length") == 8
    for kind in ("signal_share", "weight_norm", "weight_share"):
        choose(browser, "flow-kind", kind)
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


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_opened_is_drawn_named_and_fits_the_page(browser: Browser, grid: Path, width: int) -> None:
    browser.open(grid, width)
    browser.read("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    browser.read("new Promise((done) => setTimeout(done, 100))")
    assert complaints(browser) == []
    assert browser.read("document.querySelectorAll('.plot > svg').length") == 1 + 4 + 3  # STE has no freeze wave
    assert browser.read("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    focusable = [n for n in nodes if any(p["name"] == "focusable" for p in n.get("properties", []))]
    assert len(focusable) > 100
    nameless = [n for n in focusable if n["role"]["value"] != "RootWebArea" and not n.get("name", {}).get("value")]
    assert nameless == []


CONTRAST = """(() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (text) => {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const ground = (node) => {
    const stack = [];
    for (; node; node = node.parentElement) {
      const paint = rgba(getComputedStyle(node).backgroundColor);
      stack.push(paint);
      if (paint[3] === 1) break;
    }
    return stack.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (color) => {
    const [r, g, b] = color.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest('script, .sr, noscript')) continue;
    const style = getComputedStyle(node), back = ground(node);
    const ink = over(rgba(node.namespaceURI.endsWith('svg') ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    looked += 1;
    if (ratio < 4.5) weak.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [looked, [...new Set(weak)]];
})()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(browser: Browser, grid: Path, theme: str) -> None:
    browser.open(grid, 1280, query=f"?theme={theme}")
    browser.read("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    looked, weak = browser.read(CONTRAST)
    assert looked > 1_000
    assert weak == []


@pytest.mark.parametrize("width", WIDTHS)
def test_curves_show_the_sawtooth_within_epochs(browser: Browser, grid: Path, width: int) -> None:
    browser.open(grid, width)
    epochs = browser.read("DATA = JSON.parse(document.getElementById('data').textContent).nets[0].series[0].epochs")
    corners = browser.read(
        "[...document.querySelectorAll('#curve-plot .series path')].map((p) => p.getAttribute('d').split('L').length)"
    )
    assert epochs == 12
    assert set(corners) == {12 * 4}
    browser.read("document.querySelector('#curve-plot svg').focus()")
    press(browser, "Home")
    assert browser.read("document.getElementById('curve-live').textContent").startswith("Epoch 0.25. ")


def test_curves_of_runs_that_broke_down_end_in_a_cross_where_they_did(browser: Browser, grid: Path) -> None:
    browser.open(grid, 1280)
    nets = browser.read("[...document.getElementById('curve-net').options].map((o) => o.text)")
    choose(browser, "curve-net", str(nets.index("ResNet-32 on cifar10-16")))
    assert browser.read("document.querySelectorAll('#curve-plot .broke').length") == 2  # one run, two views
    lost = browser.read("document.getElementById('curve-lost').textContent")
    assert "STE (identity) (seed 0)" in lost
    places = browser.read(
        """[...document.querySelectorAll('#curve-plot .broke path')]
          .map((p) => +p.getAttribute('transform').match(/[\\d.]+/)[0])"""
    )
    marks = browser.read(
        """Object.fromEntries([...document.querySelectorAll('#curve-plot text[text-anchor=middle]')]
          .map((t) => [t.textContent, +t.getAttribute('x')]))"""
    )
    assert places == pytest.approx([marks["2"]] * 4)
    assert "1 diverged" not in browser.read("document.getElementById('curve-legend').textContent")
    assert "2 diverged" in browser.read("document.getElementById('curve-legend').textContent")
    runs = browser.read("[...document.getElementById('run-a').options].map((o) => [o.value, o.text])")
    broken = [value for value, text in runs if "(broke down)" in text]
    assert len(broken) == 1
    choose(browser, "run-a", broken[0])
    browser.read("new Promise((done) => setTimeout(done, 60))")
    assert "broke down after 2 of 12 epochs: the loss" in browser.read(
        "document.querySelector('#panels .note').textContent"
    )
    assert browser.read("document.querySelectorAll('#panels .broke').length") == 1
    assert complaints(browser) == []


def test_filter_finds_recipes_everywhere_and_leaves_no_trace(browser: Browser, grid: Path) -> None:
    browser.open(grid, 1280)
    state = """JSON.stringify([...document.querySelectorAll('#results .fold')].map((d) => [d.open, d.hidden]))"""
    before = browser.read(state)
    rows = """[...document.querySelectorAll('#results tr[data-find]')].filter((r) => r.checkVisibility())
      .map((r) => r.dataset.recipe)"""
    browser.read("document.querySelector('#results input').focus()")
    browser.send("Input.insertText", text="LR resnet-8 stompp")
    expected = [f"resnet8-cifar10-16-bnn-stompp-lr{lr}" for lr in ("0.001", "0.01", "0.05")]
    assert sorted(browser.read(rows)) == expected
    assert browser.read("document.querySelector('#results output').textContent").startswith("3 of ")
    assert browser.read("[...document.querySelectorAll('.find input')].every((f) => f.value === 'LR resnet-8 stompp')")
    offered = browser.read("[...document.getElementById('run-b').options].map((o) => o.text)")
    assert sum("lr 0." in text for text in offered) == 3 * 2 == len(offered) - 2  # nothing, and the one that is shown
    browser.read("document.querySelector('#results input').select()")
    press(browser, "Backspace")
    assert browser.read(state) == before
    assert browser.read("document.querySelectorAll('tr[hidden], details.fold[hidden]').length") == 0


def test_more_recipes_can_be_found_and_drawn(browser: Browser, grid: Path) -> None:
    browser.open(grid, 1280)
    nets = browser.read("[...document.getElementById('curve-net').options].map((o) => o.text)")
    choose(browser, "curve-net", str(nets.index("ResNet-8 on cifar10-16")))
    assert browser.read("document.querySelectorAll('#curve-legend button').length") == 6
    browser.read("document.querySelector('details.more').open = true")
    browser.read("document.querySelector('#more-find').focus()")
    browser.send("Input.insertText", text="lr 0.01")
    assert browser.read("document.querySelectorAll('.more .legend button').length") == 4
    browser.read("document.querySelector('.more .legend button').click()")
    assert browser.read("document.querySelectorAll('#curve-legend button').length") == 7
    assert browser.read("document.activeElement.closest('.more') !== null")
    colours = browser.read("[...document.querySelectorAll('#curve-legend line')].map((l) => l.getAttribute('stroke'))")
    assert len(set(colours)) == 7
    assert complaints(browser) == []


def test_experiment_leads_to_its_curves_and_a_claim_opens_by_its_link(browser: Browser, grid: Path) -> None:
    browser.open(grid, 1280)
    browser.read("document.querySelector('a[data-show=lr]').click()")
    assert browser.read("document.getElementById('curve-show').value") == "of lr"
    assert "ResNet-8" in browser.read("document.querySelector('#curve-plot svg').getAttribute('aria-label')")
    names = browser.read("[...document.querySelectorAll('#curve-legend button')].map((b) => b.title)")
    assert {name for name in names if "lr0." in name} >= {f"resnet8-cifar10-16-bnn-ste-lr{lr}" for lr in (0.001, 0.05)}
    assert not browser.read("document.getElementById('mini-C1').open")
    browser.read("document.querySelector('.chips a').click()")
    browser.read("new Promise((done) => setTimeout(done, 60))")
    assert browser.read("document.getElementById('mini-C1').open")
    browser.read("document.querySelector('#mini-C2 summary').focus()")
    press(browser, "Enter")
    assert browser.read("document.getElementById('mini-C2').open")


def test_printing_shows_what_is_closed_and_closes_it_again(browser: Browser, grid: Path) -> None:
    browser.open(grid, 1280, query="?theme=dark")
    before = browser.read("document.querySelectorAll('details[open]').length")
    browser.read("window.dispatchEvent(new Event('beforeprint'))")
    assert (
        browser.read("document.querySelectorAll('details.claim:not([open]), #results details:not([open])').length") == 0
    )
    assert browser.read("document.documentElement.dataset.theme") == "light"
    browser.read("window.dispatchEvent(new Event('afterprint'))")
    assert browser.read("document.querySelectorAll('details[open]').length") == before
    assert browser.send("Page.printToPDF")["data"]
    assert complaints(browser) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_sixty_large_runs_are_small(browser: Browser, tmp_path: Path, width: int) -> None:
    methods = ("bnn-stompp", "bnn-ste", "bnn-ste-clip", "bnn-ste-approx", "bwn-ste", "bwn-stompp")
    for method in methods:
        for seed in range(10):
            write_run(tmp_path, f"resnet50-cifar10-{method}", seed, sites=97, between=7)
    report = write_report([tmp_path], tmp_path / "report.html")
    assert report.stat().st_size < 8_000_000
    browser.open(report, width)
    assert complaints(browser) == []


def press(browser: Browser, key: str) -> None:
    more = {"Enter": {"text": "\r", "windowsVirtualKeyCode": 13}, "Backspace": {"windowsVirtualKeyCode": 8}}.get(
        key, {}
    )
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)
