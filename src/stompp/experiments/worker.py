"""The process that a grid's run trains in: from the start of its log to the exit code that tells how it ended.

Importing PyTorch takes longer than many a small run's epoch. So one server imports it, and forks a process per run:

    grid ── (key, recipe, options) ──> server ── fork ──> run, run, ...
         <── (key, how it ended) ────         <── exit code

The server computes nothing: no threads are there when it forks, and no GPU is touched before a run does. Ctrl-C at a
terminal goes to every process of the grid, and only the grid answers: it passes on one SIGTERM. When the grid is gone,
however it went, the server stops the runs the same way; when the server is gone, the system does (on Linux).
"""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console

from stompp.errors import Diverged, UsageError
from stompp.recipes.schema import Recipe
from stompp.training.folder import InUse, RunFolder, write_atomically
from stompp.training.loop import train
from stompp.training.options import RunOptions

FINISHED, CRASHED, BAD_INPUT, BUSY, FOREIGN, DIVERGED = range(6)  # exit codes; 128 + n: stopped by signal n, and saved
STOP, KILL = "stop", "kill"  # what the server is told besides jobs
LET_GO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # not for the server: its end would orphan the runs


def carry_out(recipe: Recipe, options: RunOptions) -> int:
    """Train in this process with its output in the run's log.txt; return the exit code.

    A run that fails leaves its reason in the file FAILED.
    """
    folder = RunFolder.of(recipe, options.seed, options.runs)
    try:
        folder.refuse_others(recipe, options.seed)
    except UsageError:
        return FOREIGN  # and not a byte is written there
    try:
        _log_into(folder.log_file)
        folder.failed_file.unlink(missing_ok=True)
        outcome = _trained(recipe, options)
    except InUse as error:
        print(error, flush=True)
        return BUSY
    except Diverged as error:
        print(f"stompp: {error}", flush=True)
        return DIVERGED
    except UsageError as error:
        print(f"stompp: {error}", flush=True)
        note_failure(folder, str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        note_failure(folder, "".join(traceback.format_exception_only(type(error), error)))
        return CRASHED
    return FINISHED if outcome.stopped_by is None else 128 + outcome.stopped_by


def note_failure(folder: RunFolder, reason: str) -> None:
    """Write why a run failed, in one line, into its folder."""
    reason = " ".join(reason.split())
    with suppress(OSError, UsageError):  # a full disk may be the very reason
        write_atomically(folder.failed_file, (reason if len(reason) < 1000 else f"{reason[:1000]} ...") + "\n")


def read_failure(folder: RunFolder) -> str | None:
    """Return why a run failed; None if it did not, or was finished since."""
    if folder.done:
        return None
    try:
        return folder.failed_file.read_text(errors="replace").strip() or "for an unknown reason"
    except OSError:
        return None


def _trained(recipe: Recipe, options: RunOptions) -> Any:
    console = Console(force_terminal=False)
    for attempt in range(2):
        try:
            return train(recipe, options, console)
        except InUse:
            if attempt:
                raise
            time.sleep(0.2)  # somebody may only have looked whether it is in use
    raise AssertionError


def _log_into(file: Path) -> None:
    """Send this process's output to the end of a file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise UsageError(f"cannot write to {file.parent} ({error.strerror}); choose another --runs") from None
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    print(time.strftime("--- %Y-%m-%d %H:%M:%S"), flush=True)


def encode(message: Any) -> bytes:
    """Return a message of plain objects as a line."""
    return base64.b64encode(pickle.dumps(message)) + b"\n"


def decode(line: bytes) -> Any:
    """Return the message that a line holds. Both ends are the same program on the same machine."""
    return pickle.loads(base64.b64decode(line))


class Lines:
    """Whole lines from a file descriptor that is read bit by bit."""

    def __init__(self, handle: int) -> None:
        self._handle, self._rest = handle, b""

    def read(self) -> list[bytes] | None:
        """Return the lines that have come, which may be none; None at the end."""
        content = os.read(self._handle, 1 << 16)
        if not content:
            return None
        *whole, self._rest = (self._rest + content).split(b"\n")
        return whole


class Server:
    """Forks a process for every job that comes in, and tells how each ended."""

    def __init__(self, jobs: int, ends: int) -> None:
        self._jobs, self._ends = jobs, ends
        self._running: dict[int, Any] = {}  # process id: the job's key

    def serve(self) -> None:
        """Go on until there are no more jobs to come and none running."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        lines: Lines | None = Lines(self._jobs)
        while lines is not None or self._running:
            ready, _, _ = select.select([woken] if lines is None else [woken, self._jobs], [], [])
            if woken in ready:
                os.read(woken, 1 << 12)
            if lines is not None and self._jobs in ready:
                found = lines.read()
                if found is None:  # the grid is gone
                    lines = None
                    self._signal(signal.SIGTERM)
                for line in found or ():
                    self._obey(decode(line))
            self._reap()

    def _obey(self, message: Any) -> None:
        if message in (STOP, KILL):
            self._signal(signal.SIGTERM if message == STOP else signal.SIGKILL)
            return
        key, recipe, options = message
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run(recipe, options, server)
        self._running[pid] = key

    def _run(self, recipe: Recipe, options: RunOptions, server: int) -> NoReturn:
        """Be the run's process."""
        code = CRASHED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._jobs)
            os.close(self._ends)
            _end_with_parent(server)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            code = carry_out(recipe, options)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _signal(self, number: int) -> None:
        for pid in self._running:  # not reaped yet, so the ids are still theirs
            os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                message = encode((self._running.pop(pid), os.waitstatus_to_exitcode(status)))
                with suppress(BrokenPipeError):  # nobody is left to hear it
                    os.write(self._ends, message)


def _end_with_parent(parent: int) -> None:
    """Get a SIGTERM when the server is gone. Only Linux knows how; elsewhere such a run goes on to its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)


def main() -> None:
    """Be the server: jobs on stdin, ends on stdout; whatever else is printed goes to stderr.

    The arguments are what to import besides, `--`, and the grid's own command, which every run notes in its env.json.
    """
    split = sys.argv.index("--")
    extras, sys.argv = sys.argv[1:split], sys.argv[split + 1 :]
    for number in LET_GO:
        signal.signal(number, signal.SIG_DFL)  # blocked by who started us; a run gets SIGTERM unblocked
    jobs, ends = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if "tensorboard" in extras:
        importlib.import_module("torch.utils.tensorboard")
    torch.optim.SGD([torch.zeros(1)], 0.1)  # torch imports its compiler with the first optimizer; once is enough
    gc.collect()
    gc.freeze()  # or every run's first collection would copy the pages that all share
    Server(jobs, ends).serve()


if __name__ == "__main__":
    main()
