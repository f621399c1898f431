"""Damaged packed networks are refused, or run as the reference does; see fuzz_packed.py for how they are made."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fuzz_packed
from packed_damage import DAMAGES, tiny
from stompp.deploy import format

pytestmark = pytest.mark.filterwarnings("ignore:stompp-kernels is not installed:RuntimeWarning")

PARTS = 10  # of the long run, so that several processes can share it


def check(found: dict, files: int) -> None:
    outcomes = found["outcomes"]
    assert sum(outcomes.values()) == files
    assert outcomes["compared"] > files / 20, "hardly a file was still a network: nothing behind the checks was tested"
    assert outcomes["refused"] > files / 2
    growth = found["MB in memory"]["at the end"] - found["MB in memory"]["after a fifth"]
    assert growth < 100, f"{growth} MB more in memory after these files"


def test_damaged_files_do_no_harm() -> None:
    check(fuzz_packed.fuzz(2_000, seed=0), 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_damaged_files_do_no_harm(part: int) -> None:
    check(fuzz_packed.fuzz(100_000 // PARTS, seed=1, first=part * 100_000 // PARTS), 100_000 // PARTS)


def test_the_same_files_again_take_no_more_memory() -> None:
    files, isas = fuzz_packed.originals(), fuzz_packed.instruction_sets()
    some = [fuzz_packed.damaged(0, i, files)[1] for i in range(400)]
    after = []
    for _ in range(5):
        for i, data in enumerate(some):
            fuzz_packed.outcome(data, i, isas)
        after.append(fuzz_packed.resident())
    assert after[-1] - after[1] < 3e6  # a kilobyte for each file would be 1.2 MB, a network's own memory far more


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_changes_files_and_depends_on_its_seed_alone(damage) -> None:
    files = fuzz_packed.originals()
    made = [[damage(random.Random(seed), files[3], files) for seed in range(20)] for _ in range(2)]
    assert made[0] == made[1]
    assert sum(data != files[3] for data in made[0]) > 10


def test_a_kernel_that_is_wrong_is_found(monkeypatch) -> None:
    right = fuzz_packed.reference.run
    monkeypatch.setattr(fuzz_packed.reference, "run", lambda graph, images: right(graph, images) + np.float32(1))
    with pytest.raises(AssertionError, match="file 0"):
        fuzz_packed.outcome(format.encode(tiny()), 0, fuzz_packed.instruction_sets())
