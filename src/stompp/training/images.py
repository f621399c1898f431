"""Images from files as uint8 arrays of the size a net takes. Needs numpy alone, and Pillow for pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stompp.errors import UsageError


def read_images(file: Path, shape: tuple[int, int, int]) -> list[tuple[str, np.ndarray]]:
    """Return the images in a file with their names, as uint8 (C, H, W), resized to the shape."""
    if not file.is_file():
        raise UsageError(f"there is no image file {file}")
    if file.suffix == ".npy":
        arrays = _read_npy(file)
        names = [file.name] if len(arrays) == 1 else [f"{file.name}[{i}]" for i in range(len(arrays))]
    else:
        arrays, names = [_read_picture(file, shape[0])], [file.name]
    return [(name, _fit(array, shape, name)) for name, array in zip(names, arrays)]


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize (H, W, C) by a triangle filter that widens where the image shrinks (bilinear, antialiased).

    >>> resize(np.arange(4.0).reshape(1, 4, 1), 1, 2).ravel().round(3).tolist()
    [0.714, 2.286]
    """
    rows, cols = _filter(image.shape[0], height), _filter(image.shape[1], width)
    made: np.ndarray = np.einsum("ih,hwc,jw->ijc", rows, image.astype(np.float64), cols, optimize=True)
    return made


def _filter(size: int, outputs: int) -> np.ndarray:
    """Return one row of weights over the inputs for each output."""
    scale = size / outputs
    reach = max(scale, 1.0)
    centers = (np.arange(outputs)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(size) + 0.5 - centers) / reach
    weights = np.maximum(1.0 - distance, 0.0)
    return weights / weights.sum(1, keepdims=True)


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
            array = np.array(picture.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file} is not a picture that Pillow can read ({error})") from None
    return array[:, :, None] if array.ndim == 2 else array


def _fit(array: np.ndarray, shape: tuple[int, int, int], name: str) -> np.ndarray:
    channels, height, width = shape
    if array.shape[2] != channels:
        raise UsageError(f"{name} has {array.shape[2]} channels; the net takes {channels}")
    if array.shape[:2] != (height, width):
        array = resize(array, height, width).round().clip(0, 255).astype(np.uint8)
    return array.transpose(2, 0, 1).copy()
