"""Training steps as CUDA graphs: a small net on a large GPU mostly waits for its kernels to be launched, one by one.

The work of a step (forward, backward, optimizer) is recorded once and then launched as a whole. It changes whenever a
site enters another phase, so the first step of a phase runs as usual and the second one is recorded anew. Masks go on
changing between the steps; the recording reads them from where they lay when it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stompp.core.freeze import Site

Learn = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class StepGraph:
    """Does what `learn(images, labels)` does, faster: returns the same tensors, overwritten by the next call."""

    def __init__(self, learn: Learn, sites: Sequence[Site]) -> None:
        self._learn, self._sites = learn, sites
        self._phases: list[str] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._current = False  # whether the recording is of these phases
        self._stream = torch.cuda.Stream()
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[Tensor, ...] = ()
        self._buffers: list[tuple[Site, str, Tensor]] = []

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        phases = [site.phase for site in self._sites]
        if phases != self._phases:
            self._phases, self._current = phases, False
            return self._learn(images, labels)
        if not self._current:
            self._record(images, labels)
        assert self._graph is not None
        for site, name, recorded in self._buffers:
            if (now := getattr(site, name)) is not recorded:
                setattr(site, name, recorded.copy_(now))
        for kept, given in zip(self._inputs, (images, labels)):
            kept.copy_(given)
        self._graph.replay()
        return self._outputs

    def _record(self, images: Tensor, labels: Tensor) -> None:
        """Record without running; not with torch.cuda.graph, which collects garbage first, as long as many steps."""
        self._inputs = (images.clone(), labels.clone())
        self._outputs = ()  # of the recording before, which lie in the pool
        self._buffers = [
            (site, name, value)
            for site in self._sites
            for name in ("mask", "held")
            if (value := getattr(site, name)) is not None
        ]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # in the memory of the recording before, which lives until this one is made
            graph.capture_begin(*() if self._graph is None else (self._graph.pool(),))
            try:
                self._outputs = self._learn(*self._inputs)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._graph, self._current = graph, True
