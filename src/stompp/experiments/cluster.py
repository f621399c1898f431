"""What a grid asks of a SLURM cluster for each of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stompp.errors import UsageError


@dataclass(frozen=True)
class SlurmOptions:
    """What a job asks of the cluster."""

    partition: str | None = None
    """partition; None is the cluster's default"""
    account: str | None = None
    """account to charge"""
    minutes: int = 240
    """time of one job; a run that takes longer is queued again and goes on"""
    gpus: int = 1
    """GPUs of a run"""
    cpus: int = 4
    """cores of a run"""
    memory_gb: int | None = None
    """memory of a run; None is the cluster's default"""
    at_once: int = 64
    """how many jobs of an array may run at the same time; a grid is one array, and those begun later are others"""
    cluster: Literal["slurm", "local"] = "slurm"
    """local is submitit's imitation of a cluster on this machine, for tests"""

    def __post_init__(self) -> None:
        for name, least in (("minutes", 1), ("gpus", 0), ("cpus", 1), ("memory_gb", 1), ("at_once", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"slurm.{name} is {value}; it must be at least {least}")
