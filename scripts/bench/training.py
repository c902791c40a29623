"""Speed of training, with the share of each phase; the options of the training and the machine it runs on."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from torch.profiler import _ExperimentalConfig, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from translator.config.building import from_hydra
from translator.config.options import RunConfig
from translator.data.batching import Batch
from translator.data.preparation import prepare
from translator.data.tatoeba import fetch_default
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision, environment, peak_memory, resolve_device
from translator.runtime.errors import UserError
from translator.training.trainer import Trainer, new_model

ROOT = Path(__file__).resolve().parents[2]
# Enough for most shapes of batches to have come once: a GPU captures each, a CPU's oneDNN writes code for it.
WARM_UP_UPDATES = 60
PROFILED_UPDATES = 10
COUNTED_BATCHES = 4


def options_of_training(overrides: Sequence[str]) -> RunConfig:
    """Compose conf/train.yaml; UserError for init=, since only fresh models are measured."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = from_hydra(RunConfig, compose("train", [*overrides, "name=benchmark"]))
    if config.init is not None:
        raise UserError("init: only fresh models are measured. Remove it.")
    return config


def machine(config: RunConfig) -> dict[str, str]:
    """Describe what figures were measured on."""
    device = resolve_device(config.device)
    return {"device": device.type, "precision": Precision.resolve(config.precision, device)} | environment(device)


def measure_training(config: RunConfig, *, updates: int, repeats: int, trace: Path | None) -> dict[str, float]:
    """Train a fresh model at its peak learning rate; medians of `repeats` stretches of `updates`.

    Tokens are real target tokens. `trace`: where to write a profile for chrome://tracing and Perfetto.
    """
    fetch_default(config.data.path)
    device = resolve_device(config.device)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    model, precision = new_model(config, corpus, device), Precision.resolve(config.precision, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Trainer(config, RunFolder(Path(folder)), corpus, model, list, precision=precision)) as trainer,
    ):
        batches = (
            trainer.cursor.source.batch(epoch, number) for epoch in itertools.count()
            for number in range(len(trainer.cursor.source.plan(epoch))))
        flops = flops_per_token(trainer, list(itertools.islice(batches, COUNTED_BATCHES)))
        train(trainer, batches, WARM_UP_UPDATES)
        stretches = [train(trainer, batches, updates) for _ in range(repeats)]
        figures = {name: statistics.median(stretch[name] for stretch in stretches) for name in stretches[0]}
        figures["peak_memory_gib"] = peak_memory(device)
        figures["model_gflops"] = flops * figures["tokens_per_second"] / 1e9
        return figures | phase_shares(trainer, batches, trace)


def train(trainer: Trainer, batches: Iterator[Batch], updates: int) -> dict[str, float]:
    """Make `updates` updates and return their figures."""
    used: list[Batch] = []
    loss = 0.0
    start = time.perf_counter()
    for _ in range(updates):
        with trainer.updater.phase("data"):
            accumulated = list(itertools.islice(batches, trainer.config.train.batches_of_update))
        loss = trainer.updater.step(accumulated, trainer.config.optim.lr).loss
        used += accumulated
    trainer.model.output.weight[0, 0].item()  # reading a weight waits for the last update
    seconds = time.perf_counter() - start
    tokens = sum(batch.num_tokens for batch in used)
    return {
        "tokens_per_second": tokens / seconds, "updates_per_second": updates / seconds, "tokens_per_update": tokens / updates,
        "padding": statistics.fmean(batch.padding for batch in used), "loss": loss}


def flops_per_token(trainer: Trainer, batches: list[Batch]) -> float:
    """Count the floating-point operations of both passes, padding included, by target token. The model must be fresh."""
    trainer.model.train()
    with FlopCounterMode(display=False) as counter:
        for batch in batches:
            trainer.updater.loss(batch)[0].backward()
    trainer.model.zero_grad()
    return counter.get_total_flops() / sum(batch.num_tokens for batch in batches)


def phase_shares(trainer: Trainer, batches: Iterator[Batch], trace: Path | None) -> dict[str, float]:
    """Return the share of each phase in the time of all; a GPU finishes each before the next begins."""
    on_gpu = trainer.updater.device.type == "cuda"
    by_thread: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    @contextmanager
    def timed_phase(name: str) -> Iterator[None]:
        start = time.perf_counter()
        with record_function(name):
            yield
            if on_gpu and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
        by_thread[name][threading.get_ident()] += time.perf_counter() - start

    trainer.updater.phase = timed_phase
    profiler = profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) if trace else nullcontext()
    with profiler as recorded:
        train(trainer, batches, PROFILED_UPDATES)
    if trace and recorded:
        trace.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    spent = {name: statistics.fmean(threads.values()) for name, threads in by_thread.items()}  # threads run side by side
    if "replay" in spent:  # a capture contains the other two
        spent["replay"] -= spent.get("forward", 0) + spent.get("backward", 0)
    return {f"share_{name}": seconds / sum(spent.values()) for name, seconds in spent.items()}
