"""Images from files, without PyTorch: the same pixels as PyTorch's own resizing gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stompp.training.images import read_images, resize


@pytest.mark.parametrize("before", [(20, 30), (5, 7), (224, 100), (1, 1), (8, 8), (3, 301)])
@pytest.mark.parametrize("after", [(8, 8), (16, 5), (1, 1)])
def test_resize_equals_pytorch(before: tuple[int, int], after: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*before, 3)).astype(np.uint8)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    want = F.interpolate(planes, after, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    np.testing.assert_allclose(resize(image, *after), want.numpy(), atol=1e-3)


def test_read_images_gives_planes_of_the_shape(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3)).astype(np.uint8)
    np.save(tmp_path / "two.npy", images)
    (first, pixels), (second, _) = read_images(tmp_path / "two.npy", (3, 9, 7))
    assert (first, second) == ("two.npy[0]", "two.npy[1]")
    np.testing.assert_array_equal(pixels, images[0].transpose(2, 0, 1))
    (_, pixels), _ = read_images(tmp_path / "two.npy", (3, 4, 4))
    assert pixels.shape == (3, 4, 4)
    assert pixels.dtype == np.uint8
