"""The operators of a packed network, as plain records: what a file's header holds and a runtime builds from.

A value is one image-shaped tensor per input: `floats` (float32), `bits` (−1 or +1), `bytes` (integers in [−127, 127])
or `bf16` (floats of 8 significant bits). Linear layers are convolutions: of a 1×1 image, or, after a flatten, with a
kernel as large as the image.
What each operator computes, to the last rounding, is in docs/format.md and, as code, in `reference.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Conv:
    """Convolution with what follows it.

    `kind` is binary (bits in), float (floats in, weights float or ±1), int8 (bytes in) or bf16. Then either

    - `threshold`: bits = acc >= threshold[channel]; with a residual of bits there are two rows, the first for −1; or
    - `mul`, `bias`: y = fma(acc, mul, bias + residual), clamped; `floats` names y, `bits` names y >= 0.

    Arrays are named; `padding` is top, left, bottom, right; padded pixels are zeros.
    """

    op: ClassVar[str] = "conv"
    kind: str
    input: str
    channels: int
    weight: str
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    threshold: str | None = None
    mul: str | None = None
    bias: str | None = None
    residual: str | None = None
    clamp: tuple[float, float | None] | None = None
    floats: str | None = None
    bits: str | None = None


@dataclass(frozen=True)
class Sign:
    """bits = +1 where x >= 0, else −1."""

    op: ClassVar[str] = "sign"
    input: str
    bits: str


@dataclass(frozen=True)
class Unpack:
    """Bits as floats."""

    op: ClassVar[str] = "unpack"
    input: str
    floats: str


@dataclass(frozen=True)
class Quantize:
    """bytes = round_half_even(clip(x · scale, −127, 127))."""

    op: ClassVar[str] = "quantize"
    input: str
    scale: float
    bytes: str


@dataclass(frozen=True)
class Round:
    """bf16 = x rounded to nearest even, within the range of `bf16.py`."""

    op: ClassVar[str] = "round"
    input: str
    bf16: str


@dataclass(frozen=True)
class Affine:
    """y = fma(x, mul[channel], bias[channel])."""

    op: ClassVar[str] = "affine"
    input: str
    mul: str
    bias: str
    floats: str


@dataclass(frozen=True)
class Clamp:
    """y = min(max(x, low), high); `high` None is no bound, so (0, None) is ReLU."""

    op: ClassVar[str] = "clamp"
    input: str
    clamp: tuple[float, float | None]
    floats: str


@dataclass(frozen=True)
class Add:
    """y = a + b."""

    op: ClassVar[str] = "add"
    input: str
    other: str
    floats: str


@dataclass(frozen=True)
class Flatten:
    """A 1×1 image whose channels are the input in the order channel, row, column."""

    op: ClassVar[str] = "flatten"
    input: str
    floats: str


@dataclass(frozen=True)
class Pool:
    """Maximum or mean over windows: any stride, padding, ceil mode or adaptive pooling, and the mean of an image.

    `rows` and `cols` have one (begin, end, count) for each output row and column; a mean divides by the product of its
    two counts. Maxima of bits are bits; means are of floats.
    """

    op: ClassVar[str] = "pool"
    input: str
    reduce: str
    rows: tuple[tuple[int, int, int], ...]
    cols: tuple[tuple[int, int, int], ...]
    floats: str | None = None
    bits: str | None = None


Node = Conv | Sign | Unpack | Quantize | Round | Affine | Clamp | Add | Flatten | Pool
NODES: dict[str, type] = {
    kind.op: kind for kind in (Conv, Sign, Unpack, Quantize, Round, Affine, Clamp, Add, Flatten, Pool)
}


def defined(node: Node) -> list[tuple[str, str]]:
    """The (kind, name) pairs of the values that a node defines."""
    pairs = [(kind, getattr(node, kind, None)) for kind in ("floats", "bits", "bytes", "bf16")]
    return [(kind, name) for kind, name in pairs if name is not None]


def spans(
    size: int, kernel: int, stride: int, padding: int = 0, *, ceil: bool = False, count_padding: bool = True
) -> tuple[tuple[int, int, int], ...]:
    """Windows along one axis of a pooling layer, with PyTorch's rules for `ceil_mode` and `count_include_pad`.

    >>> spans(5, 3, 2, 1)
    ((0, 2, 3), (1, 4, 3), (3, 5, 3))
    >>> spans(5, 2, 2, ceil=True)
    ((0, 2, 2), (2, 4, 2), (4, 5, 1))
    """
    room = size + 2 * padding - kernel
    outputs = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (outputs - 1) * stride >= size + padding:  # a window must not begin beyond the image
        outputs -= 1
    windows = []
    for i in range(outputs):
        begin = i * stride - padding
        end = min(begin + kernel, size + padding)
        inside = (max(begin, 0), min(end, size))
        windows.append((*inside, end - begin if count_padding else inside[1] - inside[0]))
    return tuple(windows)


def adaptive_spans(size: int, outputs: int) -> tuple[tuple[int, int, int], ...]:
    """Windows of adaptive pooling to `outputs` along one axis; one output is the whole axis.

    >>> adaptive_spans(7, 3)
    ((0, 3, 3), (2, 5, 3), (4, 7, 3))
    """
    edges = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
    return tuple((begin, end, end - begin) for begin, end in edges)


def to_json(node: Node) -> dict[str, Any]:
    """A node as a JSON object: its operator, then every field that differs from its default."""
    record: dict[str, Any] = {"op": node.op}
    for item in fields(node):
        value = getattr(node, item.name)
        if value != item.default:
            record[item.name] = value
    return record
