"""The command `make prune`: write a smaller run, without some heads, layers and pieces of a trained one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from translator.compression.importance import Importance, choose_heads, head_importance
from translator.compression.parts import Heads, Parts
from translator.compression.vocabulary import keep_used
from translator.config.commands import PruneConfig
from translator.config.options import RunConfig
from translator.config.stages import StageConfig
from translator.data.batching import Batch, BatchSource
from translator.data.cleaning import READ_ROWS
from translator.data.preparation import SIDES, Corpus, prepare
from translator.inference.shortlist_learning import write_shortlist
from translator.inference.teaching import training_splits
from translator.runs.finding import chosen_runs
from translator.runs.plots import draw_heads, png
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.atomic_files import read_plain, require_writable, sole_user, write_bytes
from translator.runtime.console import log
from translator.runtime.device import resolve_device, tune_cpu
from translator.runtime.errors import UserError
from translator.runtime.typed import typed
from translator.text.tokenizer import Tokenizers
from translator.training.alignment import keep_alignment

# Pairs of the training data that show how important heads are, and target tokens of a batch of them.
PAIRS, BATCH_TOKENS = 2000, 2048
PICTURE = "head-importance.png"


def prune_run(config: PruneConfig) -> None:
    """Write a run without some heads, layers and pieces of a trained one. It translates, and `init` fine-tunes it.

    Raises UserError for parts that the model lacks, and where training data are needed and absent.
    """
    tune_cpu()
    [run] = chosen_runs(config.run, config.runs)
    before, after = RunFolder(run), RunFolder(config.output or f"{run.resolve()}-pruned")
    require_not_of_a_run(after.path)
    if after.has_begun():
        raise UserError(f"{after.path}: a run exists here. Choose another output=.")
    require_writable(after.path)
    options, tokenizers = before.load_config(), before.load_tokenizers()
    whole = parts = Parts(options.model, before.load_weights())
    if config.encoder_layers is not None:
        parts = parts.with_layers("encoder", config.encoder_layers)
    if config.decoder_layers is not None:
        parts = parts.with_layers("decoder", config.decoder_layers)
    corpus, picture = _corpus(before, options, tokenizers, config), None
    if corpus is not None and config.heads:
        importance = head_importance(parts.model(*tokenizers).to(resolve_device(config.device)), _some_batches(corpus))
        heads = choose_heads(importance, config.heads)
        parts, picture = parts.with_heads(heads), _show(importance, heads, config)
    if corpus is not None and config.vocabulary == "used":
        tokenizers, ids = keep_used(tokenizers, _uses(corpus, options))
        parts, corpus = parts.with_pieces(*map(torch.from_numpy, ids)), _prepared(before, options, tokenizers)
    with sole_user(after.path):
        after.create(dataclasses.replace(
            options, name=after.path.resolve().name, runs=str(after.path.parent), init=str(run), model=parts.config,
            tokenizer=dataclasses.replace(options.tokenizer, vocab_size=max(map(len, tokenizers)))),
            tokenizers, {} if corpus is None else corpus.report)
        after.begin_with(parts.weights)
        if picture is not None:
            write_bytes(after.path / PICTURE, picture)
        if corpus is not None:
            _complete(after, before, parts, corpus, config)
    log(f"{after.path}: {parts.parameters:,} of {whole.parameters:,} parameters\n\n"
        f"Next:\n  {typed('evaluate', run=after.path)}\n"
        f"  {typed('train', init=after.path, experiment='finetune', data=..., name=...)}")


def _corpus(folder: RunFolder, options: RunConfig, tokenizers: Tokenizers, config: PruneConfig) -> Corpus | None:
    """Return the data of a run; None for an imported run, which has none. UserError where pruning needs them."""
    if "splits" not in folder.load_report():
        if config.heads or config.vocabulary == "used":
            raise UserError(f"{folder.path}: its data_report.json has no training data, as after an import. Prune layers only, "
                            "or fine-tune it with init= first.")
        return None
    if options.data.window is not None and config.vocabulary == "used":
        raise UserError("vocabulary=used: data.window read this run's data as a stream, which is not kept. Set vocabulary=all.")
    corpus = _prepared(folder, options, None if options.own_vocabulary else tokenizers)
    folder.require_same_data((corpus.source_tokenizer, corpus.target_tokenizer), corpus.report)
    return corpus


def _prepared(folder: RunFolder, options: RunConfig, tokenizers: Tokenizers | None) -> Corpus:
    data = folder.load_data()
    return prepare(data, options.tokenizer, max_tokens=options.longest_pair(), tokenizers=tokenizers,
                   splits=training_splits(data, "auto"))


def _some_batches(corpus: Corpus) -> Iterator[Batch]:
    """Yield batches of evenly spaced training pairs."""
    rows = corpus.train.select(range(0, len(corpus.train), -(-len(corpus.train) // PAIRS)))
    source = BatchSource(rows, (corpus.source_tokenizer, corpus.target_tokenizer), max_tokens=BATCH_TOKENS, seed=0)
    return (source.batch(0, number) for number in range(len(source.plan(0))))


def _uses(corpus: Corpus, options: RunConfig) -> list[np.ndarray]:
    """Count each piece in the training split, and in an epoch as training samples and augments it."""
    tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
    uses = [np.zeros(len(tokenizer), int) for tokenizer in tokenizers]
    for rows in corpus.train.select_columns(["source_ids", "target_ids"]).with_format("arrow").iter(READ_ROWS):
        _count(uses, (pc.list_flatten(rows[f"{side}_ids"]).to_numpy() for side in SIDES))
    for augment in {stage.augmented(options.data.augment) for stage in options.train.stages or (StageConfig(),)}:
        if not options.tokenizer.sampling and not any(vars(augment).values()):
            continue
        source = BatchSource(corpus.train, tokenizers, max_tokens=options.longest_pair(), seed=options.seed,
                             sampling=options.tokenizer.sampling, augment=augment)
        for batch in (source.batch(0, number) for number in range(len(source.plan(0)))):
            _count(uses, (side.flatten().numpy() for side in (batch.source, batch.target_out)))
    return uses


def _count(uses: Iterable[np.ndarray], ids: Iterable[np.ndarray]) -> None:
    for total, of_side in zip(uses, ids, strict=True):
        total += np.bincount(of_side, minlength=len(total))


def _show(importance: Importance, heads: Heads, config: PruneConfig) -> bytes:
    """Log the importance of heads as a table, and return it as a picture. Layers keep the numbers that they had."""
    sides = {"encoder": config.encoder_layers, "decoder": config.decoder_layers, "cross": config.decoder_layers}
    by_number: dict[Any, dict[int, Tensor]] = {
        kind: dict(zip(sides[kind] or range(len(of_layers)), of_layers, strict=True)) for kind, of_layers in importance.items()}
    log("importance of heads by attention and layer; -: removed")
    for kind, of_layers in by_number.items():
        for (number, values), kept in zip(of_layers.items(), heads[kind], strict=True):
            cells = (f"{value:.2f}{' ' if head in kept else '-'}" for head, value in enumerate(values.tolist()))
            log(f"  {kind:8} {number:3}   {'  '.join(cells)}")
    return png(draw_heads(by_number, heads))


def _complete(after: RunFolder, before: RunFolder, parts: Parts, corpus: Corpus, config: PruneConfig) -> None:
    """Write what else a run folder holds: kept where it is still right, else learned again; fine-tuning calibrates."""
    kept = [before.lexicon_file, before.shortlist_file] if config.vocabulary == "all" else []
    if not (config.heads or config.encoder_layers or config.decoder_layers):
        kept.append(before.calibration_file)
    for file in filter(Path.is_file, kept):
        write_bytes(after.path / file.name, read_plain(file))
    keep_alignment(parts.model(corpus.source_tokenizer, corpus.target_tokenizer), corpus, after)
    if before.shortlist_file.is_file() and not after.shortlist_file.is_file():
        write_shortlist(after)
