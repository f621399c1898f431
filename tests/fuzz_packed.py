"""Damages packed networks in every way we could think of, loads what comes out, and runs it where it loads.

    python tests/fuzz_packed.py --files 100000 --seed 1 --processes 2    # prints one line of JSON; --out keeps it
    python tests/fuzz_packed.py --seed 1 --only 4711                     # one file again, with its traceback

File i depends on (seed, i) alone. Each one must end in `UsageError`, or in a network whose compiled kernels, of every
instruction set, answer as the numpy reference does: anything else is an error here, and a file that takes longer than
`LONGEST` ends the process with a traceback. What is left in memory afterwards is measured, since LeakSanitizer sees
nothing but noise under CPython. Large networks that small files ask for are built, within the format's limits, but not
run.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import platform
import random
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deploy_graphs import one_conv, random_graph
from packed_damage import DAMAGES, tiny
from stompp.deploy import format, reference
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, Pool
from stompp.deploy.runtime import PackedNet
from stompp.errors import UsageError

LONGEST = 60.0  # seconds that one file may take, under sanitizers too
MOST_COMPARED = 1 << 20  # operations of a network that the slow reference runs
MOST_RUN = 1 << 26  # and of one that is run at all
MOST_VALUES = 1 << 22  # elements of its values


def damaged(seed: int, index: int, files: list[bytes]) -> tuple[str, bytes]:
    """File number `index`: how it was damaged, and its bytes."""
    rng = random.Random(f"{seed} {index}")
    damage = DAMAGES[index % len(DAMAGES)]
    return damage.__name__, damage(rng, rng.choice(files), files)


def outcome(data: bytes, index: int, isas: list[str]) -> str:
    """Load a file and run it: refused, too large to run here, run, or compared; AssertionError if kernels disagree."""
    try:
        graph = format.decode(data)
        operations, values = cost(graph)
        large = operations > MOST_RUN or values > MOST_VALUES
        turn = index // len(DAMAGES)  # so that every damage meets every instruction set
        net = PackedNet(graph, isa=isas[turn % len(isas)], threads=1 + turn // len(isas) % 2)
        if large:
            return "built"
        images = np.random.default_rng(index).standard_normal((1 + turn % 5, *graph.input)).astype(np.float32)
        got = net(images)
    except UsageError:
        return "refused"
    if operations > MOST_COMPARED:
        return "run"
    np.testing.assert_array_equal(got, reference.run(graph, images), err_msg=f"file {index}, {net.isa}")
    return "compared"


def cost(graph: Graph) -> tuple[int, int]:
    """Operations of one image, and elements of all values with their padding."""
    values = graph.check()
    operations = elements = 0
    for node in graph.nodes:
        if isinstance(node, Conv):
            seen, out = values[node.input], values[node.floats or node.bits or ""]
            operations += graph.arrays[node.weight].size * out.height * out.width
            top, left, bottom, right = node.padding
            elements += seen.channels * (seen.height + top + bottom) * (seen.width + left + right)
        elif isinstance(node, Pool):
            rows, cols = (sum(end - begin for begin, end, _ in axis) for axis in (node.rows, node.cols))
            operations += rows * cols * values[node.input].channels
    elements += sum(value.channels * value.height * value.width for value in values.values())
    return operations, elements


def originals() -> list[bytes]:
    """Sound files: networks of many operators, and of one, which can be changed without the rest noticing."""
    rng = np.random.default_rng(0)
    graphs = [tiny(), *(random_graph(np.random.default_rng(i)) for i in range(16))]
    kinds = (("binary", True, 1), ("binary", False, 3), ("float", False, 2), ("int8", False, 1), ("bf16", False, 1))
    for kind, threshold, groups in kinds:
        options = {
            "kernel": (3, 2),
            "padding": (1, 0, 1, 1),
            "stride": (1, 1),
            "threshold": threshold,
            "groups": groups,
        }
        graphs.append(one_conv(rng, kind, (6, 5, 4), 6, **options, outputs="bits" if threshold else "floats"))
        graphs.append(one_conv(rng, kind, (6, 5, 4), 6, **options, residual="bits", outputs="bits"))
    return [format.encode(graph) for graph in graphs]


def instruction_sets() -> list[str]:
    """What there is to compare with the reference."""
    try:
        from stompp_kernels import available_isas
    except ImportError:
        return ["reference"]
    return list(available_isas())


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fuzz(count: int, seed: int, first: int = 0, *, patient: float = LONGEST) -> dict[str, Any]:
    """Put `count` files to the test and say what became of them; raise for the first that does harm."""
    files, isas = originals(), instruction_sets()
    found: dict[str, Counter[str]] = {damage.__name__: Counter() for damage in DAMAGES}
    slowest, slow_index, early = 0.0, -1, 0
    for index in range(first, first + count):
        faulthandler.dump_traceback_later(patient, exit=True)
        begin = time.perf_counter()
        name, data = damaged(seed, index, files)
        try:
            found[name][outcome(data, index, isas)] += 1
        except Exception as error:
            raise AssertionError(f"file {index} of seed {seed} ({name}): {type(error).__name__}: {error}") from error
        if (taken := time.perf_counter() - begin) > slowest:
            slowest, slow_index = taken, index
        if index - first == count // 5:  # by then everything that is kept for good has been taken once
            early = resident()
    faulthandler.cancel_dump_traceback_later()
    return {
        "files": count,
        "outcomes": dict(sum(found.values(), Counter())),
        "by damage": {name: dict(each) for name, each in found.items()},
        "slowest": {"seconds": round(slowest, 2), "file": slow_index},
        "MB in memory": {"after a fifth": round(early / 1e6, 1), "at the end": round(resident() / 1e6, 1)},
    }


def shared(count: int, seed: int, first: int, processes: int) -> dict[str, Any]:
    """Fuzz in several processes, each with a stretch of the files, and sum up."""
    ends = [first + count * i // processes for i in range(processes + 1)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), strict) as pool:
        parts = list(pool.map(fuzz, [b - a for a, b in pairwise(ends)], [seed] * processes, ends[:-1]))
    whole = {
        "files": sum(part["files"] for part in parts),
        "outcomes": dict(sum((Counter(part["outcomes"]) for part in parts), Counter())),
        "by damage": {
            damage.__name__: dict(sum((Counter(part["by damage"][damage.__name__]) for part in parts), Counter()))
            for damage in DAMAGES
        },
        "slowest": max((part["slowest"] for part in parts), key=lambda each: each["seconds"]),
        "MB in memory, by process": [part["MB in memory"] for part in parts],
    }
    machine = {"python": platform.python_version(), "numpy": np.__version__, "isas": instruction_sets()}
    sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
    return {"seed": seed, "sanitizers": ["address", "undefined"] if sanitized else [], **machine, **whole}


def strict() -> None:
    """Make warnings errors."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "stompp-kernels is not installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, help="this file alone, its outcome or traceback")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    given = parser.parse_args()
    strict()
    if given.only is not None:
        name, data = damaged(given.seed, given.only, originals())
        print(name, len(data), "bytes:", outcome(data, given.only, instruction_sets()))
        return
    result = shared(given.files, given.seed, given.first, given.processes)
    print(json.dumps(result))
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
