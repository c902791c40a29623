"""Translate training data by trained runs, in chunks that survive a kill: data.teacher and data.reverse."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from translator.config.data import DataConfig
from translator.data.preparation import MOST_WORKERS, cache_key, cached_folder, checked_file, clean_splits, load_report
from translator.data.synthetic import SyntheticSplits
from translator.data.text_files import sha256_of
from translator.inference.files import Job, cores, ready
from translator.inference.output import Output
from translator.inference.translation import Request
from translator.inference.translator import CHUNK
from translator.runs.run_folder import RunFolder
from translator.runtime.console import Progress, log
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import UserError

BEAM_SIZE = 5  # as in Kim and Rush 2016; Caswell et al. 2019 find tagged beam outputs as good as sampled ones
OUTPUTS = "outputs.jsonl"  # a text a line, or null for one that was refused

Direction = tuple[str, str]  # the languages to translate from and to


def training_splits(config: DataConfig, device: str) -> Path:
    """Return the cached folder of the splits to train on, as `prepare` takes it.

    data.teacher and data.reverse translate for it; without them it is the folder of the clean pairs.
    """
    if not config.is_synthetic:
        return clean_splits(config)
    back = tuple((target, source) for source, target in config.directions)
    teacher = None if config.teacher is None else CachedTranslator("teacher", config, config.directions, device)
    reverse = None if config.reverse is None else CachedTranslator("reverse", config, back, device)
    if teacher is not None:
        teacher.warn_of_other_data(load_report(clean_splits(config))["digests"]["test"])
    return SyntheticSplits(config, teacher, reverse).folder()


class CachedTranslator:
    """The run, or the ensemble, that an option of the data names, with its outputs in the cache."""

    def __init__(self, option: str, config: DataConfig, directions: Sequence[Direction], device: str) -> None:
        """Read the options of the runs. UserError where one does not translate in these directions."""
        named = getattr(config, option)
        runs = (named,) if isinstance(named, str) else named
        self.name, self.cache, self.workers = " and ".join(runs), Path(config.cache), config.workers
        self.folders = folders = [RunFolder(run) for run in runs]
        for folder in folders:
            _require(folder, f"data.{option}={folder.path}", directions)
        first = folders[0].load_config()
        # A teacher of many languages needs no tag in the text of a student of one.
        language = directions[0][1] if first.data.tags and not config.tags else None
        search = dataclasses.replace(first.search.plain(BEAM_SIZE), language=language)
        self._on_cpu = resolve_device(device).type == "cpu"
        # float32 on a CPU, so that a resumed start never changes the precision by a measurement on a busy machine.
        precision = Precision.FP32 if self._on_cpu else Precision.resolve("auto", resolve_device(device))
        self.job = Job(runs, device, precision, search, details=False)
        self.identity: Sequence[str] = [json.dumps(dataclasses.asdict(search), sort_keys=True), *map(_version, folders)]

    def __call__(self, texts: Sequence[str]) -> Iterator[str | None]:
        """Yield the translation of each text; None for one that is refused."""
        name = f"__translations-{cache_key(self.identity, _digest(texts))}"
        finished = self.cache / f".{name}.jsonl"  # outside of the folder, which is complete or absent
        folder = cached_folder(self.cache, name, partial(self._fill, texts, finished))
        finished.unlink(missing_ok=True)
        with checked_file(folder, OUTPUTS).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def warn_of_other_data(self, test: str) -> None:
        """Warn of a run that may have learned sentences of a test split, given by its digest."""
        for folder in self.folders:
            if folder.digest_of("test") != test:
                log(f"warning: {folder.path}: was trained with another test split. If it has learned sentences of this one, "
                    "scores of its student are too good")

    def _fill(self, texts: Sequence[str], finished: Path, folder: Path) -> None:
        if not finished.is_file():
            self._translate(texts, Output(str(finished), job={}))
        shutil.copyfile(finished, folder / OUTPUTS)

    def _translate(self, texts: Sequence[str], output: Output) -> None:
        """Write the outputs that an earlier start has not written, chunk by chunk."""
        done = output.done
        log(f"{self.name} translates {len(texts):,} sentences{f'; {done:,} are there already' if done else ''}")
        refusals: list[str] = []
        first = done - done % CHUNK  # chunks begin at the same places as in a start that was not interrupted
        groups = ([Request(text) for text in texts[n : n + CHUNK]] for n in range(first, len(texts), CHUNK))
        with (
            closing(Progress(done=done / len(texts))) as progress, output.opened() as written,
            ready(self.job, workers=self._useful_workers(len(texts) - done)) as translate,
        ):
            for answers in translate(groups):
                new = [answer for answer, _ in answers[max(0, done - first) :]]
                first += len(answers)
                refusals += [answer.refused for answer in new if answer.refused]
                lines = (json.dumps(None if answer.refused else answer.text, ensure_ascii=False) for answer in new)
                written.write("".join(f"{line}\n" for line in lines).encode())
                written.flush()
                progress.advance(first / len(texts), f"{first:,} sentences")
        if refusals:
            log(f"warning: {self.name} refused {len(refusals):,} of them, the first: {refusals[0]}")

    def _useful_workers(self, texts: int) -> int:
        """Return how many processes pay: one a core on a CPU, with a chunk for each."""
        most = min(cores(), MOST_WORKERS) if self._on_cpu else 1
        return max(1, min(self.workers or most, texts // CHUNK))


def _require(folder: RunFolder, named: str, directions: Sequence[Direction]) -> None:
    """Raise UserError where a run cannot translate in these directions."""
    data = folder.load_config().data
    if not set(directions) <= set(data.directions):
        raise UserError(f"{named}: translates {_described(data.directions)}, not {_described(directions)}. Name another run.")
    if not folder.model_file.is_file():
        raise UserError(f"{named}: has no model.safetensors. Train it first.")


def _version(run: RunFolder) -> str:
    """Return what of a run shapes its translations, as text that is equal for copies of the run."""
    config, files = run.load_config(), (run.model_file, run.sums_file, run.report_file)
    tags = config.tokenizer.source_tag, config.tokenizer.target_tag
    return json.dumps([dataclasses.asdict(config.model), tags, *(sha256_of(file) for file in files if file.is_file())])


def _described(directions: Sequence[Direction]) -> str:
    return ", ".join(" to ".join(direction) for direction in directions)


def _digest(texts: Sequence[str]) -> str:
    total = hashlib.sha256()
    for first in range(0, len(texts), CHUNK):
        total.update(json.dumps(texts[first : first + CHUNK]).encode())
    return total.hexdigest()
