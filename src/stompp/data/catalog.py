"""The data sets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from stompp.data import cifar, digits, fashion
from stompp.data.dataset import Dataset, Split
from stompp.errors import UsageError

_READERS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": lambda root, download: digits.read_digits(),
    "cifar10": lambda root, download: cifar.read_cifar(cifar.CIFAR10, root, download),
    "cifar100": lambda root, download: cifar.read_cifar(cifar.CIFAR100, root, download),
    "cifar10-16": lambda root, download: cifar.read_cifar(cifar.CIFAR10, root, download, halve=True),
    "cifar100-16": lambda root, download: cifar.read_cifar(cifar.CIFAR100, root, download, halve=True),
    "fashion-mnist": lambda root, download: fashion.read_fashion(root, download),
}


def names() -> tuple[str, ...]:
    """Lists the data sets that `load` knows.

    >>> "digits" in names()
    True
    """
    return tuple(_READERS)


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    download: bool = True,
    limit_train: int | None = None,
) -> Dataset:
    """Loads a data set by name, whole, onto the device.

    `root` is the folder the data lie in: by default $STOMPP_DATA, or else ~/.cache/stompp. `limit_train` keeps the
    first that many training images.

    >>> data = load("digits", limit_train=1000)
    >>> len(data.train), len(data.test), data.num_classes
    (1000, 360, 10)
    """
    if name not in _READERS:
        near = difflib.get_close_matches(name, _READERS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of these."
        raise UsageError(f"there is no data set {name!r}; {hint} Known: {', '.join(_READERS)}")
    data = _READERS[name](_root(root), download)
    if limit_train is not None and not 1 <= limit_train <= len(data.train):
        raise UsageError(f"limit_train is {limit_train}; {name} has {len(data.train)} training images: write 1 to that")
    return replace(data, train=_place(data.train, device, limit_train), test=_place(data.test, device, None))


def _root(root: str | os.PathLike[str] | None) -> Path:
    return Path(root or os.environ.get("STOMPP_DATA") or "~/.cache/stompp").expanduser()


def _place(split: Split, device: torch.device | str, limit: int | None) -> Split:
    images, labels = split.images, split.labels
    if limit is not None and limit < len(split):
        images, labels = images[:limit].clone(), labels[:limit].clone()  # a view would keep the rest in memory
    try:
        return Split(images.to(device), labels.to(device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"the data cannot go to device {str(device)!r} ({reason}); write device='cpu'") from None
