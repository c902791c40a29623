"""A page about a run: what it learned from, how it got there, and how well it translates.

`report.html.jinja` has the page's words and looks.
"""

from __future__ import annotations

import base64
import dataclasses
import json
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
from translator.evaluation.evaluate import Evaluation, compare, evaluate
from translator.evaluation.held_out import held_out, language_of, require_comparable, sources_for, warn_of_learned
from translator.inference.line_formats import Line, notices
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.metrics.scores import METRICS, Score, sentence_scores
from translator.metrics.significance import BOOTSTRAP_SAMPLES, Comparison
from translator.runs.plots import History, draw_attention, draw_curves, draw_scores_by_length, png, undrawn
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runs.tensorboard import read_history
from translator.runs.training_state import Outcome, TrainingState, outcome_of, state_of
from translator.runtime.atomic_files import require_writable, write_bytes, write_text, writing
from translator.runtime.console import log
from translator.runtime.device import Precision, resolve_device
from translator.runtime.environment import environment
from translator.runtime.errors import UserError

PAGE = "report.html"
CURVES, BY_LENGTH = "curves.png", "by-length.png"
# Attention is shown of the first so many sentences that have no more tokens than this, and nor has their output.
MAPS, MAP_TOKENS = 3, 32
UNKNOWN = "–"
# What data_report.json counts in every split.
COUNTS = ("read", "kept", "source_tokens", "target_tokens")


@dataclass(frozen=True)
class Run:
    """A run, and what can be learned of it."""

    name: str
    folder: RunFolder
    config: RunConfig
    history: History
    unreadable: int  # lines of measurements
    state: TrainingState | None  # of its newest checkpoint
    outcome: Outcome | None
    parameters: int | None
    translator: Translator | None
    evaluation: Evaluation | None
    trouble: str  # why it was not evaluated

    @property
    def training_speed(self) -> float | None:
        """Target tokens a second: the median of what was measured."""
        measured = [value for _, value in self.history.get("train/tokens_per_second", ())]
        return statistics.median(measured) if measured else None

    @property
    def translation_speed(self) -> float | None:
        """Sentences a second."""
        return len(self.evaluation.sources) / self.evaluation.seconds if self.evaluation else None

    @property
    def written(self) -> datetime | None:
        """When its weights were."""
        weights = self.folder.model_file
        return datetime.fromtimestamp(weights.stat().st_mtime) if weights.is_file() else None


@dataclass(frozen=True)
class ScoreRow:
    """A score of this run, and of the other, each with its 95 % interval."""

    score: Score
    lower_is_better: bool
    own: Comparison
    other: Comparison | None


@dataclass(frozen=True)
class Output:
    """What a run made of a sentence."""

    text: str
    chrf: float
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A sentence, and what this run made of it, and the other."""

    source: str
    reference: str
    outputs: tuple[Output, ...]

    @property
    def chrf(self) -> float:
        return self.outputs[0].chrf

    @property
    def exact(self) -> bool:
        return self.outputs[0].text == self.reference

    @property
    def gain(self) -> float:
        return self.chrf - self.outputs[-1].chrf


@dataclass(frozen=True)
class Map:
    """A picture of what the pieces of an output attended to."""

    source: str
    output: str
    file: str
    picture: bytes
    width: float  # inches
    undrawn: str  # characters of which it shows but the codes


def write_report(own: Path, folder: Path, options: ReportConfig) -> Path:
    """Write the page about a run to `folder`, and its pictures beside it; the page's file."""
    device = resolve_device(options.device)
    precision = Precision.resolve(options.precision, device).value
    options = dataclasses.replace(options, precision=precision)  # type: ignore[arg-type]  # a name of the Literal
    paths = [own, Path(options.against)] if options.against else [own]
    require_comparable(paths, options.direction)
    require_not_of_a_run(folder)
    require_writable(folder)
    run, *others = runs = [examine(path, RunFolder(own), options) for path in paths]
    if len({run.name for run in runs}) < len(runs):
        run, *others = runs = [dataclasses.replace(run, name=str(run.folder.path)) for run in runs]
    names = [run.name for run in runs]
    evaluations = [run.evaluation for run in runs if run.evaluation] if run.evaluation else []
    maps = list(maps_of(run))
    pictures = {map.file: map.picture for map in maps}
    if run.history:
        pictures[CURVES] = png(draw_curves({run.name: run.history for run in runs}))
    if evaluations:
        by_length = [evaluation.by_length for evaluation in evaluations]
        pictures[BY_LENGTH] = png(draw_scores_by_length(dict(zip(names, by_length, strict=False))))
    sentences = sorted(examples(evaluations), key=lambda example: (example.chrf, len(example.source)))
    page = render(
        run=run, other=others[0] if others else None, options=options, made=datetime.now(), pictures=pictures, maps=maps,
        scores=score_rows(evaluations), sentences=sentences, splits=splits_of(run.folder), environment=environment(device),
        samples=BOOTSTRAP_SAMPLES, configuration=[by_dotted_name(run.config) for run in runs])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        write_bytes(folder / name, picture)
    write_text(folder / PAGE, page)
    return folder / PAGE


def examine(path: Path, own: RunFolder, options: ReportConfig) -> Run:
    """What can be learned of a run, evaluated on the data of `own`; what cannot is left out."""
    folder = RunFolder(path)
    config = folder.load_config()
    history, unreadable = read_history(folder.metrics_file)
    parameters = translator = evaluation = None
    trouble = ""
    try:
        parameters = sum(weight.numel() for weight in folder.load_weights().values())
        translator = Translator(path, device=options.device, precision=options.precision)
        sources, references = held_out(own, options.split, options.direction)
        if not sources:
            raise UserError(f"{options.split} has no sentences")
    except UserError as error:
        trouble = str(error)
        log(f"warning: {path} was not evaluated: {trouble}")
    else:  # what goes wrong from here on is the options' fault
        warn_of_learned([path], own.path, options.split, sources, references)
        evaluation = evaluate(
            translator, sources_for(path, sources, options.direction), references, options.search,
            language_of(own, options.direction))
    return Run(
        path.resolve().name, folder, config, history, unreadable, newest_state(folder, config),
        outcome_of(folder.load_outcome()), parameters, translator, evaluation, trouble)


def newest_state(folder: RunFolder, config: RunConfig) -> TrainingState | None:
    """Where training stood when it was last saved; None where no checkpoint tells."""
    for update in folder.checkpoints.resumable():
        try:
            return state_of(folder.checkpoints.load_state(update), folder.checkpoints.path, config.train.metric)
        except UserError as damage:
            log(f"warning: {damage}")
    return None


def score_rows(evaluations: Sequence[Evaluation]) -> list[ScoreRow]:
    """Each score of this run's evaluation, the first, and of the other's, with confidence and significance."""
    if not evaluations:
        return []
    baseline_first = reversed([(str(number), evaluation) for number, evaluation in enumerate(evaluations)])
    compared = {(row.metric, row.system): row for row in compare(list(baseline_first))}
    return [
        ScoreRow(score, METRICS[name].lower_is_better, compared[score.name, "0"], compared.get((score.name, "1")))
        for name, score in evaluations[0].scores.items()]


def examples(evaluations: Sequence[Evaluation]) -> Iterator[Example]:
    """Every sentence with its outputs."""
    for number in range(len(evaluations[0].sources) if evaluations else 0):
        source, reference = evaluations[0].sources[number], evaluations[0].references[number]
        translations = [evaluation.translations[number] for evaluation in evaluations]
        scores = sentence_scores("chrf", [translation.text for translation in translations], reference)
        yield Example(source, reference, tuple(
            Output(translation.text, score, tuple(notices(Line(Request(source)), translation)))
            for translation, score in zip(translations, scores, strict=True)))


def maps_of(run: Run) -> Iterator[Map]:
    """Draw the attention that aligns pieces, for the first sentences that are short enough."""
    if run.translator is None or run.evaluation is None:
        return
    tokenizers = run.translator.source_tokenizer, run.translator.target_tokenizer
    shown = 0
    for text, translation in zip(run.evaluation.sources, run.evaluation.translations, strict=True):
        if shown == MAPS:
            return
        if translation.sentences > 1 or not translation.hypotheses:
            continue
        [pair] = translation.pairs
        if max(map(len, pair)) > MAP_TOKENS:
            continue
        shown += 1
        [rating] = run.translator.rate([pair], run.translator.search)
        source, target = (tokenizer.pieces(ids) for tokenizer, ids in zip(tokenizers, pair, strict=True))
        figure = draw_attention({"": rating.attention}, source, target, columns=1)
        yield Map(
            text, translation.text, f"attention-{shown}.png", png(figure), figure.get_figwidth(), undrawn([*source, *target]))


def splits_of(folder: RunFolder) -> dict[str, Any]:
    """What data_report.json tells of each split; nothing where it has not the form that training writes."""
    splits = folder.load_report().get("splits")
    if not isinstance(splits, dict) or not all(isinstance(counts, dict) for counts in splits.values()):
        return {}
    told = all(
        isinstance(counts.get("dropped"), dict) and all(isinstance(counts.get(name), int) for name in COUNTS)
        for counts in splits.values())
    return splits if told else {}


def render(**content: Any) -> str:
    """The page as HTML: what it shows is text, whatever it looks like."""
    templates = Environment(
        loader=PackageLoader("translator.evaluation", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True)
    templates.filters |= {
        "number": number, "base64": lambda content: base64.b64encode(content).decode(),
        "yaml": lambda value: value if isinstance(value, str) else json.dumps(value)}
    return templates.get_template(f"{PAGE}.jinja").render(content)


def number(value: Any, digits: int = 0) -> str:
    """A figure with its thousands apart; a dash for what is none."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else UNKNOWN
