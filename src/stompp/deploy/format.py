"""The .stompp file: a header, a JSON graph, aligned arrays. docs/format.md has the bytes on one page.

Reading trusts nothing. The file is a fixed prefix with a checksum, then JSON of limited depth and size whose every
field is checked against the records of `nodes.py`, then arrays that must lie exactly where the header's own sizes put
them. Whatever is wrong is a `UsageError`, and no memory is taken that the file's own length does not justify.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import numpy as np

from stompp.deploy.graph import Graph
from stompp.deploy.nodes import NODES, Node, to_json
from stompp.errors import UsageError

MAGIC = b"\x89STOMPP\n"
VERSION = 1
ALIGN = 64
PREFIX = struct.Struct("<8sIIQ8x32s")  # magic, version, header length, file length, SHA-256 of all other bytes
MOST_HEADER = 1 << 22
MOST_DEPTH = 8
MOST_ARRAYS = 1 << 14
MOST_BYTES = 1 << 32
MOST_FLOAT = float(np.finfo(np.float32).max)

_DTYPES = {
    "bits": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "f16": "float16", "bf16": "uint16", "f32": "float32",
}  # fmt: skip
_CODES = {name: code for code, name in _DTYPES.items()}


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes a graph so that `path` holds the old file or the whole new one, never a part."""
    data = encode(graph)
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {os.fspath(target.parent)!r} to write {target.name!r} into")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> Graph:
    """The graph in a file, or `UsageError` saying what is wrong with it."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise UsageError(f"{os.fspath(path)!r}: {size} bytes are too many for a packed network")
            data = file.read(size)  # what a device or pipe would go on to give is not asked for
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from error
    try:
        return decode(data)
    except UsageError as error:
        raise UsageError(f"{os.fspath(path)!r}: {error}") from error


def encode(graph: Graph) -> bytes:
    """The bytes of a file."""
    graph.check()
    arrays, blocks = {}, []
    at = 0
    for name, array in graph.arrays.items():
        block = _pack(array)
        blocks.append((at, block))
        arrays[name] = {"dtype": _CODES[array.dtype.name], "shape": list(array.shape), "offset": at}
        at = _aligned(at + len(block))
    header = {
        "input": graph.input,
        "output": graph.output,
        "result": graph.result,
        "nodes": [to_json(node) for node in graph.nodes],
        "arrays": arrays,
        "meta": graph.meta,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(text) > MOST_HEADER:
        raise UsageError("packed network: the graph is too long for one file")
    base = _aligned(PREFIX.size + len(text))
    length = base + (blocks[-1][0] + len(blocks[-1][1]) if blocks else 0)
    data = bytearray(length)
    PREFIX.pack_into(data, 0, MAGIC, VERSION, len(text), length, bytes(32))
    data[PREFIX.size : PREFIX.size + len(text)] = text
    for at, block in blocks:
        data[base + at : base + at + len(block)] = block
    PREFIX.pack_into(data, 0, MAGIC, VERSION, len(text), length, checksum(data))
    return bytes(data)


def decode(data: bytes) -> Graph:
    """The graph in the bytes of a file; never anything but a checked graph or `UsageError`."""
    if len(data) < PREFIX.size or data[: len(MAGIC)] != MAGIC:
        _refuse("not a .stompp file")
    _, version, header_length, length, digest = PREFIX.unpack_from(data)
    if version != VERSION:
        _refuse(f"version {version}, this program reads version {VERSION}: update stompp or pack the network again")
    if any(data[24:32]):
        _refuse("bytes between its parts are not zero")
    if length != len(data):
        _refuse(f"it says {length} bytes and has {len(data)}: cut off or added to")
    if checksum(data) != digest:
        _refuse("the checksum does not match: damaged")
    if header_length > min(MOST_HEADER, length - PREFIX.size):
        _refuse(f"a header of {header_length} bytes does not fit")
    text = data[PREFIX.size : PREFIX.size + header_length]
    header = _typed(_Header, _parse(text), "header")
    base = _aligned(PREFIX.size + header_length)
    _padding(data, PREFIX.size + header_length, base)
    graph = Graph(
        input=header["input"],
        output=header["output"],
        result=header["result"],
        nodes=tuple(_node(record, f"node {i}") for i, record in enumerate(header["nodes"])),
        arrays=_arrays(memoryview(data), base, header["arrays"]),
        meta=header["meta"],
    )
    graph.check()
    return graph


def checksum(data: bytes | bytearray) -> bytes:
    """SHA-256 of a file without the 32 bytes that hold it."""
    digest = hashlib.sha256(memoryview(data)[: PREFIX.size - 32])
    digest.update(memoryview(data)[PREFIX.size :])
    return digest.digest()


class _Header:
    input: tuple[int, ...]
    output: tuple[int, ...]
    result: str
    nodes: list[dict]
    arrays: dict[str, dict]
    meta: dict[str, str]


class _Array:
    dtype: str
    shape: tuple[int, ...]
    offset: int


def _refuse(problem: str) -> NoReturn:
    raise UsageError(f"packed network: {problem}")


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def _padding(data: bytes | memoryview, begin: int, end: int) -> None:
    if end > len(data):
        _refuse("it ends before its arrays begin")
    if any(data[begin:end]):
        _refuse("bytes between its parts are not zero")


def _pack(array: np.ndarray) -> bytes:
    if array.dtype == bool:
        return np.packbits(array.reshape(len(array), -1), axis=1, bitorder="little").tobytes()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def _arrays(data: memoryview, base: int, records: dict[str, dict]) -> dict[str, np.ndarray]:
    """Arrays in the order of the header: each must begin at the next aligned byte after the one before."""
    if len(records) > MOST_ARRAYS:
        _refuse(f"{len(records)} arrays are too many")
    arrays = {}
    end = base
    for name, raw in records.items():
        record = _typed(_Array, raw, f"array {name!r}")
        shape, dtype = record["shape"], _DTYPES.get(record["dtype"])
        if dtype is None:
            _refuse(f"array {name!r}: no dtype {record['dtype']!r}")
        if not 1 <= len(shape) <= 4 or min(shape) < 1:
            _refuse(f"array {name!r}: no array has the shape {shape}")
        row = math.prod(shape[1:])
        size = shape[0] * -(-row // 8) if dtype == "bool" else shape[0] * row * np.dtype(dtype).itemsize
        begin = _aligned(end)
        if base + record["offset"] != begin:
            _refuse(f"array {name!r} is not where it must be")
        _padding(data, end, begin)
        end = begin + size
        if end > len(data):
            _refuse(f"array {name!r} reaches beyond the end")
        arrays[name] = _unpack(data[begin:end], dtype, shape, row, name)
    if end != len(data):
        _refuse("it goes on after its last array")
    return arrays


def _unpack(block: memoryview, dtype: str, shape: tuple[int, ...], row: int, name: str) -> np.ndarray:
    if dtype != "bool":
        return np.frombuffer(block, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
    packed = np.frombuffer(block, np.uint8).reshape(shape[0], -1)
    if row % 8 and bool((packed[:, -1] >> (row % 8)).any()):
        _refuse(f"array {name!r}: unused bits are not zero")
    return np.unpackbits(packed, axis=1, count=row, bitorder="little").astype(bool).reshape(shape)


def _parse(text: bytes) -> Any:
    depth = 0
    for bracket in re.finditer(rb"[\[\]{}]", text):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > MOST_DEPTH:
            _refuse("the header is nested too deep")

    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for key, value in pairs:
            if key in record:
                _refuse(f"the header has the key {key!r} twice")
            record[key] = value
        return record

    def constant(name: str) -> NoReturn:
        _refuse(f"the header has a number {name}")

    try:
        return json.loads(text.decode("ascii"), object_pairs_hook=unique, parse_constant=constant)
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"packed network: the header is no JSON in ASCII: {error}") from error


def _node(record: Any, where: str) -> Node:
    rest = {key: value for key, value in record.items() if key != "op"}
    op = record.get("op")
    kind = NODES.get(op) if isinstance(op, str) else None
    if kind is None:
        _refuse(f"{where}: no operator {op!r}")
    required = {item.name for item in fields(kind) if item.default is MISSING}
    return kind(**_typed(kind, rest, f"{where} ({op})", required))


def _typed(kind: type, record: Any, where: str, required: set[str] | None = None) -> dict[str, Any]:
    """The record's values, each of the type that `kind` says; lists become tuples where it says so."""
    if not isinstance(record, dict):
        _refuse(f"{where} is no object")
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "op"}
    unknown = sorted(set(record) - set(hints))
    missing = sorted((set(hints) if required is None else required) - set(record))
    if unknown or missing:
        _refuse(f"{where}: unknown fields {unknown[:3]}, missing fields {missing[:3]}")
    return {key: _value(hints[key], value, f"{where}: {key}") for key, value in record.items()}


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _value(next(h for h in inner if h is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        many = len(inner) == 2 and inner[1] is Ellipsis
        if many or len(value) == len(inner):
            return tuple(_value(inner[0] if many else inner[i], item, where) for i, item in enumerate(value))
    elif origin is list and isinstance(value, list):
        return [_value(inner[0], item, where) for item in value]
    elif origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], item, where) for key, item in value.items()}
    elif hint is float and type(value) in (int, float) and abs(value) <= MOST_FLOAT:
        return float(value)
    elif hint in (int, str, dict) and type(value) is hint and (hint is not int or abs(value) < 1 << 53):
        return value
    _refuse(f"{where} has a wrong type or range")
