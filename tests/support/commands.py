"""Run scripts and Makefile recipes, and check how they end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.paths import ROOT

Script = Callable[..., subprocess.CompletedProcess[bytes]]


def recipes_with(folder: Path, python: str) -> None:
    """A copy of the Makefile, for which all is set up, with a shell script in the place of Python."""
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (folder / ".venv" / "ready").touch()
    (bin_folder / "python").write_text(f"#!/bin/sh\n{python}\n")
    (bin_folder / "python").chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
        os.utime(folder / name, (0, 0))


def assert_user_error(result: subprocess.CompletedProcess[bytes], *words: str) -> None:
    """Exit code 2, nothing on stdout, one last line on stderr that says `words`, and neither traceback nor Hydra's words."""
    stderr = result.stderr.decode()
    assert result.returncode == 2, stderr
    assert not result.stdout
    assert "Traceback" not in stderr
    assert "Error executing job" not in stderr
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("error: "), stderr
    for word in words:
        assert word in last, last
