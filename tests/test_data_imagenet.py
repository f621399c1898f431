"""ImageNet folders from a handful of tiny JPEG files: streaming, keyed crops, workers, damage."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from stompp.data import Augment, Batches, load
from stompp.data.augment import crop_boxes
from stompp.data.hashing import CROP, RESIZED_CROP, below, draw, fold
from stompp.data.imagenet import read_image
from stompp.errors import UsageError

Image = pytest.importorskip("PIL.Image")

AUGMENT = Augment(resized_crop=True, flip=True)
WNIDS = ("n01440764", "n01443537", "n02085620")


@pytest.fixture
def root(tmp_path):
    generator = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for label, wnid in enumerate(WNIDS):
            folder = tmp_path / part / wnid
            folder.mkdir(parents=True)
            (folder / "notes.txt").write_text("not an image")
            for i in range(count):
                height, width = generator.integers(40, 90, 2)
                pixels = generator.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).resize((int(width), int(height)))
                (image.convert("L") if (label, i) == (1, 1) else image).save(folder / f"{wnid}_{i}.JPEG", "JPEG")
    return tmp_path


def batches(root, batch_size=4, workers=0, limit=None, **arguments):
    data = load("imagenet", root=root, limit_train=limit)
    split = replace(data.train, workers=workers)
    return Batches(split, batch_size, data.mean, data.std, drop_last=False, **arguments)


def test_the_folders_are_listed(root):
    data = load("imagenet", root=root)
    assert (data.classes, len(data.train), len(data.test), data.image_shape) == (WNIDS, 12, 6, (3, 224, 224))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    (root / "below").mkdir()
    (root / "below" / "imagenet").symlink_to(root)
    assert load("imagenet", root=root / "below").train.labels.tolist() == data.train.labels.tolist()


def test_an_epoch_holds_every_image_once_at_full_size(root):
    steps = list(batches(root, 5, augment=AUGMENT).epoch(0))
    assert [tuple(x.shape) for x, _ in steps] == [(5, 3, 224, 224)] * 2 + [(2, 3, 224, 224)]
    assert sorted(torch.cat([y for _, y in steps]).tolist()) == [0] * 4 + [1] * 4 + [2] * 4


def test_training_pixels_equal_a_slow_reading(root):
    """Each image, decoded, cropped, resized and mirrored by hand, is what the batch holds, bit for bit."""
    stream, mean, std = batches(root, 4, augment=AUGMENT, seed=3), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    order, key = stream.order(7).tolist(), fold(3, 7)
    images = torch.cat([x for x, _ in stream.epoch(7)])
    mirrored = 0
    for i, got in zip(order, images):
        image = Image.open(stream.split.paths[i]).convert("RGB")
        size = torch.tensor([image.height]), torch.tensor([image.width])
        top, left, h, w = crop_boxes(fold(key, RESIZED_CROP), torch.tensor([i]), *size, AUGMENT)[0].tolist()
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
        if int(below(draw(fold(key, CROP), torch.tensor([i])), 2, 2)):
            image, mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mirrored + 1
        for c in range(3):
            plane = np.asarray(image)[:, :, c].astype(np.float32)
            expected = (plane - np.float32(255 * mean[c])) * np.float32(1 / (255 * std[c]))
            assert np.array_equal(got[c].numpy(), expected)
    assert 0 < mirrored < 12


def test_test_images_are_the_central_square(root):
    data = load("imagenet", root=root)
    image = Image.open(data.test.paths[0]).convert("RGB")
    short = min(image.size)
    scale = 256 / short
    resized = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    usual = np.asarray(resized.crop((left, top, left + 224, top + 224))).astype(int)
    ours = read_image(data.test.paths[0], 0, None, 0).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(usual - ours).mean() < 2  # one resize in place of two steps: the same but for rounding


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12: fork in a process with threads
def test_workers_batch_size_and_resume_change_no_pixel(root):
    reference = batches(root, 1, augment=AUGMENT)
    images = dict(zip(reference.order(1).tolist(), (x[0] for x, _ in reference.epoch(1))))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    stream = batches(root, 5, workers=2, augment=AUGMENT)
    order = stream.order(1).tolist()
    for start in (0, 1):
        got = torch.cat([x for x, _ in stream.epoch(1, start)])
        assert torch.equal(got, torch.stack([images[i] for i in order[5 * start :]]))
    assert torch.equal(torch.get_rng_state(), state)


def test_limit_train_draws_from_all_classes(root):
    data = load("imagenet", root=root, limit_train=6)
    assert len(data.train) == len(data.train.labels) == 6
    assert len(set(data.train.labels.tolist())) > 1
    assert data.train.paths == load("imagenet", root=root, limit_train=6).train.paths


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("raw", [b"", b"<html>", "short"])
def test_an_image_that_cannot_be_decoded_is_named_in_one_line(root, raw, workers):
    path = root / "train" / WNIDS[2] / f"{WNIDS[2]}_1.JPEG"
    path.write_bytes(path.read_bytes()[:300] if raw == "short" else raw)
    with pytest.raises(UsageError, match="cannot be decoded") as caught:
        list(batches(root, workers=workers, augment=AUGMENT).epoch(0))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_padded_crop_is_refused(root):
    with pytest.raises(UsageError, match="imagenet has no padded crop"):
        next(iter(batches(root, augment=Augment(crop_pad=4)).epoch(0)))


def test_missing_folders_say_what_to_put_where(root):
    for part, words in (("val", "looked for .*val"), ("train", "looked for .*train")):
        (root / part).rename(root / "gone")
        with pytest.raises(UsageError, match=words):
            load("imagenet", root=root)
        (root / "gone").rename(root / part)


def test_a_flat_validation_folder_is_refused(root):
    for path in list((root / "val").glob("*/*")):
        path.rename(root / "val" / path.name)
    with pytest.raises(UsageError, match="one folder per class"):
        load("imagenet", root=root)


def test_classes_must_agree(root):
    (root / "val" / "n99999999").mkdir()
    with pytest.raises(UsageError, match="n99999999 is in only one of train and val"):
        load("imagenet", root=root)


def test_without_pillow_the_extra_is_named(root):
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from stompp.data import load\n"
        "try: load('imagenet', root=sys.argv[1])\n"
        "except ValueError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    assert "pip install 'stompp[imagenet]'" in result.stdout
