"""The demo: a float, two STE and a StoMPP net on the bundled digits, and what their numbers mean."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from stompp import recipes
from stompp.deploy import format
from stompp.deploy.pack import pack
from stompp.deploy.runtime import PackedNet, load
from stompp.errors import Diverged
from stompp.experiments.report import write_report
from stompp.training.build import evaluation_batches, open_run
from stompp.training.folder import RunFolder
from stompp.training.loop import train
from stompp.training.options import RunOptions

CHANCE = 10.0

ACTS = (
    (
        "resnet20-digits-float-relu",
        "float",
        "An ordinary ResNet-20 on 1,437 images of handwritten digits: what the net can do with 32-bit numbers.",
    ),
    (
        "resnet20-digits-bnn-ste",
        "STE",
        "The same net with 1-bit weights and activations, trained as usual: sign() forward, and backward the "
        "straight-through estimator, which pretends that sign() has slope 1. The error of that pretence grows with "
        "every layer it passes. Twenty layers are too many: the gradient grows without bounds, and with it the weights "
        "of the first layers, until they are no numbers any more.",
    ),
    (
        "resnet20-digits-bnn-ste-clip",
        "STE, clipped",
        "The usual repair, and the strongest of its kind here: the pretended slope is 1 only where an activation lies "
        "within [-1, 1], else 0. Now the net trains; the pretence is still one.",
    ),
    (
        "resnet20-digits-bnn-stompp",
        "StoMPP",
        "The same binary net, trained by progressive freezing: layer by layer, from input to output, entries turn from "
        "continuous to ±1. Open entries get their true gradient, frozen ones none, and nobody pretends. Watch two "
        "numbers: 'test' is the partly frozen net, 'binary' the net with everything forced to ±1. They meet when the "
        "last site is frozen.",
    ),
)


def demo(folder: Path) -> Path:
    """Train the nets under `folder`, say what they show, pack the last one, and return the report's path."""
    console = Console()
    began = time.monotonic()
    accuracies = {}
    broken = set()
    runs = {}
    for number, (name, short, text) in enumerate(ACTS, 1):
        console.print(Panel(text, title=f"{number} of {len(ACTS)}: {name}", title_align="left"))
        recipe = recipes.get(name)
        # One thread: nets as small as these gain nothing from more, and lose much where cores are busy.
        options = RunOptions(runs=folder / "runs", tensorboard=False, threads=1)
        try:
            outcome = train(recipe, options, console)
        except Diverged as error:
            console.print(f"This run broke down, which is part of the story: {error}", highlight=False, soft_wrap=True)
            broken.add(short)
        else:
            if outcome.stopped_by is not None:
                raise KeyboardInterrupt
        runs[short] = RunFolder.of(recipe, options.seed, options.runs)
        rows = runs[short].read_metrics()
        accuracies[short] = rows[-1]["test"]["binary"]["accuracy"] if rows else CHANCE
    _tell(console, accuracies, broken)
    _pack(console, runs["StoMPP"].path, runs["float"].path, folder / "digits.stompp")
    report = write_report([folder / "runs"], folder / "report.html")
    seconds = time.monotonic() - began
    console.print(f"Curves, freeze wave, gradient flow: open {report}   ({seconds:.0f} s in all)", highlight=False)
    return report


def _tell(console: Console, accuracies: dict[str, float], broken: set[str]) -> None:
    table = Table("net", "weights and activations", "test accuracy", title="What you have seen")
    for short, accuracy in accuracies.items():
        told = f"{accuracy:.1f} %" + (", then it broke down" if short in broken else "")
        table.add_row(short, "32 bit" if short == "float" else "1 bit", told)
    console.print(table)
    gains = {short: accuracies["StoMPP"] - accuracies[short] for short in ("STE", "STE, clipped")}
    console.print(
        f"StoMPP is {gains['STE']:+.1f} points from STE, and {gains['STE, clipped']:+.1f} from clipped STE (one seed "
        f"each; guessing gives {CHANCE:.0f} %). With more seeds, on CIFAR-10, where STE trains too: docs/results.md.",
        highlight=False,
    )


def _pack(console: Console, stompp: Path, float_run: Path, out: Path) -> None:
    """Pack the StoMPP net, run it without PyTorch, and compare it with PyTorch's float net."""
    options = RunOptions()
    device = torch.device("cpu")
    recipe, _, data, binary_net = open_run(stompp, options, device)
    _, _, _, float_net = open_run(float_run, options, device)
    images, _ = next(iter(evaluation_batches(recipe, data)["test"].epoch(0)))
    out.unlink(missing_ok=True)
    format.save(pack(binary_net, images[:32]).graph, out)
    packed = load(out, threads=1)
    with torch.no_grad():
        expected = binary_net.eval()(images).argmax(1).numpy()
    same = (packed(images.numpy()).argmax(1) == expected).mean()
    full = float_run / "model.safetensors"
    kilobytes = {path: path.stat().st_size / 1000 for path in (out, full)}
    console.print(
        f"Packed: {out} has {kilobytes[out]:.0f} kB, the float net's weights {kilobytes[full]:.0f} kB. Run without "
        f"PyTorch it gives the same class for {100 * same:.1f} % of {len(images)} test images.",
        highlight=False,
    )
    slow, fast = _race(float_net, packed, images[:1])
    kind = "compiled kernels" if packed.isa != "reference" else "numpy, since the kernels are not installed"
    console.print(
        f"One image on one thread: {1e3 * slow:.2f} ms for the float net in PyTorch, {1e3 * fast:.2f} ms packed "
        f"({kind}): {slow / fast:.1f} times as fast. On nets of a useful size see docs/deploy.md.",
        highlight=False,
    )


def _race(float_net: torch.nn.Module, packed: PackedNet, image: torch.Tensor) -> tuple[float, float]:
    """Return the median seconds of both nets on one image and one thread, measured in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    array = image.numpy()
    times: tuple[list[float], list[float]] = ([], [])
    float_net.eval()
    with torch.no_grad():
        for _ in range(60):
            for spent, call in zip(times, (lambda: float_net(image), lambda: packed(array))):
                began = time.perf_counter()
                call()
                spent.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return statistics.median(times[0]), statistics.median(times[1])
