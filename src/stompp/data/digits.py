"""The bundled data set: 1,797 handwritten digits of 8×8 grey pixels (origin and licence: digits.LICENSE.md)."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from stompp.data.dataset import Dataset, Split

# of the training split, as bytes / 255
MEAN, STD = (0.3054,), (0.3760,)


def read_digits() -> Dataset:
    """Reads the digits out of the package.

    >>> data = read_digits()
    >>> len(data.train), len(data.test), data.image_shape
    (1437, 360, (1, 8, 8))
    """
    with resources.files("stompp.data").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        train, test = (_split(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return Dataset("digits", tuple("0123456789"), MEAN, STD, train, test)


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    # published grey values run from 0 to 16; bytes from 0 to 255, rounded half up, keep them apart
    grey = (images.astype(np.int32) * 255 + 8) // 16
    return Split(torch.from_numpy(grey.astype(np.uint8))[:, None], torch.from_numpy(labels.astype(np.int64)))
