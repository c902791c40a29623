"""Speed of training, with its phases and the share of the machine's arithmetic that it reaches."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from translator.config.options import RunConfig
from translator.data.batching import Batch
from translator.data.preparation import prepare
from translator.data.tatoeba import fetch_default
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision, resolve_device
from translator.runtime.memory import peak_memory
from translator.training.trainer import Trainer, new_model

PHASES = ("data", "forward", "backward", "replay", "optimizer")  # a replay is forward and backward in one
# Enough for most shapes of batches to have come once: a GPU captures each, a CPU's oneDNN writes code for it.
WARM_UP_UPDATES = 60
PROFILED_UPDATES = 10
COUNTED_BATCHES = 4
PRODUCTS = 20  # timed at once, five times


def measure_training(config: RunConfig, *, updates: int, repeats: int, trace: Path | None) -> dict[str, float]:
    """Train a fresh model at its peak learning rate; medians of `repeats` stretches of `updates`.

    Tokens are real target tokens. `utilisation`: the operations of training a second over those of plain matrix products.
    `trace`: where to write a profile for chrome://tracing and Perfetto.
    """
    fetch_default(config.data.path)
    device = resolve_device(config.device)
    precision = Precision.resolve(config.precision, device)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair())
    model = new_model(config, corpus, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Trainer(config, RunFolder(Path(folder)), corpus, model, list, precision=precision)) as trainer,
    ):
        batches = (
            trainer.batches.batch(epoch, number) for epoch in itertools.count()
            for number in range(len(trainer.batches.plan(epoch))))
        flops = flops_per_token(trainer, list(itertools.islice(batches, COUNTED_BATCHES)))
        train(trainer, batches, WARM_UP_UPDATES)
        stretches = [train(trainer, batches, updates) for _ in range(repeats)]
        figures = {name: statistics.median(stretch[name] for stretch in stretches) for name in stretches[0]}
        figures["peak_memory_gib"] = peak_memory(device)
        figures["model_gflops"] = flops * figures["tokens_per_second"] / 1e9
        rows = round(figures["tokens_per_update"] / config.train.batches_of_update)
        figures["products_gflops"] = product_gflops(rows, config.model.d_model, config.model.d_ff, device, precision.dtype)
        figures["utilisation"] = figures["model_gflops"] / figures["products_gflops"]
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
        "tokens_per_second": tokens / seconds, "sentences_per_second": sum(len(batch.source) for batch in used) / seconds,
        "seconds_per_update": seconds / updates, "tokens_per_update": tokens / updates,
        "padding": statistics.fmean(batch.padding for batch in used), "loss": loss}


def flops_per_token(trainer: Trainer, batches: list[Batch]) -> float:
    """Count the floating-point operations of both passes, padding included, by target token. The model must be fresh."""
    trainer.model.train()
    with FlopCounterMode(display=False) as counter:
        for batch in batches:
            trainer.updater.loss(batch)[0].backward()
    trainer.model.zero_grad()
    return counter.get_total_flops() / sum(batch.num_tokens for batch in batches)


def product_gflops(rows: int, inputs: int, outputs: int, device: torch.device, dtype: torch.dtype) -> float:
    """Measure GFLOP/s of products of (rows, inputs) and (inputs, outputs) matrices."""
    left, right = (torch.randn(*shape, device=device).to(dtype) for shape in ((rows, inputs), (inputs, outputs)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            product = left @ right
        product[0, 0].item()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return 2 * PRODUCTS * rows * inputs * outputs / statistics.median(times) / 1e9


def phase_shares(trainer: Trainer, batches: Iterator[Batch], trace: Path | None) -> dict[str, float]:
    """Return the share of each phase in the time of all, by PyTorch's profiler."""
    on_gpu = trainer.updater.device.type == "cuda"
    if on_gpu:
        trainer.updater.phase = synchronised_phase
    with profile(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu,
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    ) as recorded:
        train(trainer, batches, PROFILED_UPDATES)
    trainer.updater.phase = record_function
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    by_thread: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for event in recorded.events() or ():
        if event.name in PHASES and event.device_type == DeviceType.CPU:  # a GPU's events have the same names
            by_thread[event.name][event.thread] += event.cpu_time_total
    spent = {name: statistics.fmean(threads.values()) for name, threads in by_thread.items()}  # threads run side by side
    if "replay" in spent:  # a capture contains the other two
        spent["replay"] -= spent.get("forward", 0) + spent.get("backward", 0)
    return {f"share_{name}": seconds / sum(spent.values()) for name, seconds in spent.items()}


@contextmanager
def synchronised_phase(name: str) -> Iterator[None]:
    """Let a GPU finish a phase's work before the next begins, unless the work is being captured."""
    with record_function(name):
        yield
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
