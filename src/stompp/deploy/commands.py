"""The commands of packed networks: pack, run, inspect, bench. run and inspect need numpy and no PyTorch.

A packed file may come from anywhere. The texts in it are shown with everything escaped that is not printable, and its
numbers are used only where float32 can hold them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from stompp.deploy import format, runtime
from stompp.deploy.graph import Graph
from stompp.deploy.inputs import class_names, normalisation, read
from stompp.deploy.nodes import Conv, defined, to_json
from stompp.errors import UsageError

MOST_SHOWN = 300  # characters of one text of a file


def _choices_of_floats() -> Any:
    from stompp.deploy.fold import FLOATS  # needs PyTorch, as packing does

    return Literal[FLOATS]


_Floats = Annotated[str, tyro.conf.arg(constructor_factory=_choices_of_floats, help_behavior_hint="(default: fp32)")]
_File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
_Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
_DataRoot = Annotated[
    Path | None,
    tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: $STOMPP_DATA, or else ~/.cache/stompp)"),
]


@dataclass(frozen=True)
class _PackArguments:
    """Make a finished run's net one small file: ±1 weights in a bit each.

    Then `stompp run FILE IMAGE` and stompp.load(FILE) run it without PyTorch.
    """

    run: _Run
    """folder of a finished run"""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = Path("net.stompp")
    """the file to write"""
    floats: _Floats = "fp32"
    """numbers of the layers with real-valued weights (first, last, projections); fp32 is as exact as PyTorch"""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """replace FILE if it is a .stompp file"""
    check: int = 1000
    """test images on which to compare the packed net with PyTorch; with 0 and fp32 no data set is needed"""
    data_root: _DataRoot = None
    """folder of the data sets"""


def pack(arguments: list[str]) -> int:
    """pack RUN -o FILE                    make a finished run's net a small file that runs without PyTorch"""
    given = _parse("pack", _PackArguments, arguments)
    _refuse_overwriting(given.out, given.force)
    from stompp.deploy.run import pack_run

    packed, report = pack_run(given.run, given.floats, given.check, given.data_root)
    try:
        packed.save(given.out)
    except OSError as error:
        raise UsageError(f"cannot write {given.out} ({error.strerror or error}); choose another --out") from None
    size = given.out.stat().st_size
    print(f"{printable(str(given.out))}: {size:,} bytes")
    print(
        f"the same net in PyTorch: {report.float_bytes:,} bytes of weights, {report.float_bytes / size:.1f} × as much"
    )
    _say_binary_size(packed.graph)
    if report.checked:
        print(f"same class as PyTorch on {report.agreed:,} of {report.checked:,} test images")
    else:
        print("not compared with PyTorch, since --check is 0")
    return 0


@dataclass(frozen=True)
class _RunArguments:
    """Classify images with a packed net, without PyTorch.

    Prints a line for each image: its likeliest classes and their probabilities.
    - Pixels: picture files, and .npy files of uint8. They are resized to the net's
      input, divided by 255, and normalised by the mean and std in FILE.
    - Values: .npy files of float32. They go into the net as they are, so they must
      have its size and be normalised as its training images were. A net whose FILE
      has no mean and std takes only these.
    """

    file: _File
    """a packed network, from `stompp pack` or from stompp.pack(...).save(FILE)"""
    images: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="IMAGE [IMAGE ...]",
            help="picture files; .npy files of uint8 (H, W), (H, W, C) or (N, H, W, C), or of float32 (C, H, W) or "
            "(N, C, H, W)",
            help_behavior_hint="(required)",
        ),
    ]
    top: Annotated[int, tyro.conf.arg(metavar="K")] = 3
    """classes to print for each image"""
    threads: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: all usable CPUs)")] = None
    """CPU threads"""


def run(arguments: list[str]) -> int:
    """run FILE IMAGE [IMAGE ...]          classify images with a packed net; needs no PyTorch"""
    given = _parse("run", _RunArguments, arguments)
    if not given.images:
        raise UsageError("run needs at least one image file after the packed network")
    if given.top < 1:
        raise UsageError(f"top is {given.top}; it must be at least 1")
    net = _load(given.file, given.threads)
    if len(net.graph.output) != 1:
        raise UsageError(f"{given.file} gives values of shape {net.graph.output} for an image: it does not classify")
    classes = [printable(name) for name in class_names(given.file, net.graph)]
    named = [image for path in given.images for image in read(path, given.file, net.graph)]
    if any(image.dtype == np.uint8 for _, image in named):
        mean, std = normalisation(given.file, net.graph)
    for first in range(0, len(named), 256):
        part = named[first : first + 256]
        batch = np.empty((len(part), *net.graph.input), np.float32)
        for place, (_, image) in zip(batch, part):
            place[:] = image if image.dtype == np.float32 else (image / np.float32(255) - mean) / std
        logits = net(batch).astype(np.float64)
        if not np.isfinite(logits).all():
            raise UsageError(f"{given.file} gives values that are infinite or no numbers on these images")
        likely = np.exp(logits - logits.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        for (name, _), p in zip(part, likely):
            best = np.argsort(-p, kind="stable")[: given.top]
            print(f"{printable(name)}: " + ", ".join(f"{classes[i]} {100 * p[i]:.1f} %" for i in best))
    return 0


@dataclass(frozen=True)
class _InspectArguments:
    """Show a packed net's size, its texts, and its nodes in the order they run in.

    PyTorch is not needed, and nothing in the file is run.
    """

    file: _File
    """a packed network"""


def inspect(arguments: list[str]) -> int:
    """inspect FILE                        show what a packed net consists of; needs no PyTorch"""
    given = _parse("inspect", _InspectArguments, arguments)
    _refuse_folder(given.file)
    graph = format.read(given.file)
    size = given.file.stat().st_size
    arrays = {name: len(format._pack(array)) for name, array in graph.arrays.items()}
    print(f"{printable(str(given.file))}: format version {format.VERSION}, {size:,} bytes, ", end="")
    print(f"{sum(arrays.values()):,} of them weights, thresholds and scales")
    print(f"takes (n, {', '.join(map(str, graph.input))}), gives (n, {', '.join(map(str, graph.output))})")
    _say_binary_size(graph)
    for key, text in graph.meta.items():
        print(f"{shortened(key)}: {shortened(text)}")
    _print_table(_node_table(graph, arrays), 160)
    return 0


def _node_table(graph: Graph, arrays: dict[str, int]) -> Any:
    """Return a row for each node; `arrays` says how many bytes each array takes."""
    from rich.markup import escape
    from rich.table import Column, Table

    titles = (Column(title, overflow="fold") for title in ("node", "reads", "gives", "of shape", "weights"))
    table = Table(*titles, Column("bytes", justify="right"), title=f"{len(graph.nodes)} nodes")
    values = graph.check()
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
    return table


@dataclass(frozen=True)
class _BenchArguments:
    """Time a packed net: latency, throughput and size.
    - FILE: the packed net alone, without PyTorch.
    - RUN: packed, and beside it its float twin, the same net with real-valued weights
      and ReLU: in PyTorch, in torch.compile, and in ONNX Runtime (FP32 and INT8) if
      that is installed. All take turns in one process.
    """

    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE_OR_RUN")]
    """a packed network, or the folder of a finished run"""
    batch: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")] = (1, 64)
    """images per call; a table for each"""
    threads: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """CPU threads of every contender; with one, CPU time is measured, else wall time"""
    floats: Annotated[str | None, tyro.conf.arg(metavar="KIND", help_behavior_hint="(default: fp32)")] = None
    """how a run is packed, see `stompp pack --help`"""
    turns: Annotated[int, tyro.conf.arg(metavar="N")] = 15
    """times are medians of so many turns; ± is half the distance between their quartiles"""
    data_root: _DataRoot = None
    """folder of the data sets; of these only the class folders of imagenet are looked at"""


def bench(arguments: list[str]) -> int:
    """bench FILE_OR_RUN [--batch ...]     time a packed net, and its float twin in PyTorch and ONNX Runtime"""
    from stompp.deploy.race import packed_contender, race, table

    given = _parse("bench", _BenchArguments, arguments)
    for name, least in (("batch", min(given.batch, default=0)), ("threads", given.threads), ("turns", given.turns)):
        if least < 1:
            raise UsageError(f"{name} is {least}; it must be at least 1")
    if given.target.is_dir():
        from stompp.deploy.run import contenders_of_run

        contenders = contenders_of_run(given.target, given.floats or "fp32", given.threads, given.data_root)
        print("packed: this net. The others: its float twin, the same net with real-valued weights and ReLU.")
        print("torch.compile compiles the twin for each batch size; that takes a while and is not in its time.")
    elif given.floats is not None:
        raise UsageError(f"{given.target} is packed already, so --floats cannot change it; give a run folder with it")
    else:
        contenders = [packed_contender(_load(given.target, given.threads), given.target.stat().st_size)]
        print("A packed file is timed alone; `stompp bench RUN` also times its float twin in PyTorch and ONNX Runtime.")
    left_out: list[str] = []
    for batch in given.batch:
        try:
            results = race(contenders, batch, given.turns, given.threads, left_out)
        except MemoryError:
            raise UsageError(f"batch {batch} needs more memory than there is; choose a smaller one") from None
        _print_table(table(results, batch, given.threads, given.turns), 120)
    for line in left_out:
        print(line)
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


def printable(text: str) -> str:
    r"""Return a text with escapes for all that is not printable: a terminal would obey some of it, and hide other.

    >>> print(printable("cat\x1b[2J\n\u202etac, Übergröße"))
    cat\x1b[2J\n\u202etac, Übergröße
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str) -> str:
    """Return the beginning of a long text, printable.

    >>> shortened("x" * 1000)[-25:]
    'xxx... (1,000 characters)'
    """
    if len(text) <= MOST_SHOWN:
        return printable(text)
    return f"{printable(text[:MOST_SHOWN])}... ({len(text):,} characters)"


def _parse(command: str, kind: Any, arguments: list[str]) -> Any:
    return tyro.cli(kind, args=arguments, prog=f"stompp {command}")


def _load(file: Path, threads: int | None) -> runtime.PackedNet:
    """Load a packed network; that there are no compiled kernels is a line on stderr."""
    _refuse_folder(file)
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = runtime.load(file, threads=threads)
    for warning in caught:
        print(f"stompp: {warning.message}", file=sys.stderr)
    return net


def _refuse_folder(file: Path) -> None:
    if file.is_dir():
        hint = f": pack it first, stompp pack {file} -o net.stompp" if (file / "recipe.json").exists() else ""
        raise UsageError(f"{file} is a folder, not a packed network{hint}")


def _print_table(table: Any, width: int) -> None:
    """Print a table as wide as the terminal, or elsewhere as wide as it needs, up to `width`."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = width
    console.print(table)


def _say_binary_size(graph: Graph) -> None:
    weights, bits = binary_size(graph)
    if weights:
        print(f"binary layers: {weights:,} weights at {bits / weights:.3f} bits each, thresholds and scales included")


def _refuse_overwriting(out: Path, force: bool) -> None:
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give a file such as {out / 'net.stompp'}")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} into")
    if not out.exists():
        return
    ours = False
    if out.is_file():
        with out.open("rb") as file:
            ours = file.read(len(format.MAGIC)) == format.MAGIC
    if not ours:
        raise UsageError(f"{out} is there and is not a .stompp file; choose another name")
    if not force:
        raise UsageError(f"{out} is there already; --force replaces it")


__all__ = ["COMMANDS", "bench", "binary_size", "inspect", "pack", "printable", "run", "shortened"]
