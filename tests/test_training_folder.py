"""A run's folder is written to by several processes, some of which are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stompp.errors import UsageError
from stompp.recipes import get
from stompp.training.folder import RunFolder, write_atomically

WRITER = """
import sys
from pathlib import Path
from stompp.training.folder import write_atomically
for _ in range(100):
    write_atomically(Path(sys.argv[1]), sys.argv[2] * 100_000)
"""


def test_processes_that_write_the_same_file_at_the_same_time_leave_a_whole_one(tmp_path: Path) -> None:
    """As two grids do that end together and share their tables."""
    file = tmp_path / "table.md"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        assert not file.exists() or len(set(file.read_text())) == 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert file.read_text() in ("a" * 100_000, "b" * 100_000)
    assert list(tmp_path.iterdir()) == [file]


def test_claim_clears_away_what_a_killed_process_half_wrote(tmp_path: Path) -> None:
    recipe = get("resnet8-digits-bnn-stompp")
    folder = RunFolder(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    half, others = (tmp_path / f"recipe.json.{process}.tmp" for process in (gone.pid, os.getppid()))
    for path in (half, others, tmp_path / "FAILED"):
        path.write_text("{")
    folder.claim(recipe, 0)
    assert not half.exists()
    assert others.exists()  # somebody who lives may still be at it
    assert folder.read_recipe() == (recipe, 0)


@pytest.mark.parametrize("name", ["notes.tmp", "thesis.123.tmp", "recipe.json.tmp"])
def test_claim_refuses_a_folder_with_files_of_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"has files in it but no recipe\.json"):
        RunFolder(tmp_path).claim(get("resnet8-digits-bnn-stompp"), 0)
    assert (tmp_path / name).read_text() == "mine"


def test_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "table.md").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*table.md"):
        write_atomically(tmp_path / "table.md", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
