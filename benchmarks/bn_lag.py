"""How much of a trained net's accuracy BatchNorm's running statistics take: they lag behind what freezes last.

    python benchmarks/bn_lag.py runs/*-bwn-*/seed* --out benchmarks/results/bn_lag.json

Running statistics are averages over the last steps, and the last site's remaining entries become ±1 in the very last
one: what comes behind that site is normalised by statistics of another net. Scores every finished run on all test
images as it was saved, and with statistics estimated anew from training images (`recalibrate_bn`). Runs whose weights
are not there, or that were trained with `recalibrate_bn`, are passed over.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from measure import machine

from stompp.experiments.results import rule
from stompp.training.build import evaluation_batches, open_run, recalibration_batches
from stompp.training.evaluate import evaluate, recalibrated
from stompp.training.folder import RunFolder
from stompp.training.options import MachineOptions


def score(path: Path) -> dict[str, object]:
    """Return a run's test accuracy with either statistics."""
    recipe, seed, data, model = open_run(path, MachineOptions(device="cpu"), torch.device("cpu"))
    test = evaluation_batches(recipe, data)["test"]
    saved = evaluate(model, test.epoch(0)).accuracy
    with recalibrated(model, list(recalibration_batches(recipe, data).epoch(0))):
        anew = evaluate(model, test.epoch(0)).accuracy
    return {
        "run": f"{recipe.name}, seed {seed}",
        "rule": f"{rule(recipe)}, {recipe.policy}",
        "saved": round(saved, 2),
        "anew": round(anew, 2),
        "difference": round(anew - saved, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| run | as saved | statistics anew | difference |\n|---|---:|---:|---:|")
    for path in sorted(given.runs):
        folder = RunFolder(path)
        if not (folder.done and folder.model_file.exists()) or folder.read_recipe()[0].recalibrate_bn:
            continue
        rows.append(row := score(path))
        print(f"| {row['run']} | {row['saved']} | {row['anew']} | {row['difference']:+} |", flush=True)
    if given.out is not None:
        given.out.write_text(
            json.dumps({"machine": machine(), "unit": "% of all test images", "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
