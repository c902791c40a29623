"""Start functions in processes that know each other, and find a launcher's workers."""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.forked import forks
from translator.runtime.distributed import (
    process_group,
)


def processes(count: int, work: Callable[..., None], *arguments: Any) -> list[int]:
    """Run `work`, of a module, in `count` processes that know each other, as torchrun starts them; return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [forks().Process(target=_child, args=(rank, count, port, work, arguments)) for rank in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def _child(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    faulthandler.enable()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    with process_group("cpu", minutes=1):
        group = weakref.ref(dist.group.WORLD) if count > 1 else None
        work(*arguments)
    assert group is None or group() is None  # the threads of a group that outlives this may abort the process while Python ends


def workers_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """The processes that it has started, in the order of their ranks."""
    try:
        return list(map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds workers by /proc")
