"""Translations of files that are stopped, killed, or long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.commands import assert_user_error
from tests.support.corpora import PAIRS
from tests.support.paths import ROOT


def test_a_translation_stopped_twice_goes_on_and_is_the_same(script, trained_folder, tmp_path):
    """By Ctrl-C and by SIGKILL, while it writes; begun again by the same command: the file of one left alone."""
    blank = b" " * 3000  # costs no search, and fills the reads
    texts = [text for source, _ in PAIRS * 2 for text in (source.encode(), blank)]
    texts[300] = b"\xff not UTF-8"
    source, target, partial = (tmp_path / name for name in ("source.txt", "out.txt", "out.txt.partial"))
    source.write_bytes(b"\n".join(texts) + b"\n")
    options = [f"run={trained_folder}", f"input={source}", "search=greedy"]
    whole = script("translate", *options, f"output={tmp_path / 'whole.txt'}")
    assert whole.returncode == 2  # a line was refused
    command = [sys.executable, str(ROOT / "scripts" / "translate.py"), *options, f"output={target}"]
    size = 0
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        stopped = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        while not partial.is_file() or partial.stat().st_size <= size:
            assert stopped.poll() is None, stopped.communicate()
            time.sleep(0.002)
        size = partial.stat().st_size
        stopped.send_signal(how)
        _, said = stopped.communicate()
        assert stopped.returncode == code
        assert (b"the same command resumes" in said) == (how == signal.SIGINT)
        assert not target.exists()
    assert_user_error(script("translate", *options, f"output={target}", "search.max_length=9"), "out.txt.partial")
    resumed = script("translate", *options, f"output={target}")
    assert resumed.returncode in (0, 2)  # lines refused earlier are not counted again
    assert b"lines are there already" in resumed.stderr
    assert target.read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"source.txt", "whole.txt", "out.txt"}


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that translate for another."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_killed_worker_is_one_line_and_the_command_resumes(script, trained_folder, tmp_path):
    source, target, partial = (tmp_path / name for name in ("source.txt", "out.txt", "out.txt.partial"))
    source.write_bytes(b"".join(text.encode() + b"\n" + b" " * 3000 + b"\n" for text, _ in PAIRS * 4))
    options = [f"run={trained_folder}", f"input={source}", "search=greedy", "search.max_length=12", "workers=2"]
    translating = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "translate.py"), *options, f"output={target}"], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not partial.is_file() or not partial.stat().st_size:
        assert translating.poll() is None, translating.communicate()
        time.sleep(0.002)
    os.kill(workers_of(translating)[0], signal.SIGKILL)
    stdout, said = translating.communicate(timeout=60)
    errors = [line for line in said.decode().splitlines() if "longest length" not in line]
    assert (translating.returncode, stdout) == (2, b"")
    assert len(errors) == 1
    assert errors[0].startswith("error: a worker was killed")
    assert not target.exists()
    kept = partial.read_bytes()
    assert kept
    resumed = script("translate", *options, f"output={target}")
    assert resumed.returncode == 0, resumed.stderr
    assert b"lines are there already" in resumed.stderr
    whole = script("translate", *options[:-1], f"output={tmp_path / 'whole.txt'}")
    assert whole.returncode == 0, whole.stderr
    assert target.read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert target.read_bytes().startswith(kept)


def peak_memory_of(*options: str) -> int:
    """KiB that scripts/translate.py held at most."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "translate.py"), *options], cwd=ROOT, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss


def test_memory_does_not_grow_with_the_file(trained_folder, tmp_path):
    """40,000 lines more may cost less than a KiB each."""
    peaks = []
    for count in (20_000, 60_000):
        source, target = tmp_path / f"{count}.txt", tmp_path / f"{count}.out"
        source.write_text("".join(f"{PAIRS[i % len(PAIRS)][0]}\n" for i in range(count)), encoding="utf-8")
        peaks.append(peak_memory_of(
            f"run={trained_folder}", f"input={source}", f"output={target}", "search=greedy", "search.max_length=4"))
        assert target.read_bytes().count(b"\n") == count
    assert peaks[1] - peaks[0] < 40_000
