"""Measure what training costs beyond the net itself, and write docs/performance.md from what was measured.

    python benchmarks/measure.py step data import      # each part into benchmarks/results/training.json
    python benchmarks/measure.py publish

The parts are bench_step.py, bench_data.py and bench_import.py, which can be run alone, with other settings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import bench_data
import bench_import
import bench_step
import torch

from stompp.experiments.tables import fill
from stompp.training.folder import environment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "training.json"
PAGE = ROOT / "docs" / "performance.md"

PARTS = {
    "step": lambda: {"batch": 64, "repeats": 15, "orders": bench_step.measure(64, 15)},
    "data": lambda: bench_data.measure(rounds=200, steps=5),
    "import": lambda: bench_import.measure(20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "publish"])
    for part in parser.parse_args().parts:
        if part == "publish":
            publish()
            continue
        load = round(os.getloadavg()[0], 2)
        measured = {**PARTS[part](), "machine": machine(), "load": load}
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({**found, part: measured}, indent=1) + "\n")
        print(json.dumps(measured, indent=1), flush=True)


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    here = environment(torch.device("cpu"))
    names = ("cpu", "threads", "torch", "python", "commit")
    return {**{name: here[name] for name in names}, "cpus": os.cpu_count(), "system": platform.system()}


def publish() -> None:
    """Write the tables."""
    found = json.loads(RESULTS.read_text())
    fill(
        PAGE, {"step": step_table(found["step"]), "data": data_table(found["data"]), "import": imports(found["import"])}
    )


def step_table(found: dict[str, Any]) -> str:
    lines = ["| order | entries moving | `freezer.step` | training step | share | target |", "|---" * 6 + "|"]
    for order, row in found["orders"].items():
        cells = [
            order,
            f"{row['moving_entries']:,}",
            *(
                f"{row[k]:.1f} ({row[k + '_range'][0]:.1f} to {row[k + '_range'][1]:.1f}) ms"
                for k in ("upkeep_ms", "step_ms")
            ),
            f"{row['share']:.2%} ({row['share_range'][0]:.2%} to {row['share_range'][1]:.2%})",
            f"under {row['target']:.0%}: {'met' if row['share'] < row['target'] else 'missed'}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{found['repeats']} steps each. {provenance(found)}"


def data_table(found: dict[str, Any]) -> str:
    step = found["step_ms"]["median"]
    lines = ["| path | ms per batch, median (quartiles) | share of a training step |", "|---" * 3 + "|"]
    for name, row in found["paths_ms"].items():
        share = f"{row['median'] / step:.2%}" if name.startswith("32x32") else ""
        lines.append(f"| {name} | {row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | {share} |")
    lines.append(f"| training step | {step:.0f} ({found['step_ms']['low']:.0f} to {found['step_ms']['high']:.0f}) | |")
    return (
        "\n".join(lines) + f"\n\n{found['rounds']} batches each, {found['steps']} training steps. {provenance(found)}"
    )


def imports(found: dict[str, Any]) -> str:
    lines = ["| what | seconds | of `import torch` |", "|---" * 3 + "|"]
    for name, row in found["seconds"].items():
        ratio = row["median"] / found["seconds"]["import torch"]["median"]
        lines.append(f"| `{name}` | {row['median']:.3f} ({row['low']:.3f} to {row['high']:.3f}) | {ratio:.2f} |")
    return "\n".join(lines) + f"\n\n{found['rounds']} processes each. {provenance(found)}"


def provenance(found: dict[str, Any]) -> str:
    m = found["machine"]
    return (
        f"{m['cpu']}, {m['cpus']} CPUs, {m['threads']} threads, PyTorch {m['torch']}, Python {m['python']}, commit "
        f"{m['commit']}, load average {found['load']} before."
    )


if __name__ == "__main__":
    main()
