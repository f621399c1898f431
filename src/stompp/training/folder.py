"""A run's folder: which run it holds, whether it is finished, and that only one process writes to it.

    recipe.json      what was asked for            metrics.jsonl      one line per epoch
    env.json         what it ran on                checkpoint.pt      the newest state (and .prev.pt, the one before)
    model.safetensors, DONE                        the result, once it is finished
    DIVERGED                                       instead: training broke down, when and where
    log.txt, FAILED                                a grid's run: what it printed, and why it failed if it did

Nothing here is ever overwritten by another recipe's run.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stompp._version import __version__
from stompp.errors import UsageError
from stompp.recipes.schema import Recipe, differences

BEFORE_A_RUN = (".lock", "recipe.json", "log.txt", "FAILED")  # all that there is before recipe.json is
HALF_WRITTEN = re.compile(r"(?P<name>.+)\.(?P<process>[0-9]+)\.tmp")  # by `write_atomically`, killed on the way


class InUse(UsageError):
    """Another process trains in the folder."""


class RunFolder:
    """The paths of one run and what can be read from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.json"
        self.env_file = path / "env.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint_file = path / "checkpoint.pt"
        self.model_file = path / "model.safetensors"
        self.done_file = path / "DONE"
        self.diverged_file = path / "DIVERGED"
        self.log_file = path / "log.txt"
        self.failed_file = path / "FAILED"

    @staticmethod
    def of(recipe: Recipe, seed: int, runs: Path) -> RunFolder:
        """Return the folder that a recipe's run with this seed has."""
        return RunFolder(runs / recipe.name / f"seed{seed}")

    @staticmethod
    def existing(path: Path) -> RunFolder:
        """Return the run folder at `path`, which must hold a run."""
        folder = RunFolder(path)
        if not folder.recipe_file.is_file():
            inside = sorted(p.parent for p in path.glob("*/recipe.json")) if path.is_dir() else []
            hint = f"; did you mean {inside[0]}?" if inside else "; give the folder that `stompp train` wrote"
            raise UsageError(f"{path} is not a run folder: it has no recipe.json{hint}")
        return folder

    @property
    def done(self) -> bool:
        """True once the run is finished."""
        return self.done_file.exists()

    def divergence(self) -> str | None:
        """Return how training broke down, if that is how it ended."""
        if self.done or not self.diverged_file.exists():
            return None
        try:
            return str(json.loads(self.diverged_file.read_text())["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return "it broke down (its file DIVERGED is damaged)"

    def note_divergence(self, reason: str, step: int) -> None:
        """Note that training broke down: a result too, if a sad one, which tables count as guessing."""
        write_atomically(self.diverged_file, json.dumps({"reason": reason, "step": step}, indent=2) + "\n")

    def checksum(self) -> str | None:
        """Return the SHA-256 that DONE has of model.safetensors; None if the run is not finished or DONE is damaged."""
        try:
            found = json.loads(self.done_file.read_text()).get("sha256")
        except (OSError, ValueError, AttributeError):
            return None
        return found if isinstance(found, str) else None

    def read_recipe(self) -> tuple[Recipe, int]:
        """Return the recipe and the seed of the run in this folder."""
        try:
            content = json.loads(self.recipe_file.read_text())
            return Recipe.from_dict(content["recipe"]), int(content["seed"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UsageError(
                f"{self.recipe_file} is damaged, or of another version ({_reason(error)}); bring it back, or move the "
                "run folder away to start anew"
            ) from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        if not self.metrics_file.exists():
            return []
        rows = []
        for number, line in enumerate(self.metrics_file.read_bytes().splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UsageError(
                    f"line {number} of {self.metrics_file} is damaged ({_reason(error)}); bring the file back, or move "
                    "the run folder away to start anew"
                ) from None
        return rows

    def read_environment(self) -> dict[str, Any]:
        """Return env.json; nothing depends on it, so a damaged one is as good as none."""
        try:
            found = json.loads(self.env_file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_environment(self, found: dict[str, Any], *, resumed: bool, say: Callable[[str], None]) -> None:
        """Write env.json, and say what has changed since the run that is resumed."""
        before = self.read_environment() if resumed else {}
        if "started_from" in before:
            found.setdefault("started_from", before["started_from"])
        for name in ("torch", "cpu", "device", "threads", "processes"):
            if before and before.get(name) != found[name]:
                say(
                    f"note: {name} was {before.get(name)} and is {found[name]} now; the result may differ in the last "
                    "bits from an uninterrupted run's"
                )
        write_atomically(self.env_file, json.dumps(found, indent=2) + "\n")

    def refuse_others(self, recipe: Recipe, seed: int) -> None:
        """Refuse a folder that holds another run, or files that are no run; touch nothing."""
        if self.recipe_file.exists():
            theirs, their_seed = self.read_recipe()
            other = differences(theirs, recipe)
            if their_seed != seed:
                other["seed"] = (their_seed, seed)
            if other:
                told = ", ".join(f"{name} is {a!r} there and {b!r} here" for name, (a, b) in other.items())
                raise UsageError(f"{self.path} holds another run ({told}); it stays as it is. Choose another --runs")
        elif self.path.is_dir() and any(
            HALF_WRITTEN.sub(r"\g<name>", p.name) not in BEFORE_A_RUN for p in self.path.iterdir()
        ):
            raise UsageError(
                f"{self.path} has files in it but no recipe.json; it stays as it is. Choose another --runs"
            )

    def claim(self, recipe: Recipe, seed: int) -> None:
        """Make the folder this run's, or refuse if it is another's; clear away what a killed process half wrote."""
        self.refuse_others(recipe, seed)
        for path in self.path.glob("*.tmp"):
            half = HALF_WRITTEN.fullmatch(path.name)
            if half is not None and not _lives(int(half["process"])):
                path.unlink(missing_ok=True)
        if not self.recipe_file.exists():
            write_atomically(self.recipe_file, json.dumps({"recipe": recipe.to_dict(), "seed": seed}, indent=2) + "\n")

    def in_use_by(self) -> str | None:
        """Return the id of the process of this machine that trains in this folder now, if there is one."""
        try:
            with open(self.path / ".lock") as handle:
                owner = handle.read().strip()
                os.kill(int(owner), 0)  # only if it lives need we try the lock, which somebody may want just then
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return owner
        except (OSError, ValueError):
            pass
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder. The lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / ".lock", "a+")  # noqa: SIM115 - held open for as long as the lock
        except OSError as error:
            raise UsageError(f"cannot write to {self.path} ({error.strerror}); choose another --runs") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                owner = handle.read().strip() or "?"
                raise InUse(f"{self.path} is in use by process {owner}; wait for it, or stop it") from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing: to a temporary name, to the disk, then renamed.

    The name is this process's own, since others may be writing the same tables at the same time.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write {path} ({error.strerror}); nothing is lost: make room, then run the same command again"
        ) from None


def environment(device: torch.device) -> dict[str, Any]:
    """Return what a result depends on besides its recipe: versions, hardware, threads, commit."""
    return {
        "stompp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "command": " ".join([_program(), *sys.argv[1:]]),
    }


def _lives(process: int) -> bool:
    """Tell whether a process of this machine is alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _program() -> str:
    """Return what was called, without the folders of this machine: `python -m stompp` is stompp."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the source tree stompp runs from, if it is one, marked + where it was changed.

    Where a tree was copied without its history, to a cluster say, $STOMPP_COMMIT can tell.
    """
    here = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=here.parent, capture_output=True, text=True, timeout=5, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an environment may lie inside some other project's checkout
        return git("describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("STOMPP_COMMIT") or None


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
