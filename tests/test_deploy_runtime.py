"""Loading and calling a packed network: inputs, shapes, threads, and what happens without compiled kernels."""

from __future__ import annotations

import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest

from deploy_graphs import Builder, random_graph
from stompp.deploy import format, reference, runtime
from stompp.deploy.nodes import adaptive_spans, spans
from stompp.errors import UsageError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "net.stompp"
    format.save(random_graph(np.random.default_rng(0)), path)
    return path


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "stompp_kernels", None)
    monkeypatch.setattr(runtime, "_warned", False)


def images(net: runtime.PackedNet, n: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, *net.graph.input)).astype(np.float32)


def test_missing_kernels_are_said_once_and_change_nothing(path, without_kernels) -> None:
    with pytest.warns(RuntimeWarning, match="pip install stompp-kernels") as caught:
        net = runtime.load(path)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = runtime.load(path)
    assert net.isa == again.isa == "reference"
    np.testing.assert_array_equal(net(images(net)), reference.run(net.graph, images(net)))


def test_asking_for_an_instruction_set_without_kernels_is_refused(path, without_kernels) -> None:
    with pytest.raises(UsageError, match="needs the compiled kernels"):
        runtime.load(path, isa="avx2")


@pytest.mark.parametrize("isa", ["auto", "reference"])
class TestCall:
    @pytest.fixture
    def net(self, path, isa):
        if isa == "auto":
            pytest.importorskip("stompp_kernels", reason="the compiled kernels are not built")
        return runtime.load(path, isa=isa, threads=1)

    def test_batches_are_independent(self, net) -> None:
        x = images(net, 40)
        whole = net(x)
        assert whole.shape == (40, *net.graph.output)
        assert whole.dtype == np.float32
        np.testing.assert_array_equal(whole, np.concatenate([net(x[:1]), net(x[1:24]), net(x[24:])]))
        assert net(x[:0]).shape == (0, *net.graph.output)

    def test_layout_and_precision_of_the_input_do_not_matter(self, net) -> None:
        x = images(net)
        expected = net(x)
        np.testing.assert_array_equal(net(x.astype(np.float64)), expected)
        np.testing.assert_array_equal(net(np.asfortranarray(x)), expected)
        np.testing.assert_array_equal(net(x[::-1])[::-1], expected)
        np.testing.assert_array_equal(net(list(x)), expected)
        x.flags.writeable = False
        np.testing.assert_array_equal(net(x), expected)

    def test_wrong_inputs_are_named(self, net) -> None:
        x = images(net)
        with pytest.raises(UsageError, match=r"images\[None\]"):
            net(x[0])
        with pytest.raises(UsageError, match="this network takes"):
            net(x[:, :, 1:])
        with pytest.raises(UsageError, match="give floats"):
            net((x * 255).astype(np.uint8))
        for bad in (np.nan, np.inf, -np.inf):
            x[1, 0, 2, 3] = bad
            with pytest.raises(UsageError, match="infinite or no numbers"):
                net(x)


def test_threads_must_be_positive(path) -> None:
    for threads in (0, -1, 1.5):
        with pytest.raises(UsageError, match="threads"):
            runtime.load(path, threads=threads, isa="reference")


def test_deployment_needs_no_torch(path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"from stompp.deploy import runtime; net = runtime.load({str(path)!r}, isa='reference')\n"
        "import numpy as np; net(np.zeros((1, *net.graph.input), np.float32)); print('ran')"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ran\n", done.stderr


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    exponents = rng.integers(-30, 30, (3, 4000))
    a, b, c = np.ldexp(rng.standard_normal((3, 4000)), exponents).astype(np.float32)
    c[:1000] = -(a[:1000] * b[:1000])  # cancellation: what is left is the rounding of the product
    ties = np.ldexp(np.float32(1), rng.integers(-26, -22, 500)).astype(np.float32)
    a[1000:1500], b[1000:1500], c[1000:1500] = ties, 1 + ties, 1
    got = reference.fma(a, b, c)
    for i in range(4000):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        nearest = np.float32(got[i])
        error = abs(Fraction(float(nearest)) - exact)
        for neighbour in (np.nextafter(nearest, np.float32(np.inf)), np.nextafter(nearest, np.float32(-np.inf))):
            other = abs(Fraction(float(neighbour)) - exact)
            even = int(nearest.view(np.int32)) & 1 == 0
            assert error < other or (error == other and even), (a[i], b[i], c[i])


def test_reference_agrees_with_torch() -> None:
    """The oracle itself, against an independent implementation, where float32 sums allow it."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 6, 9, 8)).astype(np.float32)
    t = torch.from_numpy(x).double()
    for kind, dtype in (("float", "float32"), ("float", "bool"), ("binary", "bool")):
        b = Builder((6, 9, 8), rng)
        source = "input" if kind == "float" else b.same(reference.Sign, "input")
        window = {"kernel": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 1, 1, 1), "groups": 2}
        graph = b.graph(b.conv(kind, source, 4, outputs="floats", dtype=dtype, clamp=(-1.0, None), **window))
        node = graph.nodes[-1]
        weight = graph.arrays[node.weight]
        weight = np.where(weight, 1.0, -1.0) if weight.dtype == bool else weight
        seen = t if kind == "float" else torch.where(t >= 0, 1.0, -1.0).double()
        dot = torch.nn.functional.conv2d(
            seen, torch.from_numpy(weight).double().permute(0, 3, 1, 2), None, (2, 1), (1, 1), (1, 2), 2
        )
        mul, bias = (torch.from_numpy(graph.arrays[name]).double()[:, None, None] for name in (node.mul, node.bias))
        expected = (dot * mul + bias).clamp(min=-1)
        np.testing.assert_allclose(reference.run(graph, x), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("size", range(3, 12))
def test_pooling_windows_are_those_of_torch(size: int) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x = np.random.default_rng(size).standard_normal((2, 3, size, size)).astype(np.float32)
    t = torch.from_numpy(x)

    def pooled(reduce: str, windows) -> np.ndarray:
        b = Builder((3, size, size), np.random.default_rng(0))
        return reference.run(b.graph(b.pool("input", reduce, windows, windows)), x).reshape(2, 3, len(windows), -1)

    for kernel, stride, padding, ceil in [
        (2, 2, 0, False),
        (3, 2, 1, False),
        (3, 2, 1, True),
        (2, 3, 1, True),
        (3, 1, 0, True),
    ]:
        windows = spans(size, kernel, stride, padding, ceil=ceil)
        expected = functional.max_pool2d(t, kernel, stride, padding, ceil_mode=ceil)
        np.testing.assert_array_equal(pooled("max", windows), expected.numpy())
        for count in (True, False):
            windows = spans(size, kernel, stride, padding, ceil=ceil, count_padding=count)
            expected = functional.avg_pool2d(t, kernel, stride, padding, ceil, count)
            np.testing.assert_allclose(pooled("mean", windows), expected.numpy(), atol=1e-6)
    for outputs in (1, 2, 3, 5):
        windows = adaptive_spans(size, outputs)
        expected = functional.adaptive_avg_pool2d(t, outputs)
        np.testing.assert_allclose(pooled("mean", windows), expected.numpy(), atol=1e-6)
