"""Packages import packages below them only, nothing imports in a circle, and Hydra stays in `cli` and `api`."""

from __future__ import annotations

from translator.cli import COMMANDS

import ast
import re
from graphlib import TopologicalSorter

from tests.support.paths import ROOT

PACKAGE = ROOT / "translator"
# From the bottom up: a package imports those before it. `training` stands above `evaluation`: a training validates by
# translating, and ends with the scores of the test set. Only `training.train` knows that; its other modules know no search.
ORDER = (
    "runtime", "config", "text", "metrics", "data", "model", "search", "runs", "inference", "evaluation", "pretrained",
    "training", "compression", "export", "serve", "cli", "api", "__main__")
# By dotted name; a folder's own module has the folder's name.
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def imports(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {node.module or "", *(name for name in within if name.removeprefix("translator.") in FILES)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def ours(name: str) -> set[str]:
    return {module.removeprefix("translator.") for module in imports(TREES[name]) if module.startswith("translator.")}


def package(name: str) -> str:
    return name.split(".")[0]


def test_packages_import_only_those_below():
    assert {package(name) for name in FILES} == set(ORDER)
    for name in FILES:
        for other in filter(None, ours(name)):
            assert ORDER.index(package(other)) <= ORDER.index(package(name)), f"{name} imports {other}"


def test_every_package_says_where_to_begin():
    for name in ORDER:
        assert ast.get_docstring(TREES[name]), name


def test_nothing_imports_in_a_circle():
    list(TopologicalSorter({name: ours(name) for name in FILES}).static_order())


def test_hydra_stays_in_cli_and_api():
    for name, tree in TREES.items():
        used = {module.split(".")[0] for module in imports(tree)}
        assert "hydra" not in used or name in ("cli", "api"), name
        assert "omegaconf" not in used or name in ("config.building", "api"), name


def test_training_and_search_do_not_know_each_other():
    for name in FILES:
        known = {package(other) for other in ours(name)}
        assert package(name) != "search" or not known & {"training", "runs"}, name
        assert package(name) != "training" or "search" not in known, name
        assert package(name) != "training" or name == "training.train" or not known & {"inference", "evaluation"}, name


def test_translating_imports_no_library_only_training_needs():
    """They take longer to import than PyTorch itself. Those of languages are imported where a text is looked at."""
    slow = {
        "datasets", "pandas", "pyarrow", "matplotlib.figure", "torch.utils.tensorboard", "torch.distributed.fsdp",
        "torch.distributed.tensor", "py3langid.langid", "babel"}
    command = COMMANDS["translate"].work.split(":")[0]
    needed, trees = set(), [TREES["cli"], TREES[command]]
    while trees:
        at_once = {
            name for statement in trees.pop().body if isinstance(statement, ast.Import | ast.ImportFrom)
            for name in imports(ast.Module([statement], []))}
        new = at_once - needed
        needed |= new
        trees += [TREES[name.removeprefix("translator.")] for name in new if name.removeprefix("translator.") in TREES]
    assert {"translator.search.engine", "translator.text.language"} <= needed
    assert not needed & slow


def test_scripts_stand_on_top_and_say_what_they_do():
    scripts = sorted((ROOT / "scripts").rglob("*.py"))
    assert scripts
    for path in scripts:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for module in imports(tree):
            if module.startswith("translator."):
                assert module.removeprefix("translator.") in FILES, f"{path} imports {module}"
    for name, tree in TREES.items():
        assert not {module for module in imports(tree) if module.split(".")[0] in {"scripts", "tests"}}, name


def test_nothing_is_pickled():
    for name, tree in TREES.items():
        assert not imports(tree) & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}, name
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not calls & {"torch.save", "torch.load", "np.load", "numpy.load"}, name


def test_no_test_imports_another_and_names_are_short():
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not any(re.match(r"tests\.(unit|system|torture|conftest)", name) for name in imports(tree)), path
        for node in ast.walk(tree):
            assert not isinstance(node, ast.FunctionDef) or len(node.name) <= 60, node.name
