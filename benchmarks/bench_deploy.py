"""Speed of packed nets against PyTorch and ONNX Runtime, their time layer by layer, and their agreement with PyTorch.

    python benchmarks/bench_deploy.py race                      # whole nets, one thread: about five minutes
    python benchmarks/bench_deploy.py layers                    # where the time goes
    python benchmarks/bench_deploy.py threads                   # two threads against one: on an idle machine only
    python benchmarks/bench_deploy.py agree RUNS                # every finished run under RUNS, on all its test images
    python benchmarks/bench_deploy.py publish                   # benchmarks/results into docs/deploy.md

Each part replaces its own figures in benchmarks/results/deploy.json. Contenders take turns in one process; one thread
is timed by the process's CPU time, figures are medians over the turns, ± half the distance between the quartiles. The
float nets are the ResNet-18 of the same size with real weights and ReLU. A node's time is the difference between the
graph up to it and the graph before it, both ended by a pool of one pixel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stompp
from stompp.deploy.fold import FLOATS
from stompp.deploy.format import encode
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, Pool, Unpack, defined
from stompp.deploy.race import Contender, Result, float_contenders, packed_contender, race
from stompp.deploy.runtime import PackedNet
from stompp.experiments.tables import fill, markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "deploy.json"
KERNELS = ROOT / "benchmarks" / "results" / "kernels.json"  # of bench_kernels.py
FUZZ = ROOT / "benchmarks" / "results" / "fuzz.json"  # of make sanitize
PAGE = ROOT / "docs" / "deploy.md"
BATCHES = (1, 64)


def binary_net(name: str, side: int, floats: str, threads: int = 1) -> PackedNet:
    """A packed net of random weights; its time does not depend on them."""
    torch.manual_seed(0)
    x = torch.randn(8, 3, side, side)
    stem, classes = ("imagenet", 1000) if side >= 128 else ("cifar", 10)
    model = stompp.prepare(stompp.models.build(name, stem=stem, num_classes=classes), x[:2])
    for site in stompp.sites(model):
        site.freeze()
    return stompp.pack(model.eval(), x, floats=floats, threads=threads)


def packed(name: str, side: int, floats: str, threads: int = 1) -> Contender:
    net = binary_net(name, side, floats, threads)
    return packed_contender(net, len(encode(net.graph)), f"packed {name}, {floats} floats")


def float_nets(side: int, threads: int = 1) -> list[Contender]:
    stem, classes = ("imagenet", 1000) if side >= 128 else ("cifar", 10)
    model = stompp.models.build("resnet18", stem=stem, num_classes=classes)
    return float_contenders(model, torch.randn(32, 3, side, side), threads)


def races(turns: int) -> list[dict[str, Any]]:
    found = []
    for side, names, batches in ((32, ("resnet18", "bireal18"), BATCHES), (224, ("bireal18", "resnet18"), (1,))):
        contenders = [packed(name, side, floats) for name in names for floats in FLOATS] + float_nets(side)
        for batch in batches:
            found.append(described(race(contenders, batch, turns), side, batch))
            show(found[-1])
    return found


def described(results: list[Result], side: int, batch: int) -> dict[str, Any]:
    rows = [
        {"net": r.contender.name, "ms": 1e3 * r.median, "spread": r.spread, "bytes": r.contender.size} for r in results
    ]
    return {"side": side, "batch": batch, "threads": 1, "turns": len(results[0].times), "rows": rows, **circumstances()}


def circumstances() -> dict[str, Any]:
    """What the figures depend on."""
    found = {
        "load": round(os.getloadavg()[0], 1),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    for name in ("torch", "onnxruntime", "stompp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


# Layer by layer.


def layers(turns: int) -> list[dict[str, Any]]:
    found = []
    for name, side, floats in (*(("bireal18", 224, floats) for floats in FLOATS), ("resnet18", 32, "fp32")):
        graph = binary_net(name, side, floats).graph
        nodes = range(len(graph.nodes) + 1)
        contenders = [packed_contender(PackedNet(prefix(graph, k), threads=1)) for k in nodes]
        results = race(contenders, 1, turns)
        times = [statistics.median(r.times) for r in results]
        rows = [
            {"node": label(node), "part": part(node), "us": 1e6 * (after - before)}
            for node, before, after in zip(graph.nodes, times, times[1:])
        ]
        found.append({"net": name, "side": side, "floats": floats, "turns": turns, "rows": rows, **circumstances()})
        whole = sum(row["us"] for row in rows)
        print(f"{name} {side} {floats}: {whole / 1e3:.3f} ms")
        for row in rows:
            print(f"  {row['us']:8.1f} us {100 * row['us'] / whole:5.1f} %  {row['part']:18s} {row['node']}")
    return found


def prefix(graph: Graph, count: int) -> Graph:
    """The first nodes of a graph, and a pool of one pixel of what the last of them defines."""
    nodes = list(graph.nodes[:count])
    kind, name = defined(nodes[-1])[0] if nodes else ("floats", "input")
    if kind in ("bytes", "bf16"):  # nothing but a convolution reads these: take the value they were made of
        kind, name = "floats", nodes[-1].input
    one = ((0, 1, 1),)
    nodes.append(Pool(name, "max", one, one, **{kind: "probe"}))
    if kind == "bits":
        nodes.append(Unpack("probe", "probe.floats"))
    result = defined(nodes[-1])[0][1]
    used = {getattr(node, field, None) for node in nodes for field in ("weight", "threshold", "mul", "bias")}
    arrays = {key: array for key, array in graph.arrays.items() if key in used}
    bare = replace(graph, nodes=tuple(nodes), arrays=arrays, result=result)
    shape = next(v for k, v in _values(bare).items() if k == result)
    return replace(bare, output=shape)


def _values(graph: Graph) -> dict[str, tuple[int, ...]]:
    channels: dict[str, tuple[int, ...]] = {"input": graph.input}
    for node in graph.nodes:
        many = node.channels if isinstance(node, Conv) else None
        for _, name in defined(node):
            source = channels[node.input]
            channels[name] = (many or source[0],)
    return channels


def label(node: Any) -> str:
    if isinstance(node, Conv):
        kernel = "×".join(map(str, node.kernel))
        return f"{node.kind} conv {kernel}/{node.stride[0]} to {node.channels}"
    return node.op


def part(node: Any) -> str:
    if isinstance(node, Conv):
        if node.kind == "binary":
            return "binary layers"
        if node.input.partition(".")[0] == "input":
            return "stem"
        return "projections" if node.channels not in (10, 1000) else "classifier"
    return "pooling" if isinstance(node, Pool) else "conversions"


# Threads.


def threads(turns: int) -> list[dict[str, Any]]:
    found = []
    net = binary_net("bireal18", 224, "fp32")
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224)).astype(np.float32)
    nets = {n: PackedNet(net.graph, threads=n) for n in (1, 2)}
    for batch in (1, 8):
        times: dict[int, list[float]] = {n: [] for n in nets}
        for _ in range(10 * turns):
            for n, each in nets.items():
                each(images[:1])
                begin = time.perf_counter()
                each(images[:batch])
                times[n].append(time.perf_counter() - begin)
        rows = [
            {"threads": n, "median_ms": 1e3 * statistics.median(t), "least_ms": 1e3 * min(t)} for n, t in times.items()
        ]
        found.append(
            {"net": "bireal18", "side": 224, "batch": batch, "turns": 10 * turns, "rows": rows, **circumstances()}
        )
        print(batch, rows)
    return found


# Agreement.


def agree(runs: list[Path]) -> list[dict[str, Any]]:
    from stompp.core.trace import evaluating
    from stompp.data import Batches
    from stompp.deploy.run import example
    from stompp.errors import UsageError
    from stompp.training.build import open_run
    from stompp.training.options import MachineOptions

    found = []
    folders = sorted(done.parent for folder in runs for done in folder.glob("**/DONE"))
    for folder in folders:
        recipe, seed, data, model = open_run(folder, MachineOptions(), torch.device("cpu"))
        tests = Batches(data.test, 250, data.mean, data.std, shuffle=False, drop_last=False)
        with evaluating(model):
            images, labels, want = (
                torch.cat(parts).numpy() for parts in zip(*((x, y, model(x)) for x, y in tests.epoch(0)))
            )
        row: dict[str, Any] = {"run": f"{recipe.name}/seed{seed}", "images": len(images)}
        row["torch"] = 100 * float((want.argmax(1) == labels).mean())
        try:
            for floats in FLOATS:
                net = stompp.pack(model, example(data), floats=floats, threads=1)
                got = np.concatenate([net(images[i : i + 250]) for i in range(0, len(images), 250)])
                row[floats] = {
                    "agree": 100 * float((got.argmax(1) == want.argmax(1)).mean()),
                    "accuracy": 100 * float((got.argmax(1) == labels).mean()),
                    "largest": float(np.abs(got - want).max() / np.abs(want).max()),
                }
        except UsageError as error:
            row["refused"] = str(error)
        found.append(row)
        print(json.dumps(row))
    return found


# The page.


def publish() -> None:
    found = json.loads(RESULTS.read_text())
    kernels, fuzz = json.loads(KERNELS.read_text()), json.loads(FUZZ.read_text())
    fill(
        PAGE,
        {
            "deploy-speed": speed_table(found),
            "deploy-layers": layer_table(found),
            "deploy-kernels": kernel_table(kernels),
            "deploy-agreement": agreement_table(found),
            "deploy-fuzz": fuzz_line(fuzz),
        },
    )


def speed_table(found: dict[str, Any]) -> str:
    parts = []
    for one in found.get("race", []):
        rows = {row["net"]: row["ms"] for row in one["rows"]}
        cells = []
        for row in one["rows"]:
            over = [
                f"{rows[name] / row['ms']:.1f} ×" if name in rows else ""
                for name in ("torch FP32 channels_last", "ONNX Runtime INT8")
            ]
            spread, size = f"{100 * row['spread']:.0f} %", f"{row['bytes'] / 1e6:.2f} MB"
            cells.append([row["net"], f"{row['ms']:.3f}", spread, size, *over])
        head = ["net", "ms per call", "±", "file", "torch FP32 takes", "ONNX Runtime INT8 takes"]
        parts += [f"### {one['side']}×{one['side']}, batch {one['batch']}", markdown(head, cells)]
        parts.append(f"One thread, CPU time, medians of {one['turns']} turns; {versions(one)}.")
    if found.get("threads"):
        one = found["threads"][0]
        rows = []
        for each in found["threads"]:
            a, b = each["rows"]
            ratios = (f"{a[key] / b[key]:.2f} ×" for key in ("median_ms", "least_ms"))
            rows.append([str(each["batch"]), f"{a['median_ms']:.3f}", f"{b['median_ms']:.3f}", *ratios])
        head = ["images per call", "ms, one thread", "ms, two threads", "by medians", "by the least"]
        parts += [f"### {one['net']} at {one['side']}×{one['side']}: two threads against one", markdown(head, rows)]
        parts.append(f"Wall time, {one['turns']} turns; {versions(one)}.")
    return "\n\n".join(parts)


def versions(one: dict[str, Any]) -> str:
    names = ", ".join(f"{name} {one[name]}" for name in ("torch", "onnxruntime", "stompp") if one.get(name))
    return f"{one['cpu']}, {names}, Python {one['python']}; load average {one['load']} on {one['cpus']} CPUs"


def layer_table(found: dict[str, Any]) -> str:
    nets = found.get("layers", [])
    sums: list[dict[str, float]] = []
    for one in nets:
        sums.append({})
        for row in one["rows"]:
            sums[-1][row["part"]] = sums[-1].get(row["part"], 0.0) + row["us"]
    rows = []
    for name in dict.fromkeys(name for each in sums for name in each):
        shares = (
            f"{each[name]:.0f} ({100 * each[name] / sum(each.values()):.0f} %)" if name in each else "" for each in sums
        )
        rows.append([name, *shares])
    rows.append(["all", *(f"{sum(each.values()):.0f}" for each in sums)])
    return markdown(
        ["part, µs", *(f"{one['net']}, {one['side']}×{one['side']}, {one['floats']}" for one in nets)], rows
    )


def agreement_table(found: dict[str, Any]) -> str:
    measured = [row for row in found.get("agree", []) if "refused" not in row]
    rows = []
    for row in measured:
        cells = [row["run"], f"{row['images']:,}", f"{row['torch']:.2f} %"]
        for floats in FLOATS:
            cells += (
                [f"{row[floats]['accuracy']:.2f} %", f"{row[floats]['agree']:.2f} %"] if floats in row else ["", ""]
            )
        rows.append(cells)
    head = [
        "run",
        "images",
        "PyTorch",
        *(f"{floats}: {what}" for floats in FLOATS for what in ("accuracy", "same class")),
    ]
    parts = [markdown(head, rows)]
    for floats in FLOATS:
        shares = [row[floats]["agree"] for row in measured if floats in row]
        if shares:
            parts.append(
                f"{floats}: the same class as PyTorch on {min(shares):.2f} % of the images at least, "
                f"{statistics.median(shares):.2f} % in the median net (n = {len(shares)})."
            )
    if refused := len(found.get("agree", [])) - len(measured):
        parts.append(f"{refused} more ended training with weights that are no numbers, and are refused.")
    return "\n\n".join(parts)


def kernel_table(found: dict[str, Any]) -> str:
    parts = []
    binary = []
    for isa, one in found["isas"].items():
        for row in one["rows"]:
            share = "" if row["share"] is None else f"{row['share']:.0%}"
            layer = f"{row['channels']} channels, {row['side']}×{row['side']}"
            gops = row["gops"]
            binary.append([isa, layer, row["epilogue"], f"{gops['median']:.0f}", f"{gops['spread']:.0%}", share])
    parts.append(markdown(["instructions", "3×3 layer", "epilogue", "GOPS", "±", "of the limit"], binary, "lllrrr"))
    limits = ", ".join(f"{isa} {one['limit']['median']:.0f}" for isa, one in found["isas"].items() if one["limit"])
    parts.append(f"Limits, in GOPS: {limits}.")
    parts.append("Layers with real-valued weights, in µs at batch 1, the conversion of their input included:")
    floats = []
    for isa, one in found["isas"].items():
        for row in one.get("floats", []):
            floats.append([isa, row["layer"], *(f"{row[kind]['median']:.0f}" for kind in FLOATS)])
    parts.append(markdown(["instructions", "layer", *FLOATS], floats, "llrrr"))
    parts.append(
        f"One thread, CPU time, medians of {found['repeats']} turns; {found['cpu']}; load average {found['load']} on "
        f"{found['cpus']} CPUs."
    )
    return "\n\n".join(parts)


def fuzz_line(found: dict[str, Any]) -> str:
    outcomes, memory = found["outcomes"], found["MB in memory, by process"]
    names = {"address": "AddressSanitizer", "undefined": "UndefinedBehaviorSanitizer"}
    grown = max(each["at the end"] - each["after a fifth"] for each in memory)
    return (
        f"{found['files']:,} damaged files, kernels under "
        f"{' and '.join(names[each] for each in found['sanitizers']) or 'no sanitizer'}: "
        f"{outcomes['refused']:,} refused, "
        f"{outcomes['compared']:,} still a network that answered as the reference does, "
        f"{outcomes['run']:,} too large for the slow reference and run, {outcomes['built']:,} built and not run. The "
        f"slowest took {found['slowest']['seconds']:.1f} s; memory grew by {grown:.0f} MB from a fifth of the files to "
        f"the end. Instruction sets: {', '.join(found['isas'])}."
    )


def show(one: dict[str, Any]) -> None:
    print(f"{one['side']}×{one['side']}, batch {one['batch']}, load {one['load']}")
    for row in one["rows"]:
        print(f"  {row['ms']:9.3f} ms ± {100 * row['spread']:4.1f} %  {row['net']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["race", "layers", "threads", "agree", "publish"])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    if given.part == "publish":
        return publish()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Any]] = {
        "race": lambda: races(given.turns),
        "layers": lambda: layers(given.turns),
        "threads": lambda: threads(given.turns),
        "agree": lambda: agree(given.runs),
    }
    measured = parts[given.part]()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**found, given.part: measured}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
