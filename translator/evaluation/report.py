"""Page about a run: its data, its training and its translations. `report.html.jinja` has the words and the style."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from translator.config.building import by_dotted_name
from translator.config.commands import ReportConfig
from translator.config.options import RunConfig
from translator.data.cleaning import Counts
from translator.data.preparation import counts_of
from translator.evaluation.evaluate import Evaluation, compare, evaluate
from translator.evaluation.held_out import (
    corpora_of_split,
    held_out,
    language_of,
    require_comparable,
    sources_for,
    warn_of_unfair_scores,
)
from translator.evaluation.report_examples import all_examples, chosen_examples
from translator.inference.translator import Translator
from translator.metrics.metric import METRICS
from translator.metrics.scores import BOOTSTRAP_SAMPLES
from translator.runs.finding import chosen_runs
from translator.runs.plots import draw_attention, draw_curves, draw_scores_by_length, png, undrawn
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runs.tensorboard import read_history
from translator.runs.training_state import History, Outcome, TrainingState, outcome_of, state_of
from translator.runtime.atomic_files import require_no_link, require_writable, write_bytes, write_text, writing
from translator.runtime.console import log
from translator.runtime.device import Precision, environment, resolve_device, tune_cpu
from translator.runtime.errors import UserError
from translator.text.language import CODE, name_of

PAGE = "report.html"
REACHED = re.compile(r"train\.max_(epochs|updates|minutes)=([\d.e+-]+) reached")
# Sentences whose attention is drawn, and the most tokens that such a sentence and its output have.
MAPS, MAP_TOKENS = 3, 32


@dataclass
class Run:
    """A run, and what is known of it."""

    name: str
    folder: RunFolder
    config: RunConfig
    history: History
    unreadable: int  # lines of measurements
    outcome: Outcome | None
    state: TrainingState | None = None  # of its newest readable checkpoint
    parameters: int | None = None
    translator: Translator | None = None
    evaluation: Evaluation | None = None
    precision: str = ""  # of its translations
    trouble: str = ""  # why it was not evaluated

    @property
    def ended(self) -> str:
        """How its training ended, with the limit by name, which earlier releases did not write."""
        reason = self.outcome.reason if self.outcome else ""
        if self.state and reason.startswith("the limit set in"):
            done = {"max_epochs": self.state.epoch, "max_updates": self.state.update, "max_minutes": self.state.seconds / 60}
            limits = ((name, getattr(self.config.train, name)) for name in done)
            reached = [f"train.{name}={limit:g}" for name, limit in limits if limit is not None and done[name] >= limit]
            reason = f"{' and '.join(reached)} reached" if reached else reason
        found = REACHED.fullmatch(reason)
        return f"at its limit of {float(found[2]):,.10g} {found[1]} (train.max_{found[1]})" if found else f"with {reason}"

    @property
    def training_speed(self) -> float | None:
        """Target tokens a second, the median of the measurements."""
        measured = [value for _, value in self.history.get("train/tokens_per_second", ())]
        return statistics.median(measured) if measured else None

    @property
    def translation_speed(self) -> float | None:
        return len(self.evaluation.sources) / self.evaluation.seconds if self.evaluation else None

    @property
    def written(self) -> datetime | None:
        """When its weights were written."""
        weights = self.folder.model_file
        return datetime.fromtimestamp(weights.stat().st_mtime) if weights.is_file() else None


def report_run(config: ReportConfig, defaults: RunConfig | None = None) -> None:
    """Write the page about the chosen run and print its path; `defaults` as of `write_report`."""
    tune_cpu()
    [run] = chosen_runs(config.run, config.runs)
    print(write_report(run, Path(config.output) if config.output else require_no_link(run / "report"), config, defaults))


def write_report(own: Path, folder: Path, options: ReportConfig, defaults: RunConfig | None = None) -> Path:
    """Write the page about a run to `folder`, and its pictures beside it; return the page's file.

    The page leaves out options with the same value in `defaults`.
    """
    device = resolve_device(options.device)
    precision: Any = Precision.resolve(options.precision, device).value  # a name of the Literal
    options = dataclasses.replace(options, precision=precision)
    paths = [own, *chosen_runs(options.against, options.runs)] if options.against else [own]
    require_comparable(paths, options.direction)
    require_not_of_a_run(folder)
    require_writable(folder)
    run, *others = runs = [examine(path, RunFolder(own), options) for path in paths]
    if len({run.name for run in runs}) < len(runs):
        for one in runs:
            one.name = str(one.folder.path)
    evaluations = [run.evaluation for run in runs if run.evaluation] if run.evaluation else []
    maps = list(attention_maps(run))
    pictures = {map["file"]: map["picture"] for map in maps}
    if run.history:
        pictures["curves.png"] = png(draw_curves({run.name: run.history for run in runs}))
    if evaluations:
        by_length = {run.name: run.evaluation.by_length for run in runs if run.evaluation}
        pictures["by-length.png"] = png(draw_scores_by_length(by_length, evaluations[0].first_score))
    sentences = all_examples(evaluations)
    page = render(
        run=run, other=others[0] if others else None, options=options, made=datetime.now(), pictures=pictures, maps=maps,
        scores=score_rows(evaluations), test_sets=run.folder.load_test_sets(), sentences=sentences,
        splits=splits_of(run.folder), corpora=corpora_of_run(run.folder), spans=spans_of(run),
        examples=chosen_examples(sentences, options.examples, options.seed), environment=environment(device),
        samples=BOOTSTRAP_SAMPLES, defaults=defaults is not None,
        configuration=option_rows([run.config for run in runs], defaults))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        write_bytes(folder / name, picture)
    write_text(folder / PAGE, page)
    return folder / PAGE


def examine(path: Path, own: RunFolder, options: ReportConfig) -> Run:
    """Collect what is known of a run, evaluated on the data of `own`; what is missing is left out."""
    folder = RunFolder(path)
    config = folder.load_config()
    history, unreadable = read_history(folder.metrics_file)
    run = Run(path.resolve().name, folder, config, history, unreadable, outcome_of(folder.load_outcome()))
    for update in folder.checkpoints.resumable():
        try:
            run.state = state_of(folder.checkpoints.load_state(update), folder.checkpoints.path, config.train.metric)
            break
        except UserError as damage:
            log(f"warning: {damage}")
    try:
        run.parameters = sum(weight.numel() for weight in folder.load_weights().values())
        run.precision = Precision.INT8 if folder.has_int8_weights() else options.precision
        translator = run.translator = Translator(path, device=options.device, precision=options.precision)
        sources, references = held_out(own, options.split, options.direction)
        if not sources:
            raise UserError(f"{options.split} has no sentences")
    except UserError as error:
        log(f"warning: {path} was not evaluated: {error}")
        run.trouble = str(error)
        return run
    warn_of_unfair_scores([path], own.path, options.split, sources, references)
    sources, language = sources_for(path, sources, options.direction), language_of(own, options.direction)
    corpora = corpora_of_split(own, options.split, options.direction)
    run.evaluation = evaluate(translator, sources, references, options.search, language, corpora=corpora)
    return run


def score_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return each score of this run's evaluation, the first, with its confidence, the other's, and significance."""
    if not evaluations:
        return []
    baseline_first = reversed([(str(number), evaluation) for number, evaluation in enumerate(evaluations)])
    compared = {(row.metric, row.system): row for row in compare(list(baseline_first))}
    return [
        {"score": score, "lower_is_better": METRICS[name].lower_is_better, "own": compared[score.name, "0"],
         "other": compared.get((score.name, "1"))} for name, score in evaluations[0].scores.items()]


def attention_maps(run: Run) -> Iterator[dict[str, Any]]:
    """Draw the attention that aligns pieces, for the first sentences that are short enough."""
    if run.translator is None or run.evaluation is None:
        return
    tokenizers = run.translator.source_tokenizer, run.translator.target_tokenizer
    one_sentence = (
        (text, translation) for text, translation in zip(run.evaluation.sources, run.evaluation.translations, strict=True)
        if translation.sentences <= 1 and translation.hypotheses and max(map(len, translation.pairs[0])) <= MAP_TOKENS)
    for number, (text, translation) in enumerate(itertools.islice(one_sentence, MAPS), start=1):
        [pair] = translation.pairs
        [rating] = run.translator.rate([pair], run.translator.search)
        source, target = (tokenizer.pieces(ids) for tokenizer, ids in zip(tokenizers, pair, strict=True))
        figure = draw_attention({"": rating.alignment}, source, target, columns=1)
        yield {
            "source": text, "output": translation.text, "file": f"attention-{number}.png", "picture": png(figure),
            "width": figure.get_figwidth(), "undrawn": undrawn([*source, *target])}  # inches; characters shown as their codes


def spans_of(run: Run) -> dict[str, list[list[float]]]:
    """Return the spans that self-attention has learned, in tokens, by side, layer and head; empty without such spans."""
    models = run.translator.models if run.translator else []
    return {side: [span.tolist() for span in spans] for model in models for side, spans in model.spans().items()}


def option_rows(configs: Sequence[RunConfig], defaults: RunConfig | None) -> dict[str, list[Any]]:
    """Return the value of each option in each run and by default; without the options that have their defaults in all."""
    columns = [by_dotted_name(config) for config in [*configs, *([defaults] if defaults else [])]]
    rows = {name: [column[name] for column in columns] for name in columns[0] if name != "name"}
    return {name: values for name, values in rows.items() if not defaults or any(value != values[-1] for value in values)}


def language_names(names: str) -> str:
    """Return the languages of an option such as `en+fr` by name; what is no code of two letters stays unchanged."""
    return ", ".join(name_of(name.replace("_", "-")) if CODE.match(name.lower()) else name for name in names.split("+"))


def splits_of(folder: RunFolder) -> dict[str, Any]:
    """Return the counts of data_report.json by split; nothing if it is not in the form that training writes."""
    splits, names = folder.load_report().get("splits"), ("read", "kept", "source_tokens", "target_tokens")
    return splits if isinstance(splits, dict) and all(
        isinstance(counts, dict) and isinstance(counts.get("dropped"), dict)
        and all(isinstance(counts.get(name), int) for name in names) for counts in splits.values()) else {}


def corpora_of_run(folder: RunFolder) -> dict[str, dict[str, Counts]]:
    """Return the counts of the corpora in data_report.json by split; nothing if there is one corpus."""
    report = folder.load_report()
    return counts_of(report) if "corpora" in report and splits_of(folder) else {}


def render(**content: Any) -> str:
    """Return the page as HTML; everything shown is escaped."""
    templates = Environment(loader=PackageLoader("translator.evaluation", "."), autoescape=True, undefined=StrictUndefined,
                            trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {
        "number": number, "languages": language_names, "median": statistics.median,
        "base64": lambda content: base64.b64encode(content).decode(),
        "yaml": lambda value: value if isinstance(value, str) else json.dumps(value)}
    return templates.get_template(f"{PAGE}.jinja").render(content)


def number(value: Any, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–"
