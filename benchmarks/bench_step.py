"""What mask upkeep costs: `freezer.step` as a share of one CIFAR ResNet-18 training step.

    python benchmarks/bench_step.py --batch 64 --repeats 7 --threads 2 --json step.json

One process, one net per order, turns interleaved: in every repeat each order runs one whole training step (forward,
backward, SGD) in the middle of its training, and `freezer.step` is timed apart. Medians over the repeats; the targets
are 2 % in layerwise order and 10 % in global order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch.nn import functional as F

import stompp

TARGETS = {"layerwise": 0.02, "global": 0.10}
TOTAL = 33_000


class Bench:
    """A net in the middle of its training in one order."""

    def __init__(self, order: str, batch: int) -> None:
        torch.manual_seed(0)
        self.images, self.labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        self.net = stompp.prepare(stompp.models.resnet18(), self.images[:2])
        self.freezer = stompp.Freezer(self.net, TOTAL, order=order)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9, nesterov=True)
        # The largest weight of layer 3 moves in layerwise order; in global order everything does.
        moving = next(i for i, site in enumerate(self.freezer.sites) if site.name == "layer3.1.conv1.weight")
        self.t = TOTAL * moving // len(self.freezer.sites) + 500
        state = self.freezer.state_dict()
        state["t"] = self.t
        for site, (start, end) in zip(self.freezer.sites, self.freezer.windows):
            if start <= self.t < end - 1:
                state["masks"][site.name] = torch.zeros(site.shape, dtype=torch.bool)
        self.freezer.load_state_dict(state)

    def step(self) -> tuple[float, float]:
        """Train one step; return the seconds of mask upkeep and of everything."""
        self.t += 1
        start = time.perf_counter()
        self.freezer.step(self.t)
        masked = time.perf_counter()
        F.cross_entropy(self.net(self.images), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return masked - start, time.perf_counter() - start


def measure(batch: int, repeats: int, orders: tuple[str, ...] = tuple(TARGETS)) -> dict[str, dict[str, object]]:
    """Return medians, quartile spreads and the share of mask upkeep, per order."""
    benches = {order: Bench(order, batch) for order in orders}
    times: dict[str, list[tuple[float, float]]] = {order: [] for order in orders}
    for repeat in range(repeats + 1):
        for order, bench in benches.items():
            taken = bench.step()
            if repeat:  # the first turn warms up
                times[order].append(taken)
    results = {}
    for order, found in times.items():
        upkeep, whole = zip(*found)
        shares = [u / w for u, w in found]
        results[order] = {
            "upkeep_ms": 1e3 * statistics.median(upkeep),
            "upkeep_ms_range": [1e3 * min(upkeep), 1e3 * max(upkeep)],
            "step_ms": 1e3 * statistics.median(whole),
            "step_ms_range": [1e3 * min(whole), 1e3 * max(whole)],
            "share": statistics.median(shares),
            "share_range": [min(shares), max(shares)],
            "target": TARGETS[order],
            "moving_entries": sum(site.size for site, _ in benches[order].freezer.moving),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = measure(options.batch, options.repeats)
    print(f"CIFAR ResNet-18 BNN, batch {options.batch}, {options.threads} threads, torch {torch.__version__},")
    print(f"median (min to max) of {options.repeats} interleaved steps")
    print(f"{'order':<10} {'moving entries':>14}  {'freezer.step':>24}  {'training step':>24}  {'share':>22}  target")
    for order, r in results.items():
        cells = [
            f"{r[k]:.1f} ({r[k + '_range'][0]:.1f} to {r[k + '_range'][1]:.1f}) ms" for k in ("upkeep_ms", "step_ms")
        ]
        share = f"{r['share']:.2%} ({r['share_range'][0]:.2%} to {r['share_range'][1]:.2%})"
        verdict = "met" if r["share"] < r["target"] else "MISSED"
        print(
            f"{order:<10} {r['moving_entries']:>14,}  {cells[0]:>24}  {cells[1]:>24}  {share:>22}  "
            f"{r['target']:.0%} {verdict}"
        )
    if options.json:
        environment = {
            "torch": torch.__version__, "threads": options.threads, "batch": options.batch, "repeats": options.repeats
        }  # fmt: skip
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"environment": environment, "orders": results}, file, indent=1)


if __name__ == "__main__":
    main()
