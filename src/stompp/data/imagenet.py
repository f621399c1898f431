"""ImageNet from its folders: train/<wnid>/*.JPEG and val/<wnid>/*.JPEG, decoded by Pillow when they are needed.

1.28 million images do not fit into memory as bytes, so this split reads files: worker processes decode, crop, resize
and mirror whole batches, and the bytes go to the device, where they are normalised like any other. The crops are keyed
by (seed, epoch, image) through the same functions as everywhere, so neither the number of workers nor a resume at some
step changes a pixel. Test images are
cut to the central square of 224/256 of their shorter side and resized to 224×224 (what resizing the shorter side to 256
and then cutting gives, in one step).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stompp.data.augment import Augment, crop_boxes
from stompp.data.dataset import Dataset
from stompp.data.hashing import CROP, RESIZED_CROP, below, draw, fold, permutation
from stompp.errors import UsageError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_SIZE, _RESIZE = 224, 256


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Holds the paths and labels of a split whose images stay on disk; `Batches` reads it like any other.

    `workers` processes decode ahead; with 0 the calling process does it.
    """

    paths: tuple[str, ...]
    labels: torch.Tensor
    workers: int = 0

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def device(self) -> torch.device:
        """Says where the labels are, and the batches go."""
        return self.labels.device

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Gives (channels, height, width)."""
        return 3, _SIZE, _SIZE

    def limited(self, count: int) -> FolderSplit:
        """Keeps `count` images, drawn by hash from all classes (the first ones would all be of one class)."""
        keep = permutation(fold(), len(self))[:count].sort().values
        return replace(self, paths=tuple(self.paths[i] for i in keep.tolist()), labels=self.labels[keep])

    def to(self, device: torch.device | str) -> FolderSplit:
        """Says where the batches go."""
        return replace(self, labels=self.labels.to(device))

    def stream(
        self, order: torch.Tensor, batch_size: int, augment: Augment | None, key: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Gives augmented uint8 images and labels, batch by batch, in the order asked for."""
        if augment is not None and augment.crop_pad:
            raise UsageError("imagenet has no padded crop; write Augment(resized_crop=True, flip=True)")
        tasks = _Tasks(self.paths, order.cpu(), batch_size, augment, key)
        loader = torch.utils.data.DataLoader(
            tasks,
            batch_size=None,  # one item of `tasks` is a batch already
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # the loader seeds its workers; it shall not touch the global generator for it
        )
        for first, images in zip(range(0, len(order), batch_size), loader):
            if isinstance(images, str):
                raise UsageError(images)
            rows = order[first : first + batch_size].to(self.device)
            yield images.to(self.device, non_blocking=True), self.labels.index_select(0, rows)


def read_imagenet(root: Path) -> Dataset:
    """Lists the images below `root`, or below root/imagenet if that is there; nothing is decoded yet."""
    _pillow()
    base = root / "imagenet" if (root / "imagenet").is_dir() else root
    wnids, train = _list(base / "train")
    val_wnids, val = _list(base / "val")
    odd = sorted(set(wnids) ^ set(val_wnids))
    if odd:
        raise UsageError(
            f"{base}: the class folder {odd[0]} is in only one of train and val; "
            "val must hold one folder per class, like train"
        )
    return Dataset("imagenet", tuple(wnids), MEAN, STD, _split(train), _split(val))


class _Tasks(torch.utils.data.Dataset[Any]):
    """Step → its batch of bytes. A message comes back as text: an exception would lose its type between processes."""

    def __init__(
        self, paths: tuple[str, ...], order: torch.Tensor, batch_size: int, augment: Augment | None, key: int
    ) -> None:
        self.paths, self.order, self.batch_size, self.augment, self.key = paths, order, batch_size, augment, key

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, step: int) -> torch.Tensor | str:
        rows = self.order[step * self.batch_size : (step + 1) * self.batch_size].tolist()
        try:
            return torch.stack([read_image(self.paths[i], i, self.augment, self.key) for i in rows])
        except UsageError as error:
            return str(error)


def read_image(path: str, index: int, augment: Augment | None, key: int) -> torch.Tensor:
    """Decodes one image to uint8 (3, 224, 224), augmented as image `index` in the epoch that `key` stands for."""
    image_module = _pillow()
    try:
        with image_module.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's own errors are all of these kinds
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} cannot be decoded ({reason}); replace or delete it") from None
    width, height = image.size
    counter = torch.tensor([index])
    if augment is not None and augment.resized_crop:
        sizes = torch.tensor([height]), torch.tensor([width])
        top, left, h, w = crop_boxes(fold(key, RESIZED_CROP), counter, *sizes, augment)[0].tolist()
        box = (left, top, left + w, top + h)
    else:
        side = min(width, height) * _SIZE / _RESIZE
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    image = image.resize((_SIZE, _SIZE), image_module.Resampling.BILINEAR, box=box)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    if augment is not None and augment.flip and below(draw(fold(key, CROP), counter), 2, 2).item():
        pixels = pixels.flip(2)
    return pixels.contiguous()


def _split(files: list[tuple[str, int]]) -> FolderSplit:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    paths, labels = zip(*files)
    return FolderSplit(paths, torch.tensor(labels), workers=min(cpus, 16))


def _list(folder: Path) -> tuple[list[str], list[tuple[str, int]]]:
    try:
        wnids = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        files = [
            (str(folder / wnid / name), label)
            for label, wnid in enumerate(wnids)
            for name in sorted(os.listdir(folder / wnid))
            if name.lower().endswith((".jpeg", ".jpg"))
        ]
    except FileNotFoundError:
        raise UsageError(
            f"imagenet is not there: looked for {folder}; it cannot be downloaded without an account "
            "(https://image-net.org): put train/<wnid>/*.JPEG and val/<wnid>/*.JPEG under root or STOMPP_DATA"
        ) from None
    if not files:
        raise UsageError(f"{folder} holds no <wnid>/*.JPEG; unpack the class archives into one folder per class")
    return wnids, files


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("imagenet needs Pillow to decode JPEG files: pip install 'stompp[imagenet]'") from None
    return Image
