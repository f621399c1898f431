"""Collect: copy what tables and figures need of finished runs into a folder small enough to keep in a repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stompp.errors import UsageError
from stompp.training.folder import RunFolder, write_atomically

from .runs import find_runs


def collect(folders: Iterable[Path], target: Path) -> list[Path]:
    """Copy recipe, environment, metrics and DONE of every run that has ended; return the folders that were written.

    They go to `target`/<recipe>/seed<k>. A run that broke down has a DIVERGED in place of DONE. One that is kept
    already is left alone if it is the same, and replaced as a whole if it is not.
    """
    written = []
    for run in find_runs(folders).runs:
        if not run.ended:
            continue
        source, kept = RunFolder(run.path), RunFolder.of(run.recipe, run.seed, target)
        if not kept.path.resolve().is_relative_to(target.resolve()):
            raise UsageError(f"the recipe's name in {source.recipe_file} leads out of {target}: {run.recipe.name!r}")
        pairs = dict(zip(_files(source), _files(kept)))
        contents = {copy: file.read_bytes() if file.exists() else None for file, copy in pairs.items()}
        if all((copy.read_bytes() if copy.exists() else None) == content for copy, content in contents.items()):
            continue
        kept.path.mkdir(parents=True, exist_ok=True)
        kept.done_file.unlink(missing_ok=True)  # until all the rest is there, it is no run that has ended
        kept.diverged_file.unlink(missing_ok=True)
        for copy, content in contents.items():
            if content is None:
                copy.unlink(missing_ok=True)
            else:
                write_atomically(copy, content)
        written.append(kept.path)
    return written


def _files(folder: RunFolder) -> tuple[Path, ...]:
    """Return what is kept of a run, the mark of its end last."""
    return folder.recipe_file, folder.env_file, folder.metrics_file, folder.done_file, folder.diverged_file
