"""Data sets, kept as bytes on the device, and their batches: the order and every crop keyed by (seed, epoch, image).

>>> data = load("digits")
>>> batches = Batches(data.train, 64, data.mean, data.std, augment=Augment(crop_pad=1), seed=0)
>>> images, labels = next(iter(batches.epoch(0)))
>>> tuple(images.shape)
(64, 1, 8, 8)
"""

from stompp.data.augment import Augment
from stompp.data.batches import Batches
from stompp.data.catalog import load, names, shape_of
from stompp.data.dataset import Dataset, Split

__all__ = ["Augment", "Batches", "Dataset", "Split", "load", "names", "shape_of"]
