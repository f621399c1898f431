"""Classify image files with the binary net of a finished run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional as F

from stompp.core.freeze import fully_binary
from stompp.core.trace import evaluating
from stompp.errors import UsageError

from .build import open_run
from .images import read_images
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
    images = (torch.stack([torch.from_numpy(pixels) for _, pixels in named]).float() / 255 - mean) / std
    with fully_binary(model), evaluating(model):
        likely = F.softmax(torch.cat([model(part.to(device)).cpu() for part in images.split(256)]), 1)
    ranked = likely.sort(1, descending=True)
    return [
        (name, [(data.classes[i], p) for p, i in zip(ps[:top].tolist(), order[:top].tolist())])
        for (name, _), ps, order in zip(named, ranked.values, ranked.indices)
    ]
