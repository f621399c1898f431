"""Ways to damage a packed network's file. Each takes a generator, the file and other files, and returns new bytes."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stompp.deploy import format
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, Sign
from stompp.errors import UsageError


def tiny() -> Graph:
    """Three features, the sign of each, two sums of them, scaled."""
    return Graph(
        input=(3,),
        output=(2,),
        result="y",
        nodes=(
            Sign("input", "s"),
            Conv("binary", "s", 2, "w", mul="m", bias="b", floats="y"),
        ),
        arrays={
            "w": np.array([[[[1, 0, 1]]], [[[0, 1, 1]]]], bool),
            "m": np.array([0.5, 2.0], np.float32),
            "b": np.array([0.0, -1.0], np.float32),
        },
        meta={"name": "tiny"},
    )


def sealed(data: bytes | bytearray) -> bytes:
    """The same bytes with length and checksum made right, so that what is behind them is reached."""
    data = bytearray(data)
    magic, version, header, _, _ = format.PREFIX.unpack_from(data)
    format.PREFIX.pack_into(data, 0, magic, version, header, len(data), bytes(32))
    format.PREFIX.pack_into(data, 0, magic, version, header, len(data), format.checksum(data))
    return bytes(data)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Header and arrays of a sound file."""
    _, _, length, _, _ = format.PREFIX.unpack_from(data)
    end = format.PREFIX.size + length
    return data[format.PREFIX.size : end], data[-(-end // format.ALIGN) * format.ALIGN :]


def joined(header: bytes, blocks: bytes) -> bytes:
    """A file of a header and arrays, with length and checksum made right."""
    prefix = format.PREFIX.pack(format.MAGIC, format.VERSION, len(header), 0, bytes(32))
    return sealed(prefix + header + bytes(-(format.PREFIX.size + len(header)) % format.ALIGN) + blocks)


# The ways.

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 255, 256, 4095, 4096, 4097, 16384, 16385, 65535, 65536, (1 << 24) + 1,
    (1 << 26) + 1, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32, (1 << 53) - 1, 1 << 53, 1 << 63, 1 << 64, 10**40,
    0.0, -0.0, 0.5, -1.5, 1e-45, 1e-40, 3e38, -3e38, 3.4028234663852886e38, 1e39, 1e308,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "input",
    "float",
    "int8",
    "bf16",
    "binary",
    "mean",
    "a0",
    [],
    [1],
    [0] * 9,
    {},
)
BF16 = (0, 1, 0x7F, 0x80, 0x267F, 0x2680, 0x3F80, 0x5F7F, 0x5F80, 0x7F7F, 0x7F80, 0x7FC0)  # without the sign
FLOATS = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 3.4028235e38, -3.4028235e38, math.inf, -math.inf, math.nan)


def truncated(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data))]


def lengthened(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    longer = data + rng.choice([b"\0", rng.randbytes(1 + rng.randrange(200)), bytes(64), data])
    return sealed(longer) if rng.random() < 0.7 else longer


def cut_and_sealed(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    return sealed(data[: rng.randrange(format.PREFIX.size, len(data))])


def flipped(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flipped_and_sealed(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    return sealed(flipped(rng, data, files))


def header_bytes(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """Characters of the JSON text replaced, removed, doubled or moved."""
    header, blocks = split(data)
    text = bytearray(header)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        other = rng.randrange(len(text))
        match rng.randrange(5):
            case 0:
                text[at] = rng.choice(b'0123456789-.,:[]{}"etn')
            case 1:
                del text[at : at + rng.randint(1, 8)]
            case 2:
                text[at:at] = bytes(rng.choices(b"0123456789", k=rng.randint(1, 8)))
            case 3:
                text[at : at + 8] = text[other : other + 8]
            case 4:
                text[at:at] = text[other : other + rng.randint(1, 60)]
        text = text or bytearray(b"0")
    return joined(bytes(text), blocks)


def header_values(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """Values of the JSON tree changed: hostile numbers, other types, near misses, swaps, missing and foreign parts."""
    header, blocks = split(data)
    tree = json.loads(header)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        parent, key = rng.choice(places)
        value = copy.deepcopy(parent[key])
        match rng.randrange(9):
            case 0:
                parent[key] = rng.choice(NUMBERS)
            case 1:
                parent[key] = copy.deepcopy(rng.choice(VALUES))
            case 2 | 3 if type(value) is int:
                parent[key] = value + rng.choice((-2, -1, 1, 2, value, -value))
            case 2 | 3 | 4:
                parent[key] = copy.deepcopy(rng.choice([p[k] for p, k in places if type(p[k]) is type(value)]))
            case 5:
                del parent[key]
            case 6 if isinstance(parent, list):
                parent.insert(rng.randrange(len(parent) + 1), value)
            case 6:
                parent[rng.choice(("extra", "groups", "clamp", "residual", "threshold", "floats", "bits", "bf16"))] = (
                    value
                )
            case 7:
                other = json.loads(split(rng.choice(files))[0])
                part = rng.choice(sorted(other))
                tree[part] = other[part]
            case 8:
                nodes = tree.get("nodes")
                if isinstance(nodes, list) and nodes:
                    nodes.insert(rng.randrange(len(nodes) + 1), copy.deepcopy(rng.choice(nodes)))
    return joined(json.dumps(tree).encode("ascii"), blocks)


def scalars(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """Numbers that decide what a node does, changed so that much of it still fits: what gets furthest."""
    header, blocks = split(data)
    tree = json.loads(header)
    node = rng.choice(tree["nodes"])
    edits: dict[str, Callable[[], Any]] = {
        "stride": lambda: [rng.choice((1, 2, 3, 4096)), rng.choice((1, 2, 9))],
        "dilation": lambda: [rng.choice((1, 2, 3)), rng.choice((1, 2, 4096))],
        "padding": lambda: [rng.choice((0, 1, 2, 5, 63, 1024, 4096)) for _ in range(4)],
        "kernel": lambda: [rng.choice((1, 2, 3)), rng.choice((1, 2, 3))],
        "groups": lambda: rng.choice((1, 2, 3, 4)),
        "clamp": lambda: [rng.choice((-3e38, -1.0, 0.0, 0.5)), rng.choice((None, 0.0, 0.5, 3e38))],
        "scale": lambda: rng.choice((1e-45, 1e-38, 1.0, 3e38)),
        "reduce": lambda: rng.choice(("max", "mean")),
        "rows": lambda: _windows(rng),
        "cols": lambda: _windows(rng),
        "channels": lambda: rng.choice((1, 2, 64, 65)),
    }
    known = {"conv": ("stride", "dilation", "padding", "kernel", "groups", "clamp", "channels"), "quantize": ("scale",),
             "clamp": ("clamp",), "pool": ("reduce", "rows", "cols")}  # fmt: skip
    for field in known.get(node["op"], ()):
        if rng.random() < 0.4:
            node[field] = edits[field]()
    if rng.random() < 0.3:
        tree["input"] = [*tree["input"][:1], *(rng.choice((1, 5, 8, 40)) for _ in tree["input"][1:])]
    if rng.random() < 0.2:
        tree["result"] = rng.choice([node["floats"] for node in tree["nodes"] if "floats" in node])
    with contextlib.suppress(UsageError):
        tree["output"] = _shape_of(joined(json.dumps(tree).encode("ascii"), blocks))  # made to fit
    return joined(json.dumps(tree).encode("ascii"), blocks)


def array_values(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """Weights, thresholds and scales overwritten with the extremes of their types."""
    header, blocks = split(data)
    tree, changed = json.loads(header), bytearray(blocks)
    for _ in range(rng.randint(1, 6)):
        record = rng.choice(list(tree["arrays"].values()))
        size = {"f32": 4, "i32": 4, "i16": 2, "f16": 2, "bf16": 2}.get(record["dtype"], 1)
        at = record["offset"] + size * rng.randrange(
            math.prod(record["shape"]) // (8 if record["dtype"] == "bits" else 1) + 1
        )
        if at + size > len(changed):
            continue
        match record["dtype"]:
            case "f32":
                struct.pack_into("<f", changed, at, rng.choice(FLOATS))
            case "i32":
                struct.pack_into("<i", changed, at, rng.choice((-(1 << 31), (1 << 31) - 1, 0, -1)))
            case "i16":
                struct.pack_into("<h", changed, at, rng.choice((-(1 << 15), (1 << 15) - 1, 0, -1)))
            case "bf16":
                struct.pack_into("<H", changed, at, rng.choice(BF16) | rng.choice((0, 0x8000)))
            case _:
                changed[at : at + size] = rng.choice((b"\x80\x80", b"\x7f\x7c", b"\xff\xff", b"\0\0", b"\x01\x80"))[
                    :size
                ]
    return joined(header, bytes(changed))


def spliced(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """Parts of two files: header of one and arrays of the other, or a stretch of bytes copied over."""
    other = rng.choice(files)
    if rng.random() < 0.3:
        return joined(split(data)[0], split(other)[1])
    changed = bytearray(data)
    begin, at = rng.randrange(len(other)), rng.randrange(format.PREFIX.size, len(changed))
    part = other[begin : begin + rng.choice((4, 64, 512))]
    changed[at : at + len(part)] = part
    return sealed(changed)


def prefix_fields(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    changed = bytearray(data)
    offset, code = rng.choice(((8, "<I"), (12, "<I"), (16, "<Q"), (24, "<Q")))
    number = rng.choice((0, 1, 2, 63, 64, 65, len(data) - 1, len(data), len(data) + 1, (1 << 22) + 1, (1 << 32) - 1))
    struct.pack_into(code, changed, offset, number)
    if rng.random() < 0.8:
        changed[32:64] = format.checksum(changed)
    return bytes(changed)


def noise(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    some = rng.randbytes(rng.choice((0, 1, 8, 63, 64, 65, 300, 5000)))
    return some if rng.random() < 0.3 or not some else joined(some[: len(some) // 2], some[len(some) // 2 :])


DAMAGES: tuple[Callable[[random.Random, bytes, list[bytes]], bytes], ...] = (
    truncated, lengthened, cut_and_sealed, flipped, flipped_and_sealed, header_bytes, header_values, scalars,
    array_values, spliced, prefix_fields, noise,
)  # fmt: skip


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _windows(rng: random.Random) -> list[list[int]]:
    windows = []
    for _ in range(rng.choice((1, 2, 3, 40))):
        begin = rng.randrange(4)
        windows.append([begin, begin + rng.choice((1, 1, 2, 3, 0)), rng.choice((1, 2, 4096))])
    return windows


def _shape_of(data: bytes) -> list[int]:
    """The shape of the result, as the refusal of a wrong one tells it."""
    header, blocks = split(data)
    tree = json.loads(header)
    tree["output"] = [1 << 40]
    try:
        format.decode(joined(json.dumps(tree).encode("ascii"), blocks))
    except UsageError as error:
        inside = str(error).partition("the output has shape (")[2].partition(")")[0]
        if inside:
            shape = [int(n) for n in inside.split(",")]
            return shape[:1] if shape[1:] == [1, 1] else shape
        raise
    raise AssertionError("an output of that size cannot be")
