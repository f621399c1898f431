"""CIFAR ResNets of depth 6n + 2: three stages of n basic blocks with width w, 2w, 4w (the ResNet paper's, w = 16).

Where a shortcut changes shape it has a 1×1 projection (kept float, as in the larger ResNets) and not the padded
identity of the original, so that one policy covers all ResNets. A BNN of depth d has 2(d - 2) + 1 sites: 13, 37 and 61
for the depths 8, 20 and 32.
"""

from __future__ import annotations

from torch import Tensor, nn

from .resnet import BasicBlock, initialise


class CifarResNet(nn.Module):
    """A CIFAR ResNet for images of any size from 8×8 on and any number of channels."""

    def __init__(self, depth: int, num_classes: int, width: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        inputs = width
        for i in range(3):
            blocks = []
            for j in range((depth - 2) // 6):
                blocks.append(BasicBlock(inputs, width << i, 2 if i > 0 and j == 0 else 1))
                inputs = width << i
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.avgpool(x).flatten(1))


def cifar_resnet8(num_classes: int = 10, width: int = 16, channels: int = 3) -> CifarResNet:
    """CIFAR ResNet-8."""
    return CifarResNet(8, num_classes, width, channels)


def cifar_resnet20(num_classes: int = 10, width: int = 16, channels: int = 3) -> CifarResNet:
    """CIFAR ResNet-20."""
    return CifarResNet(20, num_classes, width, channels)


def cifar_resnet32(num_classes: int = 10, width: int = 16, channels: int = 3) -> CifarResNet:
    """CIFAR ResNet-32."""
    return CifarResNet(32, num_classes, width, channels)


def cifar_resnet44(num_classes: int = 10, width: int = 16, channels: int = 3) -> CifarResNet:
    """CIFAR ResNet-44."""
    return CifarResNet(44, num_classes, width, channels)


def cifar_resnet56(num_classes: int = 10, width: int = 16, channels: int = 3) -> CifarResNet:
    """CIFAR ResNet-56."""
    return CifarResNet(56, num_classes, width, channels)
