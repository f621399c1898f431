"""stompp.pack: what it refuses and how it says so, sizes, int8 layers, random nets, and a net trained here."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import stompp
from stompp.core.layers import Sign
from stompp.data import Augment, Batches, load
from stompp.deploy import format
from stompp.deploy.fold import thresholds
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError
from test_pack_nets import bconv, binary, check, frozen, randomise

IMAGE = torch.zeros(1, 3, 8, 8)


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.function(self, x)


class TestRefuses:
    """What cannot be packed: always a UsageError, naming module and operator."""

    @pytest.mark.parametrize(
        "layer, operator",
        [
            (nn.PReLU(), "prelu"),
            (nn.LeakyReLU(), "leaky_relu"),
            (nn.Sigmoid(), "sigmoid"),
            (nn.Softmax(1), "softmax"),
            (nn.ConvTranspose2d(3, 3, 3), "conv_transpose2d"),
            (nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), "pad"),
            (nn.GroupNorm(1, 3), "group_norm"),
            (nn.LayerNorm(8), "layer_norm"),
            (nn.InstanceNorm2d(3), "instance_norm"),
            (nn.Upsample(scale_factor=2), "upsample"),
            (nn.PixelShuffle(1), "pixel_shuffle"),
            (nn.MaxPool2d(2, dilation=2), "max_pool2d"),
            (nn.AvgPool2d(2, divisor_override=3), "avg_pool2d"),
            (nn.BatchNorm2d(3, track_running_stats=False), "batch_norm"),
            (nn.Linear(8, 4), "linear"),
            (nn.Flatten(2), "flatten"),
            (Calls(lambda m, x: x.sign()), "sign"),
            (Calls(lambda m, x: torch.where(x > 0, 1.0, -1.0)), "gt"),
            (Calls(lambda m, x: torch.where(x >= 1, 1.0, -1.0)), "where"),
            (Calls(lambda m, x: torch.where(x >= 0, 2.0, -1.0)), "where"),
            (Calls(lambda m, x: x.mean(1)), "mean"),
            (Calls(lambda m, x: x.mean()), "mean"),
            (Calls(lambda m, x: x.double()), "to"),
            (Calls(lambda m, x: x.half().float()), "to"),
            (Calls(lambda m, x: x + 1), "add"),
            (Calls(lambda m, x: torch.add(x, x, alpha=2)), "add"),
            (Calls(lambda m, x: x + x.mean((2, 3), keepdim=True)), "add"),
            (Calls(lambda m, x: x + torch.ones(3, 8, 8)), "add"),
            (Calls(lambda m, x: x.clamp(max=1)), "clamp"),
            (Calls(lambda m, x: x.clamp(torch.zeros(()), torch.ones(()))), "clamp"),
            (Calls(lambda m, x: x.permute(0, 2, 3, 1)), "permute"),
            (Calls(lambda m, x: x.view(1, -1)), "view"),
            (Calls(lambda m, x: torch.cat([x, x], 1)), "cat"),
            (Calls(lambda m, x: F.conv2d(x, x.mean((0, 2, 3)).view(1, 3, 1, 1))), ""),
            (Calls(lambda m, x: F.max_pool2d(x, 2, return_indices=True)[1].float()), ""),
            (Calls(lambda m, x: F.dropout(x, 0.5, training=True)), "dropout"),
        ],
    )  # fmt: skip
    def test_operator_by_name_and_module(self, layer: nn.Module, operator: str) -> None:
        model = nn.Sequential(nn.Identity(), nn.ModuleDict({"odd": layer})["odd"]).eval()
        with pytest.raises(UsageError, match=rf"module '1' \({type(layer).__name__}\).*{operator}"):
            stompp.pack(model, IMAGE)

    @pytest.mark.parametrize(
        "run, message",
        [
            (lambda m, x: x, "gives its input back"),
            (lambda m, x: m.c.weight, "does not depend on its input"),
            (lambda m, x: (x.relu(), x), "must be one tensor"),
            (lambda m, x: {"logits": x.relu()}, "must be one tensor"),
            (lambda m, x: [x.relu()], "must be one tensor"),
            (lambda m, x: x if x.sum() > 0 else x.relu(), "torch.export cannot follow the model"),
            (lambda m, x: x @ torch.ones(5, 5), "torch.export cannot follow the model"),
            (lambda m, x: m.c(x).flatten(1) + F.relu_((y := m.c(x)).flatten(1)) + y.flatten(1), "in place"),
        ],
    )
    def test_model_as_a_whole(self, run, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            stompp.pack(Calls(run, c=nn.Conv2d(3, 3, 3)).eval(), IMAGE)

    @pytest.mark.parametrize(
        "example, message",
        [
            (torch.zeros(3, 8, 8), "batch of images"),
            (torch.zeros(0, 3, 8, 8), "batch of images"),
            (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "finite floats"),
            (torch.full((1, 3, 8, 8), torch.nan), "finite floats"),
            (np.zeros((1, 3, 8, 8), np.float32), "batch of images"),
            (torch.zeros(1, 5, 8, 8), "torch.export cannot follow .* shape \\(5, 8, 8\\)"),
        ],
    )
    def test_example(self, example, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            stompp.pack(nn.Sequential(nn.Conv2d(3, 4, 3)), example)

    def test_arguments(self) -> None:
        net = nn.Sequential(nn.Conv2d(3, 4, 3))
        with pytest.raises(UsageError, match="'fp16'; choose one of fp32, bf16, int8"):
            stompp.pack(net, IMAGE, floats="fp16")
        with pytest.raises(UsageError, match="texts to texts"):
            stompp.pack(net, IMAGE, meta={"epochs": 3})
        with pytest.raises(UsageError, match="function; pack takes"):
            stompp.pack(lambda x: x, IMAGE)
        with pytest.raises(UsageError, match="sees only zeros"):
            stompp.pack(net, IMAGE, floats="int8")

    def test_input_changed_in_place_is_packed_and_left_alone(self) -> None:
        x = torch.randn(3, 3, 8, 8)
        kept = x.clone()
        packed = stompp.pack(Calls(lambda m, x: x.relu_()), x, threads=1)
        assert torch.equal(x, kept)
        np.testing.assert_array_equal(packed(x.numpy()), kept.relu().numpy())

    def test_weights_that_are_no_numbers(self) -> None:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        net[1].running_mean[2] = torch.inf
        with pytest.raises(UsageError, match=r"module '1' \(BatchNorm2d\).*infinite or no numbers"):
            stompp.pack(net, IMAGE)

    def test_unfinished_net(self) -> None:
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        stompp.prepare(net, torch.zeros(1, 8))
        with pytest.raises(UsageError, match="site '1' is open"):
            stompp.pack(net, torch.zeros(1, 8))


# Thresholds.


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.floats(0, 2.0**60, width=32) | st.sampled_from([0.0, 1e-45, 2.0**-126, 3.0e38]),
    st.floats(-(2.0**60), 2.0**60, width=32) | st.sampled_from([0.0, -0.0, -1e-45, 1e-45, -3.0e38, 3.0e38]),
    st.integers(1, 5000),
)
def test_threshold_is_the_least_sum_that_gives_plus_one(mul: float, bias: float, terms: int) -> None:
    (least,) = thresholds(np.float32([mul]), np.float32([bias]), terms).tolist()
    sums = np.array([-terms, least - 1, least, terms], np.float64).clip(-terms, terms)
    np.testing.assert_array_equal(sums * float(np.float32(mul)) + float(np.float32(bias)) >= 0, sums >= least)


@pytest.mark.parametrize("gamma", [1.0, -1.0, 0.0, 1e30, -1e30, 1e-30])
@pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, 1e6, -1e6])
def test_extreme_batchnorm_equals_pytorch(gamma: float, beta: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Sign(), bconv(3, 8), nn.BatchNorm2d(8), Sign(), bconv(8, 3)).eval()
    nn.init.constant_(net[2].weight, gamma)
    nn.init.constant_(net[2].bias, beta)
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        want = net(x).numpy()
    np.testing.assert_array_equal(stompp.pack(net, x[:1])(x.numpy()), want)


# Random nets.

OPERATORS = (
    "conv", "linear-like", "sign", "norm", "relu", "clip", "max", "mean", "skip", "skip of bits", "grouped", "dilated",
)  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, before: bool) -> None:
        super().__init__()
        self.inner, self.act, self.before = inner, Sign(), before

    def forward(self, x):
        bits = self.act(x)
        return self.inner(bits) + (bits if self.before else x)


def random_net(names: list[str], width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(2, width, 3, padding=1)]
    for name in names:
        layers.append(
            {
                "conv": lambda: nn.Sequential(Sign(), bconv(width, width), nn.BatchNorm2d(width)),
                "linear-like": lambda: binary(nn.Conv2d(width, width, 1)),
                "sign": Sign,
                "norm": lambda: nn.BatchNorm2d(width),
                "relu": nn.ReLU,
                "clip": nn.Hardtanh,
                "max": lambda: nn.MaxPool2d(2, 1, 1),
                "mean": lambda: nn.AvgPool2d(3, 1, 1),
                "skip": lambda: Residual(nn.Sequential(bconv(width, width), nn.BatchNorm2d(width)), False),
                "skip of bits": lambda: Residual(nn.Sequential(bconv(width, width), nn.BatchNorm2d(width)), True),
                "grouped": lambda: nn.Sequential(Sign(), bconv(width, width, groups=2, bias=True)),
                "dilated": lambda: nn.Sequential(Sign(), bconv(width, width, dilation=2, padding=2)),
            }[name]()
        )  # fmt: skip
    return randomise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 3)), seed)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6), st.sampled_from([2, 4, 6, 34]), st.integers(0, 99))
def test_random_net_equals_reference_and_pytorch(names: list[str], width: int, seed: int) -> None:
    check(random_net(names, width, seed), (2, 5, 6), seed=seed)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, database=None)
@given(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=9), st.sampled_from([2, 4, 6, 34]), st.integers(0))
def test_many_random_nets_equal_reference_and_pytorch(names: list[str], width: int, seed: int) -> None:
    check(random_net(names, width, seed % 2**32), (2, 5, 6), seed=seed % 2**32, most_tied=1.0)


# Sizes.


def state_bytes(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return len(buffer.getvalue())


@pytest.mark.parametrize("name", ["resnet18", "bireal18"])
def test_file_is_small(name: str, tmp_path: Path) -> None:
    model = frozen(lambda: stompp.models.build(name), (3, 32, 32), "bnn")
    whole = state_bytes(model)
    binary_weights = sum(m.weight.numel() for m in model.modules() if getattr(m, "site", None) is not None)
    for floats, least in (("fp32", 20), ("int8", 27)):
        packed = stompp.pack(model, torch.ones(1, 3, 32, 32), floats=floats, threads=1)
        packed.save(tmp_path / "net.stompp")
        size = (tmp_path / "net.stompp").stat().st_size
        assert whole >= least * size
        arrays = packed.graph.arrays
        layers = [node for node in packed.graph.nodes if node.op == "conv" and node.kind == "binary"]
        assert sum(arrays[node.weight].size for node in layers) == binary_weights
        used = {n for node in layers for n in (node.weight, node.threshold, node.mul, node.bias) if n is not None}
        assert 8 * sum(len(format._pack(arrays[n])) for n in used) <= 1.05 * binary_weights
        assert size - sum(len(format._pack(a)) for a in arrays.values()) <= 0.01 * size  # header and alignment


# Layers in int8.


def test_int8_layers_are_near_and_equal_their_reference() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 5),
    )  # fmt: skip
    nn.init.zeros_(net[6].weight[2])
    net = randomise(net, 4)
    net[1].weight.data.clamp_(-3, 3)
    x = torch.randn(20, 3, 8, 8)
    packed = stompp.pack(net, x, floats="int8", threads=1)
    assert [node.kind for node in packed.graph.nodes if node.op == "conv"] == ["int8", "float", "int8"]
    got = packed(x.numpy())
    np.testing.assert_array_equal(got, PackedNet(packed.graph, isa="reference")(x.numpy()))
    with torch.no_grad():
        want = net(x).numpy()
    np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())


def test_int8_saturates_beyond_the_example() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False)).eval()
    nn.init.constant_(net[0].weight, -2.0)
    packed = stompp.pack(net, torch.tensor([-4.0, 1.0]).view(1, 1, 1, 2), floats="int8", threads=1)
    x = np.array([-1000, -4, -2, 0, 3, 4, 1e30, 5], np.float32).reshape(4, 1, 1, 2)
    np.testing.assert_allclose(packed(x).ravel(), [8, 8, 4, 0, -6, -8, -8, -8], atol=0.04)
    np.testing.assert_array_equal(packed(x), PackedNet(packed.graph, isa="reference")(x))


def test_int8_of_bits_is_exact_in_its_inputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Sign(), nn.Conv2d(3, 4, 1, bias=False)).eval()
    net[1].weight.data = torch.randint(-127, 128, net[1].weight.shape).float()
    net[1].weight.data[:, 0] = 127
    x = torch.randn(4, 3, 5, 5)
    packed = stompp.pack(net, x, floats="int8", threads=1)
    with torch.no_grad():
        np.testing.assert_allclose(packed(x.numpy()), net(x).numpy(), rtol=1e-6)


def test_too_long_int8_sums_stay_float() -> None:
    net = nn.Sequential(nn.Linear(70_000, 1)).eval()
    packed = stompp.pack(net, torch.ones(1, 70_000), floats="int8", threads=1)
    assert [node.kind for node in packed.graph.nodes] == ["float"]


# A net that was trained.


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A BNN after some epochs on the digits, and the normalised test images."""
    data = load("digits")
    torch.manual_seed(0)
    model = stompp.prepare(stompp.models.build("cifar_resnet8", width=8, channels=1), torch.zeros(2, 1, 8, 8))
    batches = Batches(data.train, 64, data.mean, data.std, augment=Augment(crop_pad=1), seed=0)
    epochs = 6
    freezer = stompp.Freezer(model, epochs * len(batches), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    step = 0
    for epoch in range(epochs):
        for images, labels in batches.epoch(epoch):
            freezer.step(step)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    tests = Batches(data.test, 1000, data.mean, data.std, shuffle=False, drop_last=False)
    parts = list(tests.epoch(0))
    return model.eval(), torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_trained_net_answers_as_pytorch_on_every_image(trained, tmp_path: Path) -> None:
    model, x, labels = trained
    packed = stompp.pack(model, x[:2], meta={"classes": "0 1 2"}, threads=1)
    packed.save(tmp_path / "net.stompp")
    with torch.no_grad():
        want = model(x).numpy()
    got = stompp.load(tmp_path / "net.stompp", threads=1)(x.numpy())
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    np.testing.assert_array_equal(got.argmax(1), want.argmax(1))
    assert (got.argmax(1) == labels.numpy()).mean() > 0.5  # it did learn
    np.testing.assert_array_equal(got[:50], PackedNet(packed.graph, isa="reference")(x[:50].numpy()))


def test_trained_net_with_int8_layers_is_nearly_as_right(trained) -> None:
    model, x, labels = trained
    right = [
        (stompp.pack(model, x[:64], floats=floats, threads=1)(x.numpy()).argmax(1) == labels.numpy()).mean()
        for floats in ("fp32", "int8")
    ]
    assert right[1] > right[0] - 0.1
