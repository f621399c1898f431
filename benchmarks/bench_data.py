"""What the data path costs: index, crop, flip, normalise, cast, for one batch of 128 on a CPU.

    python benchmarks/bench_data.py [--threads 2] [--rounds 200] [--step]

Variants run interleaved, one batch of each per round, so that a slow moment of the machine falls on all of them; the
figures are medians. `--step` also times a training step of the CIFAR ResNet-18, which the data path should be compared
with. Images are random bytes: the time does not depend on what they show.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stompp.data import Augment, Batches, Split

BATCH = 128
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--step", action="store_true", help="also time a training step of the CIFAR ResNet-18")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.threads} threads, torch {torch.__version__}")
    found = measure(arguments.rounds, 5 if arguments.step else 0)
    for name, row in found["paths_ms"].items():
        print(f"{name:44s} {row['median']:8.3f} ms   (quartiles {row['low']:.3f} to {row['high']:.3f})")
    if arguments.step:
        step = found["step_ms"]["median"]
        share = found["paths_ms"]["32x32, crop and flip"]["median"] / step
        print(f"{'ResNet-18 training step, batch 128':44s} {step:8.0f} ms   data path: {100 * share:.3f} %")


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """Return quartiles in milliseconds of each variant, and of a training step if `steps` of them are asked for."""
    calls = variants()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 5):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if round_ >= 5:  # the first rounds warm up
                times[name].append(time.perf_counter() - begin)
    found: dict[str, Any] = {"rounds": rounds, "paths_ms": {name: quartiles(values) for name, values in times.items()}}
    if steps:
        found |= {"steps": steps, "step_ms": quartiles(training_steps(steps))}
    return found


def quartiles(seconds: list[float]) -> dict[str, float]:
    low, median, high = (1e3 * value for value in statistics.quantiles(seconds, n=4))
    return {"low": low, "median": median, "high": high}


def variants() -> dict[str, Callable[[], object]]:
    full = Split(torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (50_000,)))
    small = Split(torch.randint(0, 256, (40_000, 3, 16, 16), dtype=torch.uint8), torch.randint(0, 10, (40_000,)))
    standard = Augment(crop_pad=4, flip=True)
    made = {
        "32x32, no augmentation": Batches(full, BATCH, MEAN, STD),
        "32x32, crop and flip": Batches(full, BATCH, MEAN, STD, standard),
        "32x32, crop and flip, channels_last": Batches(full, BATCH, MEAN, STD, standard, channels_last=True),
        "32x32, crop and flip, bfloat16": Batches(full, BATCH, MEAN, STD, standard, dtype=torch.bfloat16),
        "32x32, resized crop and flip": Batches(full, BATCH, MEAN, STD, Augment(resized_crop=True, flip=True)),
        "16x16, crop and flip": Batches(small, BATCH, MEAN, STD, Augment(crop_pad=2, flip=True)),
    }
    calls: dict[str, Callable[[], object]] = {}
    for name, batches in made.items():
        calls[name] = forever(batches).__next__
    reference = made["32x32, crop and flip"]
    calls["start of an epoch (order and all draws)"] = lambda: next(reference.epoch(0))
    return calls


def forever(batches: Batches) -> Iterator[object]:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def training_steps(count: int) -> list[float]:
    from stompp.models import resnet18

    model = resnet18(num_classes=10, stem="cifar")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    seconds = []
    for _ in range(count + 1):
        begin = time.perf_counter()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


if __name__ == "__main__":
    main()
