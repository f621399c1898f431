"""CIFAR-10 and CIFAR-100, from the official binary files or from the pickled batches that torchvision leaves behind.

A binary record is the label (CIFAR-10: one byte; CIFAR-100: a coarse and a fine one, of which we take the fine), then
3,072 bytes of image in (channel, row, column) order. There is nothing else in the file, so its size says whether it is
whole. The 16×16 variants are the same images, each 2×2 block averaged, halves rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stompp.data.dataset import Dataset, Split
from stompp.data.download import fetch_archive, partial_note
from stompp.data.unpickle import read_batch
from stompp.errors import UsageError

# The paper normalises both sets by the same constants; the 16×16 variants keep them (averaging keeps the mean).
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarFormat:
    """Describes how one of the two sets lies on disk."""

    name: str
    classes: tuple[str, ...]
    binary_folder: str
    python_folder: str
    train_files: tuple[str, ...]  # without the .bin of the binary layout
    test_file: str
    train_records: int  # per file
    test_records: int
    label_bytes: int
    label_key: str
    url: str
    md5: str

    def size(self, records: int) -> int:
        """Gives the size in bytes of a binary file of that many records."""
        return records * (self.label_bytes + _PIXELS)

    def files(self) -> list[tuple[str, int]]:
        """Lists (file, records), training files first."""
        return [*((name, self.train_records) for name in self.train_files), (self.test_file, self.test_records)]


def read_cifar(layout: CifarFormat, root: Path, download: bool = True, halve: bool = False) -> Dataset:
    """Reads a CIFAR set from below `root`, downloading it first if it is not there and `download` allows it."""
    if root.name in (layout.binary_folder, layout.python_folder):
        root = root.parent  # the folder itself was meant
    parts = _find(layout, root, download)
    images = torch.cat([torch.from_numpy(pixels) for pixels, _ in parts[:-1]])
    labels = torch.cat([torch.from_numpy(values) for _, values in parts[:-1]])
    train = Split(images.view(-1, 3, 32, 32), labels.long())
    pixels, values = parts[-1]
    test = Split(torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(values).long())
    name = layout.name
    if halve:
        train, test = (Split(average_blocks(split.images), split.labels) for split in (train, test))
        name += "-16"
    return Dataset(name, layout.classes, MEAN, STD, train, test)


def average_blocks(images: torch.Tensor) -> torch.Tensor:
    """Averages each 2×2 block of uint8 images: (a + b + c + d + 2) // 4, so halves round up.

    >>> average_blocks(torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.uint8)).tolist()
    [[[[1]]]]
    """
    rows = images[..., 0::2, :].to(torch.int16) + images[..., 1::2, :]
    return ((rows[..., 0::2] + rows[..., 1::2] + 2) >> 2).to(torch.uint8)


_Part = tuple[np.ndarray, np.ndarray]


def _find(layout: CifarFormat, root: Path, download: bool) -> list[_Part]:
    binary, python = root / layout.binary_folder, root / layout.python_folder
    if not binary.exists() and not python.exists():
        if not download:
            raise UsageError(
                f"{layout.name} is not there: looked for {binary} and {python}{partial_note(root, layout.url)}; "
                f"allow the download, or unpack {layout.url} into {root}, or point root or STOMPP_DATA to where it is"
            )
        members = {f"{layout.binary_folder}/{name}.bin": layout.size(records) for name, records in layout.files()}
        fetch_archive(layout.url, layout.md5, root, layout.binary_folder, members)
    if binary.exists():
        return [_read_binary(layout, binary / f"{name}.bin", records) for name, records in layout.files()]
    return [_read_python(layout, python / name, records) for name, records in layout.files()]


def _read_binary(layout: CifarFormat, path: Path, records: int) -> _Part:
    expected = layout.size(records)
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raise UsageError(
            f"{path} is missing though its folder is there; delete the folder {path.parent} and load again"
        ) from None
    if data.size != expected:
        verdict = "cut short" if data.size < expected else "not this CIFAR set"
        raise UsageError(
            f"{path} has {data.size} bytes, expected {expected}: it is {verdict}; "
            f"delete the folder {path.parent} and load again"
        )
    table = data.reshape(records, layout.label_bytes + _PIXELS)
    labels = table[:, layout.label_bytes - 1].astype(np.int64)
    _check_labels(layout, path, labels)
    return np.ascontiguousarray(table[:, layout.label_bytes :]), labels


def _read_python(layout: CifarFormat, path: Path, records: int) -> _Part:
    pixels, labels = read_batch(path, layout.label_key)
    if pixels.shape != (records, _PIXELS) or len(labels) != records:
        raise UsageError(
            f"{path} holds images of shape {pixels.shape} and {len(labels)} labels, expected ({records}, {_PIXELS}) "
            f"and {records}; delete the folder {path.parent} and load again"
        )
    _check_labels(layout, path, labels)
    return pixels, labels


def _check_labels(layout: CifarFormat, path: Path, labels: np.ndarray) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= len(layout.classes)))
    if bad.size:
        raise UsageError(
            f"{path}: record {bad[0]} has the label {labels[bad[0]]}, but {layout.name} has labels 0 to "
            f"{len(layout.classes) - 1}; the file is damaged: delete the folder {path.parent} and load again"
        )


CIFAR10 = CifarFormat(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    binary_folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test_file="test_batch",
    train_records=10_000,
    test_records=10_000,
    label_bytes=1,
    label_key="labels",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

CIFAR100 = CifarFormat(
    name="cifar100",
    classes=tuple(_CIFAR100_CLASSES.split()),
    binary_folder="cifar-100-binary",
    python_folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
    train_records=50_000,
    test_records=10_000,
    label_bytes=2,
    label_key="fine_labels",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
)
