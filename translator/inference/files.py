"""Translate a file, or score given translations of it, line by line; the same command resumes unfinished work."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from translator.config.commands import TranslateConfig
from translator.config.options import EngineName, SearchConfig
from translator.inference.details import Details
from translator.inference.line_formats import (
    LONGEST,
    TOO_LONG,
    Line,
    arriving_lines,
    choose_format,
    format_answer,
    format_score,
    notices,
    open_input,
    parse,
    parse_pair,
)
from translator.inference.output import Output
from translator.inference.translation import Given, Refusal, Request, Translation, decoded
from translator.inference.translator import CHUNK, Translator
from translator.runs.finding import chosen_runs
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.console import log
from translator.runtime.device import Precision, resolve_device, tune_cpu
from translator.runtime.errors import INTERRUPTED_EXIT_CODE, USER_ERROR_EXIT_CODE, UserError
from translator.runtime.process_pool import answering
from translator.text.context import Context
from translator.text.html import Document, parse_html

Answers = Iterator[list[tuple[Translation, Details | None]]]


@dataclasses.dataclass(frozen=True)
class Job:
    """Which models to load and how to translate."""

    runs: tuple[str, ...]
    device: str
    precision: Precision
    search: SearchConfig
    details: bool
    engine: EngineName = "torch"

    def load(self) -> Translator:
        return Translator(*self.runs, device=self.device, precision=self.precision, engine=self.engine)

    def translate(self, translator: Translator, requests: Sequence[Request]) -> list[tuple[Translation, Details | None]]:
        """Translate requests, in order, with details if the job asks for them."""
        translations = translator.translate(requests, self.search)
        details = translator.details_of(translations, self.search) if self.details else [None] * len(translations)
        return list(zip(translations, details, strict=True))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ready(job: Job, *, workers: int) -> Iterator[Callable[[Iterable[Sequence[Request]]], Answers]]:
    """Yield a function that translates groups of requests, in order.

    `workers` processes share the cores, at most one a core: more would only take memory. 1: this process.
    """
    if workers > cores():
        log(f"workers={workers}: only {cores()} are started, one for each core")
        workers = cores()
    if workers == 1:
        yield partial(map, partial(job.translate, job.load()))
        return
    begin = partial(_begin, job, max(1, torch.get_num_threads() // workers))
    with answering(begin, workers=workers, remedy="try fewer workers, or a smaller search.batch_tokens") as answers:
        yield answers


def _begin(job: Job, threads: int) -> Callable[[Sequence[Request]], list[tuple[Translation, Details | None]]]:
    torch.set_num_threads(threads)
    tune_cpu()
    return partial(job.translate, job.load())


def translate_file(config: TranslateConfig) -> None:
    """Translate `config.input` into `config.output`, or score `config.translations`; exit with code 2 if lines were refused."""
    tune_cpu()
    translation = FileTranslation(config)
    if translation.run_document() if translation.input_format == "html" else translation.run():
        sys.exit(USER_ERROR_EXIT_CODE)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The output line for an input line, by number from 1."""

    number: int
    size: int  # bytes of the input line
    line: bytes
    refused: bool
    notices: Sequence[str]  # for a person watching


class FileTranslation:
    """Read, translate or score, write."""

    def __init__(self, config: TranslateConfig) -> None:
        self.config = config
        self.input_format = choose_format(config.input, config.input_format)
        self.output_format = choose_format(config.output, config.output_format)
        if self.input_format == "html":
            self._require_document()
        elif config.output_format == "html":
            raise UserError("output_format=html: needs HTML to translate. Add input_format=html, or leave it out.")
        elif self.output_format == "html":  # by its name
            self.output_format = "text"
        if config.details and self.output_format != "jsonl":
            raise UserError("details=true: needs jsonl. Add output_format=jsonl, or name an output that ends in .jsonl.")
        search = config.search
        if config.translations:
            search.require_like(dataclasses.replace(
                search.plain(search.beam_size), repetition_penalty=1.0, no_repeat_ngram=0, min_length=1, min_length_ratio=0.0,
                keep_places=False, patience=None, copy_unknown=False), "changes nothing of translations that are given")
        runs = tuple(map(str, chosen_runs(config.run, config.runs)))
        precision = Precision.resolve(config.precision, resolve_device(config.device))  # the same in workers and on resuming
        self.context = Context(RunFolder(runs[0]).load_config().data.context)
        self.job = Job(runs, config.device, precision, search, config.details, config.engine)
        sources = [config.input, *([config.translations] if config.translations else [])]
        self.resumable = all(name is not None and Path(name).is_file() for name in sources)  # a pipe cannot be read again

    def run(self) -> int:
        """Write an answer for every line; return how many lines were refused."""
        config, refused = self.config, 0
        with open_input(config.input, text=config.text) as file, _progress_bar(config) as self.progress:
            if config.output is not None:
                require_not_of_a_run(Path(config.output))
            read = [config.input, config.translations, config.search.terminology]
            output = Output(config.output, self._record() if self.resumable else None, read=read)
            if output.done:
                tqdm.write(f"{output.done:,} lines are there already; resuming after them", file=sys.stderr)
            answers = (self._scores if config.translations else self._translations)(file, output.done)
            first = next(answers, [])  # the models are loaded and the input is read before an output is begun
            number = output.done
            try:
                with output.opened() as written:
                    for group in itertools.chain([first], answers):
                        for answer in group:
                            number = answer.number
                            for notice in answer.notices:
                                tqdm.write(f"line {number}: {notice}", file=sys.stderr)
                            refused += answer.refused
                            written.write(answer.line)
                            self.progress.update(answer.size)
                        written.flush()
            except KeyboardInterrupt:
                if self.resumable and config.output is not None:
                    tqdm.write(f"stopped after {number:,} lines; the same command resumes", file=sys.stderr)
                sys.exit(INTERRUPTED_EXIT_CODE)
        return refused

    def run_document(self) -> int:
        """Write an HTML document, translated text by text; return how many texts were refused, which stay untranslated."""
        config = self.config
        document = _read_document(config)
        if config.output is not None:
            require_not_of_a_run(Path(config.output))
        output = Output(config.output, read=[config.input, config.search.terminology])
        requests = [Request(markup.text, markup=markup) for markup in document.texts]
        groups = (requests[first : first + CHUNK] for first in range(0, len(requests), CHUNK))
        with ready(self.job, workers=config.workers) as translate:
            translations = [translation for answers in translate(groups) for translation, _ in answers]
        texts = []
        for request, markup, translation in zip(requests, document.texts, translations, strict=True):
            for notice in notices(Line(request), translation):
                log(f"{markup.plain[:40]!r}: {notice}")
            texts.append(markup.source if translation.refused else translation.text)
        with output.opened() as written:
            written.write(document.join(texts).encode())
            written.flush()
        return sum(bool(translation.refused) for translation in translations)

    def _require_document(self) -> None:
        config = self.config
        if config.output_format not in ("auto", "html"):
            raise UserError(f"output_format={config.output_format}: HTML becomes HTML. Leave it out, or add input_format=text.")
        if config.translations:
            raise UserError("translations: cannot be scored in HTML. Give text or jsonl.")
        if config.search.n_best > 1:
            raise UserError(f"search.n_best={config.search.n_best}: an HTML document has one translation. Leave it at 1.")

    def _record(self) -> dict[str, Any]:
        """Return all that shapes the output, by the options' names."""
        config, job = self.config, self.job
        files = [
            file for run in map(RunFolder, job.runs)
            for file in (
                run.model_file, run.sums_file, run.report_file, *[run.shortlist_file] * bool(job.search.shortlist),
                *[run.calibration_file] * run.calibration_file.is_file())]
        record = {
            "input": _version(config.input), "terminology": _version(config.search.terminology),
            "run": [_version(file) for file in files], "device": job.device, "precision": job.precision,
            "search": dataclasses.asdict(job.search), "details": job.details, "engine": job.engine,
            "input_format": self.input_format, "output_format": self.output_format}
        return record | ({"translations": _version(config.translations)} if config.translations else {})

    def _translations(self, file: io.BufferedReader, done: int) -> Iterator[list[Answer]]:
        """Yield the answers to the lines that are not done."""
        groups, asked = itertools.tee(self._numbered_lines(file, done))
        requests = ([line.request for _, line in group] for group in groups)
        lines = itertools.chain.from_iterable(asked)
        with ready(self.job, workers=self.config.workers) as translate:
            for found in translate(requests):
                # `found` comes first, so that no line is taken without its translation.
                yield [
                    Answer(
                        number, line.size, format_answer(line, translation, details, self.output_format),
                        bool(line.problem or translation.refused), tuple(notices(line, translation)))
                    for (translation, details), (number, line) in zip(found, lines, strict=False) if number > done]

    def _numbered_lines(self, file: io.BufferedReader, done: int) -> Iterator[list[tuple[int, Line]]]:
        """Yield the numbered lines of each read, in smaller groups for several workers; groups that are done are left out."""
        config = self.config
        interactive = config.input is config.text is None and sys.stdin.isatty() and sys.stdout.isatty()
        number = 0
        for lines in _prompted_lines(self._prompt()) if interactive else arriving_lines(file, config.input):
            numbered = list(enumerate((self._parse(line) for line in lines), start=number + 1))
            number += len(numbered)
            self.progress.update(sum(line.size for n, line in numbered if n <= done))
            size = len(numbered) if config.workers == 1 else CHUNK
            groups = (numbered[first : first + size] for first in range(0, len(numbered), size))
            yield from (group for group in groups if group[-1][0] > done)

    def _parse(self, line: bytes) -> Line:
        """Read a line, in the context of the lines before it."""
        parsed = parse(line, self.input_format)
        try:
            context = "" if parsed.problem else self.context.before(decoded(parsed.request.text))
        except Refusal:  # when it is translated
            return parsed
        return dataclasses.replace(parsed, request=dataclasses.replace(parsed.request, context=context))

    def _prompt(self) -> str:
        data = RunFolder(self.job.runs[0]).load_config().data
        return f"{data.source} to {data.target}, {' and '.join(Path(run).name for run in self.job.runs)}> "

    def _scores(self, file: io.BufferedReader, done: int) -> Iterator[list[Answer]]:
        """Yield the scores of the given translations that are not done."""
        config, translator = self.config, self.job.load()
        form = choose_format(config.translations, "auto")
        with open_input(config.translations, "translations") as translations:
            sources, given = (itertools.chain.from_iterable(lines) for lines in (
                arriving_lines(file, config.input), arriving_lines(translations, config.translations, "translations")))
            numbered = itertools.islice(enumerate(itertools.zip_longest(map(self._parse, sources), given), start=1), done, None)
            while chunk := list(itertools.islice(numbered, CHUNK)):
                pairs = [parse_pair(*both, form) for _, both in chunk if None not in both]
                rated = translator.details([source for _, source, *_ in pairs], [g for *_, g, _ in pairs], config.search)
                yield list(map(self._score, (number for number, _ in chunk), pairs, rated))
                if len(pairs) < len(chunk):
                    number, (_, missing) = chunk[len(pairs)]
                    short = config.translations if missing is None else config.input or "stdin"
                    raise UserError(f"{short}: ends before line {number:,}. Give one translation for each source.")

    def _score(self, number: int, pair: tuple[Line, str, Given, str], details: Details | None) -> Answer:
        line, _, given, problem = pair
        if details is None:
            problem = problem or "too long, or in no language of the model; not scored"
        scored = format_score(line, given.text, None if problem else details, problem, self.output_format)
        return Answer(number, line.size, scored, bool(problem), [problem] * bool(problem))


def _read_document(config: TranslateConfig) -> Document:
    """Read HTML from where the options say; UserError if it is too large or not UTF-8."""
    place = f"input={config.input}" if config.input is not None else "stdin" if config.text is None else "text"
    try:
        with open_input(config.input, text=config.text) as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise UserError(f"{place}: {TOO_LONG}. Split the document.")
        return parse_html(content.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 at byte {error.start + 1:,}. Convert it to UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{place}: damaged .gz file: {error}") from error


def _version(file: str | Path | None) -> list[Any]:
    """Return a file's path, size and time, which change with its content."""
    if file is None:
        return []
    path = Path(file).resolve()
    return [str(path), path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else [str(path)]


def _prompted_lines(prompt: str) -> Iterator[list[bytes]]:
    """Yield lines typed at a prompt, with readline's keys and history; Ctrl-D ends."""
    import readline  # noqa: F401 importing it makes `input` editable; Windows has none

    while True:
        try:
            yield [input(prompt).encode(errors="surrogateescape")]
        except EOFError:
            print()
            return


def _progress_bar(config: TranslateConfig) -> tqdm:
    """Make a bar on a terminal's stderr, with the time left if the input's size is known; none beside printed translations."""
    size = None
    if config.input is not None and not config.input.endswith(".gz") and Path(config.input).is_file():
        size = Path(config.input).stat().st_size
    printed = config.output is None and sys.stdout.isatty()
    hidden = True if config.input is None or printed else None  # None: unless stderr is a terminal
    return tqdm(total=size, unit="B", unit_scale=True, disable=hidden, file=sys.stderr, desc="translating")
