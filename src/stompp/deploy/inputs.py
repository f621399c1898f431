"""What `stompp run` gives to a packed net: images from files, as the net's own file says. Needs no PyTorch.

Pixels, 0 to 255, are normalised by the mean and std in the net's file. A net that was saved through the API has none;
it takes float32 values that are normalised already. What a file says of itself is believed only where float32 can
hold it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stompp.deploy.graph import Graph
from stompp.errors import UsageError

MOST_QUOTED = 60  # characters of a text of the file, in an error


def read(path: Path, net: Path, graph: Graph) -> list[tuple[str, np.ndarray]]:
    """Return the images in a file with their names: uint8 pixels, or float32 values that are normalised already."""
    from stompp.training.images import read_images

    shape = graph.input
    array = _array(path) if path.suffix == ".npy" and path.is_file() else None
    if array is not None and array.dtype != np.uint8:
        return _values(path, array, shape)
    if len(shape) != 3:
        raise UsageError(
            f"{net} takes {shape[0]} features and no pixels; give a .npy file of {_wanted(shape)}, normalised as its "
            "training data were"
        )
    return read_images(path, shape)


def class_names(net: Path, graph: Graph) -> list[str]:
    """Return the names of the classes, or their numbers if the file has no names. They may hold anything."""
    count = graph.output[0]
    if "classes" not in graph.meta:
        return [str(i) for i in range(count)]
    names = _list(graph, "classes", count)
    if names is None:
        raise _refusal(net, graph, "classes", f"a JSON list of {count} names", "pack the net again")
    return [str(name) for name in names]


def normalisation(net: Path, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and std of pixels from 0 to 1, shaped (channels, 1, 1)."""
    missing = " and no ".join(key for key in ("mean", "std") if key not in graph.meta)
    if missing:
        raise UsageError(
            f"{net} does not say how its training images were normalised (it has no {missing}), so it takes no pixels; "
            f"give .npy files of {_wanted(graph.input)}, normalised already, or pack the net with "
            "meta={'mean': '[...]', 'std': '[...]'}, as `stompp pack` does"
        )
    mean, std = (_numbers(net, graph, key) for key in ("mean", "std"))
    with np.errstate(over="ignore"):
        darkest, brightest = (-mean / std, (np.float32(1) - mean) / std)
    if not (np.isfinite(darkest).all() and np.isfinite(brightest).all()):
        raise _refusal(net, graph, "std", "what float32 pixels can be divided by", "pack the net again")
    return mean, std


def _array(path: Path) -> np.ndarray | None:
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):
        return None  # read_images reads it too, and says what is wrong


def _values(path: Path, array: np.ndarray, shape: tuple[int, ...]) -> list[tuple[str, np.ndarray]]:
    many = array[None] if array.ndim == len(shape) else array
    if array.dtype != np.float32 or many.shape[1:] != shape or not many.size:
        pixels = "uint8 pixels of shape (H, W), (H, W, C) or (N, H, W, C), or " if len(shape) == 3 else ""
        raise UsageError(
            f"{path} holds {array.dtype} of shape {array.shape}; write {pixels}{_wanted(shape)}, normalised already"
        )
    if not np.isfinite(many).all():
        raise UsageError(f"{path} has values that are infinite or no numbers; write finite ones")
    return [(path.name if len(many) == 1 else f"{path.name}[{i}]", image) for i, image in enumerate(many)]


def _wanted(shape: tuple[int, ...]) -> str:
    return f"float32 values of shape (N, {', '.join(map(str, shape))})"


def _numbers(net: Path, graph: Graph, key: str) -> np.ndarray:
    channels = graph.input[0]
    items = _list(graph, key, channels) or []
    with np.errstate(over="ignore"):
        try:
            numbers = np.array([float(item) for item in items if type(item) in (int, float)]).astype(np.float32)
        except OverflowError:  # an integer of hundreds of digits
            numbers = np.array([np.inf], np.float32)
    if len(numbers) != channels or not np.isfinite(numbers).all() or (key == "std" and not (numbers > 0).all()):
        wanted = f"a JSON list of {channels} number{'s' if channels > 1 else ''} that float32 can hold"
        remedy = "pack the net again, or give it .npy files of normalised float32 values"
        raise _refusal(net, graph, key, wanted + (", above 0" if key == "std" else ""), remedy)
    return numbers[:, None, None]


def _list(graph: Graph, key: str, count: int) -> list[Any] | None:
    """Return the list that a text of the file is in JSON, or None if it is none of that length."""
    try:
        items = json.loads(graph.meta[key])
    except (ValueError, RecursionError):
        return None
    return items if isinstance(items, list) and len(items) == count else None


def _refusal(net: Path, graph: Graph, key: str, wanted: str, remedy: str) -> UsageError:
    text = graph.meta[key]
    shown = text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."
    return UsageError(f"{net}: its {key!r} is {shown!r}, not {wanted}; {remedy}")
