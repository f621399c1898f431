"""Training in several processes: every rank works on its share of each batch, and all hold the same state.

    torchrun --nproc-per-node 2 -m stompp train NAME

After every backward pass one flat tensor goes through one all-reduce: the gradients, BatchNorm's running statistics,
and what the step has to report. Masks are a pure function of (seed, site, step) and of the weights, so from then on
every rank computes the same bits by itself. Hence one rank's checkpoint continues them all, and all of them come to the
same conclusion about a loss that is not finite.

PyTorch's DistributedDataParallel is not used, although it overlaps this exchange with the backward pass: it wants a
gradient for every parameter or a search of the graph in every step, and here frozen sites have none and drop out one
by one. What is exchanged shrinks with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stompp.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this one is; by default the only one, for which every method is trivial."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True for the rank that writes files and speaks."""
        return self.rank == 0

    def agree(self, *values: int) -> tuple[int, ...]:
        """Return the largest of each value over all ranks, the same on all of them."""
        if self.size == 1:
            return values
        largest = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return tuple(largest.tolist())

    def first_only(self, action: Callable[[], object]) -> None:
        """Do something on the first rank while the others wait; its failure ends them all, and only it says why."""
        failure: BaseException | None = None
        if self.first:
            try:
                action()
            except BaseException as error:
                failure = error
        if self.agree(failure is not None)[0]:
            raise SystemExit(2) if failure is None else failure

    def first_then_others(self, read: Callable[[], T]) -> T:
        """Read something on the first rank, which may put it in order while it does, then on the others."""
        found: list[T] = []
        self.first_only(lambda: found.append(read()))
        return found[0] if self.first else read()

    def refuse_differing(self, value: int, what: str) -> None:
        """Refuse to go on where the ranks do not see the same."""
        highest, lowest = self.agree(value, -value)
        if highest != -lowest:
            raise UsageError(f"not every rank sees the same {what}; put --runs on a disk that all of them share")

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if self.size == 1:
            return values
        values = values.clone()
        dist.all_reduce(values)
        return values

    def exchange(self, model: nn.Module, loss: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Average gradients and running statistics over the ranks; return the mean loss and the sum of `right`."""
        if self.size == 1:
            return loss, right
        shared = [p.grad for p in model.parameters() if p.grad is not None] + list(_running_statistics(model))
        with torch.no_grad():
            flat = torch.cat([*(value.reshape(-1) for value in shared), torch.stack([loss.detach(), right])])
            dist.all_reduce(flat)
            right = flat[-1].clone()
            *parts, report = (flat / self.size).split([*(value.numel() for value in shared), 2])
            for value, part in zip(shared, parts):
                value.copy_(part.view_as(value))
        return report[0], right.to(torch.int64)


ALONE = Ranks()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes that torchrun has started, if it has; leave them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # gloo carries what is decided on the host, whatever the gradients go through
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    try:
        yield ranks
    except UsageError as error:
        raise error if ranks.first else UsageError(f"rank {ranks.rank}: {error}") from None
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise UsageError(f"rank {ranks.rank} has lost the others; one of them says why, or was killed") from None
    finally:
        dist.destroy_process_group()


def share_of(batch_size: int, ranks: Ranks) -> int:
    """Return how many images of each batch one rank gets."""
    if batch_size % ranks.size:
        raise UsageError(
            f"batch_size is {batch_size}, which {ranks.size} processes cannot share evenly; write a --batch-size that "
            f"is a multiple of {ranks.size}, or start another number of processes"
        )
    return batch_size // ranks.size


def synchronise_batchnorm(model: nn.Module) -> None:
    """Let BatchNorm layers normalise by the whole batch's statistics and not by the rank's share's."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm over the batches of all ranks, which must be of one size (torch's own does not run on a CPU)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not torch.is_grad_enabled():  # recalibration shows every rank the same images
            return super().forward(input)
        x = input.float()
        count = x.numel() // x.shape[1] * dist.get_world_size()
        mean = _SumOverRanks.apply(x.sum((0, 2, 3))) / count
        centred = x - mean.view(1, -1, 1, 1)
        variance = _SumOverRanks.apply(centred.square().sum((0, 2, 3))) / count
        if self.track_running_stats:
            with torch.no_grad():
                self.num_batches_tracked += 1  # type: ignore[operator]
                factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)  # type: ignore[arg-type]
                self.running_mean.lerp_(mean, factor)  # type: ignore[union-attr]
                self.running_var.lerp_(variance * (count / (count - 1)), factor)  # type: ignore[union-attr]
        scale = (variance + self.eps).rsqrt() * self.weight
        return (centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(input.dtype)


class _SumOverRanks(torch.autograd.Function):
    """A sum over the ranks: each rank's part takes part in every rank's loss, so its gradient is their sum as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _running_statistics(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
            yield from (module.running_mean, module.running_var)
