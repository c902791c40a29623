"""Measured speed: of training, with its phases and its utilisation of the machine, and of decoding."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, record_function

from translator.config.options import RunConfig
from translator.data.batching import Batch
from translator.inference.translation import Request, Translation
from translator.inference.translator import CHUNK
from translator.inference.workers import Job, ready
from translator.model.transformer import TiedProjection, Transformer
from translator.runtime.device import Precision
from translator.runtime.environment import environment
from translator.runtime.errors import UserError
from translator.runtime.memory import peak_memory
from translator.text.tokenizer import PAD_ID
from translator.training.sampled_softmax import least_size
from translator.training.trainer import Trainer

# Both passes where they are replayed are one.
PHASES = ("data", "forward", "backward", "replay", "optimizer")
# Enough for most shapes of batches to have come once. A first time takes longer: a GPU records it, a CPU's oneDNN writes code.
WARM_UP_UPDATES = 60
PROFILED_UPDATES = 10
# Seconds for which each shape of matrix product is timed, and products between two readings of the clock: more on a GPU, which
# would else wait for each to be asked for.
PRODUCT_SECONDS, PRODUCTS_AT_ONCE = 0.2, {"cpu": 1, "cuda": 20}
# Greedy, and the search that most publish.
BEAM_SIZES = (1, 5)
# Beam size, and sentences in a batch, or as a file is translated.
DECODING = tuple(itertools.product(BEAM_SIZES, (1, 32, None)))


class LinearLayer(NamedTuple):
    """A map of (N, inputs) to (N, outputs)."""

    outputs: int
    inputs: int
    on_source: bool  # N are source tokens, else target tokens


def require_fresh(config: RunConfig) -> None:
    """UserError for a training that starts from other weights: what is measured is a fresh model."""
    if config.init is not None:
        raise UserError("init: what is measured is a fresh model; leave it out")


def measure_training(trainer: Trainer, *, updates: int, repeats: int, trace: Path | None = None) -> dict[str, Any]:
    """Speed of training on the run's own batches, at its peak learning rate: medians of `repeats` stretches of `updates`.

    Tokens are real target tokens. `utilisation` is the model's arithmetic on real tokens a second over what this machine
    does, here and now, in matrix products of this model's shapes alone. `trace`: where to write a profile that
    chrome://tracing and Perfetto show.
    """
    batches = _all_batches(trainer)
    _train(trainer, batches, WARM_UP_UPDATES)
    stretches = [_train(trainer, batches, updates) for _ in range(repeats)]
    figures = {name: statistics.median(stretch[name] for stretch in stretches) for name in stretches[0]}
    figures["peak_memory_gib"] = peak_memory(trainer.updater.device)
    tokens = trainer.config.train.passes * figures["tokens_per_update"] / trainer.config.train.batches_of_update
    layers = _linear_layers(trainer.model, trainer.config.train.sampled_softmax)
    figures["products_gflops"] = _product_rate(layers, round(tokens), trainer.updater.device, trainer.updater.precision.dtype)
    figures["utilisation"] = figures["model_gflops"] / figures["products_gflops"]
    return figures | _phase_shares(trainer, batches, trace)


def measure_decoding(job: Job, sources: Sequence[str], *, repeats: int, workers: int) -> dict[str, Any]:
    """Speed of greedy and beam search: medians of `repeats` passes over `sources`, one sentence at a time and 32 at a time.

    And, as a file is translated, by so many workers in batches of search.batch_tokens: the mean of as many passes.
    """
    figures = {}
    translator = job.load()
    alike = sorted(sources, key=len)
    for beam_size, batch_size in DECODING:
        options = dataclasses.replace(job.search.plain(beam_size), shortlist=job.search.shortlist)
        if batch_size is None:
            seconds, translations = time_file(
                dataclasses.replace(job, search=options), alike, repeats=repeats, workers=workers)
            tokens = _tokens(translations)
        else:
            whole = dataclasses.replace(options, batch_tokens=2**30)
            groups = [alike[first : first + batch_size] for first in range(0, len(alike), batch_size)]
            passes = []
            for _ in range(repeats):
                start = time.perf_counter()
                tokens = sum(_tokens(translator.translate(group, whole)) for group in groups)
                passes.append(time.perf_counter() - start)
            seconds = statistics.median(passes)
        name = f"beam_{beam_size}_batch_{batch_size or 'file'}"
        figures[name] = {"sentences_per_second": len(alike) / seconds, "tokens_per_second": tokens / seconds}
    return figures


def decoding_table(precision: str, figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What `measure_decoding` gives, a line for each setting."""
    return [
        f"{precision:<5} {setting.replace('_', ' '):<19} {row['sentences_per_second']:>9,.1f} sentences/s "
        f"{row['tokens_per_second']:>10,.0f} tokens/s" for setting, row in figures.items()]


def time_file(job: Job, sources: Sequence[str], *, repeats: int, workers: int) -> tuple[float, list[Translation]]:
    """Seconds of a pass over `sources`, by workers that have started and made one before; and the translations, in order."""
    # As many for each worker, of the same mixture, the first of them while others still start.
    count, order = workers * -(-len(sources) // (workers * CHUNK)), sorted(range(len(sources)), key=lambda i: len(sources[i]))
    shares = [share for number in range(count) if (share := order[number::count])]
    asked = [[Request(sources[i]) for i in share] for share in shares]
    translations: dict[int, Translation] = {}
    with ready(job, workers=workers) as answers:
        for share, group in zip(shares, answers(asked), strict=True):
            translations.update(zip(share, (translation for translation, _ in group), strict=True))
        start = time.perf_counter()  # all workers are at rest
        for _ in answers(asked * repeats):
            pass
        seconds = (time.perf_counter() - start) / repeats
    return seconds, [translations[i] for i in range(len(sources))]


def _tokens(translations: Sequence[Translation]) -> int:
    """The tokens of the best outputs, EOS among them."""
    return sum(1 + len(translation.hypotheses[0].ids) for translation in translations if translation.hypotheses)


def model_flops(model: Transformer, batch: Batch, sampled: int = 0, *, passes: int = 1, encodings: int = 1) -> int:
    """Floating-point operations that training on a batch's real tokens takes: two a weight and token forward, four backward.

    Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, section 2.1, with the products of attention added, whether or not a
    mask or a window hides them. `sampled`: that of `train.sampled_softmax`; the pieces that are left out take none. `passes`,
    `encodings`: how often the decoder and the encoder are gone through.
    """
    source, target = (batch.source != PAD_ID).sum(1), batch.real.sum(1)
    encoder = int((source * source).sum()) * len(model.encoder) * encodings
    decoder = int((target * (target + source)).sum()) * len(model.decoder) * passes
    products = 2 * model.config.d_model * (encoder + decoder)  # two products, of queries by keys and weights by values
    sampled = max(sampled, least_size(batch.target_out[batch.real])) if sampled else 0
    for layer in _linear_layers(model, sampled):
        products += layer.outputs * layer.inputs * int(source.sum() * encodings if layer.on_source else target.sum() * passes)
    return 6 * products


def compare(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A line for each number that both reports have: its two values and their ratio."""
    lines = []
    for name, new in after.items():
        old = before.get(name)
        if isinstance(new, Mapping) and isinstance(old, Mapping):
            lines += compare(old, new, f"{prefix}{name}.")
        elif isinstance(new, int | float) and isinstance(old, int | float) and old:
            lines.append(f"{prefix + name:<44} {old:>12,.2f} {new:>12,.2f} {new / old:>8.2f} x")
    return lines


def load_report(path: Path) -> dict[str, Any]:
    """A report that a benchmark wrote."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a report of a benchmark: {error}") from error
    if not isinstance(report, dict) or "machine" not in report:
        raise UserError(f"{path}: not a report of a benchmark")
    return report


def describe_machine(device: torch.device, precision: Precision) -> dict[str, Any]:
    """What figures were measured on."""
    return {"device": device.type, "precision": precision} | environment(device)


def _all_batches(trainer: Trainer) -> Iterator[Batch]:
    for epoch in itertools.count():
        for number in range(len(trainer.batches.plan(epoch))):
            yield trainer.batches.batch(epoch, number)


def _train(trainer: Trainer, batches: Iterator[Batch], updates: int) -> dict[str, float]:
    """The figures of so many updates in a row."""
    updater = trainer.updater
    used: list[Batch] = []
    loss = 0.0
    start = time.perf_counter()
    for _ in range(updates):
        with updater.phase("data"):
            accumulated = [next(batches) for _ in range(trainer.config.train.batches_of_update)]
        loss = updater.step(accumulated, trainer.config.optim.lr).loss
        used += accumulated
    trainer.model.output.weight[0, 0].item()  # reading a weight waits for the last update
    seconds = time.perf_counter() - start
    tokens = sum(batch.num_tokens for batch in used)
    train = trainer.config.train
    flops = sum(
        model_flops(trainer.model, part, train.sampled_softmax, passes=train.passes, encodings=train.encodings)
        for batch in used for part in updater.parts(batch))
    return {
        "tokens_per_second": tokens / seconds,
        "sentences_per_second": sum(len(batch.source) for batch in used) / seconds,
        "seconds_per_update": seconds / updates,
        "tokens_per_update": tokens / updates,
        "padding": statistics.fmean(batch.padding for batch in used),
        "loss": loss,
        "model_gflops": flops / seconds / 1e9}


def _phase_shares(trainer: Trainer, batches: Iterator[Batch], trace: Path | None) -> dict[str, float]:
    """The share of each phase in the time of all, by PyTorch's profiler."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (trainer.updater.device.type == "cuda")
    usual = trainer.updater.phase
    if trainer.updater.device.type == "cuda":
        trainer.updater.phase = _synchronised_phase
    with profile(activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)) as recorded:
        _train(trainer, batches, PROFILED_UPDATES)
    trainer.updater.phase = usual
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    spent, threads = defaultdict[str, float](float), defaultdict[str, set[int]](set)
    for event in recorded.events() or ():
        if event.name in PHASES and event.device_type == DeviceType.CPU:  # what a GPU did meanwhile has the same names
            spent[event.name] += event.cpu_time_total
            threads[event.name].add(event.thread)
    for name in spent:
        spent[name] /= len(threads[name])  # which are in a phase at the same time
    if "replay" in spent:  # before it is one, it is the two in it
        spent["replay"] -= spent.get("forward", 0) + spent.get("backward", 0)
    return {f"share_{name}": time / sum(spent.values()) for name, time in spent.items()}


@contextmanager
def _synchronised_phase(name: str) -> Iterator[None]:
    """A phase whose work a GPU finishes before the next begins, but while it is recorded and nothing is worked."""
    with record_function(name):
        yield
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()


def _product_rate(layers: Iterable[LinearLayer], tokens: int, device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s of matrix products alone, weighted as training on that many tokens at once needs them."""
    seconds: dict[tuple[int, int, int], float] = {}
    flops, total = 0.0, 0.0
    for outputs, inputs, _ in layers:
        for shape in ((tokens, inputs, outputs), (tokens, outputs, inputs), (outputs, tokens, inputs)):
            if shape not in seconds:
                seconds[shape] = _seconds_of_product(*shape, device=device, dtype=dtype)
            flops, total = flops + 2 * tokens * inputs * outputs, total + seconds[shape]
    return flops / total / 1e9


def _seconds_of_product(rows: int, inner: int, columns: int, *, device: torch.device, dtype: torch.dtype) -> float:
    """The median time of a product of (rows, inner) by (inner, columns) matrices."""
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(columns, inner, device=device).to(dtype).T
    times: list[float] = []
    number = PRODUCTS_AT_ONCE.get(device.type, 1)
    while sum(times) < PRODUCT_SECONDS:
        start = time.perf_counter()
        for _ in range(number):
            left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / number


def _linear_layers(model: Transformer, sampled: int) -> Iterator[LinearLayer]:
    """The model's linear layers, the last with as many outputs as the loss is made of: `sampled`; 0: all."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | TiedProjection):
            outputs, inputs = module.weight.shape
            on_source = name.startswith("encoder.") or name.endswith(("cross_attention.W_k", "cross_attention.W_v"))
            if sampled and module is model.output:
                outputs = min(outputs, sampled)
            yield LinearLayer(outputs, inputs, on_source)
