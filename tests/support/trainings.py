"""Small trainings, and what they write."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from datasets import Dataset

from tests.support.configurations import model_config, run_config
from tests.support.corpora import PAIRS
from tests.support.models import teacher_of
from translator.config.options import RunConfig
from translator.data.preparation import Corpus
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.distributed import (
    broadcast_from_main,
)
from translator.text.tokenizer import Tokenizer
from translator.training.trainer import Trainer, new_model


def tokenized_rows(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> Dataset:
    source, target = (tokenizer.encode(side) for side in zip(*pairs, strict=True))
    return Dataset.from_dict({
        "source": [s for s, _ in pairs], "target": [t for _, t in pairs], "source_ids": source, "target_ids": target,
        "source_length": list(map(len, source)), "target_length": list(map(len, target))})


def training_config(**train: object) -> RunConfig:
    values = {
        "max_epochs": "null", "max_minutes": "null", "max_updates": 12, "validate_every": 4, "log_every": 2,
        "batch_tokens": 200, "average": "none", "metric": "bleu"} | train
    config = run_config(
        *(f"train.{name}={value}" for name, value in values.items()), "optim.lr=0.005", "optim.warmup_updates=3",
        "tokenizer.vocab_size=320", "precision=fp32")
    return dataclasses.replace(config, model=model_config(dropout=0.1))


def small_corpus(tokenizer: Tokenizer, *, validation: int) -> Corpus:
    train, validation_rows, test = (tokenized_rows(tokenizer, pairs) for pairs in (PAIRS[8:], PAIRS[:validation], PAIRS[:8]))
    return Corpus(train, validation_rows, test, tokenizer, tokenizer, {})


def read_metrics(folder: RunFolder) -> list[dict]:
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "train/tokens_per_second"} for line in lines]


def train_toy(config: RunConfig, folder: Path, tokenizer: Tokenizer) -> None:
    corpus = small_corpus(tokenizer, validation=7)
    run = RunFolder(folder)
    broadcast_from_main(lambda: run.create(config, (tokenizer, tokenizer), {}))
    teacher = teacher_of(5, vocab=len(tokenizer)) if config.train.teacher else None
    Trainer(config, run, corpus, new_model(config, corpus), fake_translate, precision=Precision.FP32, teacher=teacher).fit()


def fake_translate(texts: Any) -> list[str]:
    return [text.replace("She sees", "Sie sieht") for text in texts]


def four_batches_an_update(**train: object) -> RunConfig:
    config = training_config(
        accumulation=4, batch_tokens=130, max_updates=10, metric="loss", average="last", guided_alignment=0.3, teacher="any",
        **train)
    # Adam divides tiny gradients by their own size, rounding and all: a larger eps leaves what is to be compared.
    optim = dataclasses.replace(config.optim, ema_decay=0.9, eps=1e-3)
    return dataclasses.replace(config, model=model_config(dropout=0.1), optim=optim)
