"""Work that a GPU is asked for once for every shape of its inputs, and that is replayed from then on.

To ask for an operation takes the processor longer than a small one takes the GPU, and an update of a Transformer is one or two
thousand. CUDA graphs: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from translator.runtime.console import log
from translator.runtime.errors import is_out_of_memory

Work = Callable[..., tuple[Tensor, ...]]

# Recordings that are kept: beyond them shapes are rare, and each takes some megabytes.
MOST_RECORDINGS = 512


class Recordings:
    """Does work on a GPU: the first time with inputs of a shape as it comes, the second time recorded, and then replayed.

    Such work waits for nothing, and besides its inputs takes and changes only tensors that stay where they are. Some of them,
    like gradients and what an optimizer remembers, it makes itself, the first time: made in a recording they would lie where
    every replay writes again. What it draws at random follows from the GPU's generator, as without this.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()  # memory that recordings share, as no two run at the same time
        self._most = MOST_RECORDINGS
        self._given: Hashable = None
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}

    def __len__(self) -> int:
        return len(self._recordings)

    def do(self, work: Work, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the work, known by its name, returns for inputs that lie anywhere; to be read before it is done again."""
        kind = (work.__name__, *(x.shape for x in inputs))
        recording = self._recordings.get(kind)
        if recording is None and kind in self._seen and len(self) < self._most:
            recording = self._record(kind, work, inputs)
        self._seen.add(kind)
        return work(*inputs) if recording is None else recording.replay(inputs)

    def depend_on(self, given: Hashable) -> None:
        """Have recordings serve only for as long as this stays the same."""
        if given != self._given:
            self.forget()
            self._given = given

    def forget(self) -> None:
        """Begin anew: tensors lie elsewhere now."""
        if self._recordings:
            torch.cuda.synchronize(self._device)  # one may still be running
        self._recordings.clear()
        self._seen.clear()
        self._pool = torch.cuda.graph_pool_handle()  # PyTorch gives a pool up with the last recording that lies in it

    def give_up(self) -> None:
        """Leave their memory to other things, and record no more."""
        log("warning: train.cuda_graphs: there is no memory to replay updates with; they are made without from here on")
        self.forget()
        self._most = 0
        torch.cuda.empty_cache()

    def _record(self, kind: Hashable, work: Work, inputs: Sequence[Tensor]) -> Recording | None:
        """None where there is no memory for it: nothing has been done yet then."""
        try:
            recording = self._recordings[kind] = Recording(work, inputs, self._device, self._pool)
            return recording
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self.give_up()
        return None


class Recording:
    """What some work asked the GPU for, with inputs and outputs that stay where they are."""

    def __init__(self, work: Work, inputs: Sequence[Tensor], device: torch.device, pool: Any) -> None:
        self._inputs = [torch.empty_like(x, device=device) for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(device)
        try:
            with torch.cuda.graph(self._graph, pool=pool):
                self._outputs = work(*self._inputs)
        finally:
            torch.cuda.set_stream(stream)  # where a recording could not be ended, PyTorch stays on its own

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for held, x in zip(self._inputs, inputs, strict=True):
            held.copy_(x, non_blocking=True)
        self._graph.replay()
        return self._outputs
