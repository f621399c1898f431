"""Fashion-MNIST: 70,000 grey 28×28 pictures of clothes, in four idx files, gzipped or not.

An idx file is a magic number, the length of each dimension (all as big-endian 32-bit integers), then the bytes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stompp.data.dataset import Dataset, Split
from stompp.data.download import fetch_file, partial_note
from stompp.errors import UsageError


@dataclass(frozen=True)
class IdxFormat:
    """Describes where the four files lie and what each holds."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of the training split, as bytes / 255
    std: tuple[float, ...]
    url: str
    folders: tuple[str, ...]  # searched in this order; a download goes to the first
    files: dict[str, tuple[str, tuple[int, ...]]]  # images, labels, images, labels: name → md5 of its .gz, shape


def read_fashion(root: Path, download: bool = True) -> Dataset:
    """Reads Fashion-MNIST from below `root`, downloading what is not there if `download` allows it."""
    return read_idx_set(FASHION, root, download)


def read_idx_set(layout: IdxFormat, root: Path, download: bool = True) -> Dataset:
    """Reads a set of four idx files: training images and labels, test images and labels."""
    paths = [_find(layout, name, root, download) for name in layout.files]
    arrays = [_read_idx(path, shape) for path, (_, shape) in zip(paths, layout.files.values())]
    for path, labels in zip(paths[1::2], arrays[1::2]):
        bad = np.flatnonzero(labels >= len(layout.classes))
        if bad.size:
            raise UsageError(
                f"{path}: record {bad[0]} has the label {labels[bad[0]]}, but {layout.name} has labels 0 to "
                f"{len(layout.classes) - 1}; the file is damaged: delete it and load again"
            )
    train, test = (Split(torch.from_numpy(x)[:, None], torch.from_numpy(y).long()) for x, y in (arrays[:2], arrays[2:]))
    return Dataset(layout.name, layout.classes, layout.mean, layout.std, train, test)


def _find(layout: IdxFormat, name: str, root: Path, download: bool) -> Path:
    places = [root / folder / file for folder in layout.folders for file in (name + ".gz", name)]
    for place in places:
        if place.exists():
            return place
    target, url = places[0], f"{layout.url}/{name}.gz"
    if not download:
        raise UsageError(
            f"{layout.name} is not there: {name} is neither in {' nor in '.join(str(root / f) for f in layout.folders)}"
            f"{partial_note(target.parent, url)}; allow the download, or put {url} into {target.parent}, "
            "or point root or STOMPP_DATA to where it is"
        )
    fetch_file(url, layout.files[name][0], target)
    return target


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    header = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
    expected = len(header) + int(np.prod(shape))
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            raw = file.read(expected + 1)
    except gzip.BadGzipFile:
        raise UsageError(f"{path} is not a gzip file; delete it and load again") from None
    except (EOFError, zlib.error):
        raise UsageError(f"{path} is cut short or damaged; delete it and load again") from None
    if len(raw) != expected:
        found = f"more than {expected}" if len(raw) > expected else str(len(raw))
        raise UsageError(f"{path} has {found} bytes, expected {expected}; delete it and load again")
    if not raw.startswith(header):
        raise UsageError(f"{path} does not begin as an idx file of shape {shape}; delete it and load again")
    values: np.ndarray = np.frombuffer(raw, dtype=np.uint8, offset=len(header)).copy()
    return values.reshape(shape)


FASHION = IdxFormat(
    name="fashion-mnist",
    classes=("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    mean=(0.2860,),
    std=(0.3530,),
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    files={
        "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", (60_000, 28, 28)),
        "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", (60_000,)),
        "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", (10_000, 28, 28)),
        "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", (10_000,)),
    },
)
