"""Batches of an epoch, in an order and with augmentations that depend on (seed, epoch, image) alone.

The order of epoch e is a permutation keyed by (seed, e). Rank r of `world` takes every world-th image of it, from the
r-th on, so step t of all ranks together sees exactly what one process with the `world`-fold batch would see. Nothing
is drawn from a generator: `epoch(e, start=k)` gives what skipping k steps of `epoch(e)` would give, at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from stompp.data.augment import Augment
from stompp.data.dataset import Source
from stompp.data.hashing import ORDER, fold, permutation
from stompp.errors import UsageError


class Batches:
    """Gives the normalised, augmented batches of one split, one epoch at a time.

    >>> from stompp.data import load
    >>> data = load("digits")
    >>> batches = Batches(data.train, 128, data.mean, data.std, augment=Augment(crop_pad=1), seed=0)
    >>> len(batches)
    11
    >>> x, y = next(iter(batches.epoch(0)))
    >>> x.shape, x.dtype, y.shape
    (torch.Size([128, 1, 8, 8]), torch.float32, torch.Size([128]))
    """

    def __init__(
        self,
        split: Source,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augment | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it must be at least 1")
        if not 0 <= rank < world:
            raise UsageError(f"rank is {rank} of world {world}; ranks count from 0 to world - 1")
        if len(mean) != split.image_shape[0] or len(std) != len(mean):
            raise UsageError(
                f"mean has {len(mean)} and std {len(std)} values, the images have {split.image_shape[0]} channels; "
                "write one value per channel, for instance data.mean and data.std"
            )
        if drop_last and len(split) < batch_size * world:
            raise UsageError(
                f"batch_size {batch_size} on {world} rank(s) needs {batch_size * world} images and the split has "
                f"{len(split)}; write a smaller batch_size or drop_last=False"
            )
        self.split, self.batch_size, self.augment = split, batch_size, augment
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.rank, self.world = rank, world
        self.dtype, self.channels_last = dtype, channels_last
        # (v / 255 - mean) / std, written as one subtraction and one product of a byte v
        shape = (1, len(mean), 1, 1)
        self._shift = torch.tensor([255 * m for m in mean], device=split.device).view(shape)
        self._scale = torch.tensor([1 / (255 * s) for s in std], device=split.device).view(shape)

    def __len__(self) -> int:
        """Gives the number of steps of this rank in one epoch."""
        share = len(range(self.rank, len(self.split), self.world))
        if self.drop_last:
            return len(self.split) // self.world // self.batch_size
        return -(-share // self.batch_size)

    def order(self, epoch: int) -> torch.Tensor:
        """Gives the indices of the images that this rank sees in the epoch, in order.

        >>> from stompp.data import load
        >>> data = load("digits")
        >>> parts = [Batches(data.test, 8, data.mean, data.std, rank=r, world=2).order(0) for r in (0, 1)]
        >>> len(torch.cat(parts).unique())
        352
        """
        n = len(self.split)
        if self.shuffle:
            whole = permutation(fold(self.seed, epoch, ORDER), n, self.split.device)
        else:
            whole = torch.arange(n, device=self.split.device)
        mine = whole[self.rank :: self.world]
        return mine[: len(self) * self.batch_size] if self.drop_last else mine

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Gives (images, labels) for every step of the epoch from step `start` on.

        >>> from stompp.data import load
        >>> data = load("digits")
        >>> batches = Batches(data.train, 256, data.mean, data.std)
        >>> len(list(batches.epoch(3, start=2))) == len(batches) - 2
        True
        """
        if not 0 <= start <= len(self):
            raise UsageError(f"epoch {epoch} has {len(self)} steps; it cannot start at step {start}")
        return self._steps(epoch, start)

    def _steps(self, epoch: int, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = self.order(epoch)[start * self.batch_size :]
        key = fold(self.seed, epoch)
        for images, labels in self.split.stream(order, self.batch_size, self.augment, key):
            yield self._normalise(images), labels

    def _normalise(self, images: torch.Tensor) -> torch.Tensor:
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        values = images.to(torch.float32, memory_format=memory_format)
        return values.sub_(self._shift).mul_(self._scale).to(self.dtype)
