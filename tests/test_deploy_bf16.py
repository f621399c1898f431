"""bf16 layers of packed nets: rounding, range and order of sums, each by an oracle of its own, at the extremes too."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_graphs import Builder, one_conv
from stompp.deploy import reference
from stompp.deploy.bf16 import LEAST, MOST, sound, to_bf16, to_floats
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Add, Affine, Conv, Round
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError

try:
    from stompp_kernels import available_isas
except ImportError:  # then the reference alone is tested
    ISAS = ["reference"]
else:
    ISAS = [*available_isas(), "reference"]

TINY = float(LEAST)
TIES = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 2 - 2.0**-8, -1 - 2.0**-8, 255.5, 256.5 - 0.5**15, 1.5 * 2.0**-133]
EDGES = [
    0.0, -0.0, 1e-45, -1e-45, 2.0**-126, TINY, -TINY, TINY * (1 - 2.0**-9), TINY * (1 - 2.0**-9 - 2.0**-24),
    TINY * (1 - 2.0**-8), TINY * (1 + 2.0**-8), TINY * (1 + 3 * 2.0**-8), float(MOST), 2.0**64, 2.0**64 - 2.0**40,
    -float(MOST), 1e30, -1e30, 3.4028235e38, -3.4028235e38,
]  # fmt: skip
VALUES = np.array([*TIES, *EDGES], np.float32)


def rounded(value: float) -> float:
    """bf16 by the definition: among the numbers of 8 significant bits the nearest one, or the even one of two."""
    exact = min(max(Fraction(value), -Fraction(float(MOST))), Fraction(float(MOST)))
    if not exact:
        return 0.0
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (exponent - 7)
    near = round(exact / step) * step  # Python rounds halves to even
    return float(near) if abs(near) >= Fraction(TINY) else 0.0


def through(values: np.ndarray, isa: str, channels: int = 1) -> np.ndarray:
    """The values rounded by a network whose one layer multiplies by 1, `channels` of them in a pixel."""
    x = np.resize(values, (1, channels, 1, -(-len(values) // channels)))
    one = np.float32(1)
    arrays = {
        "w": to_bf16(np.eye(channels, dtype=np.float32))[:, None, None],
        "m": np.full(channels, one),
        "b": np.full(channels, one - one),
    }
    nodes = (Round("input", "r"), Conv("bf16", "r", channels, "w", mul="m", bias="b", floats="y"))
    graph = Graph(x.shape[1:], x.shape[1:], "y", nodes, arrays)
    return PackedNet(graph, isa=isa, threads=1)(x).ravel()[: len(values)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [1, 2, 3, 7, 256, 301])
def test_rounding_is_to_nearest_even_within_the_range(isa: str, channels: int) -> None:
    want = np.float32([rounded(float(v)) for v in VALUES])
    np.testing.assert_array_equal(through(VALUES, isa, channels), want)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_float_is_rounded_alike_everywhere(patterns: list[int]) -> None:
    values = np.array(patterns, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    want = np.float32([rounded(float(v)) for v in values])
    np.testing.assert_array_equal(to_floats(to_bf16(values)), want)
    for isa in ISAS:
        np.testing.assert_array_equal(through(values, isa), want, err_msg=isa)


def test_sound_numbers_are_those_that_rounding_leaves_alone() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    ok = sound(halves)
    np.testing.assert_array_equal(to_bf16(to_floats(halves))[ok] & 0x7FFF, halves[ok] & 0x7FFF)
    assert not np.any((to_bf16(to_floats(halves)) == halves)[~ok])
    assert ok.sum() == 2 * (114 * 128 + 1)  # exponents −50 to 63, and zero; each with two signs


@pytest.mark.parametrize("isa", ISAS)
def test_infinite_values_and_what_is_no_number_end_at_the_range(isa: str) -> None:
    """Within a net sums may overflow, and infinities cancel; a bf16 layer sees numbers all the same."""
    b = Builder((2, 1, 1), np.random.default_rng(0))
    huge, minus = b.array(np.full(2, 3e38, np.float32)), b.array(np.full(2, -3e38, np.float32))
    zero, one = b.array(np.zeros(2, np.float32)), b.array(np.ones(2, np.float32))
    up = b.same(Affine, "input", mul=huge, bias=zero)
    down = b.same(Affine, "input", mul=minus, bias=zero)
    both = b.same(Add, up, other=down)
    weight = b.array(to_bf16(np.eye(2, dtype=np.float32))[:, None, None])
    for source, want in ((up, [MOST, -MOST]), (both, [-MOST, -MOST])):
        node = Conv("bf16", b.same(Round, source), 2, weight, mul=one, bias=zero, floats=b.name() + "y")
        result = b.add(node, 2, 1, 1)
        net = PackedNet(b.graph(result), isa=isa, threads=1)
        np.testing.assert_array_equal(net(np.float32([[[[10.0]], [[-10.0]]]])), [want])


def oracle(node: Conv, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sums of one window of the size of the image, each rounded once: by pairs of channels, the second first."""
    total = np.zeros((len(x), node.channels), np.float32)
    channels = x.shape[1]
    for row in range(x.shape[2]):
        for column in range(x.shape[3]):
            for pair in range(0, channels, 2):
                for c in range(min(pair + 1, channels - 1), pair - 1, -1):
                    product = x[:, c, row, column].astype(np.float64)[:, None] * weight[:, row, column, c]
                    assert np.array_equal(product, product.astype(np.float32))
                    with np.errstate(over="ignore"):
                        total = total + product.astype(np.float32)
    return total


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("numbers", ["normal", "extreme"])
def test_sums_are_rounded_one_by_one_in_the_order_of_the_format(isa: str, channels: int, numbers: str) -> None:
    rng = np.random.default_rng(channels)
    graph = one_conv(rng, "bf16", (channels, 3, 2), 70, kernel=(3, 2), outputs="floats")
    node = graph.nodes[-1]
    x = rng.standard_normal((8, channels, 3, 2)).astype(np.float32)
    weight = rng.standard_normal((70, 3, 2, channels)).astype(np.float32)
    if numbers == "extreme":
        some = np.float32([0, -0.0, TINY, -TINY, 1, -1, MOST, -MOST, 2.0**63, 1.5])
        x, weight = rng.choice(some, x.shape), rng.choice(some, weight.shape)
    graph.arrays[node.weight] = to_bf16(weight)
    graph.arrays[node.mul] = np.ones(70, np.float32)
    graph.arrays[node.bias] = np.zeros(70, np.float32)
    want = oracle(node, to_floats(to_bf16(weight)), to_floats(to_bf16(x)))
    assert np.isinf(want).any() == (numbers == "extreme")
    got = PackedNet(graph, isa=isa, threads=1)(x).reshape(8, 70)
    np.testing.assert_array_equal(got, want)
    assert not np.isnan(got).any()


@pytest.mark.parametrize("isa", ISAS)
def test_the_smallest_sums_are_no_zeros(isa: str) -> None:
    """2⁻¹⁰⁰ − (1 − 2⁻⁸)·2⁻¹⁰⁰: what instructions do with subnormals must not be seen."""
    below = np.float32(TINY * 2 * (1 - 2.0**-8))  # under 2⁻⁴⁹, above 2⁻⁵⁰
    weight = to_bf16(np.float32([[TINY, -TINY]]))[:, None, None]
    arrays = {"w": weight, "m": np.float32([2.0**100]), "b": np.zeros(1, np.float32)}
    nodes = (Round("input", "r"), Conv("bf16", "r", 1, "w", mul="m", bias="b", floats="y"))
    net = PackedNet(Graph((2,), (1,), "y", nodes, arrays), isa=isa, threads=1)
    got = net(np.float32([[2 * TINY, below], [below, below]]))
    np.testing.assert_array_equal(got, [[2 * 2.0**-8], [0]])


@pytest.mark.parametrize(
    "half", [0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x0001, 0x8001, 0x0080, 0x267F, 0xA67F, 0x5F80, 0xDF80, 0x7F7F], ids=hex
)
def test_weights_beyond_the_range_are_refused(half: int) -> None:
    graph = one_conv(np.random.default_rng(0), "bf16", (3, 4, 4), 5)
    weight = graph.arrays[graph.nodes[1].weight]
    for edge in (0x0000, 0x8000, 0x2680, 0xA680, 0x5F7F, 0xDF7F):
        weight[2, 0, 0, 1] = edge
        graph.check()
    weight[2, 0, 0, 1] = half
    with pytest.raises(UsageError, match="beyond bf16's range"):
        graph.check()


def test_reference_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 5, 7, 6)).astype(np.float32)
    graph = one_conv(rng, "bf16", (5, 7, 6), 9, kernel=(3, 2), stride=(2, 1), padding=(1, 0, 1, 0), outputs="floats")
    weight, mul, bias = (graph.arrays[getattr(graph.nodes[-1], name)] for name in ("weight", "mul", "bias"))
    halves = torch.from_numpy(x).bfloat16()
    assert halves.view(torch.int16).numpy().tobytes() == to_bf16(x).tobytes()
    dot = torch.nn.functional.conv2d(
        halves.double(), torch.from_numpy(to_floats(weight)).permute(0, 3, 1, 2).double(), None, (2, 1), (1, 0)
    )
    want = dot.numpy() * mul[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(reference.run(graph, x), want, atol=1e-5)


def test_a_bf16_number_is_the_upper_half_of_a_float() -> None:
    assert to_bf16(np.float32([1.0, -2.5])).tobytes() == struct.pack("<f", 1.0)[2:] + struct.pack("<f", -2.5)[2:]
