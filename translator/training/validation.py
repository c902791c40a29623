"""Score a model in training on the validation split; choose weights, and the end of the training, by these scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from translator.config.languages import split_tag
from translator.config.options import TrainConfig
from translator.data.batching import Batch, BatchSource
from translator.data.preparation import Corpus, scored_apart
from translator.metrics.metric import METRICS, Metric
from translator.metrics.scores import better, score_parts, validation_metrics
from translator.model.attention_maps import cross_attention
from translator.model.transformer import Transformer
from translator.runs.tensorboard import Tracker
from translator.runs.training_state import Metrics, Validation
from translator.runtime.colour import GREEN, coloured
from translator.runtime.console import log
from translator.runtime.distributed import broadcast_from_main, gather, own_items, sum_over_processes
from translator.runtime.errors import UserError

SAMPLE_TRANSLATIONS = 5

Translate = Callable[[Sequence[str]], list[str]]


class Validator:
    """Scores `model`, as it stands, on a corpus's validation split."""

    def __init__(self, corpus: Corpus, model: Transformer, translate: Translate, loss: Callable[[Batch], tuple[Tensor, Tensor]],
                 *, language: str, metrics: Collection[str], max_tokens: int) -> None:
        """loss: of a batch, and its likelihood, summed over tokens. metrics: to measure besides the usual ones.

        UserError for a sentence beyond learned positions, and for a metric that cannot be computed here.
        """
        self.corpus, self.model, self.translate, self.loss = corpus, model, translate, loss
        self.corpora = scored_apart(corpus.report, "validation")  # each is scored on its own as well
        for metric, _, name in (metric.partition(".") for metric in metrics):
            if name and name not in self.corpora:
                choose = f"Choose {', '.join(self.corpora)}, or" if self.corpora else "Choose"
                raise UserError(f"train.metric={metric}.{name}: validation does not score this corpus apart. "
                                f"{choose} train.metric={metric}.")
        self.metrics: dict[str, Metric] = {}  # in the main process
        # Now: a metric that cannot be computed must not end a training at its first validation.
        broadcast_from_main(
            lambda: self.metrics.update(validation_metrics(list(corpus.validation["target"]), language, metrics)))
        tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
        longest = max(max(corpus.validation[f"{side}_length"], default=0) for side in ("source", "target"))
        if model.config.positions == "learned" and longest > model.config.max_positions:
            raise UserError(f"data.validation: a sentence has {longest:,} tokens, more than "
                            f"model.max_positions={model.config.max_positions:,}. Raise that, or remove the sentence.")
        self.batches = BatchSource(corpus.validation, tokenizers, max_tokens=max_tokens, seed=0)
        lengths = zip(corpus.validation["source_length"], corpus.validation["target_length"], strict=True)
        self._drawn = next((i for i, pair in enumerate(lengths) if max(pair) <= 100), None)  # a larger picture is too large

    @torch.no_grad()
    def measure(self) -> tuple[Metrics, list[str]]:
        """Return loss, perplexity, translation scores, and the translations. Processes divide the work; all get all."""
        self.model.eval()
        loss = nll = tokens = 0.0
        for number in own_items(range(len(self.batches.plan(0)))):
            batch = self.batches.batch(0, number)
            batch_loss, batch_nll = self.loss(batch)
            loss, nll, tokens = loss + float(batch_loss), nll + float(batch_nll), tokens + batch.num_tokens
        loss, nll, tokens = sum_over_processes(loss, nll, tokens)
        sources, references = list(self.corpus.validation["source"]), list(self.corpus.validation["target"])
        translations = gather(self.translate(own_items(sources)))
        untagged = [split_tag(text)[1] for text in sources] if self.corpus.source_tokenizer.has_tags else sources
        parts = {"": range(len(sources)), **self.corpora}
        scores = broadcast_from_main(lambda: score_parts(self.metrics, parts, untagged, translations, references))
        metrics = {"loss": loss / tokens, "perplexity": math.exp(min(nll / tokens, 700))}
        for part, of_part in scores.items():
            metrics |= {f"{name}.{part}" if part else name: value.value for name, value in of_part.items()}
        return metrics, translations

    def show(self, update: int, metrics: Metrics, translations: Sequence[str], tracker: Tracker, *, best: bool) -> None:
        """Show what `measure` returned on the console and in TensorBoard, with samples and an attention map."""
        scores = "".join(f"{cls.label or cls.name} {metrics[name]:.2f}  " for name, cls in METRICS.items() if name in metrics)
        first = next(name for name in METRICS if name in metrics)
        scores += "".join(f"{corpus} {metrics[f'{first}.{corpus}']:.2f}  " for corpus in self.corpora)
        line = f"update {update:,}: validation {scores}loss {metrics['loss']:.3f}  perplexity {metrics['perplexity']:.2f}"
        log(coloured(f"{line}  new best", GREEN) if best else line)
        tracker.scalars(update, {f"validation/{name}": value for name, value in metrics.items()})
        if spans := self.model.spans():
            tracker.scalars(update, {
                f"spans/{side}.layer{layer}.head{head}": span for side, of_layers in spans.items()
                for layer, of_heads in enumerate(of_layers, start=1) for head, span in enumerate(of_heads.tolist(), start=1)})
        samples = self.corpus.validation[:SAMPLE_TRANSLATIONS]
        rows = zip(samples["source"], translations, samples["target"], strict=False)
        tracker.table(update, "validation/samples", [("source", "translation", "reference"), *rows])
        if self._drawn is not None:
            source, target = (self.corpus.validation[self._drawn][f"{side}_ids"] for side in ("source", "target"))
            last_layer = cross_attention(self.model, source, target)[-1]
            pieces = self.corpus.source_tokenizer.pieces(source), self.corpus.target_tokenizer.pieces(target)
            tracker.attention_map(update, "validation/attention", last_layer, *pieces)


def ranked(validations: Sequence[Validation], metric: str) -> list[Validation]:
    """Sort validations, best first by a metric, then by loss."""
    sign = 1 if better(metric, 0, 1) else -1
    return sorted(validations, key=lambda v: (sign * v[metric], v["loss"]))


def to_average(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    if train.average == "none":
        return []
    ordered = ranked(validations, train.metric) if train.average == "best" else validations[::-1]
    return [v["update"] for v in ordered[: train.average_count]]


def to_keep(validations: Sequence[Validation], train: TrainConfig) -> list[int]:
    """Return the updates whose weights the end may need, also after resuming from the checkpoint before this one."""
    choices = (validations, validations[:-1])
    best = [v["update"] for known in choices for v in ranked(known, train.metric)[:1]]
    return best + [update for known in choices for update in to_average(known, train)]


def stop_reason(train: TrainConfig, limits: Mapping[str, float], validations: Sequence[Validation]) -> str:
    """Return why training is over; empty while it is not. limits: the fraction done by each."""
    if reached := [limit for limit, fraction in limits.items() if fraction >= 1]:
        return f"{reached[0]} reached"
    if train.patience is not None and validations:
        best = ranked(validations, train.metric)[0]["update"]
        if sum(v["update"] > best for v in validations) >= train.patience:
            return f"no better {train.metric} in {train.patience} validations"
    return ""
