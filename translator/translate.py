"""Text in, text out: batches, keeps order, streams (floor 5)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from translator.batching import pad
from translator.checkpoint import RunFolder, load_into
from translator.config import SearchConfig
from translator.device import Precision, autocast, resolve_device, resolve_precision
from translator.errors import UserError
from translator.model import Transformer
from translator.search import Hypothesis, search
from translator.tokenizer import EOS_ID, Tokenizer

# Texts that `stream` translates together: enough to fill batches with sentences of like length.
CHUNK = 512


@dataclass(frozen=True)
class Translation:
    """What became of one line: its best translation first, or the reason why it was refused."""

    texts: tuple[str, ...] = ("",)
    hypotheses: tuple[Hypothesis, ...] = ()
    refused: str = ""

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def hit_limit(self) -> bool:
        return any(hypothesis.hit_limit for hypothesis in self.hypotheses[:1])


class Translator:
    """A trained model and its tokenizers: `Translator("runs/x")(["A sentence."])` gives their translations."""

    def __init__(
        self, run: str | Path, *, device: str = "auto", precision: Precision | Literal["auto"] = "fp32"
    ) -> None:
        """Load a run folder; UserError where it is none."""
        folder = RunFolder(run)
        config = folder.load_config()
        source_tokenizer, target_tokenizer = folder.load_tokenizers()
        where = resolve_device(device)
        model = Transformer(config.model, len(source_tokenizer), len(target_tokenizer))
        load_into(model, folder.load_weights(), folder.model_file)
        self._set_up(
            model.to(where), source_tokenizer, target_tokenizer, resolve_precision(precision, where), config.search)

    @classmethod
    def of(
        cls,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: SearchConfig,
        precision: torch.dtype = torch.float32,
    ) -> Translator:
        """A translator by a model in memory, as its weights stand at each call."""
        translator = cls.__new__(cls)
        translator._set_up(model, source_tokenizer, target_tokenizer, precision, search)
        return translator

    def _set_up(
        self, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, precision: torch.dtype,
        search: SearchConfig,
    ) -> None:
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.precision = precision
        self.search = search
        self.device = next(model.parameters()).device

    def __call__(self, texts: Sequence[str], search: SearchConfig | None = None) -> list[str]:
        """The translation of each text, in order. An empty text has an empty one, and so has one that is too long."""
        return [translation.text for translation in self.translate(texts, search)]

    def translate(self, texts: Sequence[str | bytes], search: SearchConfig | None = None) -> list[Translation]:
        """Like calling, with n-best lists, scores and the reason why a text was refused. Bytes are read as UTF-8."""
        options = self._within_positions(search or self.search)
        translations = [Translation() for _ in texts]
        ids: dict[int, list[int]] = {}
        for index, text in enumerate(texts):
            sentence, refused = self._encode(text, options)
            if refused:
                translations[index] = Translation(refused=refused)
            elif sentence != [EOS_ID]:
                ids[index] = sentence
        for batch in _batches(ids, options):
            for index, hypotheses in zip(batch, self._search([ids[i] for i in batch], options), strict=True):
                texts_of = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
                translations[index] = Translation(tuple(map(_as_line, texts_of)), tuple(hypotheses))
        return translations

    def stream(self, texts: Iterable[str | bytes], search: SearchConfig | None = None) -> Iterator[Translation]:
        """`translate` for any number of texts, `CHUNK` at a time, so that memory stays flat."""
        remaining = iter(texts)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            yield from self.translate(chunk, search)

    def _encode(self, text: str | bytes, options: SearchConfig) -> tuple[list[int], str]:
        """The ids of a text, EOS alone where there is nothing to translate, and the reason to refuse it, if there is one."""
        try:
            sentence = text.decode() if isinstance(text, bytes) else text.encode().decode()
        except UnicodeError as error:  # bytes that are not UTF-8, or half of a surrogate pair, which UTF-8 cannot hold
            unit, start = ("byte" if isinstance(text, bytes) else "character"), getattr(error, "start", 0)
            return [], f"not UTF-8 at {unit} {start + 1:,}; not translated"
        ids = self.source_tokenizer.encode([sentence])[0] if sentence.strip() else [EOS_ID]
        if len(ids) > options.max_source_tokens:
            return [], (f"{len(ids):,} tokens, more than search.max_source_tokens={options.max_source_tokens}; not translated")
        return ids, ""

    def _within_positions(self, options: SearchConfig) -> SearchConfig:
        """Learned positions end somewhere: hold both sides to their number."""
        if self.model.config.positions != "learned":
            return options
        most = self.model.config.max_positions
        longest = most - 1  # BOS takes a position too
        return dataclasses.replace(
            options, max_source_tokens=min(options.max_source_tokens, most),
            max_length=min(options.max_length or longest, longest))

    def _search(self, ids: list[list[int]], options: SearchConfig) -> list[list[Hypothesis]]:
        self.model.eval()
        with autocast(self.device, self.precision):
            found = search(self.model, pad(ids).to(self.device), options)
        if not all(found):
            raise UserError("the model gives no probabilities (NaN): its weights are damaged, or its training went astray")
        return found


def _batches(ids: dict[int, list[int]], options: SearchConfig) -> Iterator[list[int]]:
    """Group sentences of like length, the longest first, so that a batch with its beams keeps to search.batch_tokens."""
    batch: list[int] = []
    room = 0
    for index in sorted(ids, key=lambda i: -len(ids[i])):
        if batch and len(batch) >= room:
            yield batch
            batch = []
        if not batch:
            room = options.batch_tokens // (len(ids[index]) * options.beam_size)
        batch.append(index)
    if batch:
        yield batch


def _as_line(text: str) -> str:
    """`text` without line breaks, which byte pieces could spell."""
    return text.replace("\r", " ").replace("\n", " ").strip()
