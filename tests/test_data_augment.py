"""Augmentation of a batch against a slow twin: one image, one pixel at a time, in plain Python integers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stompp.data import Augment, Batches, Split
from stompp.data.augment import augment_batch, crop_boxes, draws_for, resize_boxes
from stompp.errors import UsageError

MASK = (1 << 64) - 1
ORDER, CROP, RESIZED_CROP = 1, 2, 3


def twin_hash(*words, counter=None):
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    key = 0
    for word in words:
        key = mix(((key ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK)
    return key if counter is None else mix((key + 0x9E3779B97F4A7C15 * (counter + 1)) & MASK)


def twin_field(bits, number):
    return (bits >> (21 * number)) % (1 << 21)


def twin_crop_and_flip(image, bits, pad, flip):
    channels, height, width = len(image), len(image[0]), len(image[0][0])
    top = twin_field(bits, 0) * (2 * pad + 1) >> 21
    left = twin_field(bits, 1) * (2 * pad + 1) >> 21
    mirror = flip and twin_field(bits, 2) >= 1 << 20
    result = []
    for c in range(channels):
        rows = []
        for y in range(height):
            row = []
            for x in range(width):
                source_y, source_x = top + y - pad, left + x - pad
                inside = 0 <= source_y < height and 0 <= source_x < width
                row.append(image[c][source_y][source_x] if inside else 0)
            rows.append(row[::-1] if mirror else row)
        result.append(rows)
    return result


def twin_box(key, index, height, width, scale, ratio):
    for attempt in range(10):
        bits = twin_hash(key, RESIZED_CROP, counter=16 * index + attempt)
        area = height * width * ((twin_field(bits, 0) + 0.5) / (1 << 21) * (scale[1] - scale[0]) + scale[0])
        step = twin_field(bits, 1) * 4096 >> 21
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + (high - low) * (step + 0.5) / 4096)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 1 <= w <= width and 1 <= h <= height:
            place = twin_hash(key, RESIZED_CROP, counter=16 * index + 10)
            return (
                twin_field(place, 0) * (height - h + 1) >> 21,
                twin_field(place, 1) * (width - w + 1) >> 21,
                h,
                w,
            )
    w, h = min(width, max(1, round(height * ratio[1]))), min(height, max(1, round(width / ratio[0])))
    return (height - h) // 2, (width - w) // 2, h, w


def twin_resize(image, box):
    top, left, h, w = box
    height, width = len(image[0]), len(image[0][0])

    def sample(step, steps, first, length):
        point = (2 * step + 1) * length * 128 // steps - 128
        point = min(max(point, 0), (length - 1) * 256)
        return first + point // 256, first + min(point // 256 + 1, length - 1), point % 256

    result = []
    for plane in image:
        rows = []
        for y in range(height):
            y0, y1, fy = sample(y, height, top, h)
            row = []
            for x in range(width):
                x0, x1, fx = sample(x, width, left, w)
                upper = plane[y0][x0] * (256 - fx) + plane[y0][x1] * fx
                lower = plane[y1][x0] * (256 - fx) + plane[y1][x1] * fx
                row.append((upper * (256 - fy) + lower * fy + 32768) // 65536)
            rows.append(row)
        result.append(rows)
    return result


def twin_batch(split, indices, augment, seed, epoch, mean, std):
    key = twin_hash(seed, epoch)
    result = []
    for i in indices:
        image = split.images[i].tolist()
        height, width = len(image[0]), len(image[0][0])
        if augment is not None and augment.resized_crop:
            image = twin_resize(image, twin_box(key, i, height, width, augment.scale, augment.ratio))
        if augment is not None:
            image = twin_crop_and_flip(image, twin_hash(key, CROP, counter=i), augment.crop_pad, augment.flip)
        planes = []
        for plane, m, s in zip(image, mean, std):
            values = np.array(plane, dtype=np.float32)
            planes.append((values - np.float32(255 * m)) * np.float32(1 / (255 * s)))
        result.append(np.stack(planes))
    return np.stack(result)


def random_split(n, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)
    return Split(images, torch.randint(0, 10, (n,), generator=generator))


augments = st.one_of(
    st.none(),
    st.builds(Augment, crop_pad=st.integers(0, 4), flip=st.booleans()),
    st.builds(
        Augment,
        flip=st.booleans(),
        resized_crop=st.just(True),
        scale=st.sampled_from([(0.08, 1.0), (0.9, 1.0), (1.0, 1.0)]),
        ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (2.0, 3.0)]),
    ),
)


@settings(max_examples=40, deadline=None)
@given(
    augments,
    st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    st.integers(0, 1 << 40),
    st.integers(0, 300),
)
def test_batches_equal_the_slow_twin_bit_for_bit(augment, shape, seed, epoch):
    split = random_split(7, shape, seed)
    mean, std = (0.5071, 0.4865, 0.4409)[: shape[0]], (0.2673, 0.2564, 0.2762)[: shape[0]]
    batches = Batches(split, 3, mean, std, augment=augment, seed=seed, drop_last=False)
    order = sorted(
        range(7), key=lambda i: (twin_hash(seed, epoch, ORDER, counter=i) + (1 << 63)) & MASK
    )  # the order of signed numbers
    for step, (images, labels) in enumerate(batches.epoch(epoch)):
        indices = order[3 * step : 3 * step + 3]
        assert labels.tolist() == split.labels[indices].tolist()
        expected = twin_batch(split, indices, augment, seed, epoch, mean, std)
        assert np.array_equal(images.numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("augment", [Augment(crop_pad=4, flip=True), Augment(resized_crop=True, flip=True)])
def test_full_size_batch_equals_the_slow_twin(augment):
    split = random_split(6, (3, 32, 32))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    batches = Batches(split, 6, mean, std, augment=augment, shuffle=False)
    images, _ = next(iter(batches.epoch(2)))
    assert np.array_equal(images.numpy(), twin_batch(split, range(6), augment, 0, 2, mean, std))


def test_the_result_for_an_image_does_not_depend_on_its_batch():
    split, augment = random_split(20, (3, 8, 8)), Augment(crop_pad=2, flip=True)

    def apply(index):
        return augment_batch(split.images[index], draws_for(index, (8, 8), augment, 99), augment)

    whole = apply(torch.arange(20))
    for i in range(20):
        assert torch.equal(apply(torch.tensor([i])), whole[i : i + 1])


def test_crops_reach_every_offset_and_flips_are_even():
    image = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8)
    index, augment = torch.arange(20_000), Augment(crop_pad=1, flip=True)
    draws = draws_for(index, (8, 8), augment, 7)
    crops = augment_batch(image.expand(20_000, 1, 8, 8).contiguous(), draws, augment)
    kinds, counts = torch.unique(crops.flatten(1), dim=0, return_counts=True)
    assert len(kinds) == 9 * 2
    assert counts.min() > 0.85 * 20_000 / 18


def test_resized_crop_boxes_have_the_area_and_ratio_asked_for():
    augment = Augment(resized_crop=True)
    index = torch.arange(4000)
    height, width = torch.full_like(index, 400), torch.full_like(index, 500)
    top, left, h, w = crop_boxes(11, index, height, width, augment).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= 400).all()
    assert (left + w <= 500).all()
    share = (h * w).double() / (400 * 500)
    assert 0.078 < share.min() < 0.10
    assert 0.9 < share.max() <= 1.0
    aspect = w / h
    assert 0.74 < aspect.min() < 0.78
    assert 1.30 < aspect.max() < 1.35


def test_resizing_the_whole_image_changes_nothing():
    images = random_split(3, (2, 5, 9)).images
    assert torch.equal(resize_boxes(images, torch.tensor([[0, 0, 5, 9]] * 3)), images)


def test_resizing_agrees_with_bilinear_interpolation():
    images = random_split(4, (3, 16, 16)).images
    boxes = torch.tensor([[0, 0, 8, 8], [3, 5, 11, 7], [15, 15, 1, 1], [2, 0, 4, 16]])
    for image, resized, (top, left, h, w) in zip(images, resize_boxes(images, boxes), boxes.tolist()):
        part = image[None, :, top : top + h, left : left + w].float()
        expected = torch.nn.functional.interpolate(part, size=(16, 16), mode="bilinear", align_corners=False)
        assert (resized.float() - expected[0]).abs().max() <= 1.5  # weights in steps of 1/256, one rounding


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"crop_pad": -1}, "cannot be negative"),
        ({"crop_pad": 4, "resized_crop": True}, "exclude each other"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"scale": (0.5, 0.2)}, "scale"),
        ({"ratio": (2.0, 1.0)}, "ratio"),
    ],
)
def test_augment_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(UsageError, match=message):
        Augment(**arguments)
