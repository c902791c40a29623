"""Test sets by name: sacreBLEU's, the presets of conf/test_set, and tables of the user's own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.json
import pyarrow.parquet
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError
from sacrebleu.dataset import DATASETS, PlainTextDataset
from sacrebleu.dataset.base import Dataset

from translator.config.building import build, read_yaml
from translator.config.presets import CONF
from translator.config.test_set import PublicTestSet
from translator.data.cleaning import missing_text
from translator.data.table_files import KINDS, read_table
from translator.data.text_files import kind_of, read_lines
from translator.runtime.console import log
from translator.runtime.errors import UserError, one_line, unknown
from translator.text.language_codes import closeness, parse_code, spellings

CODE = r"[A-Za-z]{2,3}(?:_[A-Za-z\d]+)*"  # of a language, in a file's name


@dataclass(frozen=True)
class TestSet:
    """Sentences and their references, one in each list of `references` for each source."""

    name: str  # without a slash, for files
    sources: list[str]
    references: list[list[str]]
    is_file: bool = False  # the user's own, so another may have its name
    citation: str = ""
    corpora: Mapping[str, range] = field(default_factory=dict)  # numbers of the sentences of each, if several


def load_named(name: str, direction: tuple[str, str]) -> TestSet:
    """Return a test set from `direction[0]` to `direction[1]`, fetched if it is not cached; UserError where it has none."""
    presets, citation = {file.stem: file for file in (CONF / "test_set").glob("*.yaml")}, ""
    if name in presets:
        preset = build(PublicTestSet, read_yaml(presets[name]))
        citation = preset.citation
        texts = (_from_hub if preset.path else _from_web)(name, preset, direction)
    elif name in DATASETS:
        texts, citation = _from_sacrebleu(DATASETS[name], direction), DATASETS[name].citation or ""
    elif kind_of(Path(name)) in KINDS:
        texts = _from_table(Path(name), direction)
    else:
        raise UserError(unknown("test set", name, [*presets, *DATASETS], "sets="))
    sources, *references = texts
    counts = [f"{len(lines):,}" for lines in texts]
    if not sources or not references or len(set(counts)) > 1:
        raise UserError(f"sets={name}: has {counts[0]} sources, but {' and '.join(counts[1:]) or 'no'} references")
    is_file = name not in presets and name not in DATASETS
    return TestSet(Path(name).name if is_file else name.replace("/", "_"), sources, references, is_file, citation)


def _from_sacrebleu(dataset: Dataset, direction: tuple[str, str]) -> list[list[str]]:
    """Return sources and references as the command sacrebleu has them, from its cache or its server."""
    pair = "-".join(parse_code(language).language for language in direction)
    if pair not in dataset.langpairs:
        raise UserError(f"sets={dataset.name}: has no {pair}, but {', '.join(sorted(dataset.langpairs))}")
    with _loading(dataset.name, f"Check the network, or remove {dataset._outdir}, and retry"):
        files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    return [list(read_lines(Path(file))) for file in files]


def _from_web(name: str, preset: PublicTestSet, direction: tuple[str, str]) -> list[list[str]]:
    """Return the lines of text files; sacreBLEU downloads and caches them like its own."""
    urls = {language: preset.files.format(language=language) for language in preset.languages}
    raw = {language: f"{name}.{url.rsplit('/')[-1]}" for language, url in urls.items()}
    codes = [parse_code(language).language for language in direction]
    return _from_sacrebleu(PlainTextDataset(
        name, data=[urls[code] for code in codes if code in urls],
        langpairs={f"{a}-{b}": [raw[a], raw[b]] for a, b in itertools.permutations(raw, 2)}), direction)


def _from_hub(name: str, preset: PublicTestSet, direction: tuple[str, str]) -> list[list[str]]:
    """Return a column of each language's file, or two of the pair's file, of a dataset on the hub."""
    patterns = [preset.files.replace("{language}", side) for side in ("{source}", "{target}")]
    codes = itertools.product(*map(spellings, direction))
    wanted = {pattern.format(source=f"{s}*", target=f"{t}*") for s, t in codes for pattern in patterns}
    page = f"https://huggingface.co/datasets/{preset.path}"
    with _loading(name, "Check the network and retry"):
        try:
            folder = Path(snapshot_download(
                preset.path or "", repo_type="dataset", revision=preset.revision, allow_patterns=sorted(wanted)))
        except GatedRepoError as error:
            raise UserError(
                f"sets={name}: is gated. Accept its terms on {page}, then log in: `hf auth login`, or HF_TOKEN=...") from error
        files = [file for pattern in patterns if (file := _closest(folder, pattern, direction))]
        if len(files) < len(patterns):
            raise UserError(f"sets={name}: has no {'-'.join(direction)}. See {page}")
        log(f"{name}: {', '.join(dict.fromkeys(file.name for file in files))} of {preset.path}, commit {folder.name}")
        columns = preset.columns[0], preset.columns[-1]
        return [_column(file, column, preset.skip) for file, column in zip(files, columns, strict=True)]


def _closest(folder: Path, pattern: str, direction: tuple[str, str]) -> Path | None:
    """Return the file of a pattern such as {source}-{target}.jsonl whose languages are closest to the direction's."""
    expression = re.escape(pattern).replace(r"\*", "[^/]*")
    for side in ("source", "target"):
        expression = expression.replace(rf"\{{{side}\}}", f"(?P<{side}>{CODE})")
    languages, found = dict(zip(("source", "target"), direction, strict=True)), dict[Path, int]()
    for file in sorted(folder.rglob("*")):
        if match := re.fullmatch(expression, file.relative_to(folder).as_posix()):
            ranks = [closeness(languages[side], code) for side, code in match.groupdict().items()]
            if None not in ranks:
                found[file] = sum(rank or 0 for rank in ranks)
    return max(found, key=lambda file: found[file], default=None)


def _column(file: Path, column: str, skip: str | None) -> list[str]:
    """Return a column of text; without the rows in which the column `skip` is true."""
    table = pyarrow.parquet.read_table(file) if file.suffix == ".parquet" else pyarrow.json.read_json(file)
    return [str(row[column] or "") for row in table.to_pylist() if not row.get(skip)]


def _from_table(file: Path, direction: tuple[str, str]) -> list[list[str]]:
    """Return the columns named as the languages, without the rows that lack a text."""
    rows = (row for table in read_table(file, direction) for row in table.to_pylist())
    pairs = [pair for row in rows if not missing_text(*(pair := [row[language] for language in direction]))]
    return [[pair[side] for pair in pairs] for side in (0, 1)]


@contextmanager
def _loading(name: str, remedy: str) -> Iterator[None]:
    """Turn what the libraries raise into a UserError."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # of many types; sacreBLEU exits where a checksum is wrong, and says so
        reason = one_line(f"{error} ({type(error).__name__})")[:300]
        raise UserError(f"sets={name}: could not be loaded: {reason}. {remedy}") from error
