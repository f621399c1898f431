"""ResNet-18/34/50 with a stem for ImageNet (7×7, stride 2, max pool) or for CIFAR (3×3, stride 1, no pool).

Parameters are named as in torchvision, so its checkpoints load. Every block has a ReLU module per activation, which
`stompp.prepare` turns into sites of their own: 33, 65 and 97 sites for a BNN, 16, 32 and 48 for a BWN.
"""

from __future__ import annotations

from torch import Tensor, nn

from stompp.errors import UsageError


class BasicBlock(nn.Module):
    """Two 3×3 convs and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = projection(inputs, width, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu2(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convs and a shortcut; the stride is on the 3×3 conv."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = projection(inputs, 4 * width, stride)
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu3(y + (x if self.downsample is None else self.downsample(x)))


def projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return the 1×1 conv that fits a shortcut to its block's output, or None where it fits already."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A ResNet of four stages."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], num_classes: int, stem: str
    ) -> None:
        super().__init__()
        self.conv1, self.maxpool = make_stem(stem)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        inputs = 64
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(inputs, 64 << i, 2 if i > 0 and j == 0 else 1))
                inputs = (64 << i) * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def make_stem(stem: str, width: int = 64) -> tuple[nn.Conv2d, nn.Module]:
    """Return the first conv and the pooling after it."""
    if stem == "cifar":
        return nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.Identity()
    if stem == "imagenet":
        return nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
    raise UsageError(f"stem must be 'cifar' or 'imagenet', not {stem!r}")


def initialise(model: nn.Module) -> None:
    """He initialisation of convs by fan-out, as in the ResNet paper's descendants."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """ResNet-18.

    >>> sum(p.numel() for p in resnet18(1000, "imagenet").parameters())
    11689512
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem)


def resnet34(num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """ResNet-34."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, stem)


def resnet50(num_classes: int = 10, stem: str = "cifar") -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem)
