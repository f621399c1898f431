"""How often OvSW's adaptive gradient scaling acts: the share of filters whose gradient is under delta of their weights.

    python benchmarks/ovsw_reach.py --model cifar_resnet8 --data cifar10-16 --steps 1600 --every 200 --refresh 30
    python benchmarks/ovsw_reach.py --model resnet18 --data cifar10 --steps 60 --every 15 --total 39000

Trains with StoMPP (SGD, lr 0.1, Nesterov momentum 0.9, batch 128) and prints, for the weight sites that are not frozen,
quantiles of |g| / |w| over their filters, open entries only. Under delta = 0.01 OvSW scales the gradient up.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional as F

import stompp
from stompp.core.layers import _BinaryLayer
from stompp.data import Batches, load

DELTA = 0.01


def ratios(model: nn.Module) -> torch.Tensor:
    """|g| / |w| of every filter that gets a gradient."""
    found = [torch.empty(0)]
    for layer in model.modules():
        if isinstance(layer, _BinaryLayer) and layer.site is not None and layer.weight.grad is not None:
            weight = layer.weight.detach()
            used = weight if layer.site.mask is None else weight * ~layer.site.mask
            norms = used.flatten(1).norm(dim=1).clamp_min(1e-12)
            found.append(layer.weight.grad.flatten(1).norm(dim=1) / norms)
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet8")
    parser.add_argument("--data", default="cifar10-16")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument(
        "--total", type=int, default=4680, help="steps of the whole training, of which these are the first"
    )
    parser.add_argument("--refresh", type=int, default=100)
    given = parser.parse_args()
    torch.manual_seed(0)
    data = load(given.data)
    batches = Batches(data.train, 128, data.mean, data.std, shuffle=True, drop_last=True)
    stream = itertools.chain.from_iterable(batches.epoch(epoch) for epoch in itertools.count())
    model = stompp.models.build(given.model, num_classes=data.num_classes)
    stompp.prepare(model, torch.zeros(2, *data.image_shape))
    freezer = stompp.Freezer(model, given.total, refresh=given.refresh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    print("| step | filters | 10 % | median | 90 % | under delta |\n|---|---|---|---|---|---|")
    for t, (images, labels) in enumerate(itertools.islice(stream, given.steps)):
        freezer.step(t)
        F.cross_entropy(model(images), labels).backward()
        if (t + 1) % given.every == 0:
            found = ratios(model)
            quantiles = torch.quantile(found, torch.tensor([0.1, 0.5, 0.9])).tolist()
            cells = [
                str(t + 1),
                str(len(found)),
                *(f"{q:.4f}" for q in quantiles),
                f"{(found < DELTA).float().mean():.0%}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
