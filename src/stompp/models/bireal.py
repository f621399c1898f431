"""Bi-Real nets: the activation comes before its conv, and every 3×3 conv has a real-valued shortcut of its own.

As a float net its activations clip to [-1, 1], which is also the net that a pretrained start begins from. A BNN has 32
sites at depth 18 and 64 at depth 34.
"""

from __future__ import annotations

from torch import Tensor, nn

from .resnet import initialise, make_stem


class BiRealUnit(nn.Module):
    """shortcut(x) + bn(conv(act(x))); a shortcut that changes shape averages 2×2 and projects."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.act = nn.Hardtanh()
        self.conv = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if inputs != width or stride != 1:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride, stride), nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.act(x))) + (x if self.downsample is None else self.downsample(x))


class BiRealNet(nn.Module):
    """A Bi-Real net of four stages."""

    def __init__(self, depths: tuple[int, ...], num_classes: int, stem: str, width: int) -> None:
        super().__init__()
        self.conv1, self.maxpool = make_stem(stem, width)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for i, depth in enumerate(depths):
            units = []
            for j in range(2 * depth):
                units.append(BiRealUnit(inputs, width << i, 2 if i > 0 and j == 0 else 1))
                inputs = width << i
            setattr(self, f"layer{i + 1}", nn.Sequential(*units))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def bireal18(num_classes: int = 10, stem: str = "cifar", width: int = 64) -> BiRealNet:
    """Bi-Real-18."""
    return BiRealNet((2, 2, 2, 2), num_classes, stem, width)


def bireal34(num_classes: int = 10, stem: str = "cifar", width: int = 64) -> BiRealNet:
    """Bi-Real-34."""
    return BiRealNet((3, 4, 6, 3), num_classes, stem, width)
