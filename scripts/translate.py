"""Translate line by line: `echo "How are you?" | python scripts/translate.py run=runs/x`. Options: conf/translate.yaml."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import hydra
from omegaconf import DictConfig
from tqdm import tqdm

from translator.checkpoint import newest_run
from translator.config import TranslateConfig, from_hydra
from translator.device import tune_cpu
from translator.errors import USER_ERROR_EXIT_CODE, UserError, one_line_errors
from translator.lines import Line, answer, as_json, format_of, of_details, open_input, open_output, parse, read_lines, warnings
from translator.translate import Request
from translator.workers import Job, translate_all

INTERRUPTED_EXIT_CODE = 130
PROMPT = "> "
# Pairs of given translations scored together.
PAIRS = 512


@hydra.main(version_base="1.3", config_path="../conf", config_name="translate")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(TranslateConfig, composed)
    tune_cpu()
    runs = (config.run,) if isinstance(config.run, str) else config.run or (str(newest_run(Path(config.runs))),)
    job = Job(runs, config.device, config.precision, config.search, config.details)
    try:
        refusals = score_lines(config, job) if config.translations else translate_lines(config, job)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    if refusals:
        sys.exit(USER_ERROR_EXIT_CODE)


def translate_lines(config: TranslateConfig, job: Job) -> int:
    """Answer every line with a line; how many were refused."""
    form, output_form = format_of(config.input, config.input_format), format_of(config.output, config.output_format)
    asked: deque[Line] = deque()
    refusals = number = 0
    with open_input(config.input) as file, progress(config) as bar:

        def requests() -> Iterator[list[Request]]:
            interactive = config.input is None and sys.stdin.isatty()
            for lines in prompted() if interactive else read_lines(file, config.input):
                parsed = [parse(line, form) for line in lines]
                asked.extend(parsed)
                yield [line.request for line in parsed]

        answers = translate_all(job, requests(), workers=config.workers)
        first = next(answers, [])  # the models are loaded and the input is read before an output is begun
        with open_output(config.output) as output:
            for group in itertools.chain([first], answers):
                for translation, details in group:
                    line, number = asked.popleft(), number + 1
                    for warning in warnings(line, translation):
                        tqdm.write(f"line {number}: {warning}", file=sys.stderr)
                    refusals += bool(line.trouble or translation.refused)
                    output.write(answer(line, translation, details, output_form))
                    bar.update(line.size)
                output.flush()
    return refusals


def score_lines(config: TranslateConfig, job: Job) -> int:
    """Score given translations, one line each; how many lines could not be read."""
    assert config.translations is not None
    output_form = format_of(config.output, config.output_format)
    translator, number = job.load(), 0
    with open_input(config.input) as sources, open_input(config.translations) as targets, open_output(config.output) as output:
        pairs = itertools.zip_longest(
            itertools.chain.from_iterable(read_lines(sources, config.input)),
            itertools.chain.from_iterable(read_lines(targets, config.translations)))
        while chunk := list(itertools.islice(pairs, PAIRS)):
            texts = [decode(pair, number + place, config) for place, pair in enumerate(chunk, 1)]
            number += len(chunk)
            for (source, target), details in zip(texts, translator.details(*zip(*texts, strict=True)), strict=True):
                fields = {"source": source, "translation": target, "score": details.score} | of_details(details)
                output.write(as_json(fields) if output_form == "jsonl" else f"{details.score:.6f}\n".encode())
            output.flush()
    return 0


def decode(pair: tuple[bytes | None, bytes | None], number: int, config: TranslateConfig) -> tuple[str, str]:
    """The texts of two lines; UserError where there is but one, or one is not UTF-8."""
    source, target = pair
    if source is None or target is None:
        raise UserError(f"{config.translations if target is None else config.input or 'stdin'}: ends before line {number:,}; "
                        "every source needs one translation")
    try:
        return source.decode(), target.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"line {number:,}: not UTF-8; the lines before it are scored") from error


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
    """A bar on a terminal's stderr, with the time left where the input's size is known."""
    plain = config.input is not None and not config.input.endswith(".gz") and Path(config.input).is_file()
    size = Path(config.input).stat().st_size if plain and config.input else None
    hidden = None if config.input is not None else True  # None: where stderr is no terminal
    return tqdm(total=size, unit="B", unit_scale=True, disable=hidden, file=sys.stderr, desc="translating")


if __name__ == "__main__":
    with one_line_errors():
        main()
