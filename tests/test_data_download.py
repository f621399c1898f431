"""Downloads against a local server that cuts connections, ignores Range, lies and fails."""

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from stompp.data import download
from stompp.data.cifar import CIFAR10, read_cifar
from stompp.data.download import fetch_archive, fetch_file, unpack
from stompp.data.fashion import FASHION, read_idx_set
from stompp.errors import UsageError

CONTENT = bytes(range(256)) * 4000  # a million bytes
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Behaviour:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=lambda: {"/file.bin": CONTENT})
    cuts: list[int] = field(default_factory=list)  # the next answers end after this many bytes
    ranges: bool = True
    status: int | None = None
    length: bool = True
    asked: list[str | None] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self):
        is_ = self.behaviour
        wanted = self.headers.get("Range")
        is_.asked.append(wanted)
        if is_.status or self.path not in is_.files:
            self.send_error(is_.status or 404)
            return
        content, first = is_.files[self.path], 0
        if wanted and is_.ranges:
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if is_.length:
            self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        body = content[first:]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: is_.cuts.pop(0)] if is_.cuts else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    behaviour = Behaviour()
    handler = type("Bound", (Handler,), {"behaviour": behaviour})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        behaviour.url = f"http://127.0.0.1:{httpd.server_address[1]}"
        yield behaviour
        httpd.shutdown()
        thread.join()


def names_in(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


def test_a_file_arrives_whole_and_alone(server, tmp_path):
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "deep" / "file.bin")
    assert (tmp_path / "deep" / "file.bin").read_bytes() == CONTENT
    assert names_in(tmp_path / "deep") == ["file.bin"]


def test_a_file_that_is_there_is_not_asked_for(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert server.asked == []


def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path):
    server.cuts = [300_000, 200_000]
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_part_left_by_an_earlier_run_is_resumed(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:700_001])
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=700001-"]


def test_a_whole_part_is_only_checked_and_renamed(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1  # answered by 416


@pytest.mark.parametrize("part", [CONTENT[:1000], b"x" * 1000])
def test_a_server_that_ignores_range_starts_from_the_beginning(server, tmp_path, part):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(part)
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_ignores_range_and_cuts_still_ends(server, tmp_path):
    server.ranges, server.cuts = False, [400_000, 900_000]
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * (len(CONTENT) + 5)], ids=["short", "too long"])
def test_a_part_of_another_file_is_dropped(server, tmp_path, part):
    (tmp_path / "file.bin.part").write_bytes(part)
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_tells_no_length_is_judged_by_the_checksum(server, tmp_path):
    server.length = False
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.files["/file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(UsageError, match=f"wrong md5 checksum [0-9a-f]+, expected {MD5}; it is deleted") as caught:
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert str(tmp_path / "file.bin") in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_wrong_file_put_there_by_hand_is_named_and_kept(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"md5 checksum .* delete it and load again"):
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_a_server_that_always_cuts_is_given_up_and_the_part_kept(server, tmp_path):
    server.cuts = [1000] + [0] * 50
    with pytest.raises(UsageError, match=r"file\.bin\.part keeps the 1000 bytes received, load again to resume"):
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert len(server.asked) == 4
    server.cuts = []
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status, requests", [(404, 1), (403, 1), (500, 3), (503, 3)])
def test_an_http_error_is_told_and_only_passing_ones_are_tried_again(server, tmp_path, status, requests):
    server.status = status
    with pytest.raises(UsageError, match=f"HTTP {status}") as caught:
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert f"{server.url}/file.bin" in str(caught.value)
    assert "Check the network" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == requests


@pytest.mark.parametrize("host", ["closed port", "no such host"])
def test_no_network_is_one_clear_line(tmp_path, monkeypatch, host):
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/file.bin" if host == "closed port" else "http://nowhere.invalid/file.bin"
    with pytest.raises(UsageError, match=r"cannot download .*put it at") as caught:
        fetch_file(url, MD5, tmp_path / "file.bin")
    assert str(tmp_path / "file.bin") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write in .* choose another root or STOMPP_DATA"):
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file" / "file.bin")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_and_not_retried(server, tmp_path):
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(UsageError, match=r"No space left on device.*make room"):
        fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert len(server.asked) == 1


def test_two_processes_at_once_download_once(server, tmp_path):
    program = (
        "import sys; from pathlib import Path; from stompp.data.download import fetch_file; "
        "fetch_file(sys.argv[1], sys.argv[2], Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, f"{server.url}/file.bin", MD5, str(tmp_path / "file.bin")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[1] for process in processes] == [b"", b""]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(server.asked) == 1


def test_nothing_is_printed_and_rich_not_imported_without_a_terminal(server, tmp_path, capsys):
    before = "rich" in sys.modules
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert capsys.readouterr() == ("", "")
    assert ("rich" in sys.modules) == before


def test_a_terminal_sees_a_progress_bar(server, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    fetch_file(f"{server.url}/file.bin", MD5, tmp_path / "file.bin")
    assert "file.bin" in terminal.getvalue()
    assert "1.0/1.0 MB" in terminal.getvalue()


def tar_bytes(entries, mode="w:gz"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, value in entries:
            info = tarfile.TarInfo(name)
            if isinstance(value, bytes):
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
            else:
                info.type, info.linkname = value
                tar.addfile(info)
    return buffer.getvalue()


MEMBERS = {"set/a.bin": 3, "set/b.bin": 4}
WHOLE = [("set", (tarfile.DIRTYPE, "")), ("set/readme.html", b"hello"), ("set/a.bin", b"aaa"), ("set/b.bin", b"bbbb")]


def fetch_tar(server, root, raw):
    server.files["/set.tar.gz"] = raw
    fetch_archive(f"{server.url}/set.tar.gz", hashlib.md5(raw).hexdigest(), root, "set", MEMBERS)


@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_is_unpacked_to_just_its_expected_members(server, tmp_path, prefix):
    fetch_tar(server, tmp_path, tar_bytes([(prefix + name, value) for name, value in WHOLE]))
    assert names_in(tmp_path) == ["set"]
    assert names_in(tmp_path / "set") == ["a.bin", "b.bin"]
    assert (tmp_path / "set" / "b.bin").read_bytes() == b"bbbb"
    fetch_tar(server, tmp_path, b"never asked for again")
    assert len(server.asked) == 1


def test_an_archive_put_there_by_hand_is_used(server, tmp_path):
    raw = tar_bytes(WHOLE)
    (tmp_path / "set.tar.gz").write_bytes(raw)
    fetch_tar(server, tmp_path, raw)
    assert server.asked == []
    assert names_in(tmp_path) == ["set"]


def test_what_a_killed_run_left_is_cleared(server, tmp_path):
    (tmp_path / ".set.tmp").mkdir()
    (tmp_path / ".set.tmp" / "a.bin").write_bytes(b"torn")
    fetch_tar(server, tmp_path, tar_bytes(WHOLE))
    assert names_in(tmp_path) == ["set"]
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"aaa"


BIG = tar_bytes([("set/a.bin", os.urandom(100_000)), ("set/b.bin", b"bbbb")])
BAD_TARS = {
    "missing member": (tar_bytes(WHOLE[:-1]), "does not contain set/b.bin"),
    "wrong size": (tar_bytes([*WHOLE[:-1], ("set/b.bin", b"bbb")]), "not one plain file of 4 bytes"),
    "twice": (tar_bytes([*WHOLE, ("set/a.bin", b"xxx")]), "not one plain file"),
    "symlink": (tar_bytes([("set/a.bin", (tarfile.SYMTYPE, "/etc/passwd"))]), "not one plain file"),
    "hardlink": (tar_bytes([("set/a.bin", (tarfile.LNKTYPE, "/etc/passwd"))]), "not one plain file"),
    "device": (tar_bytes([("set/a.bin", (tarfile.CHRTYPE, ""))]), "not one plain file"),
    "outside": (tar_bytes([("../set/a.bin", b"aaa"), ("/set/b.bin", b"bbbb")]), "does not contain set/a.bin"),
    "not gzip": (b"<html>" * 100, "is not a whole .tar.gz"),
    "not a tar": (gzip.compress(b"x" * 2000), "is not a whole .tar.gz"),
    "cut short": (BIG[:50_000], "is not a whole .tar.gz"),
    "empty": (b"", "is not a whole .tar.gz"),
}


@pytest.mark.parametrize("raw, words", BAD_TARS.values(), ids=BAD_TARS.keys())
def test_a_bad_archive_is_refused_and_leaves_no_folder(tmp_path, raw, words):
    members = {"set/a.bin": 100_000, "set/b.bin": 4} if raw == BIG[:50_000] else MEMBERS
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(raw)
    with pytest.raises(UsageError, match=words) as caught:
        unpack(archive, tmp_path / "set", members)
    assert f"delete {archive} and load again" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["set.tar.gz"]


def test_cifar_is_downloaded_and_read(server, tmp_path):
    layout = replace(CIFAR10, train_records=3, test_records=2)
    files = [
        (f"cifar-10-batches-bin/{name}.bin", b"".join(bytes([k % 10]) + bytes([k]) * 3072 for k in range(n)))
        for name, n in layout.files()
    ]
    raw = tar_bytes([*files, ("cifar-10-batches-bin/batches.meta.txt", b"airplane\n")])
    server.files["/cifar-10-binary.tar.gz"], server.cuts = raw, [len(raw) // 2]
    layout = replace(layout, url=f"{server.url}/cifar-10-binary.tar.gz", md5=hashlib.md5(raw).hexdigest())
    data = read_cifar(layout, tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2] * 5
    assert data.test.images[1].unique().tolist() == [1]
    assert names_in(tmp_path) == ["cifar-10-batches-bin"]
    assert len(server.asked) == 2


def test_fashion_is_downloaded_and_read(server, tmp_path):
    shapes, files = ((3, 28, 28), (3,), (2, 28, 28), (2,)), {}
    for name, shape in zip(FASHION.files, shapes):
        header = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
        raw = gzip.compress(header + np.ones(shape, np.uint8).tobytes())
        server.files[f"/{name}.gz"], files[name] = raw, (hashlib.md5(raw).hexdigest(), shape)
    layout = replace(FASHION, url=server.url, files=files)
    assert len(read_idx_set(layout, tmp_path).train) == 3
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(read_idx_set(layout, tmp_path).test) == 2  # only what is missing is fetched
    assert len(server.asked) == 5
