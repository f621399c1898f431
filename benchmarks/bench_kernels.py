"""Speed of the compiled kernels as a share of what the CPU's registers could do.

    python benchmarks/bench_kernels.py                 # binary 3×3 layers, one thread
    python benchmarks/bench_kernels.py --floats        # and the float layers of a ResNet-18 at 224×224
    python benchmarks/bench_kernels.py --floats --keep # and kept in benchmarks/results/kernels.json

A layer's time is that of a program with many copies of it less that of a program with none, both run in turn; times
are CPU times of one thread, so that a busy machine disturbs less; figures are medians of `--repeats` turns. The limit
is the binary kernel's arithmetic without a load or store (`register_loop`), measured in the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from stompp_kernels import Program, available_isas, register_loop

from stompp.deploy.bf16 import to_bf16

RESULTS = Path(__file__).resolve().parent / "results" / "kernels.json"
LAYERS = [(64, 56), (128, 28), (256, 14), (512, 7)]  # channels, side: the binary layers of a ResNet-18 at 224×224
COPIES = 8  # of 512 channels, that many do not fit the second-level cache, as they do not in a whole ResNet-18
SAME = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}


def cpu_time(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def register_limit(isa: str, rounds: int = 300_000) -> float:
    begin = time.thread_time()
    operations = register_loop(isa, rounds)
    return operations / (time.thread_time() - begin) * 1e-9


def runner(program: Program, image: np.ndarray, times: int) -> Callable[[], None]:
    out = np.empty((1, *program.shape(program.output)), np.float32)

    def run() -> None:
        for _ in range(times):
            program.run(image, out, 1)

    run()
    return run


def binary_layers(isa: str, channels: int, side: int, copies: int, epilogue: str, rng: np.random.Generator) -> Program:
    program = Program(channels, side, side, isa)
    bits, floats = program.sign(0), 0
    ones = np.ones(channels, np.float32)
    for _ in range(copies):
        weight = rng.integers(0, 256, (channels, 9 * channels // 8), dtype=np.uint8)
        window = {**SAME, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
        if epilogue == "threshold":
            threshold = rng.integers(-20, 20, channels).astype(np.int32)
            _, bits = program.binary_conv(bits, channels, weight, **window, threshold=threshold, want_bits=True)
        else:
            floats, bits = program.binary_conv(
                bits, channels, weight, **window, mul=ones, bias=ones, residual=floats, want_float=True, want_bits=True
            )
    weight = np.zeros((1, channels // 8), np.uint8)
    window = {**SAME, "kernel": (1, 1), "padding": (0, 0, 0, 0)}
    last, _ = program.binary_conv(bits, 1, weight, **window, mul=ones[:1], bias=ones[:1], want_float=True)
    program.finish(last)
    return program


def bench_binary(isa: str, repeats: int, rng: np.random.Generator) -> dict[str, Any]:
    work = {}
    for epilogue in ("threshold", "residual"):
        for channels, side in LAYERS:
            image = rng.standard_normal((1, channels, side, side)).astype(np.float32)
            work[epilogue, channels, side] = [
                runner(binary_layers(isa, channels, side, copies, epilogue, rng), image, 10) for copies in (COPIES, 0)
            ]
    limits: list[float] = []
    speeds: dict[tuple[str, int, int], list[float]] = {key: [] for key in work}
    for _ in range(repeats):
        for (epilogue, channels, side), (many, none) in work.items():
            if isa != "portable":
                limits.append(register_limit(isa))  # beside each layer, since a machine's clock wanders
            operations = 2 * 9 * channels**2 * side**2 * COPIES * 10
            speeds[epilogue, channels, side].append(operations / (cpu_time(many) - cpu_time(none)) * 1e-9)
    limit = summed(limits) if limits else None
    print(f"\n{isa}: " + (f"register-only limit {limit['median']:.0f} GOPS" if limit else "no limit measured"))
    print("| 3×3 layer, batch 1 | epilogue | GOPS | ± | share of the limit |\n|---|---|---|---|---|")
    rows = []
    for (epilogue, channels, side), values in speeds.items():
        speed = summed(values)
        share = speed["median"] / limit["median"] if limit else None
        rows.append({"epilogue": epilogue, "channels": channels, "side": side, "gops": speed, "share": share})
        told = "–" if share is None else f"{share:.0%}"
        cells = (
            f"{channels} channels, {side}×{side}",
            epilogue,
            f"{speed['median']:.0f}",
            f"{speed['spread']:.0%}",
            told,
        )
        print(f"| {' | '.join(cells)} |")
    return {"limit": limit, "rows": rows}


def summed(values: list[float]) -> dict[str, float]:
    """Median, and half the distance between the quartiles as a share of it."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return {"median": float(median), "spread": float((high - low) / 2 / median)}


KINDS = ("fp32", "bf16", "int8")
FLOAT_LAYERS = [  # name, input channels, side, output channels, kernel, stride, padding
    ("stem 7×7/2", 3, 224, 64, 7, 2, 3),
    ("stem 3×3", 3, 32, 64, 3, 1, 1),
    ("projection 1×1/2", 64, 56, 128, 1, 2, 0),
    ("projection 1×1/2", 128, 28, 256, 1, 2, 0),
    ("projection 1×1/2", 256, 14, 512, 1, 2, 0),
    ("classifier", 512, 1, 1000, 1, 1, 0),
]


def float_layer(
    isa: str, kind: str, inner: int, side: int, outer: int, kernel: int, stride: int, padding: int
) -> Program:
    program = Program(inner, side, side, isa)
    rng = np.random.default_rng(0)
    window = {**SAME, "kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 4}
    scale = {"mul": np.ones(outer, np.float32), "bias": np.zeros(outer, np.float32)}
    shape = (outer, kernel, kernel, inner)
    if kind == "fp32":
        weight = rng.standard_normal(shape).astype(np.float32)
        _, bits = program.float_conv(0, outer, weight, **window, **scale, want_bits=True)
    elif kind == "bf16":
        weight = to_bf16(rng.standard_normal(shape).astype(np.float32))
        _, bits = program.bf16_conv(program.round(0), outer, weight, **window, **scale, want_bits=True)
    else:
        weight = rng.integers(-127, 128, shape).astype(np.int8)
        _, bits = program.int8_conv(program.quantize(0, 40.0), outer, weight, **window, **scale, want_bits=True)
    program.finish(program.unpack(program.pool(bits, "max", [(0, 1, 1)], [(0, 1, 1)])))
    return program


def bench_floats(isa: str, repeats: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    print(f"\n{isa}, float layers: input as NCHW float32, output as sign bits, microseconds")
    print(f"| layer | {' | '.join(KINDS)} |\n|---|---|---|---|")
    rows = []
    for name, inner, side, *rest in FLOAT_LAYERS:
        image = rng.standard_normal((1, inner, side, side)).astype(np.float32)
        calls = [runner(float_layer(isa, kind, inner, side, *rest), image, 5) for kind in KINDS]
        times = [[cpu_time(call) / 5 * 1e6 for call in calls] for _ in range(repeats)]
        found = {kind: summed([turn[i] for turn in times]) for i, kind in enumerate(KINDS)}
        layer = f"{name}, {inner} → {rest[0]} at {side}×{side}"
        rows.append({"layer": layer, **found})
        medians = [f"{each['median']:.0f}" for each in found.values()]
        print(f"| {layer} | {' | '.join(medians)} |")
    return rows


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="*", default=available_isas(), help="instruction sets; all by default")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--floats", action="store_true", help="also the float layers")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/kernels.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{cpu_name()}, one thread, medians of {options.repeats}, numpy {np.__version__}")
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "repeats": options.repeats,
        "stompp-kernels": version("stompp-kernels"),
        "isas": {},
    }
    for isa in options.isa:
        found["isas"][isa] = bench_binary(isa, options.repeats, rng)
        if options.floats:
            found["isas"][isa]["floats"] = bench_floats(isa, options.repeats, rng)
    if options.keep:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
