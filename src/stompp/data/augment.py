"""Augmentation of a whole batch at once: uint8 images in, uint8 images out, on the device they live on.

Random crop and flip are one gather: each output pixel knows where in the padded image it comes from. That is faster
than a loop of slices on a CPU and one kernel on a GPU. The random resized crop is bilinear in integer arithmetic, so it
too gives the same bytes on every device. All draws are keyed by image (see `hashing`), so the result for one image
does not depend on the batch it comes in.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from stompp.data.hashing import CROP, RESIZED_CROP, below, draw, fold, uniform
from stompp.errors import UsageError

_TRIES = 10  # the usual number of attempts at a box that fits, then the largest central one
_RATIO_STEPS = 1 << 12


@dataclass(frozen=True)
class Augment:
    """Says which augmentation the training images get.

    `crop_pad`: pad that many black pixels on every side, then crop at random back to the size.
    `flip`: mirror left-right with probability 1/2.
    `resized_crop`: crop a box of random area (a share of the image, within `scale`) and aspect ratio (log-uniform
    within `ratio`), then resize it to the size; it takes the place of the padded crop.

    >>> Augment(crop_pad=4, flip=True)
    Augment(crop_pad=4, flip=True, resized_crop=False, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333))
    """

    crop_pad: int = 0
    flip: bool = False
    resized_crop: bool = False
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if self.crop_pad < 0:
            raise UsageError(f"Augment(crop_pad={self.crop_pad}): the padding cannot be negative; write 0 for no crop")
        if self.resized_crop and self.crop_pad:
            raise UsageError(
                "crop_pad and resized_crop exclude each other: set crop_pad to 0 (--crop-pad 0), or resized_crop to "
                "False"
            )
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UsageError(f"Augment(scale={self.scale}): write (low, high) with 0 < low <= high <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UsageError(f"Augment(ratio={self.ratio}): write (low, high) with 0 < low <= high")


@dataclass(frozen=True)
class Draws:
    """Holds the random numbers of a row of images: 64 bits each for crop and flip, a crop box (or none) each."""

    bits: torch.Tensor
    boxes: torch.Tensor | None = None

    def __getitem__(self, rows: slice) -> Draws:
        return Draws(self.bits[rows], None if self.boxes is None else self.boxes[rows])


def crop_and_flip(images: torch.Tensor, bits: torch.Tensor, pad: int, flip: bool) -> torch.Tensor:
    """Pads, crops and mirrors a uint8 batch; the first two 21-bit fields of `bits` place the crop, the third mirrors.

    >>> images = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> crop_and_flip(images, torch.tensor([1 << 62]), pad=0, flip=True).tolist()
    [[[[1, 0], [3, 2]]]]
    """
    n, channels, height, width = images.shape
    device = images.device
    padded_width = width + 2 * pad
    if pad:
        padded = torch.zeros(n, channels, height + 2 * pad, padded_width, dtype=torch.uint8, device=device)
        padded[:, :, pad : pad + height, pad : pad + width] = images
        images = padded
    top, left = below(bits, 0, 2 * pad + 1), below(bits, 1, 2 * pad + 1)
    rows = top[:, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(n, width)
    if flip:
        columns = torch.where(below(bits, 2, 2).bool()[:, None], width - 1 - columns, columns)
    columns = left[:, None] + columns
    source = (rows * padded_width)[:, :, None] + columns[:, None, :]
    source = source.view(n, 1, height * width).expand(n, channels, height * width)
    return images.flatten(2).gather(2, source).view(n, channels, height, width)


def crop_boxes(
    key: int, index: torch.Tensor, height: torch.Tensor, width: torch.Tensor, augment: Augment
) -> torch.Tensor:
    """Draws one box (top, left, height, width) per image, of its own height and width, for the random resized crop.

    Attempt j of image i uses the counter 16 i + j. Logarithms and powers differ in the last bit between devices, so
    the log-uniform aspect ratio comes from a table of 4,096 steps that Python computes; what is left (product,
    quotient, square root, rounding to even) is exact to the last bit in float64.

    >>> size = torch.tensor([32])
    >>> top, left, height, width = crop_boxes(0, torch.tensor([5]), size, size, Augment(resized_crop=True))[0].tolist()
    >>> top + height <= 32 and left + width <= 32
    True
    """
    bits = draw(key, index[:, None] * 16 + torch.arange(_TRIES, device=index.device))
    low, high = augment.scale
    area = (height * width).double()[:, None] * (uniform(bits, 0) * (high - low) + low)
    ratio = _ratio_table(*augment.ratio).to(index.device)[below(bits, 1, _RATIO_STEPS)]
    w, h = torch.sqrt(area * ratio).round().long(), torch.sqrt(area / ratio).round().long()
    fits = (w >= 1) & (h >= 1) & (w <= width[:, None]) & (h <= height[:, None])
    first, found = fits.long().argmax(1, keepdim=True), fits.any(1)

    # where no attempt fits: the largest central box whose aspect ratio is allowed
    low, high = augment.ratio
    widest = torch.minimum(width, (height.double() * high).round().long().clamp(min=1))
    tallest = torch.minimum(height, (width.double() / low).round().long().clamp(min=1))
    w = torch.where(found, w.gather(1, first).squeeze(1), widest)
    h = torch.where(found, h.gather(1, first).squeeze(1), tallest)
    place = draw(key, index * 16 + _TRIES)
    top = torch.where(found, below(place, 0, height - h + 1), (height - h) // 2)
    left = torch.where(found, below(place, 1, width - w + 1), (width - w) // 2)
    return torch.stack([top, left, h, w], dim=1)


def resize_boxes(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Enlarges one box of each uint8 image to the size of the image, bilinear, with weights in steps of 1/256.

    A box is never larger than the result, so there is nothing to smooth before sampling.

    >>> image = torch.tensor([[[[0, 100], [0, 100]]]], dtype=torch.uint8)
    >>> resize_boxes(image, torch.tensor([[0, 1, 2, 1]])).tolist()
    [[[[100, 100], [100, 100]]]]
    """
    n, channels, height, width = images.shape
    y0, y1, fy = _sample(boxes[:, 0], boxes[:, 2], height)
    x0, x1, fx = _sample(boxes[:, 1], boxes[:, 3], width)
    flat = images.flatten(2)

    def corner(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        source = (y * width)[:, :, None] + x[:, None, :]
        source = source.view(n, 1, height * width).expand(n, channels, height * width)
        return flat.gather(2, source).view(images.shape).int()

    fx, fy = fx.int()[:, None, None, :], fy.int()[:, None, :, None]
    upper = corner(y0, x0) * (256 - fx) + corner(y0, x1) * fx
    lower = corner(y1, x0) * (256 - fx) + corner(y1, x1) * fx
    return ((upper * (256 - fy) + lower * fy + (1 << 15)) >> 16).to(torch.uint8)


def draws_for(index: torch.Tensor, size: tuple[int, int], augment: Augment | None, epoch_key: int) -> Draws | None:
    """Makes the random numbers for these images of one size; `epoch_key` stands for seed and epoch."""
    if augment is None or not (augment.crop_pad or augment.flip or augment.resized_crop):
        return None
    bits = draw(fold(epoch_key, CROP), index)
    if not augment.resized_crop:
        return Draws(bits)
    height, width = (torch.full_like(index, side) for side in size)
    return Draws(bits, crop_boxes(fold(epoch_key, RESIZED_CROP), index, height, width, augment))


def augment_batch(images: torch.Tensor, draws: Draws | None, augment: Augment | None) -> torch.Tensor:
    """Applies the augmentation to a uint8 batch; without draws it gives the batch back as it is."""
    if augment is None or draws is None:
        return images
    if draws.boxes is not None:
        images = resize_boxes(images, draws.boxes)
    if augment.crop_pad or augment.flip:
        images = crop_and_flip(images, draws.bits, augment.crop_pad, augment.flip)
    return images


def _sample(first: torch.Tensor, length: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Spreads `steps` sampling points over each interval: the two neighbours of each, and the weight of the second."""
    centre = torch.arange(steps, device=first.device) * 2 + 1
    last = (length - 1)[:, None]
    point = (centre * length[:, None] * 128).div(steps, rounding_mode="floor") - 128
    point = torch.minimum(point.clamp(min=0), last * 256)
    low = point >> 8
    return first[:, None] + low, first[:, None] + torch.minimum(low + 1, last), point & 255


@functools.cache
def _ratio_table(low: float, high: float) -> torch.Tensor:
    span = math.log(high) - math.log(low)
    steps = [math.exp(math.log(low) + span * (k + 0.5) / _RATIO_STEPS) for k in range(_RATIO_STEPS)]
    return torch.tensor(steps, dtype=torch.float64)
