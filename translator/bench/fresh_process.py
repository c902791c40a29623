"""A function in a process of its own, for figures that nothing before it has touched."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_fresh_process(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """What a function returns in a process of its own, whose peak memory is that of nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its processes may have workers of their own
        return pool.submit(function, *arguments, **options).result()
