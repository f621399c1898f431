"""CIFAR in both layouts, from tiny files in the official formats; and the real CIFAR-10 where it is there."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stompp.data import load
from stompp.data.cifar import CIFAR10, CIFAR100, average_blocks, read_cifar
from stompp.errors import UsageError

TINY10 = replace(CIFAR10, train_records=7, test_records=4)
TINY100 = replace(CIFAR100, train_records=9, test_records=4)
LAYOUTS = pytest.mark.parametrize("layout", [TINY10, TINY100], ids=["cifar10", "cifar100"])


def records(layout, n, seed):
    """Makes n random records: the bytes of the binary file, the images, the labels."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, len(layout.classes), n, dtype=np.uint8)
    coarse = generator.integers(0, 20, n, dtype=np.uint8)
    head = [coarse, labels] if layout.label_bytes == 2 else [labels]
    return np.concatenate([np.stack(head, 1), images.reshape(n, -1)], 1).tobytes(), images, labels


def write_binary(layout, root):
    folder = root / layout.binary_folder
    folder.mkdir(parents=True)
    for seed, (name, n) in enumerate(layout.files()):
        (folder / f"{name}.bin").write_bytes(records(layout, n, seed)[0])
    return folder


def write_python(layout, root):
    folder = root / layout.python_folder
    folder.mkdir(parents=True)
    for seed, (name, n) in enumerate(layout.files()):
        _, images, labels = records(layout, n, seed)
        batch = {b"data": images.reshape(n, -1), layout.label_key.encode(): labels.tolist(), b"coarse_labels": [0] * n}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    return folder


@LAYOUTS
@pytest.mark.parametrize("write", [write_binary, write_python])
def test_either_layout_is_read(tmp_path, layout, write):
    folder = write(layout, tmp_path)
    parts = [records(layout, n, seed) for seed, (_, n) in enumerate(layout.files())]
    for root in (tmp_path, folder):  # the folder itself may be given too
        data = read_cifar(layout, root, download=False)
        assert torch.equal(data.train.images, torch.from_numpy(np.concatenate([p[1] for p in parts[:-1]])))
        assert data.train.labels.tolist() == np.concatenate([p[2] for p in parts[:-1]]).tolist()
        assert torch.equal(data.test.images, torch.from_numpy(parts[-1][1]))
        assert data.test.labels.tolist() == parts[-1][2].tolist()
        assert (data.train.images.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
        assert data.train.images.is_contiguous()


def test_the_binary_layout_is_preferred(tmp_path):
    write_binary(TINY10, tmp_path)
    (tmp_path / TINY10.python_folder).mkdir()
    assert len(read_cifar(TINY10, tmp_path, download=False).train) == 35


@LAYOUTS
def test_the_16_pixel_variant_averages_blocks_and_rounds_half_up(tmp_path, layout):
    write_binary(layout, tmp_path)
    whole, half = (read_cifar(layout, tmp_path, download=False, halve=halve) for halve in (False, True))
    assert half.name == f"{layout.name}-16"
    assert half.image_shape == (3, 16, 16)
    assert torch.equal(half.train.labels, whole.train.labels)
    for image, small in zip(whole.test.images.tolist(), half.test.images.tolist()):
        for c in range(3):
            for y in range(16):
                for x in range(16):
                    block = [image[c][2 * y + dy][2 * x + dx] for dy in (0, 1) for dx in (0, 1)]
                    assert small[c][y][x] == int(sum(block) / 4 + 0.5)


def test_averaging_does_not_overflow():
    assert average_blocks(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).item() == 255


def test_classes_and_constants():
    for layout, n in ((CIFAR10, 10), (CIFAR100, 100)):
        assert len(set(layout.classes)) == n
        assert list(layout.classes) == sorted(layout.classes)
    assert CIFAR10.size(10_000) == 30_730_000
    assert CIFAR100.size(50_000) == 153_700_000


def damage(layout, folder, kind):
    first, name = folder / (layout.train_files[0] + folder.suffix), layout.train_files[0]
    path = folder / f"{name}.bin" if (folder / f"{name}.bin").exists() else first
    raw = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "short":
        path.write_bytes(raw[:-100])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "long":
        path.write_bytes(raw + b"x")
    elif kind == "label":
        at = 2 * (layout.label_bytes + 3072) + layout.label_bytes - 1
        path.write_bytes(raw[:at] + bytes([len(layout.classes)]) + raw[at + 1 :])
    return path


@LAYOUTS
@pytest.mark.parametrize(
    "kind, words",
    [
        ("missing", "is missing though its folder is there"),
        ("short", "it is cut short"),
        ("empty", "has 0 bytes, expected"),
        ("long", "not this CIFAR set"),
        ("label", "record 2 has the label"),
    ],
)
def test_a_damaged_binary_file_is_named_with_the_remedy(tmp_path, layout, kind, words):
    folder = write_binary(layout, tmp_path)
    path = damage(layout, folder, kind)
    with pytest.raises(UsageError, match=words) as caught:
        read_cifar(layout, tmp_path, download=False)
    message = str(caught.value)
    assert str(path) in message
    assert f"delete the folder {folder} and load again" in message
    assert "\n" not in message


def test_expected_and_found_sizes_are_told(tmp_path):
    damage(TINY10, write_binary(TINY10, tmp_path), "short")
    with pytest.raises(UsageError, match="has 21411 bytes, expected 21511"):
        read_cifar(TINY10, tmp_path, download=False)


@pytest.mark.parametrize(
    "batch, words",
    [
        ({b"data": np.zeros((7, 3071), np.uint8), b"labels": [0] * 7}, "shape"),
        ({b"data": np.zeros((6, 3072), np.uint8), b"labels": [0] * 7}, "shape"),
        ({b"data": np.zeros((7, 3072), np.uint8), b"labels": [0] * 6}, "6 labels"),
        ({b"data": np.zeros((7, 3072), np.uint8), b"labels": [0] * 6 + [10]}, "record 6 has the label 10"),
        ({b"data": np.zeros((7, 3072), np.uint8), b"labels": [-1] * 7}, "record 0 has the label -1"),
        ({b"data": np.zeros((7, 3072), np.uint8)}, "no entry 'labels'"),
    ],
)
def test_a_python_batch_that_does_not_fit_is_refused(tmp_path, batch, words):
    folder = write_python(TINY10, tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(UsageError, match=words) as caught:
        read_cifar(TINY10, tmp_path, download=False)
    assert "elete the folder" in str(caught.value)


def test_a_missing_python_batch_is_named(tmp_path):
    (write_python(TINY10, tmp_path) / "test_batch").unlink()
    with pytest.raises(UsageError, match="test_batch is missing"):
        read_cifar(TINY10, tmp_path, download=False)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar10-16", "cifar100-16"])
def test_missing_data_say_where_it_was_looked_for_and_how_to_get_it(tmp_path, name):
    with pytest.raises(UsageError) as caught:
        load(name, root=tmp_path, download=False)
    layout = CIFAR100 if "100" in name else CIFAR10
    for words in (tmp_path / layout.binary_folder, tmp_path / layout.python_folder, layout.url, "STOMPP_DATA"):
        assert str(words) in str(caught.value)


def test_a_half_downloaded_archive_is_mentioned(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(b"12345")
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz\.part is half-downloaded, 5 bytes"):
        load("cifar10", root=tmp_path, download=False)


@pytest.mark.parametrize("kind", ["file in place of a folder", "folder in place of a file"])
def test_what_cannot_be_read_is_named(tmp_path, kind):
    folder = tmp_path / CIFAR10.binary_folder
    if kind == "file in place of a folder":
        folder.write_text("")
    else:
        (folder / "data_batch_1.bin").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"data_batch_1\.bin cannot be read"):
        load("cifar10", root=tmp_path, download=False)


REAL = Path("~/.cache/stompp").expanduser()
needs_cifar10 = pytest.mark.skipif(
    not (REAL / CIFAR10.binary_folder / "test_batch.bin").exists(), reason="CIFAR-10 is not in ~/.cache/stompp"
)


@needs_cifar10
def test_the_real_cifar10_is_what_it_should_be():
    data = load("cifar10", root=REAL, download=False)
    assert (len(data.train), len(data.test), data.image_shape, data.num_classes) == (50_000, 10_000, (3, 32, 32), 10)
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert [data.classes[i] for i in data.train.labels[:4]] == ["frog", "truck", "truck", "deer"]
    mean = data.train.images.sum((0, 2, 3)) / (255 * 50_000 * 1024)
    assert torch.allclose(mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4)


@needs_cifar10
def test_the_real_cifar10_at_16_pixels_keeps_the_mean():
    data = load("cifar10-16", root=REAL, download=False, limit_train=2000)
    assert (len(data.train), data.image_shape) == (2000, (3, 16, 16))
    assert data.train.images.untyped_storage().nbytes() == 2000 * 3 * 16 * 16
    whole = load("cifar10", root=REAL, download=False, limit_train=2000)
    gap = data.train.images.double().mean() - whole.train.images.double().mean()
    assert 0 < gap < 0.25  # halves round up: an eighth of a grey value on average
