"""A folder has one user at a time, and the dead are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from translator.runtime.atomic_files import sole_user
from translator.runtime.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from translator.runtime.atomic_files import sole_user
with sole_user(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder_of(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_second_process_is_refused_and_a_killed_one_unlocks(tmp_path):
    other = holder_of(tmp_path / "run")
    with pytest.raises(UserError, match=f"process {other.pid} on "), sole_user(tmp_path / "run"):
        pass
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with sole_user(tmp_path / "run"):
        pass
