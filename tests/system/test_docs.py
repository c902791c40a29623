"""The docs site builds without a broken link, and the notebook runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

nbclient = pytest.importorskip("nbclient", reason="NOT TESTED, docs: run make test, which installs nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = ROOT / "docs" / "tour.ipynb"
needs_zensical = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="NOT TESTED, the docs site: pip install '.[docs]' or run make docs")


def build(site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "docs/build_site.py", site], cwd=ROOT, capture_output=True, text=True)


@needs_zensical
def test_the_site_builds_strictly(tmp_path):
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    html = tmp_path / "html"
    for page in (ROOT / "docs").glob("*.md"):
        assert (html / f"{page.stem}.html").is_file(), page.name
    assert "scaled_dot_product_attention" in (html / "reference" / "model.html").read_text(encoding="utf-8")
    assert 'src="images/tour-1.png"' in (html / "tour.html").read_text(encoding="utf-8")


@needs_zensical
def test_a_broken_link_fails_the_build(tmp_path):
    pages = tmp_path / "docs"
    (pages / "pages").mkdir(parents=True)
    (pages / "pages" / "index.md").write_text("[nowhere](nowhere.md)\n")
    (pages / "mkdocs.yml").write_text("site_name: test\ndocs_dir: pages\n")
    zensical = Path(sys.executable).with_name("zensical")
    result = subprocess.run([zensical, "build", "--strict"], cwd=pages, capture_output=True, text=True)
    assert result.returncode
    assert "page does not exist" in result.stdout + result.stderr


def test_the_notebook_runs_and_the_model_learns():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    texts = [output["data"]["text/plain"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert "(True, True)" in texts  # the formula by hand is the project's
    assert str([word[::-1] for word in ("cat", "drank", "milk", "attend")]) in texts


def test_the_notebook_has_its_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5
    assert not [output for output in outputs if output.output_type in ("error", "stream")]
    assert NOTEBOOK.stat().st_size < 200_000
    assert str(ROOT) not in NOTEBOOK.read_text(encoding="utf-8")
