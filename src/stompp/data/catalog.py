"""The data sets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from stompp.data import cifar, digits, fashion, imagenet
from stompp.data.dataset import Dataset
from stompp.errors import UsageError


class _Entry(NamedTuple):
    image_shape: tuple[int, int, int]
    num_classes: int
    train_images: int
    read: Callable[[Path, bool], Dataset]  # (root, download)


_ENTRIES = {
    "digits": _Entry((1, 8, 8), 10, 1_437, lambda root, download: digits.read_digits()),
    "cifar10": _Entry((3, 32, 32), 10, 50_000, partial(cifar.read_cifar, cifar.CIFAR10)),
    "cifar100": _Entry((3, 32, 32), 100, 50_000, partial(cifar.read_cifar, cifar.CIFAR100)),
    "cifar10-16": _Entry((3, 16, 16), 10, 50_000, partial(cifar.read_cifar, cifar.CIFAR10, halve=True)),
    "cifar100-16": _Entry((3, 16, 16), 100, 50_000, partial(cifar.read_cifar, cifar.CIFAR100, halve=True)),
    "fashion-mnist": _Entry((1, 28, 28), 10, 60_000, fashion.read_fashion),
    "imagenet": _Entry((3, 224, 224), 1000, 1_281_167, lambda root, download: imagenet.read_imagenet(root)),
}


def names() -> tuple[str, ...]:
    """Lists the data sets that `load` knows.

    >>> "digits" in names()
    True
    """
    return tuple(_ENTRIES)


def shape_of(name: str) -> tuple[tuple[int, int, int], int]:
    """Gives (image_shape, number of classes) of a data set without reading it.

    >>> shape_of("cifar100-16")
    ((3, 16, 16), 100)
    """
    return _entry(name)[:2]


def train_images_of(name: str) -> int:
    """Gives the number of training images of a data set without reading it.

    >>> train_images_of("digits")
    1437
    """
    return _entry(name).train_images


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    download: bool = True,
    limit_train: int | None = None,
) -> Dataset:
    """Loads a data set by name, whole, onto the device (imagenet alone stays on disk).

    `root` is the folder the data lie in: by default $STOMPP_DATA, or else ~/.cache/stompp. What is not there is
    downloaded, unless `download` is false. `limit_train` keeps that many training images, the first (of imagenet, where
    the first are all of one class, a fixed draw).

    >>> data = load("digits", limit_train=1000)
    >>> len(data.train), len(data.test), data.num_classes
    (1000, 360, 10)
    """
    entry = _entry(name)
    folder = Path(root or os.environ.get("STOMPP_DATA") or "~/.cache/stompp").expanduser()
    try:
        data = entry.read(folder, download)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be read ({error.strerror or error}); check that it is readable"
        ) from None
    train = data.train
    if limit_train is not None:
        if not 1 <= limit_train <= len(train):
            raise UsageError(f"limit_train is {limit_train}; {name} has 1 to {len(train)} training images to keep")
        train = train.limited(limit_train)
    try:
        return replace(data, train=train.to(device), test=data.test.to(device))
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        reason = str(error).splitlines()[0]
        raise UsageError(f"the data cannot go to device {str(device)!r} ({reason}); write device='cpu'") from None


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        near = difflib.get_close_matches(name, _ENTRIES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of these."
        raise UsageError(f"there is no data set {name!r}; {hint} Known: {', '.join(_ENTRIES)}")
    return _ENTRIES[name]
