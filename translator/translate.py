"""Text in, text out: batches, keeps order, streams (floor 5)."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from translator.batching import pad
from translator.checkpoint import RunFolder, load_into
from translator.config import SearchConfig
from translator.device import autocast, resolve_device, resolve_precision
from translator.model import Transformer
from translator.search import Hypothesis, search
from translator.tokenizer import Tokenizer

# Lines translated together when that many are waiting: enough to fill batches with sentences of like length.
CHUNK_LINES = 1024


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

    def __init__(self, run: str | Path, *, device: str = "auto", precision: str = "fp32") -> None:
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
            try:
                sentence = text.decode() if isinstance(text, bytes) else text
            except UnicodeDecodeError as error:
                translations[index] = Translation(refused=f"not UTF-8 (byte {error.start + 1}); not translated")
                continue
            if not sentence.strip():
                continue
            ids[index] = self.source_tokenizer.encode([sentence])[0]
            if len(ids[index]) > options.max_source_tokens:
                translations[index] = Translation(refused=(
                    f"{len(ids.pop(index)):,} tokens, more than search.max_source_tokens={options.max_source_tokens}; "
                    "not translated"))
        for batch in _batches(ids, options):
            for index, hypotheses in zip(batch, self._search([ids[i] for i in batch], options), strict=True):
                texts_of = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
                translations[index] = Translation(tuple(map(_as_line, texts_of)), tuple(hypotheses))
        return translations

    def stream(self, lines: Iterable[str | bytes], search: SearchConfig | None = None) -> Iterator[Translation]:
        """Translations of lines as they come, in order: memory stays flat, and nobody waits for lines not yet written."""
        for chunk in _as_they_come(lines, CHUNK_LINES):
            yield from self.translate(chunk, search)

    def _within_positions(self, options: SearchConfig) -> SearchConfig:
        """Learned positions end somewhere: hold both sides to their number."""
        if self.model.config.positions != "learned":
            return options
        most = self.model.config.max_positions
        return dataclasses.replace(
            options, max_source_tokens=min(options.max_source_tokens, most), max_length=min(options.max_length or most, most))

    def _search(self, ids: list[list[int]], options: SearchConfig) -> list[list[Hypothesis]]:
        self.model.eval()
        with autocast(self.device, self.precision):
            return search(self.model, pad(ids).to(self.device), options)


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


def _as_they_come(lines: Iterable[str | bytes], most: int) -> Iterator[list[str | bytes]]:
    """What is there of `lines`, at least one and at most `most` at a time: a thread reads ahead, `most` lines far."""
    waiting: queue.Queue[Any] = queue.Queue(maxsize=most)
    end = object()

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(end)
        except Exception as error:  # whatever goes wrong in reading is raised where the lines are used
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        chunk = [waiting.get()]
        while len(chunk) < most and not waiting.empty():
            chunk.append(waiting.get())
        last = chunk[-1]
        done = last is end or isinstance(last, Exception)
        if len(chunk) > done:
            yield chunk[:-1] if done else chunk
        if isinstance(last, Exception):
            raise last
        if done:
            return
