"""Checkpoints: written whole or not at all, the one before kept, read without running any pickled code.

A checkpoint holds what continues a run bit for bit: weights, optimizer, Freezer, OvSW, the step, the sums of the epoch
so far, the generator's state, and how long metrics.jsonl was. It is written to a temporary file and forced to disk;
then the last one is renamed to `<name>.prev.pt` and the new one takes its name. A kill at any moment leaves a whole
checkpoint under one of the two names.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stompp.errors import UsageError

VERSION = 2


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the last one stays beside it as `<name>.prev.pt`."""
    temporary = path.with_name(path.name + ".tmp")
    content = io.BytesIO()  # torch.save into a file would hide the reason of a failed write
    torch.save({"version": VERSION, **state}, content)
    try:
        with open(temporary, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, previous_of(path))
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kept = "the last one is unharmed" if path.exists() else "there was none before"
        raise UsageError(
            f"cannot write the checkpoint {path} ({error.strerror}); {kept}. Make room, then run the same command "
            "again to go on"
        ) from None


def load(path: Path, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """Read a checkpoint, or the one before it if it is damaged; None if there is none.

    A damaged one is set aside, so that the good one before it is not overwritten by it at the next save.
    """
    candidates = [p for p in (path, previous_of(path)) if p.exists()]
    problems = []
    for candidate in candidates:
        try:
            _check_sums(candidate)
            state = torch.load(candidate, map_location=device, weights_only=True)
        except PermissionError:
            raise
        except Exception as error:  # what a damaged pickle raises is open-ended: KeyError, UnicodeDecodeError, ...
            problems.append(f"{candidate} is damaged ({(str(error) or type(error).__name__).splitlines()[0][:120]})")
            continue
        if not isinstance(state, dict) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, dict) else None
            raise UsageError(
                f"{candidate} is a checkpoint of version {found}, and this stompp reads version {VERSION}: use the "
                "stompp that wrote it, or move the run folder away to start anew"
            )
        if problems:
            aside = path.with_name(path.stem + ".damaged.pt")
            os.replace(path, aside)
            warn(f"note: {problems[0]}; it is now {aside.name}, and the run goes on from the checkpoint before it")
        return state
    if problems:
        raise UsageError("; ".join(problems) + "; move the run folder away to start anew")
    return None


def exists(path: Path) -> bool:
    """Return whether there is a checkpoint, or the one before it."""
    return path.exists() or previous_of(path).exists()


def previous_of(path: Path) -> Path:
    """Return the name under which the checkpoint before is kept."""
    return path.with_name(path.stem + ".prev.pt")


def _check_sums(path: Path) -> None:
    """Compare the checksums that torch.save wrote and torch.load does not look at: a flipped bit must not go unseen."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise ValueError(f"wrong checksum of {wrong}")


def _sync_folder(folder: Path) -> None:
    """Force the rename itself to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
