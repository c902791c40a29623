"""Train a translation model: `python scripts/train.py data=multi30k model=tiny`. Options: conf/train.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from translator.config.building import by_dotted_name, from_hydra, named_options
from translator.config.options import RunConfig
from translator.data.preparation import Corpus, describe, prepare
from translator.data.tatoeba import fetch_default
from translator.evaluation.evaluate import describe as describe_evaluation
from translator.evaluation.evaluate import evaluate
from translator.inference.planning import TrainingStatistics
from translator.inference.translation import Request
from translator.inference.translator import TOKENS_ON_CPU, Translator
from translator.model.weights import load_into, weights_of
from translator.pretrained import Pretrained, adopt, load_pretrained, without_weights
from translator.runs.run_folder import RunFolder, place_of
from translator.runs.training_state import Outcome
from translator.runtime.console import log
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.distributed import broadcast_from_main, is_main_process, process_group, world_size
from translator.runtime.errors import UserError
from translator.runtime.file_lock import sole_user
from translator.runtime.memory import advise_when_out_of_memory
from translator.runtime.signals import Interrupted
from translator.text.tokenizer import Tokenizer
from translator.training.batch_fitting import MOST, fitting_batch_tokens
from translator.training.checkpoint_choice import validation_interval
from translator.training.cooccurrence import embed_by_cooccurrence
from translator.training.trainer import TOO_LARGE, Trainer, new_model
from translator.training.validation import SAMPLE_TRANSLATIONS

# Options that a run may change when it goes on; all others shaped what it has learned.
MAY_CHANGE = {
    "name", "runs", "device", "search", "data.cache", "data.workers", "train.max_epochs", "train.max_updates",
    "train.max_minutes", "train.patience", "train.log_every", "train.compile", "train.cuda_graphs", "train.parallel",
    "train.timeout_minutes"}


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(composed: DictConfig) -> None:
    with one_line_errors():  # no decorator: launchers of Hydra's pickle this function
        config = from_hydra(RunConfig, composed)
        named = named_options(HydraConfig.get().overrides.task)
        tune_cpu(training=True)
        folder = RunFolder(place_of(config.runs) / config.name)
        with (
            process_group(config.device, minutes=config.train.timeout_minutes),
            sole_user(folder.path) if is_main_process() else nullcontext(),
        ):
            begin(config, folder, named)


def begin(config: RunConfig, folder: RunFolder, named: Sequence[str]) -> None:
    """Prepare what a training takes, and train. `named`: the options given on the command line."""
    device = resolve_device(config.device)
    pretrained = None
    if config.init is not None:  # once begun, a run has all it needs in its own folder
        if folder.checkpoints.resumable():
            pretrained = without_weights(folder, config)
        else:
            pretrained = load_pretrained(str(folder.path) if folder.has_begun() else config.init, config)
        config = adopt(config, pretrained, named)
        log(f"start      the model and the vocabulary of {pretrained.source}")
        if not {"optim", "experiment"} & {option.split(".")[0] for option in named}:
            log(f"warning: init={config.init}: the default optimizer is meant for random weights, and its rate, "
                f"{config.optim.lr:g}, unlearns much of a trained model. Use experiment=finetune, or choose optim")
    config = broadcast_from_main(lambda: settle(config, folder, device))
    fetch_default(config.data.path)
    tokenizers = None if pretrained is None else pretrained.tokenizers
    if config.train.batch_tokens == "auto":
        config = with_fitting_batches(config, device, tokenizers)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair(), tokenizers=tokenizers)
    log(describe(corpus.report))
    train(config, folder, corpus, device, pretrained)


def train(
    config: RunConfig, folder: RunFolder, corpus: Corpus, device: torch.device, pretrained: Pretrained | None
) -> None:
    """Train in the folder to the end, or as far as signals let, and tell the outcome."""
    if world_size() > config.train.batches_of_update:
        log(f"warning: train.accumulation={config.train.batches_of_update}: some of {world_size()} processes have no work")
    weights = {} if pretrained is None else pretrained.weights
    model = new_model(config, corpus)
    translator = Translator.of(
        model, corpus.source_tokenizer, corpus.target_tokenizer, search=config.search,
        trained_on=TrainingStatistics.of(corpus.report))
    require_search(translator, corpus)
    broadcast_from_main(lambda: folder.create(config, (corpus.source_tokenizer, corpus.target_tokenizer), corpus.report))
    if weights:
        load_into(model, weights, folder.model_file)
        weights.clear()  # large ones need not lie in memory twice for as long as training takes
    elif config.model.embeddings == "cooccurrence" and not broadcast_from_main(folder.checkpoints.resumable):
        embed_by_cooccurrence(model, corpus, config.seed)
    precision = Precision.resolve(config.precision, device)
    greedy = config.search.plain(config.train.validation_beam)
    if greedy.batch_tokens == "auto":  # a GPU's memory is for training, and greedily it wins little by larger batches
        greedy = dataclasses.replace(greedy, batch_tokens=TOKENS_ON_CPU)
    with advise_when_out_of_memory(TOO_LARGE):
        model = model.to(device)
        trainer = Trainer(
            config, folder, corpus, model, lambda texts: translator(texts, greedy), precision=precision)
    try:
        plan = plan_of(trainer)
        if config.train.validate_every is None:
            config = trainer.config = broadcast_from_main(lambda: with_validations(config, plan))
            tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
            broadcast_from_main(lambda: folder.create(config, tokenizers, corpus.report))
        say_plan(plan, trainer, corpus, device, precision)
        if pretrained is not None:  # only now: a start that failed, for want of memory say, must leave the options free
            broadcast_from_main(lambda: folder.begin_with(weights_of(model)))
        outcome = trainer.fit()
    except Interrupted as stop:
        log(f"Stopped at update {trainer.state.update:,}, saved in {folder.path}. The same command goes on from there.")
        sys.exit(stop.exit_code)
    finally:
        trainer.close()
    if is_main_process():
        load_into(model, folder.load_weights(), folder.model_file)
        report(outcome, translator, corpus, config, folder)


def require_search(translator: Translator, corpus: Corpus) -> None:
    """Find out before training whether the search can translate the sentences of validation; UserError where it can none."""
    sources = list(corpus.validation["source"])
    plans = [translator.plan(Request(source), translator.search) for source in sources]
    if refusals := [plan for plan in plans if isinstance(plan, str)]:
        if len(refusals) == len(sources):
            raise UserError(f"no sentence of validation can be translated: {refusals[0]}")
        log(f"warning: {len(refusals):,} of {len(sources):,} sentences of validation count as wrong, the first: {refusals[0]}")


def with_fitting_batches(
    config: RunConfig, device: torch.device, tokenizers: tuple[Tokenizer, Tokenizer] | None
) -> RunConfig:
    """The options with the number of tokens a batch that train.batch_tokens=auto comes to."""
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.longest_pair(MOST), tokenizers=tokenizers)
    model = new_model(config, corpus, device)
    tokens = fitting_batch_tokens(config, corpus, model, precision=Precision.resolve(config.precision, device))
    log(f"batches    train.batch_tokens=auto: {tokens:,} tokens fit")
    return dataclasses.replace(config, train=dataclasses.replace(config.train, batch_tokens=tokens))


def settle(config: RunConfig, folder: RunFolder, device: torch.device) -> RunConfig:
    """The options to train with: those of the run in this folder, if there is one, else `config` with auto resolved."""
    if not folder.has_begun():
        return settled(config, device)
    saved = settled(folder.load_config(), device)  # which of what was imported had nothing to settle it before
    if config.precision == "auto":
        config = dataclasses.replace(config, precision=saved.precision)
    train = config.train
    if train.batch_tokens == "auto":
        train = dataclasses.replace(train, batch_tokens=saved.train.batch_tokens)
    if train.accumulation is None:
        train = dataclasses.replace(train, accumulation=saved.train.accumulation)
    if train.validate_every is None:
        train = dataclasses.replace(train, validate_every=saved.train.validate_every)
    elif saved.train.validate_every is None:  # imported, and not trained yet
        saved = dataclasses.replace(saved, train=dataclasses.replace(saved.train, validate_every=train.validate_every))
    config = dataclasses.replace(config, train=train)
    before, now = by_dotted_name(saved), by_dotted_name(config)
    for option in now:
        if before[option] != now[option] and not {option, option.split(".")[0]} & MAY_CHANGE:
            raise UserError(
                f"{option}={now[option]}: the run in {folder.path} was started with {before[option]}; "
                "choose another name=, or give the option its old value to go on")
    return config


def settled(config: RunConfig, device: torch.device) -> RunConfig:
    """The options with what `auto` and null come to here and now."""
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, accumulation=config.train.accumulation or world_size()),
        precision=Precision.resolve(config.precision, device).value)  # type: ignore[arg-type]  # a name of the Literal


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is left to do up to the nearest limit."""

    updates: int
    seconds: float  # an update
    by_clock: bool  # whether that limit is train.max_minutes


def plan_of(trainer: Trainer) -> Plan:
    """Measure an update, and count those that are left."""
    train, done = trainer.config.train, trainer.state
    seconds = trainer.time_update()
    by_count = [
        limit - done.update
        for limit in (train.max_updates, train.max_epochs and train.max_epochs * trainer.updates_per_epoch) if limit]
    by_clock = [(train.max_minutes * 60 - done.seconds) / seconds] if train.max_minutes else []
    nearest = min(by_count + by_clock)
    return Plan(max(0, round(nearest)), seconds, nearest in by_clock)


def with_validations(config: RunConfig, plan: Plan) -> RunConfig:
    """The options with the number that train.validate_every=null comes to, which the run folder keeps from then on."""
    every = validation_interval(plan.updates, config.train.max_minutes if plan.by_clock else None)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, validate_every=every))


def say_plan(plan: Plan, trainer: Trainer, corpus: Corpus, device: torch.device, precision: Precision) -> None:
    """Tell what is about to happen and how long it may take, before the first step."""
    parameters = sum(p.numel() for p in trainer.model.parameters())
    tokens = corpus.report["splits"]["train"]["target_tokens"]
    per_epoch = trainer.updates_per_epoch
    every = trainer.config.train.interval
    validation = f"{'with' if plan.by_clock else 'and'} a validation every {f'{every:,} updates' if every > 1 else 'update'}"
    pieces = " and ".join(f"{len(side):,}" for side in dict.fromkeys((corpus.source_tokenizer, corpus.target_tokenizer)))
    log(f"model      {parameters:,} parameters, {pieces} pieces, on {device.type} in {precision}\n"
        f"training   {len(corpus.train):,} sentences, {tokens:,} target tokens, {tokens / per_epoch:,.0f} an update, "
        f"{per_epoch:,} update{'s' * (per_epoch != 1)} {'an epoch' if trainer.unit == 'epoch' else 'a window'}\n"
        f"plan       about {plan.updates:,} updates, {plan.updates / per_epoch:.1f} {trainer.unit}s, in "
        f"{plan.updates * plan.seconds / 60:.0f} minutes at {plan.seconds:.2f} s an update, {validation}")
    if trainer.state.update:
        log(f"resuming   from update {trainer.state.update:,}")


def report(
    outcome: Outcome, translator: Translator, corpus: Corpus, config: RunConfig, folder: RunFolder
) -> None:
    """The test score of the chosen weights, a few translations, and what to type next."""
    log(f"Training ended: {outcome.reason}. Kept: {outcome.kept}.")
    sources, references = list(corpus.test["source"]), list(corpus.test["target"])
    evaluation = evaluate(translator, sources, references, config.search, config.data.language)
    log(describe_evaluation(evaluation))
    evaluation.save(folder.path / "evaluation-test")
    for source, hypothesis, reference in list(
            zip(evaluation.sources, evaluation.hypotheses, evaluation.references, strict=True))[:SAMPLE_TRANSLATIONS]:
        log(f"\n  source       {source}\n  translation  {hypothesis}\n  reference    {reference}")
    run = shlex.quote(str(folder.path))
    log(f"\nNext:\n  make translate TEXT=\"...\" RUN={run}\n  make evaluate RUN={run}\n"
        f"  make board")


if __name__ == "__main__":
    with one_line_errors():
        main()
