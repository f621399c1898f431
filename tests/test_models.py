"""The models: parameter counts known from the literature, site counts, and a step of each as a binary net."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stompp
from stompp import Binarize, UsageError
from stompp.models import MODELS, build

# name -> sites as (BNN, BWN)
SITES = {
    "resnet18": (33, 16), "resnet34": (65, 32), "resnet50": (97, 48),
    "cifar_resnet8": (13, 6), "cifar_resnet20": (37, 18), "cifar_resnet32": (61, 30), "cifar_resnet44": (85, 42),
    "cifar_resnet56": (109, 54),
    "bireal18": (32, 16), "bireal34": (64, 32),
}  # fmt: skip
# The numbers torchvision publishes for 1000 classes, and those of the usual CIFAR variants for 10.
PUBLISHED = {
    ("resnet18", "imagenet", 1000): 11_689_512,
    ("resnet34", "imagenet", 1000): 21_797_672,
    ("resnet50", "imagenet", 1000): 25_557_032,
    ("resnet18", "cifar", 10): 11_173_962,
    ("resnet34", "cifar", 10): 21_282_122,
    ("resnet50", "cifar", 10): 23_520_842,
    ("bireal18", "imagenet", 1000): 11_689_512,
    ("bireal34", "imagenet", 1000): 21_797_672,
}
SMALL = {name: {"width": 4} for name in MODELS if name.startswith("cifar")}


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build(name, num_classes=4, **SMALL.get(name, {}))


def cifar_parameters(depth: int, width: int) -> int:
    """Count by hand: convs and batch norms of three stages, two projections, a linear layer for 10 classes."""
    blocks = (depth - 2) // 6
    total = 27 * width + 2 * width
    inputs = width
    for stage in range(3):
        w = width * 2**stage
        for _ in range(blocks):
            total += 9 * inputs * w + 9 * w * w + 4 * w
            if inputs != w:
                total += inputs * w + 2 * w
            inputs = w
    return total + 10 * inputs + 10


def test_every_model_is_in_the_table_of_this_test():
    assert set(SITES) == set(MODELS)


@pytest.mark.parametrize("name, stem, classes", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name, stem, classes):
    with torch.device("meta"):
        net = build(name, num_classes=classes, stem=stem)
    assert sum(p.numel() for p in net.parameters()) == PUBLISHED[name, stem, classes]


@pytest.mark.parametrize("depth", [8, 20, 32, 44, 56])
@pytest.mark.parametrize("width", [4, 16])
def test_cifar_resnet_parameter_counts_are_those_counted_by_hand(depth, width):
    net = build(f"cifar_resnet{depth}", width=width)
    assert sum(p.numel() for p in net.parameters()) == cifar_parameters(depth, width)
    # ResNet-20 has 0.27 million parameters in the ResNet paper, with its parameter-free shortcuts.
    if (depth, width) == (20, 16):
        projections = 16 * 32 + 64 + 32 * 64 + 128
        assert sum(p.numel() for p in net.parameters()) - projections == 269_722


@pytest.mark.parametrize("name", MODELS)
def test_site_counts_and_their_order(name):
    for config, expected in zip((Binarize(), Binarize(activations="clip")), SITES[name]):
        net = stompp.prepare(small(name), torch.zeros(1, 3, 16, 16), config)
        found = stompp.sites(net)
        assert len(found) == expected
        if config.binary_activations:  # activation, weight, activation, ... from the stem on
            kinds = [site.kind for site in found]
            assert kinds[::2] == ["activation"] * len(kinds[::2])
            assert kinds[1::2] == ["weight"] * len(kinds[1::2])
        kept = {n for n, m in net.named_modules() if type(m) in (nn.Conv2d, nn.Linear)}
        assert {"conv1", "fc"} <= kept
        assert all("downsample" in n for n in kept - {"conv1", "fc"})


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_a_step_in_every_phase_and_ends_binary(name):
    net = small(name)
    images = torch.randn(2, 3, 8, 8)
    stompp.prepare(net, images)
    freezer = stompp.Freezer(net, 3, order="global", schedule="linear")
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for t in range(3):
        freezer.step(t)
        loss = F.cross_entropy(net(images), torch.tensor([0, 1]))
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        assert net.fc.weight.grad is not None
        optimizer.step()
    proof = stompp.assert_binary(net, images)
    assert proof.layers == SITES[name][1]


@pytest.mark.parametrize("name", ["resnet18", "bireal18"])
def test_imagenet_stem_has_the_same_sites_and_strides(name):
    net = build(name, num_classes=7, stem="imagenet")
    stompp.prepare(net, torch.zeros(1, 3, 64, 64))
    assert len(stompp.sites(net)) == SITES[name][0]
    assert net.layer4(net.layer3(net.layer2(net.layer1(torch.zeros(1, 64, 16, 16))))).shape == (1, 512, 2, 2)
    assert net(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    assert net.maxpool(net.conv1(torch.zeros(1, 3, 64, 64))).shape == (1, 64, 16, 16)


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_resnet_keys_are_torchvisions(depth):
    with torch.device("meta"):
        keys = list(build(f"resnet{depth}", num_classes=1000, stem="imagenet").state_dict())
    assert keys[:2] == ["conv1.weight", "bn1.weight"]
    assert keys[-2:] == ["fc.weight", "fc.bias"]
    last = "layer4.2.bn3" if depth == 50 else f"layer4.{1 if depth == 18 else 2}.bn2"
    assert f"{last}.running_var" in keys
    assert "layer2.0.downsample.0.weight" in keys
    assert "layer2.0.downsample.1.running_mean" in keys
    assert ("layer1.0.downsample.0.weight" in keys) == (depth == 50)
    assert len(keys) == {18: 122, 34: 218, 50: 320}[depth]


def test_first_sites_of_resnet18_are_in_the_order_of_the_forward_pass():
    net = stompp.prepare(small("resnet18"), torch.zeros(1, 3, 8, 8))
    assert [site.name for site in stompp.sites(net)][:6] == [
        "relu", "layer1.0.conv1.weight", "layer1.0.relu1", "layer1.0.conv2.weight", "layer1.0.relu2",
        "layer1.1.conv1.weight",
    ]  # fmt: skip
    assert stompp.sites(net)[-1].name == "layer4.1.relu2"
    net = stompp.prepare(small("bireal18"), torch.zeros(1, 3, 8, 8))
    assert [site.name for site in stompp.sites(net)][:2] == ["layer1.0.act", "layer1.0.conv.weight"]
    assert stompp.sites(net)[-1].name == "layer4.3.conv.weight"


def test_bireal_has_a_shortcut_around_every_conv():
    net = small("bireal18").eval()
    x = torch.randn(1, 64, 8, 8)
    for unit in net.layer1:
        unit.conv.weight.data.zero_()
        unit.bn.bias.data.zero_()
    assert torch.equal(net.layer1(x), x)


def test_build_says_what_is_wrong():
    with pytest.raises(UsageError, match=r"unknown model 'resnet81', did you mean 'resnet18'\? Known are resnet18, "):
        build("resnet81")
    with pytest.raises(UsageError, match=r"unknown model ''\. Known are resnet18, "):
        build("")
    with pytest.raises(UsageError, match="model 'resnet18' has no argument 'width'; it takes num_classes, stem"):
        build("resnet18", width=8)
    with pytest.raises(UsageError, match="stem must be 'cifar' or 'imagenet', not 'mnist'"):
        build("resnet18", stem="mnist")


def test_cifar_resnet_takes_one_channel_and_small_images():
    net = build("cifar_resnet8", num_classes=10, width=8, channels=1)
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
