"""The .stompp file: golden bytes, round trips, and thousands of files that are wrong."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest

from deploy_graphs import random_graph
from packed_damage import joined, sealed, split, tiny
from stompp.deploy import format
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, Sign
from stompp.errors import UsageError


def with_header(text: bytes | str | dict, graph: Graph | None = None) -> bytes:
    """A file with another header and the arrays of `graph`."""
    _, blocks = split(format.encode(graph or tiny()))
    text = json.dumps(text) if isinstance(text, dict) else text
    return joined(text.encode() if isinstance(text, str) else text, blocks)


def header(graph: Graph | None = None) -> dict:
    return json.loads(split(format.encode(graph or tiny()))[0])


def assert_same(a: Graph, b: Graph) -> None:
    assert (a.input, a.output, a.result, a.nodes, a.meta) == (b.input, b.output, b.result, b.nodes, b.meta)
    assert list(a.arrays) == list(b.arrays)
    for name, array in a.arrays.items():
        assert array.dtype == b.arrays[name].dtype
        np.testing.assert_array_equal(array, b.arrays[name])


def test_golden_bytes() -> None:
    """A file written today must be read, and written the same, for as long as the version stays."""
    text = (
        b'{"input":[3],"output":[2],"result":"y","nodes":[{"op":"sign","input":"input","bits":"s"},'
        b'{"op":"conv","kind":"binary","input":"s","channels":2,"weight":"w","mul":"m","bias":"b","floats":"y"}],'
        b'"arrays":{"w":{"dtype":"bits","shape":[2,1,1,3],"offset":0},"m":{"dtype":"f32","shape":[2],"offset":64},'
        b'"b":{"dtype":"f32","shape":[2],"offset":128}},"meta":{"name":"tiny"}}'
    )
    blocks = bytes([0b101, 0b110]).ljust(64, b"\0") + bytes.fromhex("0000003f00000040").ljust(64, b"\0")
    blocks += bytes.fromhex("00000000000080bf")
    body = text.ljust(-(-(64 + len(text)) // 64) * 64 - 64, b"\0") + blocks
    prefix = b"\x89STOMPP\n" + (1).to_bytes(4, "little") + len(text).to_bytes(4, "little")
    prefix += (64 + len(body)).to_bytes(8, "little") + bytes(8)
    golden = prefix + hashlib.sha256(prefix + body).digest() + body
    assert format.encode(tiny()) == golden
    assert_same(format.decode(golden), tiny())


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    assert_same(format.decode(format.encode(graph)), graph)


def test_binary_weights_take_one_bit() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 2, (512, 3, 3, 512)).astype(bool)
    limits = rng.integers(-100, 100, (1, 512)).astype(np.int16)
    nodes = (
        Sign("input", "s"),
        Conv("binary", "s", 512, "w", kernel=(3, 3), padding=(1, 1, 1, 1), threshold="t", bits="u"),
        Conv("binary", "u", 1, "o", mul="m", bias="m", floats="y"),
    )
    one = np.ones(1, np.float32)
    arrays = {"w": weight, "t": limits, "o": np.ones((1, 1, 1, 512), bool), "m": one}
    data = format.encode(Graph((512, 4, 4), (1, 4, 4), "y", nodes, arrays))
    assert len(data) < weight.size / 8 * 1.05


def test_save_replaces_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "net.stompp"
    format.save(tiny(), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        format.save(random_graph(np.random.default_rng(0)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.stompp.*No such file"):
        format.read(tmp_path / "nothing.stompp")
    with pytest.raises(UsageError, match="cannot read"):
        format.read(tmp_path)


def test_truncated_lengthened_and_flipped_files_are_refused() -> None:
    data = format.encode(tiny())
    for end in range(len(data)):
        with pytest.raises(UsageError):
            format.decode(data[:end])
    with pytest.raises(UsageError, match="cut off or added to"):
        format.decode(data + b"\0")
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(UsageError):
                format.decode(bytes(flipped))


def _changed(path: list, value: object) -> dict:
    record = target = header()
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return record


HOSTILE = {
    "not JSON": b"{",
    "not ASCII": b'{"meta": "\xff"}',
    "a list": "[]",
    "deep": "[" * 100_000 + "]" * 100_000,
    "NaN": '{"input": NaN}',
    "long number": '{"input": ' + "9" * 10_000 + "}",
    "twice": '{"input":[3],"input":[3]}',
    "empty": {},
    "unknown field": _changed(["extra"], 1),
    "negative offset": _changed(["arrays", "m", "offset"], -64),
    "overlap": _changed(["arrays", "m", "offset"], 0),
    "gap": _changed(["arrays", "m", "offset"], 128),
    "far offset": _changed(["arrays", "m", "offset"], 1 << 52),
    "offset of wrong type": _changed(["arrays", "m", "offset"], 64.0),
    "bool for int": _changed(["arrays", "m", "offset"], True),
    "huge shape": _changed(["arrays", "w", "shape"], [1 << 50, 1 << 50]),
    "huge bits": _changed(["arrays", "w", "shape"], [1 << 40, 1, 1, 3]),
    "negative shape": _changed(["arrays", "w", "shape"], [-2, 1, 1, -3]),
    "no shape": _changed(["arrays", "w", "shape"], []),
    "dtype": _changed(["arrays", "w", "dtype"], "object"),
    "other dtype": _changed(["arrays", "m", "dtype"], "i32"),
    "op": _changed(["nodes", 0, "op"], "exec"),
    "op of wrong type": _changed(["nodes", 0, "op"], ["sign"]),
    "node is no object": _changed(["nodes", 0], "sign"),
    "no value": _changed(["nodes", 1, "input"], "z"),
    "wrong kind of value": _changed(["nodes", 1, "input"], "input"),
    "defined twice": _changed(["nodes", 0, "bits"], "input"),
    "name": _changed(["nodes", 0, "bits"], "../s"),
    "huge input": _changed(["input"], [3, 1 << 40, 1 << 40]),
    "empty input": _changed(["input"], []),
    "huge kernel": _changed(["nodes", 1, "kernel"], [1 << 30, 1 << 30]),
    "kernel of three": _changed(["nodes", 1, "kernel"], [1, 1, 1]),
    "no stride": _changed(["nodes", 1, "stride"], [0, 1]),
    "huge padding": _changed(["nodes", 1, "padding"], [1 << 40] * 4),
    "negative padding": _changed(["nodes", 1, "padding"], [-1, 0, 0, 0]),
    "groups": _changed(["nodes", 1, "groups"], 0),
    "clamp": _changed(["nodes", 1, "clamp"], [1.0, -1.0]),
    "clamp beyond float32": _changed(["nodes", 1, "clamp"], [-1e300, 1e300]),
    "threshold and scale": _changed(["nodes", 1, "threshold"], "m"),
    "no output": _changed(["result"], "s"),
    "output shape": _changed(["output"], [3]),
    "meta": _changed(["meta"], {"a": 1}),
    "too many nodes": _changed(["nodes"], [{"op": "sign", "input": "input", "bits": f"b{i}"} for i in range(5000)]),
    "too much memory": _changed(
        ["nodes"],
        [{"op": "pool", "input": "input", "reduce": "max", "rows": [[0, 1, 1]] * 16000, "cols": [[0, 1, 1]] * 4000}],
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header_is_refused_in_bounded_memory(name: str) -> None:
    data = with_header(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(UsageError):
            format.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000 + 60 * len(data)


def test_bits_and_numbers_that_must_not_be() -> None:
    data = bytearray(format.encode(tiny()))
    weights = data.index(bytes([0b101, 0b110]), 64)
    data[weights] |= 0b1000
    with pytest.raises(UsageError, match="unused bits"):
        format.decode(sealed(data))
    data = bytearray(format.encode(tiny()))
    data[-2:] = b"\x80\x7f"
    with pytest.raises(UsageError, match="not finite"):
        format.decode(sealed(data))
    data = bytearray(format.encode(tiny()))
    data[24] = 1
    data[32:64] = format.checksum(data)
    with pytest.raises(UsageError, match="not zero"):
        format.decode(bytes(data))
    data = bytearray(format.encode(tiny()))
    data[-20] = 1
    with pytest.raises(UsageError, match="not zero"):
        format.decode(sealed(data))
