"""Collect: copy what tables and figures need of finished runs into a folder small enough to keep in a repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stompp.training.folder import RunFolder, write_atomically

from .runs import find_runs


def collect(folders: Iterable[Path], target: Path) -> list[Path]:
    """Copy recipe, environment, metrics and DONE of every run that has ended; return the copies.

    They go to `target`/<recipe>/seed<k>. A run that broke down has a DIVERGED in place of DONE.
    """
    copied = []
    for run in find_runs(folders).runs:
        if not run.ended:
            continue
        source, kept = RunFolder(run.path), RunFolder.of(run.recipe, run.seed, target)
        if source.path.resolve() == kept.path.resolve():
            continue
        kept.path.mkdir(parents=True, exist_ok=True)
        for file, copy in (
            (source.recipe_file, kept.recipe_file),
            (source.env_file, kept.env_file),
            (source.metrics_file, kept.metrics_file),
            (source.done_file, kept.done_file),
            (source.diverged_file, kept.diverged_file),
        ):
            if not file.exists():  # only one of the last two does; one that broke down early has no metrics
                continue
            write_atomically(copy, file.read_bytes())
        copied.append(kept.path)
    return copied
