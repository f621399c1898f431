"""Fashion-MNIST from tiny idx files: gzipped or plain, whole or damaged."""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from stompp.data import load
from stompp.data.fashion import FASHION, read_idx_set
from stompp.errors import UsageError

SHAPES = ((6, 28, 28), (6,), (4, 28, 28), (4,))
TINY = replace(FASHION, files={name: ("", shape) for name, shape in zip(FASHION.files, SHAPES)})


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def arrays():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 10 if len(shape) == 1 else 256, shape, dtype=np.uint8) for shape in SHAPES]


def write(folder, gzipped=True):
    folder.mkdir(parents=True)
    for name, array in zip(TINY.files, arrays()):
        raw = idx(array)
        (folder / (name + ".gz" * gzipped)).write_bytes(gzip.compress(raw) if gzipped else raw)


@pytest.mark.parametrize("folder", FASHION.folders)
@pytest.mark.parametrize("gzipped", [True, False])
def test_the_four_files_are_read(tmp_path, folder, gzipped):
    write(tmp_path / folder, gzipped)
    data = read_idx_set(TINY, tmp_path, download=False)
    train_images, train_labels, test_images, test_labels = arrays()
    assert np.array_equal(data.train.images.numpy(), train_images[:, None])
    assert np.array_equal(data.test.images.numpy(), test_images[:, None])
    assert data.train.labels.tolist() == train_labels.tolist()
    assert data.test.labels.tolist() == test_labels.tolist()
    assert (data.image_shape, data.num_classes) == ((1, 28, 28), 10)


def bad_label():
    return gzip.compress(idx(np.array([0, 1, 10, 3, 4, 5], np.uint8)))


GOOD = gzip.compress(idx(arrays()[1]))
DAMAGED = {
    "not gzip": (b"<html>not found</html>", "is not a gzip file"),
    "empty": (b"", "has 0 bytes, expected 14"),
    "cut short": (GOOD[:-9], "cut short or damaged"),
    "flipped bits": (GOOD[:12] + bytes([GOOD[12] ^ 255]) + GOOD[13:], "cut short or damaged|expected 14"),
    "too few": (gzip.compress(idx(arrays()[1][:5])), "has 13 bytes, expected 14"),
    "bomb": (gzip.compress(bytes(50_000_000)), "has more than 14 bytes, expected 14"),
    "wrong magic": (gzip.compress(b"\0\0\x09" + idx(arrays()[1])[3:]), "does not begin as an idx file"),
    "bad label": (bad_label(), "record 2 has the label 10"),
}


@pytest.mark.parametrize("raw, words", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, raw, words):
    write(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte.gz").write_bytes(raw)
    with pytest.raises(UsageError, match=words) as caught:
        read_idx_set(TINY, tmp_path, download=False)
    assert "train-labels-idx1-ubyte" in str(caught.value)
    assert "delete it and load again" in str(caught.value)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(UsageError, match="fashion-mnist is not there") as caught:
        load("fashion-mnist", root=tmp_path, download=False)
    for words in (tmp_path / "fashion-mnist", tmp_path / "FashionMNIST/raw", "train-images-idx3-ubyte.gz"):
        assert str(words) in str(caught.value)
