"""The commands of packed networks: pack, run, inspect, bench. run and inspect need numpy and no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from stompp.deploy import format, runtime
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, defined, to_json
from stompp.errors import UsageError

File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Threads = Annotated[int | None, tyro.conf.arg(metavar="INT")]


@dataclass(frozen=True)
class _PackArguments:
    run: Run
    """folder of a finished run"""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("net.stompp")
    """the file to write"""
    floats: Literal["fp32", "int8"] = "fp32"
    """how layers with real-valued weights are computed"""
    force: bool = False
    """replace a .stompp file that is there"""
    check: int = 1000
    """test images on which to compare the packed net with PyTorch"""
    data_root: Path | None = None
    """folder of the data sets; None is $STOMPP_DATA, or else ~/.cache/stompp"""


def pack(arguments: list[str]) -> int:
    """pack RUN -o FILE                    make a finished run's net a small file that runs without PyTorch"""
    given = _parse("pack", _PackArguments, arguments)
    _refuse_overwriting(given.out, given.force)
    from stompp.deploy.run import pack_run

    packed, report = pack_run(given.run, given.floats, given.check, given.data_root)
    packed.save(given.out)
    size = given.out.stat().st_size
    print(f"{given.out}: {size:,} bytes")
    print(f"float state dict: {report.float_bytes:,} bytes, {report.float_bytes / size:.1f} times as many")
    weights, bits = binary_size(packed.graph)
    if weights:
        print(f"binary layers: {weights:,} weights at {bits / weights:.3f} bits each, thresholds and scales included")
    if report.checked:
        print(f"same class as PyTorch on {report.agreed:,} of {report.checked:,} test images")
    return 0


@dataclass(frozen=True)
class _RunArguments:
    file: File
    """a packed network"""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE ...]")]
    """image files, or .npy files with one uint8 image (H, W) or (H, W, C) or several (N, H, W, C)"""
    top: int = 3
    """classes to print for each image"""
    threads: Threads = None
    """CPU threads; None is all"""


def run(arguments: list[str]) -> int:
    """run FILE IMAGE [IMAGE ...]          classify images with a packed net; needs no PyTorch"""
    from stompp.training.images import read_images

    given = _parse("run", _RunArguments, arguments)
    if not given.images:
        raise UsageError("run needs at least one image file after the packed network")
    if given.top < 1:
        raise UsageError(f"top is {given.top}; it must be at least 1")
    net = runtime.load(given.file, threads=given.threads)
    shape, meta = net.graph.input, net.graph.meta
    if len(shape) != 3 or len(net.graph.output) != 1:
        raise UsageError(f"{given.file} takes {shape} and gives {net.graph.output}: it does not classify images")
    mean, std = (_numbers(meta, key, shape[0]) for key in ("mean", "std"))
    classes = _texts(meta, "classes", net.graph.output[0])
    named = [image for file in given.images for image in read_images(file, shape)]
    for first in range(0, len(named), 256):
        part = named[first : first + 256]
        pixels = np.stack([image for _, image in part]).astype(np.float32)
        logits = net(((pixels / np.float32(255)) - mean) / std).astype(np.float64)
        likely = np.exp(logits - logits.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        for (name, _), p in zip(part, likely):
            best = np.argsort(-p, kind="stable")[: given.top]
            print(f"{name}: " + ", ".join(f"{classes[i]} {100 * p[i]:.1f} %" for i in best))
    return 0


@dataclass(frozen=True)
class _InspectArguments:
    file: File
    """a packed network"""


def inspect(arguments: list[str]) -> int:
    """inspect FILE                        show what a packed net consists of; needs no PyTorch"""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    given = _parse("inspect", _InspectArguments, arguments)
    graph = format.read(given.file)
    values = graph.check()
    size = given.file.stat().st_size
    arrays = {name: len(format._pack(array)) for name, array in graph.arrays.items()}
    print(f"{given.file}: version {format.VERSION}, {size:,} bytes, {sum(arrays.values()):,} of them in arrays")
    print(f"takes (n, {', '.join(map(str, graph.input))}), gives (n, {', '.join(map(str, graph.output))})")
    weights, bits = binary_size(graph)
    if weights:
        print(f"binary layers: {weights:,} weights at {bits / weights:.3f} bits each, thresholds and scales included")
    for key, text in graph.meta.items():
        print(f"{key}: {text}")
    table = Table("node", "reads", "gives", "shape", "weights", "bytes", title=f"{len(graph.nodes)} nodes")
    for node in graph.nodes:
        record = to_json(node)
        reads = [str(record[key]) for key in ("input", "other", "residual") if key in record]
        gives = [f"{name} ({kind})" for kind, name in defined(node)]
        value = values[defined(node)[0][1]]
        used = {record[key] for key in ("weight", "threshold", "mul", "bias") if key in record}
        weight = " × ".join(map(str, graph.arrays[node.weight].shape)) if isinstance(node, Conv) else ""
        kind = f"{node.kind} conv" if isinstance(node, Conv) else f"{record.get('reduce', '')} {node.op}".strip()
        taken = sum(arrays[name] for name in used)
        cells = (kind, ", ".join(reads), ", ".join(gives), f"{value.channels}×{value.height}×{value.width}", weight)
        table.add_row(*map(escape, cells), f"{taken:,}" if taken else "")
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    return 0


@dataclass(frozen=True)
class _BenchArguments:
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE_OR_RUN")]
    """a packed network, or the folder of a finished run, which is then compared with its float twin in PyTorch"""
    batch: tuple[int, ...] = (1, 64)
    """images per call"""
    threads: int = 1
    """CPU threads, for all contenders"""
    floats: Literal["fp32", "int8"] = "fp32"
    """how a run is packed"""
    turns: int = 15
    """times are medians of so many turns"""
    data_root: Path | None = None
    """folder of the data sets; None is $STOMPP_DATA, or else ~/.cache/stompp"""


def bench(arguments: list[str]) -> int:
    """bench FILE_OR_RUN [--batch ...]     time a packed net, and its float twin in PyTorch and ONNX Runtime"""
    from rich.console import Console

    given = _parse("bench", _BenchArguments, arguments)
    if min((*given.batch, given.threads, given.turns)) < 1 or not given.batch:
        raise UsageError("batch, threads and turns must be at least 1")
    if given.target.is_dir():
        from stompp.deploy.run import contenders_of_run as contenders_of

        makers = contenders_of(given.target, given.floats, given.threads, given.data_root)
    else:
        from stompp.deploy.race import packed_contender

        makers = [packed_contender(runtime.load(given.target, threads=given.threads), given.target.stat().st_size)]
    from stompp.deploy.race import race, table

    console = Console()
    if not console.is_terminal:
        console.width = 120
    for batch in given.batch:
        console.print(table(race(makers, batch, given.turns, given.threads), batch, given.threads, given.turns))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {"pack": pack, "run": run, "inspect": inspect, "bench": bench}


def binary_size(graph: Graph) -> tuple[int, int]:
    """Return how many weights the layers with ±1 weights have, and in how many bits they and their epilogues are."""
    weights, used = 0, set()
    for node in graph.nodes:
        if isinstance(node, Conv) and graph.arrays[node.weight].dtype == bool:
            weights += graph.arrays[node.weight].size if node.weight not in used else 0
            used |= {name for name in (node.weight, node.threshold, node.mul, node.bias) if name is not None}
    return weights, 8 * sum(len(format._pack(graph.arrays[name])) for name in used)


def _parse(command: str, kind: Any, arguments: list[str]) -> Any:
    return tyro.cli(kind, args=arguments, prog=f"stompp {command}")


def _refuse_overwriting(out: Path, force: bool) -> None:
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give a file such as {out / 'net.stompp'}")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} into")
    if not out.exists():
        return
    with out.open("rb") as file:
        ours = file.read(len(format.MAGIC)) == format.MAGIC
    if not ours:
        raise UsageError(f"{out} is there and is not a .stompp file; choose another name")
    if not force:
        raise UsageError(f"{out} is there already; --force replaces it")


def _texts(meta: dict[str, str], key: str, count: int) -> list[str]:
    if key not in meta:
        return [str(i) for i in range(count)]
    return [str(item) for item in _list(meta, key, count)]


def _numbers(meta: dict[str, str], key: str, count: int) -> np.ndarray:
    if key not in meta:
        raise UsageError(f"the network's file does not say the {key} of its training images; `stompp pack` stores it")
    numbers = _list(meta, key, count)
    if not all(isinstance(n, (int, float)) and np.isfinite(n) for n in numbers) or (key == "std" and min(numbers) <= 0):
        raise UsageError(f"the network's {key} is {meta[key]!r}: not {count} numbers that can be used")
    return np.array(numbers, np.float32)[:, None, None]


def _list(meta: dict[str, str], key: str, count: int) -> list[Any]:
    try:
        items = json.loads(meta[key])
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list) or len(items) != count:
        raise UsageError(f"the network's {key} is not a JSON list of {count}: {meta[key][:60]!r}")
    return items


__all__ = ["COMMANDS", "bench", "binary_size", "inspect", "pack", "run"]
