"""Terminology: source terms and their required translations."""

from __future__ import annotations

from pathlib import Path

from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError
from translator.text.writing_systems import normal, whole_words


class Terminology:
    """Pairs of a source term and its target term, from a file of tab-separated lines."""

    def __init__(self, pairs: dict[str, str]) -> None:
        self.pairs = {normal(source): target for source, target in pairs.items()}
        self._pattern = whole_words(*pairs) if pairs else None

    @classmethod
    def load(cls, path: Path) -> Terminology:
        """Read a file; UserError names the line that is not a pair."""
        pairs: dict[str, str] = {}
        try:
            lines = read_plain(path).decode("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"search.terminology={path}: {error}") from error
        for number, line in enumerate(lines, 1):
            terms = [term.strip() for term in line.split("\t")]
            if not line.strip():
                continue
            if len(terms) != 2 or not all(terms):
                raise UserError(f"{path}, line {number}: expected a source term, a tab and a target term.")
            source, target = normal(terms[0]), terms[1]
            if pairs.setdefault(source, target) != target:
                first = pairs[source]
                raise UserError(f"{path}, line {number}: {source}: duplicate term (first defined as {first}). Remove one.")
        if not pairs:
            raise UserError(f"search.terminology={path}: holds no terms. Write a source term, a tab and a target term a line.")
        return cls(pairs)

    def required(self, source: str) -> list[str]:
        """Return the target terms that a translation of `source` must hold, each once."""
        terms = self._pattern.findall(normal(source)) if self._pattern else []
        return list(dict.fromkeys(self.pairs[term] for term in terms))
