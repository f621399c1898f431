"""What a data set is: two splits, the class names, and the constants that normalise it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from stompp.data.augment import Augment, augment_batch, draws_for


class Source(Protocol):
    """Anything `Batches` can read: it knows its length, its device, and how to give uint8 batches in a given order."""

    @property
    def device(self) -> torch.device: ...

    @property
    def image_shape(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def limited(self, count: int) -> Source: ...

    def to(self, device: torch.device | str) -> Source: ...

    def stream(
        self, order: torch.Tensor, batch_size: int, augment: Augment | None, key: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]: ...


@dataclass(frozen=True)
class Split:
    """Holds a split that lives on the device as a whole: uint8 images (N, C, H, W) and int64 labels (N).

    >>> split = Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.arange(3))
    >>> [labels.tolist() for images, labels in split.stream(torch.tensor([2, 0, 1]), 2, None, key=0)]
    [[2, 0], [1]]
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def device(self) -> torch.device:
        """Says where the images are."""
        return self.images.device

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Gives (channels, height, width)."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def limited(self, count: int) -> Split:
        """Keeps the first `count` images, in memory of their own."""
        return Split(self.images[:count].clone(), self.labels[:count].clone())

    def to(self, device: torch.device | str) -> Split:
        """Moves images and labels to the device."""
        return Split(self.images.to(device), self.labels.to(device))

    def stream(
        self, order: torch.Tensor, batch_size: int, augment: Augment | None, key: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Gives augmented uint8 images and labels, batch by batch, in the order asked for."""
        # one hash over the epoch costs less than one per batch, and takes a few bytes per image
        draws = draws_for(order, self.image_shape[1:], augment, key)
        for first in range(0, len(order), batch_size):
            rows = slice(first, first + batch_size)
            images = self.images.index_select(0, order[rows])
            labels = self.labels.index_select(0, order[rows])
            yield augment_batch(images, None if draws is None else draws[rows], augment), labels


@dataclass(frozen=True)
class Dataset:
    """Holds a data set: its name, its classes, its normalisation constants per channel, its two splits."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Source  # a Split, unless the set is too large for memory (imagenet)
    test: Source

    @property
    def num_classes(self) -> int:
        """Gives the number of classes."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Gives (channels, height, width)."""
        return self.train.image_shape
