"""Packed nets with numpy and the two wheels alone: the compiled kernels give the bits of the numpy reference.

Run by `make wheels` in an environment without PyTorch.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

import stompp
from stompp.deploy.format import save
from stompp.deploy.graph import Graph
from stompp.deploy.nodes import Conv, Sign


def graph() -> Graph:
    """A small net: sign, a binary convolution, a float linear layer."""
    rng = np.random.default_rng(0)
    nodes = (
        Sign("input", "s"),
        Conv("binary", "s", 70, "w", (3, 3), padding=(1, 1, 1, 1), mul="m", bias="b", floats="y"),
        Conv("float", "y", 10, "v", (9, 9), mul="n", bias="c", floats="logits"),
    )
    arrays = {
        "w": rng.integers(0, 2, (70, 3, 3, 33)).astype(bool),
        "m": rng.standard_normal(70).astype(np.float32),
        "b": rng.standard_normal(70).astype(np.float32),
        "v": rng.standard_normal((10, 9, 9, 70)).astype(np.float32),
        "n": np.ones(10, np.float32),
        "c": np.zeros(10, np.float32),
    }
    return Graph((33, 9, 9), (10,), "logits", nodes, arrays, {})


def main() -> None:
    assert importlib.util.find_spec("torch") is None, "this is to be tried without PyTorch"
    images = np.random.default_rng(1).standard_normal((5, 33, 9, 9)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.stompp"
        save(graph(), file)
        net = stompp.load(file)
        assert net.isa != "reference", "the compiled kernels are not there"
        assert np.array_equal(net(images), stompp.load(file, isa="reference")(images))
    print(f"Python {platform.python_version()}: {net.isa} kernels, equal to the reference; torch: no", file=sys.stderr)


if __name__ == "__main__":
    main()
