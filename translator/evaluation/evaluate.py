"""Translate a test set, score it, compare systems, write the results."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tqdm import tqdm

from translator.config.commands import EvaluateConfig
from translator.config.languages import split_tag
from translator.config.options import SearchConfig
from translator.evaluation.calibration import Calibration, calibration_of
from translator.evaluation.hallucination import Hallucination, measure_hallucination
from translator.evaluation.held_out import (
    language_of,
    load_test_sets,
    require_comparable,
    sources_for,
    warn_of_learned_sets,
    warn_of_unfair_scores,
)
from translator.evaluation.robustness import measure_robustness
from translator.evaluation.test_sets import TestSet
from translator.inference.ranking import as_line
from translator.inference.translation import ONLY_EMPTY, Translation
from translator.inference.translator import Translator
from translator.metrics.scores import (
    BOOTSTRAP_SAMPLES,
    SEED,
    Comparison,
    LengthScore,
    Score,
    metrics_for,
    paired_bootstrap,
    score_parts,
    scores_by_length,
)
from translator.metrics.sentences import sentence_scores
from translator.runs.finding import chosen_runs
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import require_no_link, require_writable, write_text
from translator.runtime.device import tune_cpu
from translator.runtime.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """A scored test set. Every text is one line, as in the files that `save` writes."""

    sources: list[str]
    untagged: list[str]  # the same without language tags
    references: list[str]  # the first of each source
    translations: list[Translation]
    scores: dict[str, Score]
    by_length: list[LengthScore]  # of the first score
    by_corpus: dict[str, dict[str, Score]]  # where several corpora have a test set
    corpora: Mapping[str, range]  # the numbers of their sentences
    hallucination: Hallucination
    search: SearchConfig
    language: str  # of references and hypotheses
    seconds: float  # of translation
    calibration: Calibration | None = None  # on the references; None if no pair can be rated
    more_references: Sequence[list[str]] = ()

    @property
    def hypotheses(self) -> list[str]:
        return [translation.text for translation in self.translations]

    @property
    def hit_limit(self) -> float:
        """Share of outputs that ended only because they reached the length limit."""
        return sum(translation.hit_limit for translation in self.translations) / len(self.translations)

    @property
    def refused(self) -> int:
        """Number of sources that were not translated; their outputs are empty, and scored so."""
        return sum(bool(translation.refused) for translation in self.translations)

    @property
    def first_score(self) -> str:
        """The name of the first score in tables."""
        return next(iter(self.scores.values())).name

    def texts(self) -> dict[str, str]:
        texts = {"source": self.sources, "reference": self.references, "hypothesis": self.hypotheses}
        texts |= {f"reference-{number}": lines for number, lines in enumerate(self.more_references, start=2)}
        return {f"{name}.txt": "".join(line + "\n" for line in lines) for name, lines in texts.items()}

    def save(self, folder: Path, **more: object) -> None:
        """Write source.txt, reference.txt, hypothesis.txt and scores.json; the command sacrebleu prints the same scores.

        more: further values of scores.json, by name.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts().items():
            write_text(folder / name, text)
        figures = {
            "sentences": len(self.sources), "refused": self.refused, "hit_limit": self.hit_limit,
            "scores": {name: dataclasses.asdict(value) for name, value in self.scores.items()},
            "by_length": [
                {"lengths": part.lengths, "count": part.count, next(iter(self.scores)): part.value} for part in self.by_length],
            "by_corpus": {
                corpus: {name: value.value for name, value in scores.items()} for corpus, scores in self.by_corpus.items()},
            "hallucination": dataclasses.asdict(self.hallucination), "search": dataclasses.asdict(self.search)}
        if self.calibration:
            figures["calibration"] = dataclasses.asdict(self.calibration)
        figures |= more
        write_text(folder / "scores.json", json.dumps(figures, ensure_ascii=False, indent=1) + "\n")

    def vacant_folder(self, folder: Path) -> Path:
        """Return `folder`, or the first of folder-2, folder-3... if it holds an evaluation of other sentences."""
        texts = {name: text.encode() for name, text in self.texts().items() if name != "hypothesis.txt"}
        candidate, numbers = folder, itertools.count(2)
        while any((file := candidate / name).is_file() and file.read_bytes() != text for name, text in texts.items()):
            candidate = folder.with_name(f"{folder.name}-{next(numbers)}")
        return candidate


Systems = Sequence[tuple[str, Evaluation]]  # by name, the baseline first


def evaluate_runs(config: EvaluateConfig) -> None:
    """Score a run, or several that translate together, against other runs if asked; print and save the results."""
    tune_cpu()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # sentences of any language, under any locale
    runs = chosen_runs(config.run, config.runs)
    teams = [chosen_runs(config.against, config.runs), runs] if config.against else [runs]  # the baseline comes first
    everybody = [run for team in teams for run in team]
    require_comparable(everybody, config.direction)
    test_sets = load_test_sets(config, runs[0], everybody)
    if config.sets is not None:
        warn_of_learned_sets(everybody, test_sets)
    elif config.source_file is None:
        warn_of_unfair_scores(everybody, runs[0], config.split, test_sets[0].sources, test_sets[0].references[0])
    # Everything that may fail comes before the first sentence.
    for test_set, team in itertools.product(test_sets, teams):
        require_no_link(runs[0] / _folder_name(test_set.name, team, own=team is runs))
    require_writable(runs[0])
    translators = [Translator(*team, device=config.device, precision=config.precision) for team in teams]
    scored = [_score_teams(config, one, runs, list(zip(teams, translators, strict=True))) for one in test_sets]
    if config.sets is not None:
        print(describe_sets([(one.name, systems) for one, systems in zip(test_sets, scored, strict=True)]))
    elif config.against:
        print(describe_comparison(compare(*scored)))


def _score_teams(config: EvaluateConfig, test_set: TestSet, owner: Sequence[Path],
                 teams: Sequence[tuple[Sequence[Path], Translator]]) -> list[tuple[str, Evaluation]]:
    """Score the runs of each team on a test set, print and save what comes out in the first of `owner`."""
    language = language_of(RunFolder(owner[0]), config.direction) or config.search.language or ""
    systems: list[tuple[str, Evaluation]] = []
    for team, translator in teams:
        sources = sources_for(team[0], test_set.sources, config.direction)
        evaluation = evaluate(translator, sources, test_set.references[0], config.search, language, config.metrics,
                              test_set.references[1:], test_set.corpora)
        label, folder = " + ".join(map(str, team)), owner[0] / _folder_name(test_set.name, team, own=team is owner)
        if test_set.is_file:  # files may share a name, splits of a run do not
            folder = evaluation.vacant_folder(folder)
        own = config.sets is not None and team is owner and len(team) == 1  # the report shows these
        try:
            evaluation.save(folder, **(_of_named(test_set, evaluation) if own else {}))
        finally:  # print even if the disk is full
            if config.sets is None or config.worst:
                worst = 5 if config.worst is None else config.worst
                print(f"{label} on {test_set.name}: {describe(evaluation, worst=worst)}")
        if config.robustness:
            robustness = measure_robustness(
                translator, evaluation.sources, evaluation.references, evaluation.hypotheses, config.search, language)
            print(robustness)
            robustness.save(folder)
        print(f"written to {folder}")
        systems.append((label, evaluation))
    return systems


def evaluate(translator: Translator, sources: Sequence[str], references: Sequence[str], search: SearchConfig,
             language: str, metrics: Collection[str] | None = None, more_references: Sequence[Sequence[str]] = (),
             corpora: Mapping[str, range] = MappingProxyType({})) -> Evaluation:
    """Translate `sources` to `language` and score the outputs against `references`, one for each source.

    metrics: names of `METRICS`; None: the usual ones for references of this length.
    more_references: further ones, in lists of one for each source. corpora: parts to score on their own too.
    """
    if not sources:
        raise UserError("nothing to evaluate: the split or file has no sentences")
    sources, references = [as_line(text) for text in sources], [as_line(text) for text in references]
    more = [[as_line(text) for text in lines] for lines in more_references]
    scorers = metrics_for(references, language, metrics)  # now: one that is missing must not cost a translated test set
    stream = translator.stream(sources, search)
    started = time.perf_counter()
    translations = list(tqdm(stream, total=len(sources), unit=" sentences", leave=False, disable=None))
    seconds = time.perf_counter() - started
    if all(translation.refused not in ("", ONLY_EMPTY) for translation in translations):
        raise UserError(f"no source could be translated; the first: {translations[0].refused}")
    hypotheses = [translation.text for translation in translations]
    untagged = [split_tag(text)[1] for text in sources] if translator.source_tokenizer.has_tags else sources
    parts = {"": range(len(sources)), **corpora}
    by_corpus = score_parts(scorers, parts, untagged, hypotheses, references, *more)
    scores = by_corpus.pop("")
    by_length = scores_by_length(next(iter(scorers.values())), untagged, hypotheses, references, *more)
    hallucination = measure_hallucination(
        untagged, hypotheses, references, translator.source_tokenizer, translator.target_tokenizer)
    return Evaluation(sources, untagged, references, translations, scores, by_length, by_corpus, corpora, hallucination, search,
                      language, seconds, calibration_of(translator, sources, references, search), more)


def describe(evaluation: Evaluation, *, worst: int = 0) -> str:
    lines = [f"{len(evaluation.sources):,} sentences"]
    width = max(6, *(len(value.name) for value in evaluation.scores.values()))
    lines += [f"{value.name:{width}} {value.value:6.2f}  {value.signature}" for value in evaluation.scores.values()]
    lines += [f"{100 * evaluation.hit_limit:.1f} % of the outputs hit the length limit", str(evaluation.hallucination)]
    lines += _refusals(evaluation)
    if evaluation.calibration:
        lines += [str(evaluation.calibration)]
    if evaluation.by_corpus:
        width = max(map(len, evaluation.by_corpus))
        lines += [f"{evaluation.first_score} by corpus:"]
        lines += [
            f"  {name:{width}}  {next(iter(scores.values())).value:6.2f}  ({len(evaluation.corpora[name]):,} sentences)"
            for name, scores in evaluation.by_corpus.items()]
    lines += [f"{evaluation.first_score} by source words:"]
    lines += [
        f"  {part.lengths:>8}  {part.value:6.2f}  ({part.count:,} sentence{'s' * (part.count != 1)})"
        for part in evaluation.by_length]
    if worst:
        lines += [f"The {min(worst, len(evaluation.sources)):,} sentences of lowest chrF:"]
        rows = zip(evaluation.sources, evaluation.hypotheses, evaluation.references, strict=True)
        scored = sorted((*sentence_scores("chrf", [h], r), s, h, r) for s, h, r in rows if s or h or r)  # not between documents
        for value, source, hypothesis, reference in scored[:worst]:
            lines += [
                f"  {value:5.1f}  source     {source}\n         output     {hypothesis}\n         reference  {reference}"]
    return "\n".join(lines)


def _refusals(evaluation: Evaluation) -> list[str]:
    reasons = [translation.refused for translation in evaluation.translations if translation.refused]
    return [f"{len(reasons):,} sources were refused; the first: {reasons[0]}"] if reasons else []


def compare(systems: Systems) -> list[Comparison]:
    """Compare several systems' outputs for the same sentences with the first system's, by paired bootstrap."""
    first = systems[0][1]
    metrics = metrics_for(first.references, first.language, first.scores).values()
    hypotheses = [(name, evaluation.hypotheses) for name, evaluation in systems]
    return paired_bootstrap(metrics, hypotheses, first.untagged, first.references, *first.more_references)


def describe_comparison(comparisons: Sequence[Comparison]) -> str:
    """Return a comparison as a table; p is the probability of a difference this large by chance only."""
    name, width = max(5, *(len(row.metric) for row in comparisons)), max(len(row.system) for row in comparisons)
    lines = ["paired bootstrap against the first:"]
    for row in comparisons:
        p = "baseline" if row.p_value is None else f"p = {row.p_value:.4f}"
        lines += [f"  {row.metric:{name}}  {row.system:{width}}  {row.value:6.2f}  ({row.mean:.2f} ± {row.interval:.2f})  {p}"]
    return "\n".join(lines)


def describe_sets(scored: Sequence[tuple[str, Systems]]) -> str:
    """Return one table of the scores of the same systems on each test set, and below it the signatures."""
    metrics = list(dict.fromkeys(value.name for _, systems in scored for value in systems[0][1].scores.values()))
    several = len(scored[0][1]) > 1
    table = [["test set", *["system"] * several, "sentences", *metrics]]
    for name, systems in scored:
        rows = compare(systems)
        for number, (system, evaluation) in enumerate(systems):
            cells = {row.metric: _with_interval(row) for row in rows[number :: len(systems)]}  # of each metric, all systems
            table += [[name, *[system] * several, f"{len(evaluation.sources):,}", *(cells.get(one, "–") for one in metrics)]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    names = 1 + several
    lines = ["  ".join([*map(str.ljust, row[:names], widths), *map(str.rjust, row[names:], widths[names:])]) for row in table]
    lines += [f"± half of the 95 % confidence interval, by bootstrap (bs:{BOOTSTRAP_SAMPLES}|seed:{SEED})"
              + "; p against the first by paired bootstrap" * several]
    lines += [f"{name}: {line}" for name, systems in scored for _, evaluation in systems for line in _refusals(evaluation)]
    signatures = dict[tuple[str, str], list[str]]()
    for name, systems in scored:
        for value in systems[0][1].scores.values():
            signatures.setdefault((value.name, value.signature), []).append(name)
    return "\n".join([*lines, *(
        f"{metric}  {signature}" + f"  on {', '.join(names)}" * (len(names) < len(scored))
        for (metric, signature), names in signatures.items())])


def _of_named(test_set: TestSet, evaluation: Evaluation) -> dict[str, object]:
    """Return what scores.json holds besides for a test set by name."""
    rows = compare([("", evaluation)])
    return {"test_set": test_set.name, "citation": test_set.citation, "confidence": {
        row.metric: {"value": row.value, "mean": row.mean, "interval": row.interval} for row in rows}}


def _with_interval(row: Comparison) -> str:
    return f"{row.value:.2f} ± {row.interval:.2f}" + (f" (p = {row.p_value:.4f})" if row.p_value is not None else "")


def _folder_name(name: str, team: Sequence[Path], *, own: bool) -> str:
    """Name the folder of an evaluation in the first run: a rival's is there too, so as not to mix with its own scores."""
    others = "-".join(run.resolve().name for run in (team[1:] if own else team))
    return f"evaluation-{name}" + (f"-{'with' if own else 'of'}-{others}" if others else "")
