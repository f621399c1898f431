"""Classify image files with the binary net of a finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from stompp.core.freeze import fully_binary
from stompp.core.trace import evaluating
from stompp.errors import UsageError

from .build import open_run
from .options import MachineOptions

Ranking = list[tuple[str, float]]


def classify(
    run: Path, files: tuple[Path, ...], options: MachineOptions, device: torch.device, top: int
) -> list[tuple[str, Ranking]]:
    """Return, for every image, its name and the `top` likeliest classes with their probabilities."""
    if top < 1:
        raise UsageError(f"top is {top}; it must be at least 1")
    _, _, data, model = open_run(run, options, device)
    named = [image for file in files for image in read_images(file, data.image_shape)]
    mean = torch.tensor(data.mean).view(1, -1, 1, 1)
    std = torch.tensor(data.std).view(1, -1, 1, 1)
    images = (torch.stack([pixels for _, pixels in named]).float() / 255 - mean) / std
    with fully_binary(model), evaluating(model):
        likely = F.softmax(torch.cat([model(part.to(device)).cpu() for part in images.split(256)]), 1)
    ranked = likely.sort(1, descending=True)
    return [
        (name, [(data.classes[i], p) for p, i in zip(ps[:top].tolist(), order[:top].tolist())])
        for (name, _), ps, order in zip(named, ranked.values, ranked.indices)
    ]


def read_images(file: Path, shape: tuple[int, int, int]) -> list[tuple[str, torch.Tensor]]:
    """Return the images in a file as uint8 (C, H, W), resized to the shape the net was trained on."""
    if not file.is_file():
        raise UsageError(f"there is no image file {file}")
    if file.suffix == ".npy":
        arrays = _read_npy(file)
        names = [file.name] if len(arrays) == 1 else [f"{file.name}[{i}]" for i in range(len(arrays))]
    else:
        arrays, names = [_read_picture(file, shape[0])], [file.name]
    return [(name, _fit(array, shape, name)) for name, array in zip(names, arrays)]


def _read_npy(file: Path) -> list[np.ndarray]:
    try:
        with file.open("rb") as opened:
            array = np.lib.format.read_array(opened, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UsageError(f"{file} is not a readable .npy file ({' '.join(str(error).split())})") from None
    if array.dtype != np.uint8 or array.ndim not in (2, 3, 4) or array.size == 0:
        raise UsageError(
            f"{file} holds {array.dtype} of shape {array.shape}; write uint8 pixels of shape (H, W), (H, W, C) or "
            "(N, H, W, C), at least one"
        )
    if array.ndim == 2:
        array = array[:, :, None]
    return list(array) if array.ndim == 4 else [array]


def _read_picture(file: Path, channels: int) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("reading pictures needs Pillow: pip install 'stompp[imagenet]', or give .npy files") from None
    try:
        with Image.open(file) as picture:
            array = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file} is not a picture that Pillow can read ({error})") from None
    return array[:, :, None] if array.ndim == 2 else array


def _fit(array: np.ndarray, shape: tuple[int, int, int], name: str) -> torch.Tensor:
    channels, height, width = shape
    if array.shape[2] != channels:
        raise UsageError(f"{name} has {array.shape[2]} channels; the net takes {channels}")
    pixels = torch.from_numpy(array.copy()).permute(2, 0, 1)
    if pixels.shape[1:] != (height, width):
        resized = F.interpolate(pixels[None].float(), (height, width), mode="bilinear", antialias=True)
        pixels = resized[0].round().clamp(0, 255).to(torch.uint8)
    return pixels
