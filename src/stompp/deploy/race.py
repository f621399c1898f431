"""Timing packed nets against other engines: interleaved in one process, CPU and wall time, medians.

The contenders take turns, so that a busy machine slows all of them alike; the order of a turn is drawn anew. The time
on one thread is the process's CPU time, which other programs disturb little; with more threads it is wall time.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stompp.deploy.runtime import PackedNet

if TYPE_CHECKING:
    import torch
    from torch import nn

Call = Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """A net in an engine: `prepare` makes a call out of a batch of images."""

    name: str
    prepare: Callable[[np.ndarray], Call]
    shape: tuple[int, ...]
    size: int | None = None  # bytes, as stored


@dataclass(frozen=True)
class Result:
    """Times of one contender, in seconds per call, one for each turn."""

    contender: Contender
    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median time of a call."""
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.times) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return (high - low) / 2 / self.median


def race(contenders: list[Contender], batch: int, turns: int, threads: int = 1) -> list[Result]:
    """Let the contenders run in turns on the same images."""
    images = np.random.default_rng(0).standard_normal((batch, *contenders[0].shape)).astype(np.float32)
    clock = time.process_time if threads == 1 else time.perf_counter
    calls = [contender.prepare(images) for contender in contenders]
    rounds = [_rounds(call, clock) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0)
    for _ in range(turns):
        shuffle.shuffle(order)
        for i in order:
            calls[i]()  # brings its memory into the caches
            begin = clock()
            for _ in range(rounds[i]):
                calls[i]()
            times[i].append((clock() - begin) / rounds[i])
    return [Result(contender, tuple(each)) for contender, each in zip(contenders, times)]


def _rounds(call: Call, clock: Callable[[], float], least: float = 0.02) -> int:
    """Return how many calls take long enough for the clock."""
    for _ in range(3):
        call()
    begin = clock()
    call()
    return max(1, min(1000, round(least / max(clock() - begin, 1e-6))))


def table(results: list[Result], batch: int, threads: int, turns: int) -> Any:
    """Return the times as a table to print."""
    from rich.table import Table

    kind = "CPU" if threads == 1 else "wall"
    made = Table(
        "net", "ms per call", "±", "images/s", "times packed", "size",
        title=f"batch {batch}, {threads} thread{'s' if threads > 1 else ''}, medians of {turns} turns ({kind} time)",
    )  # fmt: skip
    fastest = results[0].median
    for result in results:
        size = "" if result.contender.size is None else f"{result.contender.size / 1e6:.2f} MB"
        made.add_row(
            result.contender.name,
            f"{1e3 * result.median:.3f}",
            f"{100 * result.spread:.0f} %",
            f"{batch / result.median:,.0f}",
            f"{result.median / fastest:.1f}",
            size,
        )
    return made


def packed_contender(net: PackedNet, size: int | None = None, name: str = "packed") -> Contender:
    """Return a packed net as a contender."""

    def prepare(images: np.ndarray) -> Call:
        return lambda: net(images)

    return Contender(f"{name} ({net.isa})", prepare, net.graph.input, size)


def float_contenders(
    model: nn.Module, example: torch.Tensor, threads: int, *, compiled: bool = True
) -> list[Contender]:
    """Return a float net in PyTorch, compiled, and in ONNX Runtime where that is installed; FP32 and INT8."""
    import torch

    torch.set_num_threads(threads)
    model = model.eval().to(memory_format=torch.channels_last)
    shape = tuple(example.shape[1:])
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())

    def torch_call(net: Any) -> Callable[[np.ndarray], Call]:
        def prepare(images: np.ndarray) -> Call:
            x = torch.from_numpy(images)
            x = x.to(memory_format=torch.channels_last) if x.ndim == 4 else x

            def call() -> object:
                with torch.inference_mode():
                    return net(x)

            return call

        return prepare

    found = [Contender("torch FP32 channels_last", torch_call(model), shape, size)]
    if compiled:
        found.append(Contender("torch.compile", torch_call(torch.compile(model, dynamic=False)), shape, size))
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        from stompp.deploy.onnx_twins import onnx_contenders

        found += onnx_contenders(model, example, threads)
    return found
