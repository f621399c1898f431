"""The examples run as they stand, and show what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SHOWS = {
    "01_own_network.py": "Proof(layers=2",
    "02_see_a_blockade.py": "no gradient",
}


def test_examples_are_all_listed() -> None:
    assert {path.name for path in EXAMPLES} == set(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert SHOWS[path.name] in told.stdout
