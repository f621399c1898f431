"""Make the published results again: `python -m stompp.experiments.publish [--collect RUNS]` in the repository's root.

Collects finished runs into results/mini, then writes tables and figures from what is there into README and docs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from stompp.errors import UsageError

from .collect import collect
from .figures import story
from .tables import publish


@dataclass(frozen=True)
class Arguments:
    """Where results are, and what is written from them."""

    collect: Path | None = None
    """folder of runs whose finished ones are copied into the results first"""
    results: Path = Path("results/mini")
    """folder of the results that are kept"""
    page: Path = Path("docs/results.md")
    """page whose marked parts are written"""
    readme: Path = Path("README.md")
    """page that gets the headline table"""
    figure: Path = Path("docs/figures/readme.svg")
    """figure of the curves and the freeze wave"""


def main(given: Arguments) -> None:
    """Collect, then write."""
    if given.collect is not None:
        print(f"collected {len(collect([given.collect], given.results))} runs into {given.results}")
    publish(given.results, given.page, given.readme)
    print(f"wrote {given.page}, {given.readme} and {story(given.results, given.figure)}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Arguments))
    except UsageError as error:
        sys.exit(f"stompp: {error}")
