"""Search for outputs that hold each placeholder of their source once, and no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from translator.config.options import SearchConfig
from translator.inference.planning import Planner, Unit
from translator.search import Hypothesis
from translator.text.placeholders import numbers_in

# The least beam of a search that requires placeholders: they compete with outputs that have fewer.
LEAST_BEAM = 10

Banned = Sequence[tuple[int, ...]]  # sequences of tokens
Found = tuple[Unit, list[Hypothesis]]


class PlaceholderSearch:
    """Search as `search` does, and again where an output loses, repeats or invents a placeholder."""

    def __init__(self, search: Callable[..., list[list[Hypothesis]]], planner: Planner) -> None:
        """search: takes units, options and banned sequences; placeholders=True requires all placeholders of each unit."""
        self.search, self.planner = search, planner
        tokenizer = planner.target_tokenizer
        self.numbers = {
            i: numbers_in(piece)[0] for i, piece in zip(
                tokenizer.ids_of(tokenizer.placeholders), tokenizer.placeholders, strict=True)}

    def __call__(self, units: list[Unit], options: SearchConfig, banned: Banned = ()) -> list[Found]:
        found = []
        for unit, hypotheses in zip(units, self.search(units, options, banned), strict=True):
            kept = self._keeping(unit, hypotheses)
            best_kept = kept and (options.mbr or kept[0] is hypotheses[0])
            nothing_lost = best_kept or not (hypotheses or unit.form.values)
            found.append((unit, kept) if nothing_lost else self._again(unit, options, banned))
        return found

    def _keeping(self, unit: Unit, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Return the outputs with each placeholder of their unit once, and no other."""
        wanted = list(range(1, len(unit.form.values) + 1))
        return [h for h in hypotheses if sorted(self.numbers[i] for i in h.ids if i in self.numbers) == wanted]

    def _again(self, unit: Unit, options: SearchConfig, banned: Banned) -> Found:
        """Require the unit's placeholders; where that finds none, translate what they stand for. No others are allowed."""
        beam = max(options.beam_size, LEAST_BEAM)
        plain = dataclasses.replace(
            options.plain(beam), n_best=beam, shortlist=options.shortlist, keep_places=False, patience=None)
        others = [(i,) for i, number in self.numbers.items() if number > len(unit.form.values)]
        [hypotheses] = self.search([unit], plain, [*banned, *others], placeholders=True)
        if kept := self._keeping(unit, hypotheses):
            return unit, kept
        unmasked = self.planner.without_placeholders(unit)
        return unmasked, self.search([unmasked], options, [*banned, *((i,) for i in self.numbers)])[0]
