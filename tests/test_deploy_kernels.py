"""Every compiled kernel of every instruction set equals the slow reference, bit for bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_graphs import one_conv, random_graph
from stompp.deploy import reference
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError

kernels = pytest.importorskip("stompp_kernels", reason="the compiled kernels are not built: pip install ./kernels")

ISAS = kernels.available_isas()
WINDOW = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}


def assert_equal(graph, images: np.ndarray, isa: str, threads: int = 1) -> None:
    """Compares bit for bit but for the sign of zero, which the format leaves open."""
    np.testing.assert_array_equal(PackedNet(graph, isa=isa, threads=threads)(images), reference.run(graph, images))


side = st.integers(1, 9)
channels = st.one_of(st.integers(1, 40), st.sampled_from([31, 32, 33, 48, 63, 64, 65, 96, 128, 130]))
pair = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def convolutions(draw, kind: str):
    """Seed, input shape and options of one convolution whose kernel fits its padded image."""
    groups = 1 if kind in ("int8", "bf16") else draw(st.sampled_from([1, 1, 2, 3]))
    per_group = channels if kind == "binary" else st.integers(1, 20)
    inner, outer = draw(per_group), draw(per_group if groups > 1 else channels)
    kernel, dilation, stride = draw(pair), draw(pair), draw(pair)
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    height, width = (max(draw(side), (kernel[i] - 1) * dilation[i] + 1 - padding[i] - padding[i + 2]) for i in range(2))
    options = {"kernel": kernel, "dilation": dilation, "stride": stride, "padding": padding, "groups": groups}
    options["threshold"] = kind == "binary" and draw(st.booleans())
    options["residual"] = draw(st.sampled_from([None, "bits"] if options["threshold"] else [None, "bits", "floats"]))
    if not options["threshold"]:
        options["outputs"] = draw(st.sampled_from(["floats", "bits", "both"]))
        options["clamp"] = draw(st.sampled_from([None, (-1.0, 1.0), (0.0, None)]))
    if kind == "float":
        options["dtype"] = draw(st.sampled_from(["float32", "float16", "int8", "bool"]))
    shape = (inner * groups, max(1, height), max(1, width))
    return draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 5)), shape, outer * groups, options


@pytest.mark.parametrize("kind", ["binary", "float", "int8", "bf16"])
def test_convolution_equals_reference(kind: str) -> None:
    @settings(max_examples=50, deadline=None, derandomize=True, database=None)
    @given(convolutions(kind))
    def check(case) -> None:
        seed, images, shape, outputs, options = case
        rng = np.random.default_rng(seed)
        graph = one_conv(rng, kind, shape, outputs, **options)
        x = rng.standard_normal((images, *shape)).astype(np.float32)
        expected = reference.run(graph, x)
        for isa in ISAS:
            np.testing.assert_array_equal(PackedNet(graph, isa=isa, threads=1)(x), expected, err_msg=isa)

    check()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(64, 14, 14), (128, 7, 7), (256, 3, 5), (512, 4, 4), (300, 1, 1)])
def test_wide_binary_layer_equals_reference(isa: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(shape[0])
    kernel = (3, 3) if shape[1] > 1 else (1, 1)
    padding = (1, 1, 1, 1) if shape[1] > 1 else (0, 0, 0, 0)
    graph = one_conv(rng, "binary", shape, shape[0], kernel=kernel, padding=padding, threshold=True)
    assert_equal(graph, rng.standard_normal((3, *shape)).astype(np.float32), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_zero_is_positive(isa: str) -> None:
    rng = np.random.default_rng(0)
    graph = one_conv(rng, "binary", (33, 3, 3), 1, threshold=True)
    zeros = PackedNet(graph, isa=isa)(np.zeros((1, 33, 3, 3), np.float32))
    np.testing.assert_array_equal(zeros, PackedNet(graph, isa=isa)(np.ones((1, 33, 3, 3), np.float32)))
    np.testing.assert_array_equal(zeros, PackedNet(graph, isa=isa)(-np.zeros((1, 33, 3, 3), np.float32)))


@pytest.mark.parametrize("seed", range(30))
def test_network_equals_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng)
    x = rng.standard_normal((int(rng.integers(1, 20)), *graph.input)).astype(np.float32)
    expected = reference.run(graph, x)
    for isa in ISAS:
        for threads in (1, 2, 5):
            got = PackedNet(graph, isa=isa, threads=threads)(x)
            np.testing.assert_array_equal(got, expected, err_msg=f"{isa}, {threads} threads")


def test_work_large_enough_for_threads_equals_one_thread() -> None:
    rng = np.random.default_rng(1)
    graph = one_conv(rng, "binary", (96, 40, 40), 96, kernel=(3, 3), padding=(1, 1, 1, 1), threshold=True)
    x = rng.standard_normal((3, 96, 40, 40)).astype(np.float32)
    results = [PackedNet(graph, threads=n)(x) for n in (1, 2, 3, 7)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(2)
    net = PackedNet(random_graph(rng), threads=2)
    inputs = [rng.standard_normal((5, *net.graph.input)).astype(np.float32) for _ in range(4)]
    expected = [net(x) for x in inputs]
    failures = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(net(inputs[i]), expected[i]):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_unknown_isa_is_refused() -> None:
    with pytest.raises(UsageError, match="not available here; use auto"):
        PackedNet(random_graph(np.random.default_rng(0)), isa="neon")


class TestProgramRefuses:
    """The compiled layer checks by itself: it must not depend on who calls it."""

    def program(self):
        return kernels.Program(8, 5, 5)

    def conv(self, program, source=0, channels=4, weight=None, **changes):
        ones = np.ones(channels, np.float32)
        weight = np.zeros((channels, 3, 3, 8), np.float32) if weight is None else weight
        return program.float_conv(
            source, channels, weight, **{**WINDOW, "mul": ones, "bias": ones, "want_float": True, **changes}
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"source": 7},
            {"source": -1},
            {"weight": np.zeros(5, np.float32)},
            {"mul": np.ones(3, np.float32)},
            {"bias": None},
            {"stride": (0, 1)},
            {"dilation": (1, 5000)},
            {"padding": (-1, 0, 0, 0)},
            {"groups": 3},
            {"groups": 0},
            {"kernel": (100000, 100000)},
            {"residual": 0},
            {"want_float": False},
            {"clamp": (1.0, -1.0)},
            {"clamp": (float("nan"), 1.0)},
        ],
    )
    def test_bad_convolutions(self, changes: dict) -> None:
        with pytest.raises(ValueError):
            self.conv(self.program(), **changes)

    def test_wrong_kinds_shapes_and_order(self) -> None:
        program = self.program()
        bits = program.sign(0)
        with pytest.raises(ValueError, match="needs floats"):
            program.sign(bits)
        with pytest.raises(ValueError, match="no value"):
            program.add(0, 99)
        with pytest.raises(ValueError, match="window"):
            program.pool(0, "max", [(0, 6, 1)], [(0, 1, 1)])
        with pytest.raises(ValueError, match="not finished"):
            program.run(np.zeros((1, 8, 5, 5), np.float32), np.zeros((1, 8, 5, 5), np.float32))
        program.finish(program.unpack(bits))
        with pytest.raises(ValueError, match="finished"):
            program.sign(0)
        with pytest.raises(ValueError, match="another size"):
            program.run(np.zeros((1, 8, 5, 5), np.float32), np.zeros((1, 8, 5, 4), np.float32))
        with pytest.raises(ValueError, match="not \\(n, channels"):
            program.run(np.zeros((1, 8, 5, 4), np.float32), np.zeros((1, 8, 5, 5), np.float32))

    def test_sizes_beyond_reason(self) -> None:
        with pytest.raises(ValueError, match="too large"):
            kernels.Program(1 << 20, 1 << 20, 1 << 20)
        with pytest.raises(ValueError):
            kernels.Program(0, 1, 1)
