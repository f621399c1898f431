"""pack: a trained model becomes a packed network that runs without PyTorch."""

from __future__ import annotations

import copy

import torch
from torch import nn

from stompp.core.freeze import sites
from stompp.core.prepare import convert
from stompp.deploy.fold import fold, refuse_unknown
from stompp.deploy.lower import lower
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError


def pack(
    model: nn.Module,
    example: torch.Tensor,
    *,
    floats: str = "fp32",
    meta: dict[str, str] | None = None,
    threads: int | None = None,
) -> PackedNet:
    """Return the packed twin of a converted model, or of a prepared one whose sites are all frozen.

    example: an input batch. With floats="int8" it also sets ranges, so give a few dozen real images then.
    floats: how layers with real-valued weights (the stem, projections, the classifier) are computed: fp32, bf16, int8.
    meta: texts to keep in the file, such as class names.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> pack(net, torch.zeros(1, 4), threads=1).graph.output
    (2,)
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}; pack takes a torch.nn.Module")
    refuse_unknown(floats)
    for site in sites(model, scheduled=False):
        if site.phase != "frozen":
            raise UsageError(
                f"site {site.name!r} is {site.phase}: only a finished net can be packed; train it to its end"
            )
    if not isinstance(example, torch.Tensor):
        raise UsageError(
            f"example must be a torch.Tensor, not {type(example).__name__}: a batch of images or of features"
        )
    if example.ndim not in (2, 4) or not example.numel():
        raise UsageError(
            "example must be a batch of images (n, channels, height, width), or of features (n, features), not of "
            f"shape {tuple(example.shape)}; nets of sequences and of volumes cannot be packed"
        )
    if not example.is_floating_point() or not example.isfinite().all():
        raise UsageError("example must hold finite floats, normalised as the images that the model was trained on")
    if not all(isinstance(text, str) for item in (meta or {}).items() for text in item):
        raise UsageError("meta must map texts to texts")
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # deepcopy raises what it likes
        raise UsageError(f"the model cannot be copied ({error}); pack a freshly loaded one") from error
    return PackedNet(fold(lower(convert(copied), example), floats, meta), threads=threads)
