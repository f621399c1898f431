"""Gets a file from the network so that it is either whole and checked, or not there.

What arrives goes to NAME.part. A cut connection is resumed with an HTTP Range request, in this run or in a later one;
a server that ignores Range starts from the beginning. Only when the checksum fits is the part renamed to its final
name, and only when every expected member of an archive is unpacked is the folder renamed to its own. A lock lets
several processes (the ranks of one run) ask for the same data at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stompp.errors import UsageError

_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte
_FRUITLESS = 3  # attempts in a row that bring no byte before we give up
_PAUSE = 1.0  # seconds before the next attempt


def fetch_archive(url: str, md5: str, root: Path, folder: str, members: dict[str, int]) -> None:
    """Downloads a .tar.gz and unpacks just `members` (name → size, all inside `folder`) to root/folder.

    A .tar.gz that already lies in `root` is used instead of the network; it is deleted once it is unpacked.
    """
    with _locked(root, folder):
        if (root / folder).exists():  # another process has been faster
            return
        archive = root / Path(url).name
        _fetch(url, md5, archive)
        unpack(archive, root / folder, members)
        archive.unlink()


def fetch_file(url: str, md5: str, target: Path) -> None:
    """Downloads one file to `target`, unless it is there with the right checksum."""
    with _locked(target.parent, target.name):
        _fetch(url, md5, target)


def partial_note(root: Path, url: str) -> str:
    """Tells of a half-downloaded file, for the message that says the data are missing; else an empty string."""
    part = _part(root / Path(url).name)
    if not part.exists():
        return ""
    return f" ({part} is half-downloaded, {part.stat().st_size} bytes; a download resumes it)"


def unpack(archive: Path, target: Path, members: dict[str, int]) -> None:
    """Unpacks the expected members of a .tar.gz, checked by name, kind and size, and renames the whole into place.

    Nothing in the archive decides where a file goes: names come from `members`, other entries are skipped.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    remedy = f"delete {archive} and load again"
    found: set[str] = set()
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed run; we hold the lock
        temporary.mkdir()
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in members:
                    continue
                if not member.isreg() or member.size != members[name] or name in found:
                    raise UsageError(
                        f"{archive}: {name} is not one plain file of {members[name]} bytes "
                        f"(size {member.size}, type {member.type!r}); {remedy}"
                    )
                source = tar.extractfile(member)
                assert source is not None  # regular files always open
                with (temporary / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(source, file, _CHUNK)
                    _sync(file)
                found.add(name)
        missing = sorted(members.keys() - found)
        if missing:
            raise UsageError(f"{archive} does not contain {missing[0]}; {remedy}")
        temporary.rename(target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UsageError(f"{archive} is not a whole .tar.gz ({_line(error)}); {remedy}") from None
    except OSError as error:
        raise UsageError(f"{archive} cannot be unpacked into {target} ({_line(error)}); {remedy}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fetch(url: str, md5: str, target: Path) -> None:
    if target.exists():
        found = _md5(target)
        if found != md5:
            raise UsageError(f"{target} has the md5 checksum {found}, expected {md5}; delete it and load again")
        return
    part = _part(target)
    resumed = part.exists()
    _receive(url, part)
    found = _md5(part)
    if found != md5 and resumed:
        # the old part may have come from another file: once more, from the beginning
        part.unlink()
        _receive(url, part)
        found = _md5(part)
    if found != md5:
        part.unlink()
        raise UsageError(
            f"{url} gave a file with the wrong md5 checksum {found}, expected {md5}; it is deleted. "
            f"Load again later, or put the right file at {target}"
        )
    part.rename(target)


def _receive(url: str, part: Path) -> None:
    """Appends to `part` until it is as long as the server says, over as many connections as that takes."""
    fruitless = 0
    while True:
        before = _size(part)
        try:
            if _receive_once(url, part):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and before:  # nothing beyond what we have: whole, or not ours; the checksum tells
                return
            reason = f"HTTP {error.code} {error.reason}"
            if error.code < 500:
                fruitless = _FRUITLESS
        except (OSError, http.client.HTTPException) as error:
            reason = _line(error)
        fruitless = 0 if _size(part) > before else fruitless + 1
        if fruitless >= _FRUITLESS:
            kept = f"; {part} keeps the {_size(part)} bytes received, load again to resume" if _size(part) else ""
            raise UsageError(
                f"cannot download {url} ({reason}){kept}. Check the network, or fetch the file by other means "
                f"and put it at {part.with_suffix('')}"
            )
        time.sleep(_PAUSE)


def _receive_once(url: str, part: Path) -> bool:
    """Makes one request and appends what it brings; True when the file has its full length."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "stompp", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        begins = f"bytes {have}-"
        if have and not (response.status == 206 and response.headers.get("Content-Range", "").startswith(begins)):
            have = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None and length.isdigit() else None
        with _writing(part, "r+b" if have else "wb") as file, _progress(part.stem, total, have) as advance:
            file.seek(have)
            while chunk := response.read(_CHUNK):
                _write(file, chunk, part)
                have += len(chunk)
                advance(len(chunk))
            _sync(file)
    return total is None or have >= total


def _writing(part: Path, mode: str) -> BinaryIO:
    try:
        return part.open(mode)  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(f"cannot write {part} ({error.strerror}); choose another root or STOMPP_DATA") from None


def _write(file: BinaryIO, chunk: bytes, part: Path) -> None:
    try:
        file.write(chunk)
        file.flush()
    except OSError as error:  # a full disk is no reason to ask the server again
        raise UsageError(
            f"cannot write {part} ({error.strerror}); make room or choose another root or STOMPP_DATA, and load again"
        ) from None


@contextlib.contextmanager
def _progress(name: str, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{name}.lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write in {folder} ({error.strerror}); choose another root or STOMPP_DATA") from None
    with lock:
        # no fcntl on Windows, no locks on some network disks: then only the renames protect us
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _line(error: BaseException) -> str:
    text = str(getattr(error, "reason", None) or error) or type(error).__name__
    return text.splitlines()[0]
