"""Whole nets, packed: equal to the numpy reference bit for bit, and to PyTorch but for float ties.

A tie is a sign whose input is so near 0 that float32's rounding decides it. An evaluation of the net in float64 tells
where they are; an image without one must give PyTorch's answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stompp
from stompp.core.layers import Sign
from stompp.deploy import format
from stompp.deploy.runtime import PackedNet

TIE = 2e-6


def randomise(model: nn.Module, seed: int = 0, *, huge: bool = True) -> nn.Module:
    """Random statistics and affine parts for every BatchNorm: negative, zero and perhaps huge scales among them."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            n = module.num_features
            with torch.no_grad():
                module.weight.copy_(torch.randn(n, generator=generator))
                module.weight[torch.rand(n, generator=generator) < 0.05] = 0
                module.weight[torch.rand(n, generator=generator) < 0.03] *= 1e4 if huge else 1.0
                module.bias.copy_(torch.randn(n, generator=generator))
                module.running_mean.copy_(torch.randn(n, generator=generator) * 2)
                module.running_var.copy_(torch.rand(n, generator=generator) * 20 + 0.1)
    return model.eval()


def exact(model: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The net's outputs in float64, and which images have a tie."""
    twin = copy.deepcopy(model).double()
    tied = torch.zeros(len(x), dtype=torch.bool)

    def look(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        (u,) = args
        scale = u.abs().amax(dim=(0, *range(2, u.ndim)), keepdim=True)
        near = (u.abs() < TIE * scale) & (u != 0)
        tied.logical_or_(near.flatten(1).any(1))

    for module in twin.modules():
        if isinstance(module, Sign):
            module.register_forward_pre_hook(look)
    with torch.no_grad():
        return twin(x.double()).numpy(), tied.numpy()


def check(
    model: nn.Module, shape: tuple[int, ...], *, images: int = 4, seed: int = 0, most_tied: float = 0.5
) -> PackedNet:
    """Pack a converted model and compare."""
    x = torch.randn(images, *shape, generator=torch.Generator().manual_seed(seed))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [(name, module.training) for name, module in model.named_modules()]
    kinds = [type(module) for module in model.modules()]
    packed = stompp.pack(model, x[:1], threads=1)
    assert modes == [(name, module.training) for name, module in model.named_modules()]
    assert kinds == [type(module) for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())

    got = packed(x.numpy())
    again = PackedNet(format.decode(format.encode(packed.graph)), isa="reference")
    np.testing.assert_array_equal(got, again(x.numpy()))

    binary = stompp.convert(copy.deepcopy(model), early=True).eval()
    with torch.no_grad():
        torchs = binary(x).numpy()
    want, tied = exact(binary, x)
    assert got.shape == torchs.shape
    assert tied.mean() <= most_tied, "ties everywhere would hide anything"
    if tied.all():
        return packed
    scale = np.abs(want).max()
    rounding = np.abs(torchs - want)[~tied].max()  # PyTorch's own, which random scales in a row make larger
    assert rounding <= 1e-3 * scale
    np.testing.assert_allclose(got[~tied], want[~tied], atol=max(1e-5 * scale, 5 * rounding), rtol=0)
    flat = got.reshape(images, -1)[~tied]
    order = np.sort(want.reshape(images, -1)[~tied], 1)
    if order.shape[1] > 1:
        clear = order[:, -1] - order[:, -2] > 10 * rounding
        np.testing.assert_array_equal(
            flat.argmax(1)[clear], want.reshape(images, -1)[~tied].argmax(1)[clear], "another class than PyTorch's"
        )
    return packed


# Our own models, prepared and frozen.

MODES = {
    "bnn": stompp.Binarize(),
    "bwn": stompp.Binarize(activations="clip"),
    "float": stompp.Binarize(weights="float", activations="relu"),
}


def vgg(norm: bool) -> nn.Sequential:
    """A VGG-like net: convolutions, pools, and a classifier of two layers on a flattened image."""
    layers: list[nn.Module] = []
    inputs = 3
    for width, pool in ((16, False), (16, True), (24, True)):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=not norm)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers += [nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        inputs = width
    layers += [nn.Flatten(), nn.Linear(24 * 4, 40), *([nn.BatchNorm1d(40)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(40, 10))


def mlp(inputs: int, *, image: bool) -> nn.Sequential:
    head = [nn.Flatten()] if image else []
    return nn.Sequential(
        *head, nn.Linear(inputs, 70), nn.BatchNorm1d(70), nn.ReLU(), nn.Linear(70, 33), nn.BatchNorm1d(33), nn.ReLU(),
        nn.Linear(33, 5),
    )  # fmt: skip


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cifar_resnet8": (lambda: stompp.models.build("cifar_resnet8", width=8), (3, 8, 8)),
    "vgg": (lambda: vgg(True), (3, 8, 8)),
    "vgg without BatchNorm": (lambda: vgg(False), (3, 8, 8)),
    "mlp on images": (lambda: mlp(48, image=True), (3, 4, 4)),
    "mlp on features": (lambda: mlp(19, image=False), (19,)),
}
LARGE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cifar_resnet20": (lambda: stompp.models.build("cifar_resnet20", width=4, channels=1), (1, 9, 7)),
    "resnet18": (lambda: stompp.models.build("resnet18"), (3, 8, 8)),
    "resnet18 imagenet": (lambda: stompp.models.build("resnet18", stem="imagenet", num_classes=20), (3, 33, 47)),
    "bireal18": (lambda: stompp.models.build("bireal18", stem="imagenet"), (3, 64, 64)),
    "resnet50": (lambda: stompp.models.build("resnet50"), (3, 8, 8)),
}


def frozen(build: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> nn.Module:
    torch.manual_seed(0)
    model = stompp.prepare(build(), torch.zeros(2, *shape), MODES[mode])
    for site in stompp.sites(model):
        site.freeze()
    return randomise(model, huge=mode == "bnn")  # signs keep huge scales from growing layer by layer


def calibrate(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Give every BatchNorm the statistics of what it sees, and scales that seldom reach the ends of the clip.

    With random ones each layer of a deep net of real-valued activations multiplies what rounding does several times:
    after twenty layers float32 is far from float64, in PyTorch too, and there is nothing left to compare.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        for norm in norms:
            norm.weight.mul_(0.5)
        model.train()(torch.randn(32, *shape, generator=torch.Generator().manual_seed(1)))
    return model.eval()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OWN)
def test_own_model_equals_reference_and_pytorch(name: str, mode: str) -> None:
    build, shape = OWN[name]
    packed = check(frozen(build, shape, mode), shape)
    kinds = {node.kind for node in packed.graph.nodes if node.op == "conv"}
    assert ("binary" in kinds) == (mode == "bnn")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LARGE)
def test_large_model_equals_reference_and_pytorch(name: str, mode: str) -> None:
    build, shape = LARGE[name]
    model = frozen(build, shape, mode)
    check(calibrate(model, shape) if mode == "bwn" else model, shape, images=3)


def test_bireal_keeps_a_float_stream_and_resnet_keeps_bits() -> None:
    x = torch.zeros(1, 3, 8, 8)
    bireal = stompp.pack(frozen(lambda: stompp.models.build("bireal18"), (3, 8, 8), "bnn"), x, threads=1)
    binary = [node for node in bireal.graph.nodes if node.op == "conv" and node.kind == "binary"]
    assert len(binary) == 16
    assert all(node.threshold is None and node.residual is not None for node in binary)
    resnet = stompp.pack(frozen(lambda: stompp.models.build("resnet18"), (3, 8, 8), "bnn"), x, threads=1)
    binary = [node for node in resnet.graph.nodes if node.op == "conv" and node.kind == "binary"]
    assert sum(node.threshold is not None for node in binary) == 13  # all but those that add a float projection
    assert sum(node.op in ("sign", "unpack", "affine", "add") for node in resnet.graph.nodes) <= 4


# Nets of one peculiarity each.


class Net(nn.Module):
    """Modules and a forward function."""

    def __init__(self, run: Callable[[Net, torch.Tensor], torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def binary(layer: nn.Module) -> nn.Module:
    """The layer with its weights' signs as weights."""
    with torch.no_grad():
        layer.weight.copy_(torch.where(layer.weight >= 0, 1.0, -1.0))
    return layer


def bconv(inputs: int, outputs: int, kernel: int | tuple[int, int] = 3, **options) -> nn.Conv2d:
    return binary(nn.Conv2d(inputs, outputs, kernel, **{"padding": 1, "bias": False, **options}))


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*copy.deepcopy(layers))


def after_bits(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Layers after a float stem of 6 channels and its sign."""
    return sequence(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), Sign(), *layers)


def unit(run: Callable[..., torch.Tensor], **more: nn.Module) -> Callable[[], nn.Module]:
    """A net with the usual parts; which are used is up to `run`."""
    return lambda: Net(
        run, stem=nn.Conv2d(3, 6, 3, padding=1), bn=nn.BatchNorm2d(6), s=Sign(), c1=bconv(6, 6), b1=nn.BatchNorm2d(6),
        c2=bconv(6, 6), b2=nn.BatchNorm2d(6), fc=nn.Linear(6, 4), **copy.deepcopy(more),
    )  # fmt: skip


def head(m: Net, y: torch.Tensor) -> torch.Tensor:
    return m.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))


def stem(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.s(m.bn(m.stem(x)))


def both_ways(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = m.b1(m.c1(stem(m, x)))
    return head(m, m.b2(m.c2(m.s(y))) + y.clamp(-1, 1) + m.s(y))


def residual_of_floats(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = m.bn(m.stem(x))
    y = y + m.b1(m.c1(m.s(y)))
    return head(m, y + m.b2(m.c2(m.s(y))))


def with_dead_end(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = m.b1(m.c1(stem(m, x)))
    m.b2(m.c2(m.s(y)))
    return y


def in_place(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = F.relu_(m.bn(m.stem(x)))
    y += m.stem(x)
    return head(m, F.hardtanh_(y, -0.5, 0.25))


PECULIAR: dict[str, Callable[[], nn.Module]] = {
    "residual of bits": unit(lambda m, x: head(m, m.s(m.b1(m.c1(b := stem(m, x))) + b))),
    "residual of bits, first operand": unit(lambda m, x: head(m, m.s((b := stem(m, x)) + m.b1(m.c1(b))))),
    "residual of bits, floats out": unit(lambda m, x: head(m, m.b1(m.c1(b := stem(m, x))) + b)),
    "residual of floats": unit(residual_of_floats),
    "two convolutions added": unit(lambda m, x: head(m, m.s(m.b1(m.c1(b := stem(m, x))) + m.b2(m.c2(b))))),
    "two convolutions, one float": unit(lambda m, x: head(m, m.s(m.b1(m.c1(stem(m, x))) + m.bn(m.stem(x))))),
    "two values added": unit(lambda m, x: head(m, m.stem(x).relu() + F.max_pool2d(m.stem(x), 3, 1, 1))),
    "two bits added": unit(lambda m, x: head(m, stem(m, x) + m.s(m.stem(x)))),
    "a value added to itself": unit(lambda m, x: head(m, m.s((y := m.b1(m.c1(stem(m, x)))) + y))),
    "three added": unit(lambda m, x: head(m, m.s(m.b1(m.c1(b := stem(m, x))) + b + m.b2(m.c2(b))))),
    "BatchNorm after an addition": unit(lambda m, x: head(m, m.s(m.b2(m.b1(m.c1(b := stem(m, x))) + b)))),
    "two BatchNorms": unit(lambda m, x: head(m, m.s(m.b2(m.b1(m.c1(stem(m, x))))))),
    "BatchNorm and sign of the input": sequence(nn.BatchNorm2d(3), Sign(), bconv(3, 4), nn.BatchNorm2d(4)),
    "bits and floats of one value": unit(both_ways),
    "an output that is used": unit(with_dead_end),
    "one sign, two readers": unit(lambda m, x: head(m, m.b1(m.c1(b := stem(m, x))) + m.b2(m.c2(m.s(m.c1(b)))))),
    "two signs of one value": unit(lambda m, x: head(m, m.c2(m.s(y := m.b1(m.c1(stem(m, x))))) + m.t(y)), t=Sign()),
    "shared convolution": unit(lambda m, x: head(m, m.c1(m.s(m.b1(m.c1(stem(m, x))))))),
    "view by size": unit(lambda m, x: m.wide(stem(m, x).view(x.size(0), -1)), wide=nn.Linear(6 * 7 * 6, 5)),
    "in place": unit(in_place),
    "dropout": after_bits(nn.Dropout(0.5), bconv(6, 4), nn.Dropout2d(0.5), nn.BatchNorm2d(4)),
    "bias and sign": after_bits(binary(nn.Conv2d(6, 9, 3)), Sign(), bconv(9, 4)),
    "bias, BatchNorm and sign": after_bits(binary(nn.Conv2d(6, 9, 3)), nn.BatchNorm2d(9), Sign(), bconv(9, 4)),
    "clip and sign": after_bits(bconv(6, 9), nn.BatchNorm2d(9), nn.Hardtanh(), Sign(), bconv(9, 4)),
    "relu and sign": after_bits(bconv(6, 9), nn.BatchNorm2d(9), nn.ReLU(), Sign(), bconv(9, 4)),
    "clip to a range above 0": after_bits(bconv(6, 9), nn.BatchNorm2d(9), nn.Hardtanh(0.5, 2.0), Sign(), bconv(9, 4)),
    "clip to a range up to 0": after_bits(bconv(6, 9), nn.BatchNorm2d(9), nn.Hardtanh(-2.0, 0.0), Sign(), bconv(9, 4)),
    "clip to a range below 0": after_bits(bconv(6, 9), nn.BatchNorm2d(9), nn.Hardtanh(-2.0, -1.0), Sign(), bconv(9, 4)),
    "relu6": sequence(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Conv2d(4, 4, 1)),
    "BatchNorm after relu": sequence(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), Sign(), bconv(4, 4)),
    "groups": after_bits(bconv(6, 9, groups=3), nn.BatchNorm2d(9), Sign(), bconv(9, 9, groups=9), nn.BatchNorm2d(9)),
    "depthwise": after_bits(bconv(6, 6, groups=6), nn.BatchNorm2d(6), Sign(), bconv(6, 12, groups=6, stride=2)),
    "dilated": after_bits(bconv(6, 8, dilation=2, padding=2), nn.BatchNorm2d(8), Sign(), bconv(8, 4, dilation=(1, 2))),
    "strided": after_bits(bconv(6, 8, stride=2), nn.BatchNorm2d(8), Sign(), bconv(8, 4, (3, 1), stride=(1, 2))),
    "same padding": after_bits(bconv(6, 8, (2, 4), padding="same"), Sign(), bconv(8, 5, 3, padding="same", dilation=2)),
    "valid padding": after_bits(bconv(6, 8, (2, 4), padding="valid"), Sign(), bconv(8, 5, (1, 2), padding=(0, 2))),
    "float groups": sequence(nn.Conv2d(3, 6, 3, groups=3, stride=2), nn.ReLU(), nn.Conv2d(6, 6, 2, groups=6)),
    "max pool of bits": after_bits(nn.MaxPool2d(3, 2, 1), bconv(6, 4)),
    "max pool, ceil": after_bits(nn.MaxPool2d(2, 2, ceil_mode=True), bconv(6, 4)),
    "max pool before BatchNorm": after_bits(bconv(6, 8), nn.MaxPool2d(2), nn.BatchNorm2d(8), Sign(), bconv(8, 4)),
    "max pool of floats": sequence(nn.Conv2d(3, 4, 3), nn.MaxPool2d((2, 3), (1, 2), (1, 0), ceil_mode=True)),
    "mean pool": sequence(nn.AvgPool2d(3, 2, 1), nn.Conv2d(3, 4, 1)),
    "mean pool, ceil": sequence(nn.AvgPool2d(2, 2, ceil_mode=True), nn.AvgPool2d(2, 1, 1, count_include_pad=False)),
    "mean pool of bits": after_bits(nn.AvgPool2d(2), nn.Conv2d(6, 4, 1)),
    "adaptive pools": sequence(nn.AdaptiveAvgPool2d((3, 4)), nn.AdaptiveMaxPool2d((2, 3)), nn.AdaptiveAvgPool2d(2)),
    "maximum of the image": lambda: Net(lambda m, x: m.c(x).amax((2, 3)), c=nn.Conv2d(3, 4, 3)),
    "mean of the image": lambda: Net(lambda m, x: m.c(x).mean([-1, -2], keepdim=True).squeeze(), c=nn.Conv2d(3, 4, 3)),
    "flattened bits, binary linear": after_bits(nn.Flatten(), binary(nn.Linear(252, 9)), nn.BatchNorm1d(9), Sign(),
                                                binary(nn.Linear(9, 5))),
    "flatten, BatchNorm, sign, binary linear": after_bits(nn.Flatten(), nn.BatchNorm1d(252), Sign(),
                                                          binary(nn.Linear(252, 9))),
    "flattened pool": after_bits(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)),
    "flattened output": after_bits(bconv(6, 4), nn.Flatten()),
    "output of bits": after_bits(bconv(6, 4), nn.BatchNorm2d(4), Sign()),
    "sign alone": sequence(Sign()),
    "binary weights, float input": sequence(bconv(3, 6), nn.BatchNorm2d(6), nn.Hardtanh(), bconv(6, 4)),
    "float weights on bits": after_bits(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), Sign(), bconv(4, 4)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch, of its own speed
@pytest.mark.parametrize("name", PECULIAR)
def test_peculiar_net_equals_reference_and_pytorch(name: str) -> None:
    torch.manual_seed(len(name))
    check(randomise(PECULIAR[name](), seed=len(name)), (3, 7, 6), images=6)


def test_shared_layer_is_kept_once() -> None:
    torch.manual_seed(0)
    packed = stompp.pack(PECULIAR["shared convolution"]().eval(), torch.zeros(1, 3, 7, 6), threads=1)
    assert sum(array.dtype == bool for array in packed.graph.arrays.values()) == 1
