"""The engine that searches: CTranslate2 (https://opennmt.net/CTranslate2) or the project's own search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch

from translator.config.options import EngineName, SearchConfig
from translator.data.batching import pad
from translator.inference.decoding import length_power, require_carried, require_patience
from translator.inference.planning import Unit
from translator.model.transformer import Transformer
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.runtime.typed import installation
from translator.search import Hypothesis
from translator.search.engine import NEVER
from translator.search.hypothesis import length_limits
from translator.search.scoring import length_penalty
from translator.text.tokenizer import EOS_ID, Tokenizers

# Options that work outside of a search, and options that concern some texts only.
OUTSIDE = frozenset(("language", "banned"))
OF_TEXTS = frozenset(("prefix", "required", "terminology"))
# Number formats of CTranslate2 by precision.
COMPUTE_TYPES = {Precision.FP32: "float32", Precision.INT8: "int8"}
# Finished hypotheses give up their places in CTranslate2's beam, but not in the project's. With this it finds the same.
PATIENCE = 1.5
# Longest outputs, in tokens, that share a batch with any shorter ones.
FEW_STEPS = 100

Search = Callable[..., list[list[Hypothesis]]]


class Engine:
    """Search with CTranslate2 what it can express, and all else with the project's search.

    auto: only where both find the same: greedily, or with `search.patience`, in float32. ctranslate2: also int8, and other
    beams, where about one output in a thousand differs; UserError for what it cannot express.
    """

    def __init__(
        self, name: EngineName, own: Search, load: Callable[[], Transformer], folder: RunFolder | None, device: torch.device,
        precision: Precision, tokenizers: Tokenizers,
    ) -> None:
        """own: the project's search. load: returns the model in float32. folder: None if the models are not one run's."""
        self.name, self.own, self.load, self.folder = name, own, load, folder
        self.device, self.precision, self.tokenizers = device, precision, tokenizers
        self.is_required = name == "ctranslate2"

    def require(self, search: SearchConfig) -> None:
        """Raise UserError for a search that engine=ctranslate2 cannot express."""
        if self.is_required:
            self._require_expressible(search)

    def __call__(
        self, units: list[Unit], options: SearchConfig, banned: Sequence[tuple[int, ...]] = (), *, placeholders: bool = False
    ) -> list[list[Hypothesis]]:
        """Search for outputs of each unit, as `Translator` does."""
        if banned or placeholders or not self._takes(options):
            return self.own(units, options, banned, placeholders=placeholders)
        found = self._search(units, options)
        remaining = [number for number, hypotheses in enumerate(found) if not hypotheses]
        if remaining:
            for number, hypotheses in zip(remaining, self.own([units[n] for n in remaining], options), strict=True):
                found[number] = hypotheses
        return found

    def _takes(self, search: SearchConfig) -> bool:
        """Return whether CTranslate2 searches."""
        is_same = search.beam_size == 1 or search.patience is not None
        if self.name == "torch" or (not self.is_required and not (is_same and self.precision is Precision.FP32)):
            return False
        try:
            self._require_expressible(search)
        except UserError:
            return False
        return True

    def _require_expressible(self, search: SearchConfig) -> None:
        require_carried(search, OUTSIDE | OF_TEXTS, "CTranslate2 cannot do this. Set engine=auto, or leave this option out.")
        require_patience(search)
        if self._problem:
            raise UserError(f"engine=ctranslate2: {self._problem}")

    @cached_property
    def _problem(self) -> str:
        """Why CTranslate2 cannot search with the models at all; empty if it can."""
        if self.folder is None or self.device.type != "cpu" or self.precision not in COMPUTE_TYPES:
            return "needs one run, device=cpu, and precision=fp32 or int8. Set these, or engine=auto."
        if self.tokenizers[1].tag_ids:
            return "lacks the language tags of M2M-100. Set engine=auto."
        if find_spec("ctranslate2") is None:
            return f"is not installed. Install it with `{installation('ctranslate2')}`."
        try:
            _ = self._translator
        except (UserError, ImportError) as error:
            return f"{error} Or set engine=auto."
        return ""

    @cached_property
    def _positions(self) -> int:
        """Tokens that a source, or an output and BOS, may have."""
        from translator.inference.ctranslate2 import positions_of

        assert self.folder is not None
        return positions_of(self.folder.load_config().model)

    @cached_property
    def _pieces(self) -> dict[str, int]:
        target = self.tokenizers[1]
        return {piece: i for i, piece in enumerate(target.pieces(range(len(target))))}

    @cached_property
    def _end(self) -> str:
        return self.tokenizers[1].pieces([EOS_ID])[0]

    @cached_property
    def _translator(self) -> Any:
        """The `ctranslate2.Translator` of the run. UserError for a model that it cannot run."""
        from translator.inference.ctranslate2 import load_converted

        assert self.folder is not None
        return load_converted(self.folder, self.load, self.tokenizers, COMPUTE_TYPES[self.precision])

    def _search(self, units: list[Unit], options: SearchConfig) -> list[list[Hypothesis]]:
        """Return what CTranslate2 finds for each unit; nothing where the project's search might find another output."""
        limits = length_limits(pad([unit.ids for unit in units]), options)[1].clamp(max=self._positions - 1).tolist()
        asked = [
            number for number, (unit, limit) in enumerate(zip(units, limits, strict=True))
            if not (unit.prefix or unit.required) and len(unit.ids) <= self._positions and limit > 0]
        found: list[list[Hypothesis]] = [[] for _ in units]
        for group in _of_like_limits(asked, limits):
            results = self._translator.translate_batch(
                [self._source(units[number]) for number in group],
                max_decoding_length=1 + max(limits[number] for number in group), **self._options(options))
            for number, result in zip(group, results, strict=True):
                found[number] = self._hypotheses(units[number], result, limits[number], options)
        return found

    def _source(self, unit: Unit) -> list[str]:
        return self.tokenizers[0].pieces(unit.ids[:-1])

    def _options(self, search: SearchConfig) -> dict[str, Any]:
        """Return the same search as options of `ctranslate2.Translator.translate_batch`."""
        options = {
            "beam_size": search.beam_size, "patience": search.patience or PATIENCE,
            "num_hypotheses": search.most_outputs, "length_penalty": _power(search), "return_scores": True,
            "return_end_token": True, "max_input_length": 0}
        if search.beam_size == 1:  # CTranslate2 leaves what it suppresses out of the softmax too. Without, scores are exact.
            return options | {"min_decoding_length": 0}
        return options | {"suppress_sequences": [[piece] for piece in self.tokenizers[1].pieces(NEVER)]}

    def _hypotheses(self, unit: Unit, result: Any, limit: int, search: SearchConfig) -> list[Hypothesis]:
        """Return the best hypothesis; none if the project's search might find another one.

        That is where an output is empty or holds a piece that is never produced, and where one of a beam reached its limit of
        length: CTranslate2 knows limits of batches only.
        """
        hypotheses = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = tuple(self._pieces[piece] for piece in pieces if piece != self._end)[:limit]
            cut = pieces[len(ids) :] != [self._end]
            if (cut and search.beam_size > 1) or math.isnan(score) or not ids or not set(ids).isdisjoint(NEVER):
                return []
            log_probability = self._rate(unit, pieces[:limit]) if cut else score * len(pieces) ** _power(search)
            penalty = length_penalty(len(ids) + 1, search.length_penalty_form, search.length_penalty)
            hypotheses.append(Hypothesis(ids, log_probability, log_probability / penalty, len(ids) == limit))
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:1]

    def _rate(self, unit: Unit, pieces: list[str]) -> float:
        """Return the log-probability of an output that ends after these pieces, by one full pass."""
        [scored] = self._translator.score_batch([self._source(unit)], [pieces], max_input_length=0)
        return float(sum(scored.log_probs))


def _of_like_limits(numbers: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """Return the numbers in groups whose limits differ little: CTranslate2 decodes some of a batch up to the longest one."""
    groups: list[list[int]] = []
    for number in sorted(numbers, key=lambda number: -limits[number]):
        if not groups or max(FEW_STEPS, 2 * limits[number]) < limits[groups[-1][0]]:
            groups.append([])
        groups[-1].append(number)
    return groups


def _power(search: SearchConfig) -> float:
    """Return the length penalty that CTranslate2 orders by. The best few are ordered again by the project's own."""
    return 0.0 if search.beam_size == 1 else length_power(search)
