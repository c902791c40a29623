"""Translations that were given, by this project or by others, as the search would have found them, to be rated."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from translator.config.options import SearchConfig
from translator.inference.planning import Planner, Unit
from translator.inference.ranking import as_line
from translator.inference.translation import Given, Request, Translation
from translator.search.hypothesis import Ids
from translator.text.markup import strip_tags
from translator.text.surface_form import SurfaceForm
from translator.text.tokenizer import EOS_ID, Tokenizer


def as_translated(source: str, given: Given, planner: Planner, search: SearchConfig) -> Translation:
    """Return the ids of a source and its translation, sentence by sentence if its pieces show how it was found.

    Without forms if a side is longer than `search.max_source_tokens` or the learned positions, or the tag is unknown.
    """
    tag, text = planner.split_tag(source, search)
    if planner.tag_problem(tag):
        return Translation()
    [source_ids] = planner.source_tokenizer.encode([tag + text])
    ways = [[Unit(source_ids, text, [], (), SurfaceForm(text, text))]]
    for robust in sorted({False, search.robust}):
        plan = planner.plan(Request(source), dataclasses.replace(search, robust=robust))
        ways = ways if isinstance(plan, str) else [plan, *ways]
    outputs: Sequence[Ids] = _by_sentence(planner.target_tokenizer.ids_of(given.pieces))
    for units in ways:
        if given.text and _spelled(units, outputs, planner.target_tokenizer) == _unspaced(_plain(given.text, units)):
            inputs = [unit.ids for unit in units if not unit.is_nothing]
            break
    else:
        units, output = _as_one(ways, given.text)
        outputs, inputs = planner.target_tokenizer.encode([output]), [units[0].ids]
    if max(map(len, (*inputs, *outputs)), default=0) > planner.longest_source(search):
        return Translation()
    return Translation(pairs=tuple(zip(inputs, outputs, strict=True)), forms=tuple(unit.form for unit in units))


def _plain(text: str, units: Sequence[Unit]) -> str:
    """Return a translation of these units without tags, if they have any."""
    markup = strip_tags(text) if any(unit.markup for unit in units) else None
    return markup.text if markup else text


def _by_sentence(ids: list[int]) -> list[Ids]:
    """Cut ids after each EOS."""
    ends = [place for place, i in enumerate(ids, start=1) if i == EOS_ID]
    return [ids[first:end] for first, end in itertools.pairwise([0, *ends])]


def _spelled(units: Sequence[Unit], outputs: Sequence[Ids], tokenizer: Tokenizer) -> str | None:
    """Return the text that outputs of these units spell, without spaces; None if there are more or fewer outputs."""
    if len(outputs) != sum(not unit.is_nothing for unit in units):
        return None
    decoded = iter(map(as_line, tokenizer.decode(outputs)))
    return _unspaced("".join(unit.form.restore("" if unit.is_nothing else next(decoded)) for unit in units))


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _as_one(ways: Sequence[list[Unit]], text: str) -> tuple[list[Unit], str]:
    """Return the source as one unit, in its surface form if a model's output can spell `text` so; and that output."""
    [first, *_], whole = ways[0], ways[-1]
    if len(ways[0]) == 1 and not first.is_nothing and (output := first.form.model_output(_plain(text, ways[0]))) is not None:
        return ways[0], output
    return whole, text
