"""Packed nets where nothing is installed but numpy, stompp and, perhaps, its compiled kernels: in real processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy_graphs import random_graph
from stompp.deploy import format, reference

SEEDS = range(6)

# The first argument names the packages that there are; the rest are the folders they lie in.
ALONE = """
import sys
allowed, folders = set(sys.argv[1].split(",")), sys.argv[2:]
class Others:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Others())
sys.path += folders
"""

CHECKED = """
strange = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - allowed - {"__main__"}
assert not strange, strange
for name in ("torch", "tyro", "rich", "safetensors"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{name} can be imported")
"""

LOADS = """
import warnings
from pathlib import Path
import stompp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    nets = {path: stompp.load(path, threads=2) for path in sorted(Path().glob("*.stompp"))}
import numpy as np
for path, net in nets.items():
    x = np.load(path.with_suffix(".in.npy"))
    np.save(path.with_suffix(".out.npy"), net(x))
    np.save(path.with_suffix(".slow.npy"), stompp.load(path, isa="reference")(x))
print(*sorted({net.isa for net in nets.values()}))
for warning in caught:
    print(f"{warning.category.__name__}: {warning.message}")
"""


def folders_of(*packages: str) -> list[str]:
    found = [importlib.util.find_spec(package) for package in packages]
    return list(dict.fromkeys(str(Path(spec.origin).parent.parent) for spec in found if spec and spec.origin))


def alone(folder: Path, code: str, *packages: str) -> list[str]:
    """Run code where only these packages can be imported, and return the lines it prints."""
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", ALONE + code + CHECKED]  # -S: no .pth files run before
    done = subprocess.run(
        [*command, ",".join(packages), *folders_of(*packages)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def nets(tmp_path: Path) -> dict[str, np.ndarray]:
    """Packed nets of all operators and images for them, in files; and what they must answer."""
    wanted = {}
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        graph = random_graph(rng)
        format.save(graph, tmp_path / f"{seed}.stompp")
        x = rng.standard_normal((3, *graph.input)).astype(np.float32)
        np.save(tmp_path / f"{seed}.in.npy", x)
        wanted[str(seed)] = reference.run(graph, x)
    return wanted


def assert_bits(folder: Path, kind: str, wanted: dict[str, np.ndarray]) -> None:
    for seed, want in wanted.items():
        got = np.load(folder / f"{seed}.{kind}.npy")
        np.testing.assert_array_equal(got, want, err_msg=seed)
        assert got.dtype == np.float32


def test_kernels_and_numpy_give_the_same_bits(tmp_path: Path, nets: dict[str, Any]) -> None:
    pytest.importorskip("stompp_kernels", reason="the compiled kernels are not built: make kernels")
    (isa, *warned) = alone(tmp_path, LOADS, "numpy", "stompp", "stompp_kernels")
    assert isa in ("avx512_bf16", "avx512", "avx2", "portable")
    assert not warned
    assert_bits(tmp_path, "out", nets)
    assert_bits(tmp_path, "slow", nets)


def test_numpy_alone_gives_the_same_bits_and_says_so_once(tmp_path: Path, nets: dict[str, Any]) -> None:
    isa, *warned = alone(tmp_path, LOADS, "numpy", "stompp")
    assert isa == "reference"
    assert len(warned) == 1, warned
    assert warned[0].startswith("RuntimeWarning: stompp-kernels is not installed")
    assert warned[0].endswith("Remedy: pip install stompp-kernels")
    assert_bits(tmp_path, "out", nets)


def test_errors_need_no_more_than_results(tmp_path: Path, nets: dict[str, Any]) -> None:
    code = """
import stompp
from pathlib import Path
Path("bad.stompp").write_bytes(Path("0.stompp").read_bytes()[:-1])
for wrong in (lambda: stompp.load("bad.stompp"), lambda: stompp.load("0.stompp", isa="reference")([1])):
    try:
        wrong()
    except stompp.UsageError as error:
        print(error)
"""
    damaged, shape = alone(tmp_path, code, "numpy", "stompp")
    assert "cut off or added to" in damaged
    assert "give floats" in shape


def test_the_process_is_as_bare_as_it_claims(tmp_path: Path) -> None:
    assert alone(tmp_path, "import json, stompp; print(stompp.__version__)", "numpy", "stompp")
    with pytest.raises(AssertionError, match="No module named 'numpy'"):
        alone(tmp_path, "import stompp; stompp.load('x')", "stompp")
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        alone(tmp_path, "import stompp; stompp.pack", "numpy", "stompp")
    with pytest.raises(AssertionError, match="rich"):
        alone(tmp_path, "import rich", "numpy", "stompp", "rich", "pygments", "markdown_it")
