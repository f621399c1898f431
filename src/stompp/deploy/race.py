"""Timing packed nets against other engines: interleaved in one process, CPU and wall time, medians.

The contenders take turns, so that a busy machine slows all of them alike; the order of a turn is drawn anew. The time
on one thread is the process's CPU time, which other programs disturb little; with more threads it is wall time. An
engine that is not installed, or fails on the net, is left out with a line that says why.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

Call = Callable[[], object]

ONNX = ("onnx", "onnxruntime", "onnxscript")
LEAST_FOR_SPREAD = 4  # turns


class Unavailable(UsageError):
    """An engine cannot run a net here: why, and what would help."""


@dataclass(frozen=True)
class Contender:
    """A net in an engine: `prepare` makes a call out of a batch of images, or raises `Unavailable`."""

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
        if len(self.times) < LEAST_FOR_SPREAD:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return (high - low) / 2 / self.median


def race(
    contenders: list[Contender], batch: int, turns: int, threads: int = 1, left_out: list[str] | None = None
) -> list[Result]:
    """Let the contenders run in turns on the same images; `left_out` takes a line for each that cannot run."""
    images = np.random.default_rng(0).standard_normal((batch, *contenders[0].shape), np.float32)
    clock = time.process_time if threads == 1 else time.perf_counter
    running, calls = [], []
    for contender in contenders:
        try:
            calls.append(contender.prepare(images))
        except Unavailable as error:
            if left_out is not None and str(error) not in left_out:
                left_out.append(str(error))
        else:
            running.append(contender)
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
    return [Result(contender, tuple(each)) for contender, each in zip(running, times)]


def _rounds(call: Call, clock: Callable[[], float], least: float = 0.02) -> int:
    """Return how many calls take long enough for the clock."""
    for _ in range(3):
        call()
    begin = clock()
    call()
    return max(1, min(1000, round(least / max(clock() - begin, 1e-6))))


def table(results: list[Result], batch: int, threads: int, turns: int) -> Any:
    """Return latency, throughput and size as a table to print."""
    from rich.table import Column, Table

    kind = "CPU time" if threads == 1 else "wall time"
    title = f"{_count(batch, 'image')} per call, {_count(threads, 'thread')}: {kind}, median of {_count(turns, 'turn')}"
    made = Table(
        Column("net", no_wrap=True),
        *(Column(title, justify="right") for title in ("ms per call", "±", "images/s", "time / packed", "size")),
        title=title,
    )
    packed = results[0].median
    for result in results:
        made.add_row(
            result.contender.name,
            f"{1e3 * result.median:.3f}",
            f"{100 * result.spread:.0f} %" if turns >= LEAST_FOR_SPREAD else "",
            f"{batch / result.median:,.0f}",
            f"{result.median / packed:.1f} ×",
            "" if result.contender.size is None else size_text(result.contender.size),
        )
    return made


def size_text(size: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(7464), size_text(1_234_567)
    ('7.5 kB', '1.23 MB')
    """
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def packed_contender(net: PackedNet, size: int | None = None, name: str = "packed") -> Contender:
    """Return a packed net as a contender."""

    def prepare(images: np.ndarray) -> Call:
        return lambda: net(images)

    engine = "numpy, without the kernels" if net.isa == "reference" else net.isa
    return Contender(f"{name} ({engine})", prepare, net.graph.input, size)


def float_contenders(
    model: nn.Module, example: torch.Tensor, threads: int, *, compiled: bool = True
) -> list[Contender]:
    """Return a float net in PyTorch, compiled, and in ONNX Runtime, FP32 and INT8."""
    import torch

    torch.set_num_threads(threads)
    model = model.eval().to(memory_format=torch.channels_last)
    shape = tuple(example.shape[1:])
    size = state_bytes(model)

    def torch_call(net: Any, images: np.ndarray) -> Call:
        x = torch.from_numpy(images)
        x = x.to(memory_format=torch.channels_last) if x.ndim == 4 else x

        def call() -> object:
            with torch.inference_mode():
                return net(x)

        return call

    def compiled_call(images: np.ndarray) -> Call:
        torch.compiler.reset()  # or after some batch sizes it would compile no more, and silently run uncompiled
        call = torch_call(torch.compile(model, dynamic=False), images)
        try:
            call()  # compiles
        except Exception as error:  # the compiler's, the linker's and the system's, of many types
            raise _left_out("torch.compile", error, "it needs a C++ compiler") from error
        return call

    found = [Contender("torch FP32 channels_last", lambda images: torch_call(model, images), shape, size)]
    if compiled:
        found.append(Contender("torch.compile", compiled_call, shape, size))
    return [*found, *_onnx_contenders(model, example, threads)]


def state_bytes(model: nn.Module) -> int:
    """Return the size of the state dict's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def _onnx_contenders(model: nn.Module, example: torch.Tensor, threads: int) -> list[Contender]:
    missing = [name for name in ONNX if importlib.util.find_spec(name) is None]
    name, reason = "ONNX Runtime FP32 and INT8", None
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        reason = Unavailable(
            f"{name} are left out: {', '.join(missing)} {verb} not installed; pip install {' '.join(missing)}"
        )
    else:
        from stompp.deploy.onnx_twins import onnx_contenders

        try:
            return onnx_contenders(model, example, threads)
        except Exception as error:  # whatever the exporter, the quantizer or the engine raises
            reason = _left_out(name, error, f"versions of {', '.join(ONNX)} that fit together may help")

    def prepare(images: np.ndarray) -> NoReturn:
        raise reason

    return [Contender(name, prepare, tuple(example.shape[1:]))]


def _left_out(name: str, error: Exception, remedy: str) -> Unavailable:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return Unavailable(f"{name}: left out, it fails on this net here ({type(error).__name__}: {first}); {remedy}")
