"""What importing stompp costs, as a ratio to importing torch alone.

    python benchmarks/bench_import.py [--rounds 20]

Every import is a process of its own, timed within it, so the interpreter's own start does not count. The variants run
interleaved, one process of each per round, so that a slow moment of the machine falls on all of them; the figures are
medians over the rounds, after one that warms the disk's cache. The claim: under 1.3 times torch alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from typing import Any

VARIANTS = {
    "import torch": "import torch",
    "import stompp": "import stompp",
    "import stompp; stompp.prepare": "import stompp; stompp.prepare",
}
TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    found = measure(parser.parse_args().rounds)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {found['rounds']} rounds")
    base = found["seconds"]["import torch"]["median"]
    for name, row in found["seconds"].items():
        spread = f"({row['low']:.3f} to {row['high']:.3f})"
        print(f"{name:30s} {row['median']:7.3f} s {spread}  {row['median'] / base:5.2f} of torch")


def measure(rounds: int) -> dict[str, Any]:
    """Return least, median and greatest seconds of each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for round_ in range(rounds + 1):
        for name, code in VARIANTS.items():
            done = subprocess.run(
                [sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True, check=True
            )
            if round_ > 0:
                seconds[name].append(float(done.stdout))
    rows = {
        name: {"low": min(values), "median": statistics.median(values), "high": max(values)}
        for name, values in seconds.items()
    }
    return {"rounds": rounds, "seconds": rows}


if __name__ == "__main__":
    main()
