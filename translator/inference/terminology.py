"""Terminology: source terms, and the translation that each must have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from translator.runtime.atomic_files import read_plain
from translator.runtime.errors import UserError
from translator.text.writing_systems import normal, whole_words


class Terminology:
    """Source terms and their required translations."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self.pairs = {normal(source): target for source, target in pairs.items()}
        self._pattern = whole_words(*pairs) if pairs else None

    @classmethod
    def parse(cls, text: str) -> Terminology:
        """Read lines of a source term, a tab and a target term; ValueError names the line that is not a pair."""
        pairs: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), 1):
            terms = [term.strip() for term in line.split("\t")]
            if not line.strip():
                continue
            if len(terms) != 2 or not all(terms):
                raise ValueError(f"line {number}: expected a source term, a tab and a target term.")
            source, target = normal(terms[0]), terms[1]
            if pairs.setdefault(source, target) != target:
                first = pairs[source]
                raise ValueError(f"line {number}: {source}: duplicate term (first defined as {first}). Remove one.")
        return cls(pairs)

    @classmethod
    def load(cls, path: Path) -> Terminology:
        """Read a file of such lines; UserError if it cannot be read or holds no terms."""
        try:
            terms = cls.parse(read_plain(path).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise UserError(f"search.terminology={path}: not UTF-8 at byte {error.start + 1:,}. Convert it.") from error
        except OSError as error:
            raise UserError(f"search.terminology={path}: {error.strerror or error}. Name a file of terms.") from error
        except ValueError as error:
            raise UserError(f"{path}, {error}") from error
        if not terms.pairs:
            raise UserError(f"search.terminology={path}: holds no terms. Write a source term, a tab and a target term a line.")
        return terms

    def required(self, source: str, *, without: Collection[str] = ()) -> list[str]:
        """Return the target terms that a translation of `source` must hold, each once; none for the terms in `without`."""
        terms = self._pattern.findall(normal(source)) if self._pattern else []
        return list(dict.fromkeys(self.pairs[term] for term in terms if term not in without))
