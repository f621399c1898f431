"""fp32 is fp32 and tf32 is TF32, in whatever order nets of both are built in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from stompp.recipes import get
from stompp.training.build import autocast, build_model


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    yield
    torch.backends.cudnn.allow_tf32 = before[0]
    torch.set_float32_matmul_precision(before[1])


def build(precision: str) -> torch.nn.Module:
    recipe = replace(get("resnet8-digits-bnn-stompp"), width=4, precision=precision)
    return build_model(recipe, (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize("order", [("fp32", "tf32"), ("tf32", "fp32"), ("tf32", "bf16")])
def test_precision_is_that_of_the_recipe_built_last(order: tuple[str, str]) -> None:
    for precision in order:
        build(precision)
    rounds = order[-1] == "tf32"
    assert torch.backends.cudnn.allow_tf32 is rounds
    assert torch.backends.cuda.matmul.allow_tf32 is rounds


def test_bf16_alone_is_autocast() -> None:
    recipe = get("resnet8-digits-bnn-stompp")
    found = [autocast(replace(recipe, precision=precision)) for precision in ("fp32", "tf32", "bf16")]
    assert found == [None, None, torch.bfloat16]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("precision, low, high", [("fp32", 0.0, 2e-6), ("tf32", 5e-5, 5e-3)])
def test_products_on_a_gpu_have_the_precision_they_are_called_by(precision: str, low: float, high: float) -> None:
    build(precision)
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(8, 64, 16, 16, generator=draw), torch.randn(64, 64, 3, 3, generator=draw)
    a, b = torch.randn(512, 512, generator=draw), torch.randn(512, 512, generator=draw)
    pairs = (
        (torch.conv2d(x.cuda(), w.cuda()), torch.conv2d(x.double(), w.double())),
        (a.cuda() @ b.cuda(), a.double() @ b.double()),
    )
    for found, exact in pairs:
        error = ((found.cpu().double() - exact).norm() / exact.norm()).item()
        assert low <= error <= high
