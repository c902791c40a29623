"""Capture one CUDA graph per input shape and replay it: to launch a small operation takes longer than the operation.

See "CUDA Graphs" in https://docs.pytorch.org/docs/stable/notes/cuda.html.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from translator.runtime.console import log
from translator.runtime.errors import is_out_of_memory

Work = Callable[..., tuple[Tensor, ...]]

# Most graphs: each takes some megabytes, and shapes beyond them are rare.
MOST_RECORDINGS = 512


class Recordings:
    """Runs functions on a GPU: eagerly the first time with inputs of a shape, captured the second time, then replayed.

    A captured function must not synchronise, and may touch only its inputs and tensors at fixed addresses. Tensors that it
    allocates itself, such as gradients and optimizer states, come from the eager run: allocated in a capture, every replay
    would overwrite them. Random numbers come from the GPU's generator, as usual.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()  # shared: no two graphs run at the same time
        self._most = MOST_RECORDINGS
        self._given: Hashable = None
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}

    def __len__(self) -> int:
        return len(self._recordings)

    def do(self, work: Work, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return `work` of the inputs, wherever they are. Read the result before the next call."""
        kind = (work.__name__, *(x.shape for x in inputs))
        recording = self._recordings.get(kind)
        if recording is None and kind in self._seen and len(self) < self._most:
            recording = self._record(kind, work, inputs)
        self._seen.add(kind)
        return work(*inputs) if recording is None else recording.replay(inputs)

    def depend_on(self, given: Hashable) -> None:
        """Forget all graphs when this value changes."""
        if given != self._given:
            self.forget()
            self._given = given

    def forget(self) -> None:
        """Forget all graphs: tensors have moved."""
        if self._recordings:
            torch.cuda.synchronize(self._device)  # a graph may still be running
        self._recordings.clear()
        self._seen.clear()
        self._pool = torch.cuda.graph_pool_handle()  # PyTorch frees a pool with its last graph

    def give_up(self) -> None:
        """Free the memory of the graphs, and capture no more."""
        log("warning: train.cuda_graphs: not enough memory for CUDA graphs; training continues without them")
        self.forget()
        self._most = 0
        torch.cuda.empty_cache()

    def _record(self, kind: Hashable, work: Work, inputs: Sequence[Tensor]) -> Recording | None:
        """Capture; None where memory does not suffice, and then nothing has been computed."""
        try:
            recording = self._recordings[kind] = Recording(work, inputs, self._device, self._pool)
            return recording
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self.give_up()
        return None


class Recording:
    """A captured CUDA graph with its inputs and outputs."""

    def __init__(self, work: Work, inputs: Sequence[Tensor], device: torch.device, pool: Any) -> None:
        self._inputs = [torch.empty_like(x, device=device) for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(device)
        try:
            with torch.cuda.graph(self._graph, pool=pool):
                self._outputs = work(*self._inputs)
        finally:
            torch.cuda.set_stream(stream)  # after a failed capture PyTorch stays on its own stream

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for own, x in zip(self._inputs, inputs, strict=True):
            own.copy_(x, non_blocking=True)
        self._graph.replay()
        return self._outputs
