"""Describe hardware and library versions as text."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

import translator

LIBRARIES = ("torch", "sentencepiece", "sacrebleu", "datasets")


def environment(device: torch.device) -> dict[str, str]:
    """Return the machine, the libraries and the code's version, by name."""
    gpu = {"GPU": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return gpu | {
        "processor": processor(), "threads": str(torch.get_num_threads()), "system": platform.platform(),
        "Python": platform.python_version(), **{library: version(library) for library in LIBRARIES},
        "translator": " ".join(filter(None, (translator.__version__, commit())))}


def processor() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of this code; empty where it is not in a Git repository of its own."""
    root = Path(translator.__file__).resolve().parent.parent
    if not (root / ".git").exists() or not shutil.which("git"):
        return ""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return f"commit {described.stdout.strip()}" if described.stdout else ""
