"""Checkpoints: written whole or not at all, the one before kept, read without running any pickled code.

A checkpoint holds what continues a run bit for bit: weights, optimizer, Freezer, OvSW, the step, the sums of the epoch
so far, the generator's state, and how long metrics.jsonl was. It is written to a temporary file, forced to disk and
then renamed, so a kill at any moment leaves either the old or the new one under the name.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from stompp.errors import UsageError

VERSION = 1


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the last one stays beside it as `<name>.prev.pt`."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save({"version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            # A second name for the last one, so that there is a complete file under `path` at every moment.
            previous = previous_of(path)
            previous.unlink(missing_ok=True)
            os.link(path, previous)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(
            f"cannot write the checkpoint {path} ({reason}); the last one is unharmed: make room, then run the same "
            "command again to go on from it"
        ) from None


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Read a checkpoint, or the one before it if it is damaged; None if there is none."""
    candidates = [p for p in (path, previous_of(path)) if p.exists()]
    problems = []
    for candidate in candidates:
        try:
            state = torch.load(candidate, map_location=device, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            problems.append(f"{candidate} is damaged ({str(error).splitlines()[0][:120]})")
            continue
        if not isinstance(state, dict) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, dict) else None
            raise UsageError(
                f"{candidate} is a checkpoint of version {found}, and this stompp reads version {VERSION}: use the "
                "stompp that wrote it, or move the run folder away to start anew"
            )
        return state
    if problems:
        raise UsageError("; ".join(problems) + "; move the run folder away to start anew")
    return None


def previous_of(path: Path) -> Path:
    """Return the name under which the checkpoint before is kept."""
    return path.with_name(path.stem + ".prev.pt")


def _sync_folder(folder: Path) -> None:
    """Force the rename itself to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
