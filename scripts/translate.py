"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import dataclasses
import itertools
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from tqdm import tqdm

from translator.config.building import from_hydra
from translator.config.commands import TranslateConfig
from translator.inference.line_formats import (
    Format,
    Line,
    answer,
    arriving_lines,
    format_of,
    notices,
    open_input,
    parse,
    score_answer,
    translation_of,
)
from translator.inference.output import Output
from translator.inference.translation import Given, Request, decoded
from translator.inference.translator import CHUNK
from translator.inference.workers import Job, translate_all
from translator.runs.run_folder import RunFolder, chosen_runs, require_not_of_a_run
from translator.runtime.cpu import tune_cpu
from translator.runtime.device import Precision, resolve_device
from translator.runtime.errors import INTERRUPTED_EXIT_CODE, USER_ERROR_EXIT_CODE, UserError

PROMPT = "> "


@hydra.main(version_base="1.3", config_path="../conf", config_name="translate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(TranslateConfig, composed)
    tune_cpu()
    if config.details and format_of(config.output, config.output_format) == "text":
        raise UserError("details=true: is told in jsonl alone; add output_format=jsonl, or name an output that ends in .jsonl")
    runs = tuple(map(str, chosen_runs(config.run, config.runs)))
    precision = Precision.resolve(config.precision, resolve_device(config.device))  # workers and a later start must agree on it
    job = Job(runs, config.device, precision, config.search, config.details)
    if score_lines(config, job) if config.translations else translate_lines(config, job):
        sys.exit(USER_ERROR_EXIT_CODE)


def translate_lines(config: TranslateConfig, job: Job) -> int:
    """Answer every line with a line; how many were refused."""
    form, output_form = format_of(config.input, config.input_format), format_of(config.output, config.output_format)
    asked: deque[tuple[int, Line]] = deque()  # with their numbers
    with open_input(config.input) as file, progress(config) as bar:
        again = config.input is not None and Path(config.input).is_file()  # it can be read again, unlike a pipe
        output = take_up(config, shaping(config, job) if again else None, config.search.terminology)

        def requests() -> Iterator[list[Request]]:
            read = 0
            interactive = config.input is None and sys.stdin.isatty() and sys.stdout.isatty()
            for lines in prompted() if interactive else arriving_lines(file, config.input):
                parsed = [parse(line, form) for line in lines]
                first, read = read + 1, read + len(parsed)
                if read <= output.done:
                    bar.update(sum(line.size for line in parsed))
                    continue
                asked.extend(enumerate(parsed, start=first))
                yield [line.request for line in parsed]

        answers = translate_all(job, requests(), workers=config.workers)
        early = next(answers, [])  # the models are loaded and the input is read before an output is begun
        number = output.done
        try:
            with output.opened() as written:
                for group in itertools.chain([early], answers):
                    for translation, details in group:
                        number, line = asked.popleft()
                        bar.update(line.size)
                        if number <= output.done:  # groups are translated whole: what stands in one changes nothing else
                            continue
                        for notice in notices(line, translation):
                            tqdm.write(f"line {number}: {notice}", file=sys.stderr)
                        if line.trouble or translation.refused:
                            output.note_refused(number)
                        written.write(answer(line, translation, details, output_form))
                    written.flush()
        except KeyboardInterrupt:
            if again and config.output is not None:
                tqdm.write(f"stopped after {number:,} lines; the same command goes on from there", file=sys.stderr)
            sys.exit(INTERRUPTED_EXIT_CODE)
    return output.refused


def take_up(config: TranslateConfig, shaped: dict[str, Any] | None, *read: str | None) -> Output:
    """The output, gone on with where all that shapes it is known and the same. `read`: what it is made of besides the input."""
    if config.output is not None:
        require_not_of_a_run(Path(config.output))
    output = Output(config.output, shaped, read=[config.input, *read])
    if output.done:
        tqdm.write(f"{output.done:,} lines are there already: going on behind them", file=sys.stderr)
    return output


def shaping(config: TranslateConfig, job: Job) -> dict[str, Any]:
    """All that shapes the lines of the output, by the options' names."""
    runs = [RunFolder(run) for run in job.runs]
    return {
        "input": changes(config.input), "terminology": changes(config.search.terminology),
        "run": [
            changes(file) for run in runs
            for file in (run.model_file, run.sums_file, run.report_file, *[run.shortlist_file] * bool(job.search.shortlist))],
        "device": job.device, "precision": job.precision, "search": dataclasses.asdict(job.search), "details": job.details,
        "input_format": format_of(config.input, config.input_format),
        "output_format": format_of(config.output, config.output_format)}


def changes(file: str | Path | None) -> list[Any]:
    """What tells a file from others and from its own earlier self."""
    if file is None:
        return []
    path = Path(file).resolve()
    return [str(path), path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else [str(path)]


def score_lines(config: TranslateConfig, job: Job) -> int:
    """Score given translations, line by line; how many were refused."""
    counted = dataclasses.replace(
        config.search.plain(config.search.beam_size), repetition_penalty=1.0, no_repeat_ngram=0, min_length=1,
        min_length_ratio=0.0, keep_places=False, patience=None, copy_unknown=False)
    config.search.require_like(counted, "changes nothing of translations that are given")
    form, output_form = format_of(config.input, config.input_format), format_of(config.output, config.output_format)
    given_form = format_of(config.translations, "auto")
    again = all(name is not None and Path(name).is_file() for name in (config.input, config.translations))
    shaped = shaping(config, job) | {"translations": changes(config.translations)} if again else None
    output = take_up(config, shaped, config.translations)
    with open_input(config.input) as file, open_input(config.translations, "translations") as given:
        translator = job.load()
        pairs = itertools.zip_longest(
            itertools.chain.from_iterable(arriving_lines(file, config.input)),
            itertools.chain.from_iterable(arriving_lines(given, config.translations, "translations")))
        number = sum(1 for _ in itertools.islice(pairs, output.done))
        with output.opened() as written:
            while chunk := list(itertools.islice(pairs, CHUNK)):
                lines = [parse(source, form) for source, target in chunk if source is not None and target is not None]
                read = [texts_of(line, target, given_form) for line, (_, target) in zip(lines, chunk, strict=False)]
                details = translator.details([source for source, *_ in read], [target for _, target, _ in read], config.search)
                for line, (_, target, unread), told in zip(lines, read, details, strict=True):
                    number += 1
                    trouble = unread or ("" if told else "too long, or in no language of the model; not scored")
                    if trouble:
                        output.note_refused(number)
                        print(f"line {number}: {trouble}", file=sys.stderr)
                    written.write(score_answer(line, target.text, None if trouble else told, trouble, output_form))
                written.flush()
                if len(lines) < len(chunk):
                    short = config.translations if chunk[len(lines)][1] is None else config.input or "stdin"
                    raise UserError(f"{short}: ends before line {number + 1:,}; every source needs one translation")
    return output.refused


def texts_of(line: Line, given: bytes, form: Format) -> tuple[str, Given, str]:
    """A source and the translation given for it, empty where they cannot be read, and then why they cannot."""
    source, target, trouble = "", Given(""), line.trouble
    try:
        source = decoded(line.request.text)
    except ValueError as error:
        trouble = trouble or f"source: {error}; not scored"
    try:
        target = translation_of(given, form)
    except ValueError as error:
        trouble = trouble or f"translation: {error}; not scored"
    return source, target, trouble


def prompted() -> Iterator[list[bytes]]:
    """Lines typed at a prompt, with the keys of readline and its history; Ctrl-D ends."""
    import readline  # noqa: F401 importing it is what makes `input` edit; Windows has none

    while True:
        try:
            yield [input(PROMPT).encode(errors="surrogateescape")]
        except EOFError:
            print()
            return


def progress(config: TranslateConfig) -> tqdm:
    """A bar on a terminal's stderr, with the time left where the input's size is known; none among translations."""
    plain = config.input is not None and not config.input.endswith(".gz") and Path(config.input).is_file()
    size = Path(config.input).stat().st_size if plain and config.input else None
    among_translations = config.output is None and sys.stdout.isatty()
    hidden = True if config.input is None or among_translations else None  # None: where stderr is no terminal
    return tqdm(total=size, unit="B", unit_scale=True, disable=hidden, file=sys.stderr, desc="translating")


if __name__ == "__main__":
    with one_line_errors():
        main()
