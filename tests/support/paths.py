"""Where the project and its test corpora are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED_DATASETS = ROOT.parent / "shared" / "datasets"
