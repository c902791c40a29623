"""Build the docs site: the guides, docs/tour.ipynb as a page, and a reference from docstrings. `make docs` runs it.

The reference is generated from the packages that exist, so that a module that moves needs no second edit. All goes into site/:
pages and configuration first, then html/. The build is strict: a broken link or docstring reference ends it.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
REFERENCE = """\
# Reference

Everything public, from the docstrings. To learn, start with [translator.model](model.md); to use a trained model, with
[translator.inference](inference.md).

| package | holds |
| --- | --- |
"""


def main() -> None:
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    shutil.rmtree(site, ignore_errors=True)
    write_pages(site / "pages")
    config = yaml.safe_load((DOCS / "site.yml").read_text(encoding="utf-8"))
    config["nav"].append({"Reference": ["reference/index.md", *(f"reference/{name}.md" for name in packages())]})
    config["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    text = yaml.safe_dump(config, sort_keys=False).replace("format: pymdownx", "format: !!python/name:pymdownx")
    (site / "mkdocs.yml").write_text(text, encoding="utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    command = [str(zensical), "build", "--strict", "--config-file", str(site / "mkdocs.yml")]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=site)
    if result.returncode:
        sys.exit(ANSI.sub("", result.stdout).split("Traceback")[0].strip())
    print(f"Open {site / 'html' / 'index.html'}")


def write_pages(folder: Path) -> None:
    """Write every page of the site as Markdown, with its pictures."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "*.yml", "*.ipynb", "__pycache__"))
    for page in folder.glob("*.md"):
        page.write_text(page.read_text(encoding="utf-8").replace("(tour.ipynb)", "(tour.md)"), encoding="utf-8")
    text, pictures = notebook_page(json.loads((DOCS / "tour.ipynb").read_text(encoding="utf-8")))
    (folder / "tour.md").write_text(text, encoding="utf-8")
    for name, picture in pictures.items():
        (folder / "images" / name).write_bytes(picture)
    (folder / "reference").mkdir()
    for name, text in reference_pages().items():
        (folder / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


def packages() -> list[str]:
    """Return the names of the packages, in alphabetical order."""
    return sorted(path.parent.name for path in (ROOT / "translator").glob("*/__init__.py"))


def reference_pages() -> dict[str, str]:
    """Return the Markdown of a page of reference for each package, and of the list of them, by name."""
    pages, rows = {}, []
    for name in packages():
        folder = ROOT / "translator" / name
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        rows.append(f"| [translator.{name}]({name}.md) | {docstring.splitlines()[0]} |")
        modules = [path.stem for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
        whole = f"# translator.{name}\n\n::: translator.{name}\n    options:\n      show_root_heading: false"
        pages[name] = "\n\n".join([whole, *(f"::: translator.{name}.{module}" for module in modules)]) + "\n"
    return pages | {"index": REFERENCE + "\n".join(rows) + "\n"}


def notebook_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                name = f"tour-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of the cell above](images/{name})")
            elif text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


if __name__ == "__main__":
    main()
