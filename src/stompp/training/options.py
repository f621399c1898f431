"""How a run is carried out: what does not change its result, beyond the seed that tells repetitions apart."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from stompp.errors import UsageError


@dataclass(frozen=True)
class MachineOptions:
    """What to run on, and where the data are."""

    data_root: Path | None = None
    """folder of the data sets; None is $STOMPP_DATA, or else ~/.cache/stompp"""
    download: bool = True
    """download a data set that is not there"""
    device: str = "auto"
    """auto takes a GPU if there is one; else cpu, cuda, cuda:1, mps"""
    threads: int | None = None
    """CPU threads of this process; None is PyTorch's choice"""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads is {self.threads}; it must be at least 1")

    def ready(self) -> torch.device:
        """Apply what concerns the whole process, and return the device."""
        device = self.resolve_device()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return device

    def resolve_device(self) -> torch.device:
        """Return the device asked for, if it is there."""
        if self.device == "auto" and not torch.cuda.is_available():
            return torch.device("cpu")
        try:
            device = torch.device("cuda" if self.device == "auto" else self.device)
            if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
                device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun: a GPU for each process
            torch.zeros(1, device=device).item()  # a device that cannot give a value back cannot train either
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
            raise UsageError(f"device {self.device!r} is not to be had here ({reason}); write --device cpu") from None
        return device


@dataclass(frozen=True)
class RunOptions(MachineOptions):
    """Where a run goes and what it runs on."""

    seed: int = 0
    """decides initial weights, data order, augmentation and masks"""
    runs: Path = Path("runs")
    """folder of all runs; this one goes to RUNS/<recipe>/seed<k>"""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """how images lie in memory; auto is channels_last where that is faster, on a CPU and in bf16"""
    compile: bool = False
    """torch.compile the model; it compiles anew whenever a site changes its phase"""
    cuda_graphs: bool = False
    """record the steps on a GPU and launch each as a whole: several times faster for small nets"""
    sync_batchnorm: bool = False
    """with several processes: BatchNorm normalises by the whole batch, not by each process's share of it"""
    deterministic: bool = False
    """only deterministic algorithms, so that a run on an accelerator can be repeated bit for bit"""
    tensorboard: bool = True
    """write TensorBoard scalars into the run folder"""
    checkpoint_minutes: float = 5.0
    """write a checkpoint within an epoch at the latest after so many minutes; every epoch ends with one anyway"""
    monitor_every: int = 20
    """look at the loss every so many steps"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it must be at least 0")
        if self.monitor_every < 1:
            raise UsageError(f"monitor_every is {self.monitor_every}; it must be at least 1")
        if not self.checkpoint_minutes >= 0:
            raise UsageError(f"checkpoint_minutes is {self.checkpoint_minutes}; it must be at least 0")

    def resolve_memory_format(self, device: torch.device, precision: str) -> torch.memory_format:
        """Return the memory format to train in."""
        faster = device.type == "cpu" or precision == "bf16"
        chosen = self.memory_format == "channels_last" or (self.memory_format == "auto" and faster)
        return torch.channels_last if chosen else torch.contiguous_format
