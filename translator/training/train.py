"""Train a run from its options: prepare the data, train, translate and score the test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import torch

from translator.config.building import by_dotted_name
from translator.config.options import RunConfig
from translator.data.preparation import Corpus, prepare, scored_apart
from translator.data.report import describe
from translator.data.tatoeba import fetch_default
from translator.evaluation.calibration import save_calibration
from translator.evaluation.evaluate import Evaluation, evaluate
from translator.evaluation.evaluate import describe as describe_evaluation
from translator.inference.planning import TrainingStatistics
from translator.inference.teaching import training_splits
from translator.inference.trained_model import TrainedModel
from translator.inference.translation import Request
from translator.inference.translator import TOKENS_ON_CPU, Translator
from translator.metrics.scores import usual_metric
from translator.model.weights import load_into, weights_of
from translator.pretrained import Pretrained, adopt, load_pretrained, without_weights
from translator.runs.finding import place_of, with_found_runs
from translator.runs.run_folder import RunFolder
from translator.runs.trackers.feed import require_tracker
from translator.runs.training_state import Outcome, outcome_of
from translator.runtime.atomic_files import sole_user
from translator.runtime.console import log
from translator.runtime.device import Precision, advise_when_out_of_memory, resolve_device, tune_cpu
from translator.runtime.distributed import broadcast_from_main, is_main_process, process_group, world_size
from translator.runtime.errors import UserError
from translator.runtime.typed import typed
from translator.training.alignment import keep_alignment
from translator.training.cooccurrence import embed_by_cooccurrence
from translator.training.plan import MOST_TOKENS, fitting_batch_tokens, log_plan, plan_of, validation_interval
from translator.training.stages import require_corpora_of_stages
from translator.training.teacher import Teacher, load_teacher
from translator.training.trainer import TOO_LARGE, Trainer, new_model
from translator.training.validation import SAMPLE_TRANSLATIONS

# A resumed run may change these; every other option shaped what it has learned.
MAY_CHANGE = {
    "name", "runs", "device", "tracker", "search", "data.cache", "data.workers", "train.max_epochs", "train.max_updates",
    "train.max_minutes", "train.patience", "train.log_every", "train.compile", "train.cuda_graphs", "train.parallel",
    "train.timeout_minutes"}


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A finished training."""

    folder: RunFolder
    outcome: Outcome  # why it ended, at which update, which weights were kept, and their scores on the validation split
    evaluation: Evaluation | None  # of the test split; None except in the main process
    metric: str  # train.metric, by which the weights were chosen

    @property
    def score(self) -> float:
        """The metric of the chosen weights on the validation split: what a sweep compares."""
        return self.outcome.metrics[self.metric]


def train(config: RunConfig, *, named: Sequence[str] = ()) -> TrainedRun:
    """Train the run `config.name` in the folder `config.runs`, or resume it, and score its test split.

    named: options that the user gave, such as `model.d_ff`; with init, the model decides all others of its groups.
    Raises UserError for a user's mistake, and Interrupted, with everything saved, on SIGINT, SIGTERM or SIGHUP.
    """
    require_tracker(config.tracker)
    require_corpora_of_stages(config)
    tune_cpu(training=True)
    config = with_found_runs(config)
    folder = RunFolder(place_of(config.runs) / config.name)
    with (
        process_group(config.device, minutes=config.train.timeout_minutes),
        sole_user(folder.path) if is_main_process() else nullcontext(),
    ):
        device = resolve_device(config.device)
        pretrained = None if config.init is None else _pretrained(config, config.init, folder, named)
        teacher, vocabulary = load_teacher(config, device, pretrained)
        if (given := pretrained or vocabulary) is not None:
            config = adopt(config, given, named)
        tokenizers = None if given is None else given.tokenizers
        config = broadcast_from_main(lambda: resolve_options(config, folder, device))
        fetch_default(config.data.path)
        prepared = partial(
            prepare, config.data, config.tokenizer, tokenizers=tokenizers, splits=training_splits(config.data, config.device))
        if config.train.batch_tokens == "auto":
            corpus = prepared(max_tokens=config.longest_pair(MOST_TOKENS))
            tokens = fitting_batch_tokens(config, corpus, new_model(config, corpus, device), teacher)
            log(f"batches    train.batch_tokens=auto: {tokens:,} tokens fit")
            config = with_train(config, batch_tokens=tokens)
        corpus = prepared(max_tokens=config.longest_pair())
        log(describe(corpus.report))
        if config.train.metric == "auto":
            config = with_train(config, metric=usual_metric(list(corpus.validation["target"])))
        return _train(config, folder, corpus, device, pretrained, teacher)


def _train(config: RunConfig, folder: RunFolder, corpus: Corpus, device: torch.device,
           pretrained: Pretrained | None, teacher: Teacher | None) -> TrainedRun:
    if world_size() > config.train.batches_of_update:
        log(f"warning: train.accumulation={config.train.batches_of_update}: some of {world_size()} processes have no work")
    tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
    model = new_model(config, corpus)
    trained = TrainedModel(model, *tokenizers, config.search, TrainingStatistics.from_report(corpus.report))
    translator = Translator(trained)
    _require_search(translator, corpus)
    broadcast_from_main(lambda: folder.create(config, tokenizers, corpus.report))
    if pretrained is not None and pretrained.weights:
        load_into(model, pretrained.weights, folder.model_file)
        pretrained.weights.clear()  # training need not hold large ones twice
    elif config.model.embeddings == "cooccurrence" and not broadcast_from_main(folder.checkpoints.resumable):
        embed_by_cooccurrence(model, corpus, config.seed)
    greedy = config.search.plain(config.train.validation_beam)
    if greedy.batch_tokens == "auto":  # a GPU's memory is for training, and larger batches gain a greedy search little
        greedy = dataclasses.replace(greedy, batch_tokens=TOKENS_ON_CPU)
    with advise_when_out_of_memory(TOO_LARGE):
        trainer = Trainer(config, folder, corpus, model.to(device), lambda texts: translator(texts, greedy),
                          precision=Precision.resolve(config.precision, device), teacher=teacher)
    with closing(trainer):
        plan = plan_of(trainer)
        if config.train.validate_every is None:
            minutes = config.train.max_minutes if plan.by_clock else None
            config = trainer.config = with_train(
                config, validate_every=broadcast_from_main(lambda: validation_interval(plan.updates, minutes)))
            broadcast_from_main(lambda: folder.create(config, tokenizers, corpus.report))
        log_plan(plan, trainer, corpus)
        if pretrained is not None:  # only now: a start that failed, as for want of memory, must leave the options free
            broadcast_from_main(lambda: folder.begin_with(weights_of(model)))
        outcome = trainer.fit()
    evaluation = None
    if is_main_process():
        load_into(model, folder.load_weights(), folder.model_file)
        keep_alignment(model, corpus, folder)
        translator = Translator(dataclasses.replace(trained, folder=folder))  # with the lexicon, as `evaluate` translates
        _share_with_best(folder, config)
        evaluation = _evaluate_on_test(outcome, translator, corpus, config, folder)
    return TrainedRun(folder, outcome, evaluation, config.train.metric)


def _share_with_best(folder: RunFolder, config: RunConfig) -> None:
    """Give the run folders of `train.keep` what the end of the training has found out, and log where they are."""
    for metric in config.train.keep:
        best = folder.best(metric)
        if (outcome := outcome_of(best.load_outcome())) is not None:
            folder.share_with(best)
            log(f"best {metric:6} {outcome.metrics[metric]:.2f} on validation, {outcome.kept}, in {best.path}")


def _pretrained(config: RunConfig, source: str, folder: RunFolder, named: Sequence[str]) -> Pretrained:
    """Load the model that init names; a run that has begun has it in its own folder."""
    if folder.checkpoints.resumable():
        pretrained = without_weights(folder, config)
    else:
        pretrained = load_pretrained(str(folder.path) if folder.has_begun() else source, config)
    log(f"start      the model and the vocabulary of {pretrained.source}")
    if not {"optim", "experiment"} & {option.split(".")[0] for option in named}:
        log(f"warning: init={source}: the default optimizer is meant for random weights, and its rate, {config.optim.lr:g}, "
            "unlearns much of a trained model. Use experiment=finetune, or choose optim")
    return pretrained


def with_train(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def resolve_options(config: RunConfig, folder: RunFolder, device: torch.device) -> RunConfig:
    """Resolve `auto` and null, as the run in this folder has them if begun; UserError where it was begun with other options."""
    if not folder.has_begun():
        return _resolved(config, device)
    if folder.has_int8_weights():
        raise UserError(f"{folder.path}: has int8 weights, which cannot be trained. Start a run from them: "
                        f"init={folder.path} name=NEW")
    saved = _resolved(folder.load_config(), device)  # an imported run has some unresolved
    if config.precision == "auto":
        config = dataclasses.replace(config, precision=saved.precision)
    unset = {"batch_tokens": "auto", "accumulation": None, "validate_every": None, "metric": "auto"}
    config = with_train(config, **{
        name: getattr(saved.train, name) for name, value in unset.items() if getattr(config.train, name) == value})
    if saved.train.validate_every is None:  # imported, and not trained yet
        saved = with_train(saved, validate_every=config.train.validate_every, metric=config.train.metric)
    before, now = by_dotted_name(saved), by_dotted_name(config)
    moved = saved.train.teacher and config.train.teacher  # known by its weights
    free = MAY_CHANGE | {"train.teacher"} if moved else MAY_CHANGE
    for option in ("train.teacher", *now):  # first: it decides the vocabulary
        if before[option] != now[option] and not {option, option.split(".")[0]} & free:
            old, new = _difference(before[option], now[option])
            raise UserError(f"{option}={new}: the run in {folder.path} was started with {old}. Give the old value to resume "
                            "it, or choose another name=.")
    return config


def _difference(before: Any, now: Any) -> tuple[Any, Any]:
    """Return two values of an option; of lists that are equally long, the first entries that differ."""
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        return next(pair for pair in zip(before, now, strict=True) if pair[0] != pair[1])
    return before, now


def _resolved(config: RunConfig, device: torch.device) -> RunConfig:
    precision: Any = Precision.resolve(config.precision, device).value  # a name of the Literal
    accumulation = config.train.accumulation or world_size()
    return with_train(dataclasses.replace(config, precision=precision), accumulation=accumulation)


def _require_search(translator: Translator, corpus: Corpus) -> None:
    """Raise UserError, before training, where the search can translate no sentence of the validation split."""
    sources = list(corpus.validation["source"])
    plans = [translator.plan(Request(source), translator.search) for source in sources]
    if refusals := [plan for plan in plans if isinstance(plan, str)]:
        if len(refusals) == len(sources):
            raise UserError(f"no sentence of validation can be translated: {refusals[0]}")
        log(f"warning: {len(refusals):,} of {len(sources):,} sentences of validation count as wrong, the first: {refusals[0]}")


def _evaluate_on_test(outcome: Outcome, translator: Translator, corpus: Corpus, config: RunConfig,
                      folder: RunFolder) -> Evaluation:
    """Score the chosen weights; log that, a few translations, and what to type next."""
    log(f"Training ended: {outcome.reason}. Kept: {outcome.kept}.")
    sources, references = list(corpus.test["source"]), list(corpus.test["target"])
    evaluation = evaluate(translator, sources, references, config.search, config.data.language,
                          corpora=scored_apart(corpus.report, "test"))
    log(describe_evaluation(evaluation))
    evaluation.save(folder.path / "evaluation-test")
    save_calibration(
        folder, translator, list(corpus.validation["source"]), list(corpus.validation["target"]), config.search)
    texts = zip(evaluation.sources[:SAMPLE_TRANSLATIONS], evaluation.hypotheses, evaluation.references, strict=False)
    for source, hypothesis, reference in texts:
        log(f"\n  source       {source}\n  translation  {hypothesis}\n  reference    {reference}")
    run = folder.path
    log(f"\nNext:\n  {typed('translate', text=..., run=run)}\n  {typed('evaluate', run=run)}\n  {typed('board')}")
    return evaluation
