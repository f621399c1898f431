"""The demo: a float, an STE and a StoMPP net on the bundled digits, and what their numbers mean."""

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
from stompp.experiments.report import write_report
from stompp.training.build import evaluation_batches, open_run
from stompp.training.loop import train
from stompp.training.options import RunOptions

ACTS = (
    (
        "resnet20-digits-float-relu",
        "float",
        "An ordinary ResNet-20 on 1,437 images of handwritten digits: what the net can do with 32-bit numbers.",
    ),
    (
        "resnet20-digits-bnn-ste",
        "STE",
        "The same net with 1-bit weights and activations, trained as usual: sign() forward, and backward the\n"
        "straight-through estimator, which pretends that sign() has slope 1. The error of that pretence grows\n"
        "with every layer.",
    ),
    (
        "resnet20-digits-bnn-stompp",
        "StoMPP",
        "The same binary net, trained by progressive freezing: layer by layer, from input to output, entries turn\n"
        "from continuous to ±1. Open entries get their true gradient, frozen ones none, and nobody pretends.\n"
        "Watch two numbers: 'test' is the partly frozen net, 'binary' the net with everything forced to ±1.\n"
        "They meet when the last site is frozen.",
    ),
)


def demo(folder: Path) -> Path:
    """Train the three nets under `folder`, say what they show, pack the last one, and return the report's path."""
    console = Console()
    began = time.monotonic()
    accuracies = {}
    runs = {}
    for number, (name, short, text) in enumerate(ACTS, 1):
        console.print(Panel(text, title=f"{number} of {len(ACTS)}: {name}", title_align="left"))
        # One thread: nets as small as these gain nothing from more, and lose much where cores are busy.
        options = RunOptions(runs=folder / "runs", tensorboard=False, threads=1)
        outcome = train(recipes.get(name), options, console)
        if outcome.stopped_by is not None:
            raise KeyboardInterrupt
        runs[short] = outcome.folder.path
        accuracies[short] = outcome.folder.read_metrics()[-1]["test"]["binary"]["accuracy"]
    _tell(console, accuracies)
    _pack(console, runs["StoMPP"], runs["float"], folder / "digits.stompp")
    report = write_report([folder / "runs"], folder / "report.html")
    seconds = time.monotonic() - began
    console.print(f"Curves, freeze wave, gradient flow: open {report}   ({seconds:.0f} s in all)", highlight=False)
    return report


def _tell(console: Console, accuracies: dict[str, float]) -> None:
    table = Table("net", "weights and activations", "test accuracy", title="What you have seen")
    for short, accuracy in accuracies.items():
        table.add_row(short, "32 bit" if short == "float" else "1 bit", f"{accuracy:.1f} %")
    console.print(table)
    gain = accuracies["StoMPP"] - accuracies["STE"]
    console.print(
        f"StoMPP is {gain:+.1f} points from STE (one seed each; chance is 10 %). The surrogate matters: clipped STE "
        "(resnet20-digits-bnn-ste-clip) is a stronger baseline, and one command away.",
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
