"""`stompp report`: any set of runs as one HTML file that needs no network and no other file.

`runs` reads the folders, `results` sums them up; `overview`, `verdicts` and `page` make the tables; `payload` packs
what `web/*.js` draws. This file puts them together. A further section is one more entry of SECTIONS.

The page's policy lets nothing run but the one script whose hash it names, and nothing load at all; text from run
folders is escaped besides.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path

from stompp._version import __version__
from stompp.errors import UsageError
from stompp.training.folder import write_atomically

from . import page, verdicts
from .overview import overview
from .payload import payload, to_script
from .results import Group, group
from .runs import Found, find_runs

SCRIPTS = ("base.js", "filter.js", "curves.js", "anatomy.js", "main.js")


@dataclass(frozen=True)
class Section:
    """A part of the page with its heading; `inside` makes its HTML from the runs, none if it has nothing to show."""

    id: str
    heading: str
    inside: Callable[[Found, list[Group]], str]


def _curves(found: Found, groups: list[Group]) -> str:
    if not any(run.epochs for run in found.runs):
        return ""
    return (
        "<p>Solid: the current view, the partly frozen net that is being trained. Dashed: the same net at the same "
        "moment with everything forced to ±1. Where a layer is frozen the solid line dips and recovers: the sawtooth. "
        "The two meet when the last site is frozen. An unfinished run ends in a hollow marker, one that broke down in "
        "a cross.</p>"
        '<div class="card"><figure class="chart" id="curves-figure"><div class="controls" id="curve-controls"></div>'
        '<div class="plot" id="curve-plot"></div><div class="legend" id="curve-legend" role="group" '
        'aria-label="Recipes: press to show or hide"></div><div id="curve-more"></div>'
        '<p class="note" id="curve-lost"></p><p class="sr" id="curve-live" aria-live="polite"></p></figure></div>'
    )


def _anatomy(found: Found, groups: list[Group]) -> str:
    if not any(run.epochs for run in found.runs):
        return ""
    return (
        "<p>One run, or two side by side, over its epochs: how the freezing moves through the net, where a gradient "
        "still arrives, and how restless the signs of the weights are. Point at a figure, or focus it and use the "
        "arrow keys.</p>"
        f'{page.FIND}<div class="card"><div class="controls" id="anatomy-controls"></div>'
        '<div class="panels" id="panels"></div>'
        '<p class="sr" id="anatomy-live" aria-live="polite"></p></div>'
    )


SECTIONS = (
    Section("overview", "Overview", overview),
    Section("claims", "Claims", lambda found, groups: verdicts.claims(found.runs)),
    Section("paper", "The paper's tables", lambda found, groups: verdicts.experiments(found.runs)),
    Section("results", "Results by net", lambda found, groups: page.results(groups)),
    Section("curves", "Learning curves", _curves),
    Section("anatomy", "Inside a run", _anatomy),
    Section("time", "Where the time goes", lambda found, groups: page.time(groups)),
)


def write_report(folders: list[Path], out: Path) -> Path:
    """Write the runs in the folders, at any depth, as one HTML page; return its path."""
    out = Path(out)
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give the page a name, such as {out / 'report.html'}")
    if out.exists() and not _is_report(out):
        raise UsageError(f"{out} is there and is no report of stompp; choose another --out")
    html = render(find_runs(folders))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {out.parent} ({error.strerror}); choose another --out") from None
    write_atomically(out, html)
    return out


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return b'<meta name="generator" content="stompp' in file.read(2_000)


def render(found: Found) -> str:
    """Return the page."""
    groups = group(found.runs)
    style = _read("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(_read(name) for name in SCRIPTS) + "\n})();"
    heading, lead = page.title(groups)
    parts = [(s, inside) for s in SECTIONS if (inside := s.inside(found, groups))]
    links = "".join(f'<a href="#{s.id}">{s.heading}</a>' for s, _ in parts)
    sections = "\n".join(
        f'<section id="{s.id}" aria-labelledby="{s.id}-heading"><div class="wrap">'
        f'<h2 id="{s.id}-heading">{s.heading}</h2>{inside}</div></section>'
        for s, inside in parts
    )
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="stompp {__version__}">
<title>stompp report</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#overview">Skip to the content</a>
<header class="top"><div class="wrap"><p class="soft">stompp report · {when}</p>
<h1>{heading}</h1><p class="lead">{lead}</p></div></header>
<div class="bar"><div class="wrap"><nav aria-label="Sections">{links}</nav>
<button type="button" id="theme">Theme</button></div></div>
<main>
{sections}
<noscript><div class="wrap"><p class="card">The curves and heat maps are drawn by a script; this browser runs none.
The tables need none.</p></div></noscript>
</main>
<footer><div class="wrap">Made by stompp {__version__} with <code>stompp report</code> from the runs' own metrics.
Current view: the net as it was at that moment of training. Binary view: everything scheduled forced to ±1, with
BatchNorm's statistics of training. Unfinished runs count in no mean.</div></footer>
<script type="application/json" id="data">{to_script(payload(groups))}</script>
<script>{script}</script>
</body>
</html>
"""


def _read(name: str) -> str:
    return (resources.files(__package__) / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
