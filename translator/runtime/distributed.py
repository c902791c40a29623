"""The processes that torchrun starts to train together: rank, sums, decisions of the main process, shared work.

With one process every function returns what it was given, or does all the work itself.
"""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from translator.runtime.errors import USER_ERROR_EXIT_CODE, UserError, one_line

if TYPE_CHECKING:  # to import what shards takes a second, which one process alone need not spend
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
UNHEARD = ("gloo/transport", "Timed out waiting", "Connection closed by peer")  # gloo's words for a lost process


@contextmanager
def process_group(device: str, *, minutes: float) -> Iterator[None]:
    """Connect the processes that torchrun started, a `device` each; UserError where one does not answer for `minutes`."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus:
        local = int(os.environ["LOCAL_RANK"])
        if local >= gpus:
            raise UserError(f"{local + 1} processes or more on a machine with {gpus} GPUs. Start {gpus}, or set device=cpu.")
        torch.cuda.set_device(local)
    # Imported while a group exists, this module keeps it as a default value, and gloo's threads may abort an ending Python.
    import_module("torch.distributed.nn.functional")
    try:
        # Messages go over gloo, so that no GPU waits for them.
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timedelta(minutes=minutes))
        yield
    except (dist.DistError, RuntimeError) as error:
        if not isinstance(error, dist.DistError) and not any(sign in str(error) for sign in UNHEARD):
            raise  # a bug keeps its traceback
        raise UserError(
            f"process {os.environ['RANK']} heard nothing from another for train.timeout_minutes={minutes:g}, or lost it: "
            f"{one_line(str(error))[:200]}. Run the same command to resume from the last checkpoint.") from error
    gc.collect()  # models hold the group too
    dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main_process() -> bool:
    return rank() == 0  # which decides, writes and logs


def sum_over_processes(*values: float) -> list[float]:
    """Return each value summed over the processes."""
    if world_size() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def broadcast_from_main(make: Callable[[], T]) -> T:
    """Return to all processes what `make` returns in the main one. A UserError there ends the others with its exit code."""
    if world_size() == 1:
        return make()
    message: list[Any] = [None, None]  # what it made, or its error
    if is_main_process():
        try:
            message[0] = make()
        except UserError as error:
            message[1] = error
    dist.broadcast_object_list(message)
    if message[1] is not None:
        raise message[1] if is_main_process() else SystemExit(USER_ERROR_EXIT_CODE)
    return message[0]


def own_items(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process works on."""
    return items[rank() :: world_size()]


def gather(part: Sequence[T]) -> list[T]:
    """Return the results for all items of `own_items`, in their order."""
    if world_size() == 1:
        return list(part)
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, list(part))
    return [parts[i % world_size()][i // world_size()] for i in range(sum(map(len, parts)))]


def map_rows(work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return `work` of rows (N, ...), which keeps shapes and row order. Each process does a part; all get the whole."""
    if world_size() == 1:
        return work(rows)
    each = math.ceil(len(rows) / world_size())
    rest = rows.new_zeros(each * world_size() - len(rows), *rows.shape[1:])  # gloo gathers parts of one size
    mine = work(torch.cat([rows, rest]).view(world_size(), each, *rows.shape[1:])[rank()])
    return _from_all(mine).flatten(0, 1)[: len(rows)]


def _from_all(mine: Tensor) -> Tensor:
    """Gather the tensors of P processes, of one shape: (P, ...)."""
    parts = mine.new_empty(world_size(), *mine.shape)
    dist.all_gather(list(parts), mine.contiguous())
    return parts


class SideGroup:
    """Work that the processes share beside training, each in a thread of its own, until one of them ends it."""

    def __init__(self, *, minutes: float) -> None:
        """Every process must make one, at the same place. `minutes`: how long to wait for a process."""
        # A group of its own: training sends messages at any time.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(minutes=minutes)) if world_size() > 1 else None
        self._ending = threading.Event()

    def end(self) -> None:
        """Make the threads raise CancelledError soon."""
        self._ending.set()

    def in_order(self, make: Callable[[], Callable[[Question], Answer]], questions: Iterable[Question]) -> Iterator[Answer]:
        """Yield the answers to the questions, the same in all processes: each answers its share, all get all, in order."""
        answer, questions = make(), iter(questions)
        while batch := list(islice(questions, world_size())):
            mine = [answer(question) for question in own_items(batch)]
            gathered: list[Any] = [(mine, self._ending.is_set())] * world_size()
            if world_size() > 1:
                dist.all_gather_object(gathered, gathered[0], group=self._group)
            if any(ending for _, ending in gathered):
                raise CancelledError
            for answers, _ in gathered:
                yield from answers


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a whole tensor from shards, or from parts of its sum. Every process must call."""
    if not _in_shards(tensor):
        return tensor
    return stack_full_tensors([tensor])[0] if tensor.placements[0].is_shard() else tensor.full_tensor()


def stack_full_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Stack N tensors of one shape (M, ...), or their shards: (N, M, ...). Every process must call.

    All shards come in one message. PyTorch's `full_tensor` sends one a tensor, and has once crashed in training on a CPU.
    """
    if not _in_shards(tensors[0]):
        return torch.stack(list(tensors))
    rows = len(tensors[0])
    shards = torch.stack([cast("DTensor", tensor).to_local() for tensor in tensors])
    rest = shards.new_zeros(len(shards), math.ceil(rows / world_size()) - shards.size(1), *shards.shape[2:])
    return _from_all(torch.cat([shards, rest], dim=1)).transpose(0, 1).flatten(1, 2)[:, :rows]


def full_tensors_on_main(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors. Those in shards are moved to the CPU one by one, and only the main process keeps them."""
    kept = {}
    for name, tensor in tensors.items():
        of_shards, tensor = _in_shards(tensor), full_tensor(tensor)
        if is_main_process() or not of_shards:
            kept[name] = tensor.cpu() if of_shards else tensor
    return kept


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor that is the same in all processes as `other` is held: whole, or in shards."""
    if not _in_shards(other):
        return full_tensor(tensor)
    if _in_shards(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Of what it has, each process takes its shard: without a source, nothing is sent, and without a copy, all of it is kept.
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None).clone()


def _in_shards(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "placements")  # of a DTensor, whose class takes long to import


def shard_module(module: nn.Module, parts: Sequence[nn.Module], *, minutes: float) -> nn.Module:
    """Shard the main process's weights over all (FSDP2), to be gathered part by part; `minutes`: how long to wait for one."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    for weight in module.parameters():  # processors of several kinds may have begun with weights that differ
        dist.broadcast(weight.detach(), src=0)
    # A group of its own: sharded tensors' caches keep theirs for ever, and the one of all must go with `process_group`.
    group = dist.new_group(timeout=timedelta(minutes=minutes))
    mesh = DeviceMesh.from_group(group, next(module.parameters()).device.type)
    for part in [*parts, module]:
        fully_shard(part, mesh=mesh)
    return module
