"""Scripts and functions run in forks of a process that has imported what they import, which takes a fresh one seconds.

That process has run nothing else: a fork of pytest itself would inherit what a thousand tests left in memory.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


@cache
def forks() -> ForkServerContext:
    """Makes processes in the environment of the first call."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    forkserver.ensure_running()
    return context


def run_script(
    name: str, options: Sequence[str], stdin: bytes, timeout: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` would `python scripts/name.py options`, in the root of the project.

    `environment`: variables that are read as scripts run; the others are those of the first call of `forks`.
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, stream) for stream in ("stdin", "stdout", "stderr")]
        for stream, content in zip(streams, (stdin, b"", b""), strict=True):
            stream.write_bytes(content)
        process = forks().Process(target=_run, args=(SCRIPTS / f"{name}.py", options, streams, environment))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([name, *options], timeout, *(stream.read_bytes() for stream in streams[1:]))
        return subprocess.CompletedProcess(
            [name, *options], process.exitcode, *(stream.read_bytes() for stream in streams[1:]))


def _run(script: Path, options: Sequence[str], streams: Sequence[Path], environment: Mapping[str, str]) -> None:
    for descriptor, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(SCRIPTS.parent)
    os.environ.update(environment)
    sys.argv = [str(script), *options]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
