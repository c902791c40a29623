"""Load the sentences that runs are scored on, and check that the runs have not learned them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from translator.config.commands import EvaluateConfig
from translator.config.corpora import corpora_of
from translator.config.data import DataConfig
from translator.config.languages import tag_of
from translator.data.cleaning import READ_ROWS, Counts, same_sentence, with_text
from translator.data.filters import Pair
from translator.data.preparation import SIDES, digest, load_split, read_corpus, scored_apart
from translator.data.sources import SPLITS
from translator.data.text_files import read_lines
from translator.evaluation.test_sets import TestSet, load_named
from translator.runs.run_folder import RunFolder
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.text.context import Context, with_context

# The languages to translate from and to; None for all directions of a model.
Direction = tuple[str, str] | None


def require_comparable(runs: Sequence[Path], direction: Direction) -> None:
    """Raise UserError if a run does not translate in `direction` or, if that is None, if two runs have different ones."""
    datas = [RunFolder(run).load_config().data for run in runs]
    for run, data in zip(runs, datas, strict=True):
        if direction is not None and direction not in data.directions:
            there = ", ".join(" to ".join(one) for one in data.directions)
            raise UserError(f"source={direction[0]} target={direction[1]}: the model in {run} translates {there}")
        if direction is None and set(data.directions) != set(datas[0].directions):
            raise UserError(f"{runs[0]} translates {datas[0].source} to {datas[0].target}, {run} {data.source} to "
                            f"{data.target}: nothing to compare. If both have one direction, name it by source= and target=.")


def load_test_sets(config: EvaluateConfig, run: Path, runs: Sequence[Path]) -> list[TestSet]:
    """Return the test sets that `config` names, or the two files, or a split of the run's own data.

    runs: all that are scored; the lines of files get the longest context that one of them reads.
    """
    if config.sets is not None:
        directions = (config.direction,) if config.direction else RunFolder(run).load_config().data.directions
        if len(directions) > 1:
            raise UserError(f"sets: the model in {run} has {len(directions)} directions. Choose one by source= and target=")
        names = [config.sets] if isinstance(config.sets, str) else config.sets
        sets = [load_named(name, directions[0]) for name in dict.fromkeys(names)]
        return [dataclasses.replace(one, name="-".join([one.name, *(config.direction or ())])) for one in sets]
    if config.source_file is None or config.reference_file is None:
        name = "-".join([config.split, *(config.direction or ())])
        sources, references = held_out(RunFolder(run), config.split, config.direction)
        corpora = corpora_of_split(RunFolder(run), config.split, config.direction)
        return [TestSet(name, sources, [references], corpora=corpora)]
    sources, references = (list(read_lines(Path(file))) for file in (config.source_file, config.reference_file))
    if len(sources) != len(references):
        raise UserError(
            f"{config.source_file} has {len(sources):,} lines, {config.reference_file} {len(references):,}. "
            "They must be pairs.")
    context = Context(max(RunFolder(one).load_config().data.context for one in runs))
    sources = [context.before(source) + source for source in sources]
    name = Path(config.source_file).name.removesuffix(".gz")
    return [TestSet(f"file-{name}" if name.split("-")[0] in SPLITS else name, sources, [references], is_file=True)]


def held_out(folder: RunFolder, split: str, direction: Direction) -> tuple[list[str], list[str]]:
    """Return a split's sources and references, of one direction without tags; UserError if the data changed after training."""
    data = folder.load_data()
    if data.directions == (direction,):
        direction = None
    if split == "train" and direction is not None:
        raise UserError("split=train: is kept cleaned, all directions together. Remove source= and target=.")
    rows = load_split(data, split)
    if folder.digest_of(split) not in (None, digest(rows)):
        raise UserError(f"split={split}: the data have changed since {folder.path} was trained, so it may have seen these "
                        "sentences. Restore the old data, or pass source_file= and reference_file=.")
    if direction is None:
        return list(rows["source"]), list(rows["target"])
    pairs = list(itertools.chain.from_iterable(_of_direction(data, split, direction).values()))
    return [source for source, _ in pairs], [target for _, target in pairs]


def _of_direction(data: DataConfig, split: str, direction: tuple[str, str]) -> dict[str, list[Pair]]:
    """Return the pairs of a split in one of several directions, without tags, by corpus."""
    named = [corpus for corpus in corpora_of(data) if getattr(corpus, split) is not None]
    if not named:
        raise UserError(f"data.{split}=null: this split was cut from all directions together. Remove source= and target=.")
    corpora = [dataclasses.replace(corpus, source=direction[0], target=direction[1], tags_of_all=())
               for corpus in named if direction in corpus.directions]
    if not corpora:
        raise UserError(f"source={direction[0]} target={direction[1]}: no corpus of this direction has a {split} split. "
                        "Choose another direction, or pass source_file= and reference_file=.")
    tables = ((corpus.name, read_corpus(corpus, split)) for corpus in corpora)
    return {name: list(with_text(table, Counts())) for name, table in tables if table is not None}


def corpora_of_split(folder: RunFolder, split: str, direction: Direction) -> dict[str, range]:
    """Return the numbers of each corpus's sentences in `held_out`; nothing if there is one corpus."""
    if split == "train":
        return {}
    if direction is None or folder.load_config().data.directions == (direction,):
        return scored_apart(folder.load_report(), split)
    sizes = {name: len(pairs) for name, pairs in _of_direction(folder.load_data(), split, direction).items()}
    ends = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
    return {name: range(end - sizes[name], end) for name, end in ends.items()} if len(sizes) > 1 else {}


def warn_of_unfair_scores(
    runs: Iterable[Path], owner: Path, split: str, sources: Sequence[str], references: Sequence[str]
) -> None:
    """Warn of runs with other data that were trained on pairs that `owner` holds out, or that miss their context."""
    for run in dict.fromkeys(runs):
        folder = RunFolder(run)
        if (length := folder.load_config().data.context) > (there := RunFolder(owner).load_config().data.context):
            log(f"warning: {run} was trained with data.context={length}, and these sentences have {there} before each: its "
                "scores are too low. Score the split of that run, or files: source_file= and reference_file=.")
        if split == "train" or folder.digest_of(split) == RunFolder(owner).digest_of(split):
            continue
        try:
            if count := _learned(folder, sources, references).sum():
                log(f"warning: {run} was trained on {count:,} of these {len(sources):,} sentences, or their translations: "
                    "its scores are too good. Compare on files that no run has seen: source_file= and reference_file=.")
        except UserError as error:
            log(f"warning: whether {run} was trained on some of these sentences is unknown: {error}")


def warn_of_learned_sets(runs: Iterable[Path], sets: Sequence[TestSet]) -> None:
    """Warn of test sets with sentences that a run was trained on."""
    sources = [text for one in sets for text in one.sources]
    references = [text for one in sets for text in one.references[0]]
    ends = list(itertools.accumulate(len(one.sources) for one in sets))
    for run in dict.fromkeys(runs):
        try:
            learned = _learned(RunFolder(run), sources, references)
        except UserError as error:
            log(f"warning: whether {run} was trained on some of these sentences is unknown: {error}")
            continue
        for one, part in zip(sets, np.split(learned, ends), strict=False):
            if part.any():
                log(f"warning: {run} was trained on {part.sum():,} of the {len(part):,} sentences of {one.name}, or their "
                    "translations: its scores there are too good.")


def _learned(folder: RunFolder, sources: Sequence[str], references: Sequence[str]) -> NDArray[np.bool_]:
    """Return which pairs have a sentence that the run's training data hold on its side (N,); UserError for missing data."""
    data = folder.load_data()
    train = load_split(data, "train")
    learned = np.zeros(len(sources), bool)
    for name, side in zip(SIDES[: 1 if data.overlap == "source" else 2], (sources, references), strict=False):
        rows = train.select_columns([name]).iter(READ_ROWS)
        texts = itertools.chain.from_iterable(part[name] for part in rows)
        if name == "target" and data.monolingual is not None:  # back-translated
            texts = itertools.chain(texts, read_lines(Path(data.monolingual)))
        known = set(map(same_sentence, side)).intersection(map(same_sentence, texts))
        learned |= [same_sentence(text) in known for text in side]
    return learned


def language_of(folder: RunFolder, direction: Direction) -> str:
    """Return the language of the references: the run's target, or the direction's; empty for several."""
    return folder.load_config().data.language if direction is None else direction[1]


def sources_for(run: Path, sources: Sequence[str], direction: Direction) -> list[str]:
    """Return the sources as a run takes them: with a language tag if it has several languages, with its length of context."""
    data = RunFolder(run).load_config().data
    if direction is None or not data.tags:
        return [with_context(source, data.context) for source in sources]
    return [tag_of(direction[1]) + source for source in sources]
