"""What is promised of any input, on a great many: rows, files, texts, lengths, options, lines, run folders.

`make test` tries some of each, `make fuzz` seventy times as many: the profiles in conftest.py say how many, and each
property takes its share. What cannot be read ends in a UserError of one line; any other exception is a bug.
"""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import io
import itertools
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import sentencepiece as spm
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.configurations import run_config, tokenizer_config
from tests.support.corpora import PAIRS, TRAINING_STATE, cleaned, data_config, section_of
from tests.support.models import random_model
from translator.config.building import build, read_yaml, to_yaml
from translator.config.data import DataConfig
from translator.config.options import MOST_DEMANDED, RunConfig
from translator.data.batching import Batch, BatchSource, plan_batches
from translator.data.cleaning import Counts, HeldOut, cut_split, with_text
from translator.data.sources import read
from translator.data.text_files import other_content
from translator.inference.line_formats import arriving_lines, as_json, format_answer, notices, parse
from translator.inference.planning import TrainingStatistics
from translator.inference.translation import Translation
from translator.inference.translator import Translator
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runs.training_state import Outcome, TrainingState, outcome_of, state_of
from translator.runtime.atomic_files import Weights
from translator.runtime.errors import UserError
from translator.text.tokenizer import EOS_ID, UNK_ID, Tokenizer, train_tokenizer

# Strings that have broken programs: half characters, marks without a letter, both directions, breaks of all kinds.
AWKWARD = [
    "", " ", "\x00", "a\x00b", "\ud800", "\udfff x", "e\u0301" * 9, "\u0301", "\u202eabc\u202c", "שלום abc", "▁", "▁▁ a",
    "\u00a0", "a\r\nb", "\x85\u2028\u2029", "\x1c\x1d\x1e\x1f", "\ufeffa", "\ufdfa" * 3, "ﬁ ß İ ſ", "🏳\u200d🌈", "\U0010ffff",
    "<s></s><unk>", "<0x0A>", "x" * 5000, "a b " * 500, "漢" * 300, "\\u0041 \\n", '"', "'", "{}", "${oc.env:HOME}", "${",
    "\\${a}", "???", "null", "1e5", "0b_", "2001-01-01", "!!python/name:os.system", "../../etc/passwd"]


@st.composite
def any_text(draw: st.DrawFn) -> str:
    usual = [text for pair in PAIRS for text in pair]
    return draw(st.text(st.characters(categories=None), max_size=30) | st.sampled_from(AWKWARD) | st.sampled_from(usual))


ANY_TEXT = any_text()  # by whose name it goes in what `make fuzz` tells
# What UTF-8 can hold.
TEXT = ANY_TEXT.map(lambda text: text.encode(errors="ignore").decode())
SCALAR = st.none() | st.booleans() | st.integers() | st.integers(-(10**30), 10**30) | st.floats() | ANY_TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4), max_leaves=12)


def share(percent: int) -> settings:
    """So many inputs in `make test`; in `make fuzz` as many times more as its profile says."""
    return settings(max_examples=settings().max_examples * percent // 100)


def assert_one_line(error: UserError) -> None:
    assert len(str(error).splitlines()) == 1, repr(str(error))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Some bytes after a few accidents: a flipped bit, a cut, a part gone, doubled or overwritten."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["flip", "cut", "remove", "double", "overwrite"])):
            case "flip" if start < len(content):
                content[start] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[start:]
            case "remove":
                del content[start:end]
            case "double":
                content[end:end] = content[start:end]
            case "overwrite":
                content[start:end] = draw(st.binary(max_size=20))
    return bytes(content)


# Rows


class Rows:
    """Stands in for a Dataset."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def iter(self, size: int) -> Iterator[dict[str, list[Any]]]:
        for start in range(0, len(self.pairs), size):
            part = self.pairs[start : start + size]
            yield {"source": [source for source, _ in part], "target": [target for _, target in part]}


def like(text: str) -> str:
    """What two sentences that count as the same have in common."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


CELL = TEXT | st.sampled_from(["a", "A", "a ", "b", "Ａ", "ß", "ss"])
CELLS = CELL | st.none()


@share(40)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12), held=st.lists(st.tuples(CELLS, CELLS), max_size=5),
    limit=st.none() | st.integers(1, 4), max_characters=st.integers(1, 40), max_ratio=st.floats(1, 4))
def test_every_row_is_kept_by_the_rules_or_counted(rows, held, limit, max_characters, max_ratio):
    config = data_config(limit=limit, max_characters=max_characters, max_ratio=max_ratio)
    held_out, counts, held_counts = HeldOut(config), Counts(), Counts()
    held_pairs = list(with_text(Rows(held), held_counts))
    assert held_counts.read == len(held) == len(held_pairs) + sum(held_counts.dropped.values())
    held_out.add(held_pairs)
    kept = cleaned(Rows(rows), config, held_out, counts)
    assert counts.read == len(rows) == len(kept) + sum(counts.dropped.values())
    assert counts.kept == len(kept) == len(set(kept))
    assert limit is None or len(kept) <= limit
    spaced = {(" ".join(s.split()), " ".join(t.split())) for s, t in rows if isinstance(s, str) and isinstance(t, str)}
    for pair in kept:
        assert pair in spaced
        assert all(1 <= len(text) <= max_characters for text in pair)
        assert max(map(len, pair)) + 10 <= max_ratio * (min(map(len, pair)) + 10) * (1 + 1e-9)
        for side in (0, 1):
            assert like(pair[side]) not in {like(other[side]) for other in held_pairs}
            pair[side].encode()  # what is kept can be written
    again = Counts(**json.loads(json.dumps(vars(counts), ensure_ascii=False).encode()))
    assert (again.read, again.kept, again.dropped) == (counts.read, counts.kept, counts.dropped)


@share(20)
@given(rows=st.lists(st.tuples(CELL, CELL), max_size=40), holdout=st.integers(1, 4), shuffled=st.randoms())
def test_what_is_cut_from_train_is_not_in_train(rows, holdout, shuffled):
    rows = rows + [(f"Sentence number {i}.", f"Satz Nummer {i}.") for i in range(30)]
    config, counts = data_config(holdout=holdout), Counts()
    held_out = HeldOut(config)
    splits = []
    for split in ("test", "validation"):
        splits.append(cut_split([section_of(Rows(rows), config, Counts())], config, held_out, split, Counts()))
        held_out.add_cut(splits[-1])
    kept = cleaned(Rows(rows), config, held_out, counts)
    assert counts.read + sum(map(len, splits)) == len(rows)
    assert counts.read == len(kept) + sum(counts.dropped.values())
    for one, other in ((kept, splits[0]), (kept, splits[1]), (splits[0], splits[1])):
        for side in (0, 1):
            assert not {like(pair[side]) for pair in one} & {like(pair[side]) for pair in other}
    shuffled.shuffle(rows)
    assert cut_split([section_of(Rows(rows), config, Counts())], config, HeldOut(config), "test", Counts()) == splits[0]


# Files

OBJECTS = [{"en": source, "de": target} for source, target in PAIRS[:6]]
TABLES = {
    ".jsonl": "".join(json.dumps(row) + "\n" for row in OBJECTS).encode(),
    ".json": json.dumps(OBJECTS).encode(),
    ".tsv": ("en\tde\n" + "".join(f"{s}\t{t}\n" for s, t in PAIRS[:6])).encode(),
    ".csv": ("en,de\n" + "".join(f'"{s}",{t}\n' for s, t in PAIRS[:6])).encode()}
JSON_ROW = st.fixed_dictionaries({}, optional={"en": VALUE, "de": VALUE, "translation": st.fixed_dictionaries(
    {}, optional={"en": VALUE, "de": VALUE}), "id": VALUE}) | VALUE


@st.composite
def file_contents(draw: st.DrawFn, suffix: str) -> bytes:
    whole = TABLES[suffix]
    if suffix == ".jsonl":
        whole = draw(st.just(whole) | st.lists(JSON_ROW, max_size=5).map(
            lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif suffix == ".json":
        whole = draw(st.just(whole) | (JSON_ROW | st.lists(JSON_ROW, max_size=5)).map(lambda rows: json.dumps(rows).encode()))
    else:
        table = st.lists(st.lists(TEXT, min_size=1, max_size=4), max_size=5)
        mark = "\t" if suffix == ".tsv" else ","
        whole = draw(st.just(whole) | table.map(
            lambda rows: "\n".join(mark.join(row) for row in [["en", "de"], *rows]).encode()))
    return draw(st.just(whole) | damaged(whole) | damaged(whole) | st.binary(max_size=200))


def assert_rows_or_user_error(config: DataConfig) -> None:
    """Rows are text that can be cleaned and written again, or something to be dropped."""
    try:
        rows = read(config, "train")
    except UserError as error:
        assert_one_line(error)
        return
    assert isinstance(rows, datasets.Dataset)
    assert rows.column_names == ["source", "target"]
    counts = Counts()
    for pair in cleaned(rows, config, HeldOut(config), counts):
        "".join(pair).encode()
    assert counts.read == len(rows) > 0
    json.dumps(vars(counts), ensure_ascii=False).encode()


@share(4)
@pytest.mark.parametrize("suffix", TABLES)
@given(data=st.data())
def test_a_file_of_any_bytes_has_rows_or_is_a_users_mistake(suffix, data):
    content = data.draw(file_contents(suffix))
    with tempfile.TemporaryDirectory() as folder:
        packed = data.draw(st.sampled_from(["", "", ".gz", "damaged .gz"]))
        if packed:
            content = gzip.compress(content)
        if packed == "damaged .gz":
            content = data.draw(damaged(content))
        file = Path(folder, f"pairs{suffix}{packed.removeprefix('damaged ')}")
        file.write_bytes(content)
        assert_rows_or_user_error(data_config(train=str(file), cache=folder))


@share(20)
@given(
    sources=st.binary(max_size=60) | st.lists(TEXT, max_size=5).map(lambda lines: "\n".join(lines).encode()),
    targets=st.binary(max_size=60) | st.lists(TEXT, max_size=5).map(lambda lines: "\n".join(lines).encode()),
    packed=st.booleans())
def test_two_files_of_any_bytes_are_pairs_or_a_users_mistake(sources, targets, packed):
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/a.txt" + ".gz" * packed, f"{folder}/b.txt"]
        Path(names[0]).write_bytes(gzip.compress(sources) if packed else sources)
        Path(names[1]).write_bytes(targets)
        assert_rows_or_user_error(data_config(train=names, cache=folder))


# Subwords

TOKENIZERS = {
    model_type: train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config(model_type=model_type))
    for model_type in ("unigram", "bpe")}
# What encoding may change: NFKC, control characters gone, single spaces. The model's own mark for a space reads as one.
NORMALIZER = spm.SentencePieceNormalizer(rule_name="nmt_nfkc", remove_extra_whitespaces=True)


@share(200)
@given(text=TEXT, seed=st.integers(0, 2**63), alpha=st.floats(0.001, 10))
def test_any_text_comes_back_from_its_ids(text, seed, alpha):
    normal = NORMALIZER.normalize(text).replace("▁", " ").strip(" ")
    found = [tokenizer.encode([text])[0] for tokenizer in TOKENIZERS.values()]
    unigram = TOKENIZERS["unigram"]
    found += (sampled := unigram.sample([text, text], alpha=alpha, seed=seed))
    assert sampled == unigram.sample([text, text], alpha=alpha, seed=seed)
    for ids, tokenizer in zip(found, (unigram, TOKENIZERS["bpe"], unigram, unigram), strict=True):
        assert UNK_ID not in ids
        assert ids.index(EOS_ID) == len(ids) - 1
        assert tokenizer.decode([ids]) == [normal]
        assert all(0 <= i < len(tokenizer) for i in ids)


@share(100)
@given(ids=st.lists(st.integers(0, 319), max_size=30))
def test_any_ids_are_text(ids):
    for tokenizer in TOKENIZERS.values():
        assert len(tokenizer.pieces(ids)) == len(ids)
        [text] = tokenizer.decode([ids])
        text.encode()


# Batches

LENGTHS = st.integers(1, 40) | st.sampled_from([1, 2, 100, 2**15 - 1, 2**15, 2**20])


@share(100)
@given(
    lengths=st.lists(st.tuples(LENGTHS, LENGTHS), max_size=60), max_tokens=st.integers(1, 200) | st.integers(2**15, 2**22),
    seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000))
def test_a_plan_holds_every_sentence_once_within_the_budget(lengths, max_tokens, seed, epoch):
    source, target = (np.array([pair[side] for pair in lengths], dtype=np.int32) for side in (0, 1))

    def plan() -> list[np.ndarray]:
        return plan_batches(source, target, max_tokens=max_tokens, seed=seed, epoch=epoch)

    batches = plan()
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(max(lengths[i]) for i in batch) <= max_tokens
    sizes = sorted((sorted(max(lengths[i]) for i in batch) for batch in batches), key=lambda s: (s[0], s[-1], -len(s)))
    for batch, longer in itertools.pairwise(sizes):  # the next sentence would have been one too many
        assert batch[-1] <= longer[0]
        assert (len(batch) + 1) * longer[0] > max_tokens
    np.random.rand()  # the state of the world must not matter
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in plan()]


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> datasets.Dataset:
    sources, targets = zip(*PAIRS, strict=True)
    source_ids, target_ids = tokenizer.encode(sources), tokenizer.encode(targets)
    return datasets.Dataset.from_dict({
        "source": sources, "target": targets, "source_ids": source_ids, "target_ids": target_ids,
        "source_length": list(map(len, source_ids)), "target_length": list(map(len, target_ids))})


def same(one: Batch, other: Batch) -> bool:
    return one.num_tokens == other.num_tokens and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("source", "target_in", "target_out"))


@share(10)
@given(
    max_tokens=st.integers(60, 2000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000),
    sampling=st.sampled_from([0.0, 0.0, 0.1, 1.0]), data=st.data())
def test_batches_from_any_place_are_those_met_on_the_way(corpus, tokenizer, max_tokens, seed, epoch, sampling, data):
    def batches(start: int = 0) -> list[Batch]:
        source = BatchSource(corpus, (tokenizer, tokenizer), max_tokens=max_tokens, seed=seed, sampling=sampling)
        return [source.batch(epoch, number) for number in range(start, len(source.plan(epoch)))]

    walked = batches()
    assert sum(len(batch.source) for batch in walked) == len(corpus)
    assert all(max(batch.source.numel(), batch.target_out.numel()) <= max_tokens for batch in walked)
    start = data.draw(st.integers(0, len(walked) + 1))
    jumped = batches(start)
    assert len(jumped) == max(0, len(walked) - start)
    assert all(map(same, jumped, walked[start:]))


# Options

VALID = dataclasses.asdict(run_config("data=files", "data.train=pairs.tsv"))


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything within nested values."""
    if isinstance(values, dict):
        return [place for key, value in values.items() for place in [(*path, key), *places(value, (*path, key))]]
    if isinstance(values, list):
        return [place for n, value in enumerate(values) for place in [(*path, n), *places(value, (*path, n))]]
    return []


@st.composite
def changed(draw: st.DrawFn, values: Any, new: st.SearchStrategy[Any] = VALUE) -> Any:
    """Nested values with a few of them replaced, removed or renamed."""
    values = json.loads(json.dumps(values))
    for _ in range(draw(st.integers(1, 3))):
        if not (there := places(values)):
            return draw(new)
        *way, last = draw(st.sampled_from(there))
        inner = values
        for key in way:
            inner = inner[key]
        match draw(st.sampled_from(["replace", "replace", "nudge", "remove", "rename"])):
            case "replace":
                inner[last] = draw(new)
            case "nudge" if isinstance(inner[last], int | float):
                inner[last] = draw(st.sampled_from([0, -1, 2 * inner[last], inner[last] + 1, 0.5, -inner[last], 10**20]))
            case "remove":
                del inner[last]
            case "rename" if isinstance(inner, dict):
                inner[draw(ANY_TEXT)] = inner.pop(last)
    return values


def assert_config_or_user_error(make: Callable[[], RunConfig]) -> None:
    try:
        config = make()
    except UserError as error:
        assert_one_line(error)
        return
    assert isinstance(config, RunConfig)
    assert build(RunConfig, dataclasses.asdict(config)) == config


@share(200)
@given(values=changed(VALID) | VALUE)
def test_any_values_are_options_or_a_users_mistake(values):
    assert_config_or_user_error(lambda: build(RunConfig, values))


POSITIVE = st.floats(min_value=1e-30, max_value=1)
PHRASE = TEXT.map(lambda text: text[:MOST_DEMANDED])
WORDED = {
    "data": {
        "path": TEXT.filter(bool), "folder": TEXT, "train": TEXT.filter(bool),
        "test": st.lists(TEXT.filter(bool), min_size=2, max_size=2)},
    "optim": {"lr": POSITIVE, "eps": POSITIVE, "warmup_updates": st.integers(0, 10**9)},
    "search": {
        "prefix": PHRASE, "required": st.lists(PHRASE.filter(str.strip), max_size=3),
        "banned": st.lists(PHRASE.filter(str.strip), max_size=3)}}


@share(60)
@given(changes=st.fixed_dictionaries({}, optional={
    group: st.fixed_dictionaries({}, optional=options) for group, options in WORDED.items()}))
def test_options_come_back_from_their_yaml(changes):
    config = build(RunConfig, VALID | {group: VALID[group] | options for group, options in changes.items()})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(to_yaml(config), encoding="utf-8")
        assert build(RunConfig, read_yaml(file)) == config


YAML = to_yaml(build(RunConfig, VALID))
YAML_PIECES = [
    "[" * 1000, "a: &a [*a]\n", "!!python/object/apply:os.system [x]", "!!timestamp x", "!!int x", "!!float x", "0b_",
    "${oc.env:HOME}", "${", "9" * 5000, "? [a]\n", "<<: [1]\n", "---\n", "!!set {x}", "!!binary x", "&a", "*a", "\t", ": ",
    "- ", "\n ", "\x85", "\u2028", "2001-99-99"]


@share(60)
@given(data=st.data())
def test_any_bytes_as_config_yaml_are_options_or_a_users_mistake(data):
    content = data.draw(damaged(YAML.encode()) | st.binary(max_size=100) | changed(VALID).map(
        lambda values: json.dumps(values).encode()))
    for piece in data.draw(st.lists(st.sampled_from(YAML_PIECES), max_size=2)):
        place = data.draw(st.integers(0, len(content)))
        content = content[:place] + piece.encode() + content[place:]
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(folder)
        run.config_file.write_bytes(b"format: 1\n" + content)
        try:
            read_yaml(run.config_file)
        except UserError as error:
            assert_one_line(error)
        assert_config_or_user_error(run.load_config)


# Lines


class Pieces(io.RawIOBase):
    """A pipe that brings its bytes in pieces of these sizes, then the rest."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        self.content = content
        self.sizes = sizes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self.sizes.pop(0) if self.sizes else len(buffer))
        piece, self.content = self.content[:size], self.content[size:]
        buffer[: len(piece)] = piece
        return len(piece)


def lines_of(content: bytes, sizes: list[int]) -> list[bytes]:
    return [line for lines in arriving_lines(io.BufferedReader(Pieces(content, sizes)), None) for line in lines]


LINE = st.binary(max_size=40) | ANY_TEXT.map(lambda text: text.encode(errors="surrogatepass"))
SIZES = st.lists(st.integers(1, 9), max_size=20)


@share(200)
@given(content=LINE | st.lists(LINE, max_size=6).map(b"\n".join) | st.lists(LINE, max_size=6).map(b"\r\n".join), sizes=SIZES)
def test_how_reads_fall_changes_no_line(content, sizes):
    assume(not other_content(content))
    lines = lines_of(content, sizes)
    expected = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == [line.removesuffix(b"\r") for line in expected] == lines_of(content, [])


REQUEST = st.fixed_dictionaries({"source": ANY_TEXT}, optional={
    "prefix": st.sampled_from(["Sie", "", "\ud800", "a\nb"]) | VALUE, "required": st.lists(TEXT, max_size=2) | VALUE,
    "translation": VALUE, "refused": VALUE, "id": VALUE}) | VALUE
JSON_LINE = REQUEST.map(lambda value: json.dumps(value).encode()) | REQUEST.map(
    lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))


@st.composite
def json_lines(draw: st.DrawFn) -> bytes:
    line = draw(JSON_LINE)
    return draw(st.just(line) | damaged(line) | LINE | st.integers(0, 3000).map(
        lambda depth: b'{"source": "a", "x": ' + b"[" * depth + b"]" * depth + b"}")).replace(b"\n", b" ")


def assert_answers(line: bytes, written: bytes, form: str) -> None:
    """A line, of UTF-8; in JSON an object that holds what was asked."""
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    text = written.decode()
    if form == "jsonl":
        fields = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert isinstance(fields["translation"], str)


@share(300)
@given(line=json_lines() | LINE.map(lambda line: line.replace(b"\n", b" ")), form=st.sampled_from(["text", "jsonl"]),
       output=st.sampled_from(["text", "jsonl"]))
def test_any_line_is_taken_or_refused_and_answered_by_a_line(line, form, output):
    parsed = parse(line, form)
    assert parsed.size == len(line) + 1
    assert bool(parsed.problem) == (parsed.request.text == "" and form == "jsonl" and not _asks_for_nothing(line))
    for translation in (Translation(), Translation(("a\tb",)), Translation(refused="too long")):
        assert_answers(line, format_answer(parsed, translation, None, output), output)
        assert all(len(notice.splitlines()) == 1 for notice in notices(parsed, translation))


def _asks_for_nothing(line: bytes) -> bool:
    """Whether a line of JSON asks, by the rules, for the translation of an empty text."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("source") == "" and parse(line, "jsonl").problem == ""


@pytest.fixture(scope="module")
def translator(run_folder: Path) -> Translator:
    return Translator(run_folder)


@share(15)
@given(
    lines=st.lists(json_lines() | LINE, min_size=1, max_size=4), form=st.sampled_from(["text", "jsonl"]), sizes=SIZES,
    beam=st.sampled_from([1, 1, 3]))
def test_one_line_in_is_one_line_out_whatever_it_holds(translator, lines, form, sizes, beam):
    content = b"".join(line.replace(b"\n", b"\r") + b"\n" for line in lines)
    assume(not other_content(content))  # a packed file is refused as a whole
    parsed = [parse(line, form) for line in lines_of(content, sizes)]
    options = dataclasses.replace(translator.search, beam_size=beam, max_length=6)
    translations = translator.translate([line.request for line in parsed], options)
    details = translator.details(
        [t.text for t in translations], [t.text for t in translations], options)
    assert len(translations) == len(lines) == len(parsed)
    for line, translation, detail in zip(parsed, translations, details, strict=True):
        assert_answers(b"", format_answer(line, translation, detail, form), form)
        assert bool(translation.refused) <= (translation.text == "")
        assert all(len(notice.splitlines()) == 1 for notice in notices(line, translation))


# Run folders

OUTCOME = Outcome(20, "checkpoint of update 10", {"loss": 2.5, "bleu": 3.0}, "a limit")
REPORT = {"splits": {"train": {"source_longest": 9}}}


@dataclasses.dataclass
class Written:
    """A run folder and what was written to it."""

    path: Path
    config: RunConfig
    model: bytes
    weights: list[Weights]
    states: list[dict[str, Any]]
    outcome: dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, run_folder: Path, tokenizer: Tokenizer) -> Written:
    path = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run_folder, path)
    folder = RunFolder(path)
    folder.report_file.write_text(json.dumps(REPORT))
    folder.save_outcome(dataclasses.asdict(OUTCOME))
    weights, states = [folder.load_weights()], []
    for update in (10, 20):
        tensors = weights_of(random_model(vocab=len(tokenizer), seed=update))
        training = {"optimizer.0.0.step": torch.tensor(float(update))}
        weights += [tensors, training]
        states.append(dataclasses.asdict(dataclasses.replace(TRAINING_STATE, update=update)))
        folder.save_checkpoint(update, tensors, training, states[-1])
    return Written(path, folder.load_config(), tokenizer.model, weights, states, folder.load_outcome() or {})


def alike(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


JSON_FILES = ["config.yaml", "data_report.json", "outcome.json", "checkpoints/00000010/state.json"]


def mutate(data: st.DataObject, folder: Path) -> None:
    """One accident to a file, or a JSON file with other values."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    match data.draw(st.sampled_from(["flip", "cut", "delete", "swap", "junk", "values"])):
        case "flip":
            content = bytearray(file.read_bytes())
            place = data.draw(st.integers(0, 8 * len(content) - 1) | st.integers(0, min(800, 8 * len(content) - 1)))
            content[place // 8] ^= 1 << place % 8
            file.write_bytes(content)
        case "cut":
            file.write_bytes(file.read_bytes()[: data.draw(st.integers(0, file.stat().st_size))])
        case "delete":
            file.unlink()
        case "swap":
            other = data.draw(st.sampled_from(files))
            one, two = file.read_bytes(), other.read_bytes()
            file.write_bytes(two)
            other.write_bytes(one)
        case "junk":
            file.write_bytes(data.draw(st.binary(max_size=300)))
        case "values":
            file = folder / data.draw(st.sampled_from(JSON_FILES))
            values = read_yaml(file) if file.suffix == ".yaml" else json.loads(file.read_bytes())
            file.write_text(json.dumps(data.draw(changed(values) | VALUE)))


@share(30)
@given(data=st.data())
def test_a_damaged_run_folder_gives_what_was_written_or_nothing(written, data):
    def loaded(load: Callable[[], Any]) -> Any:
        try:
            return load()
        except UserError as error:
            assert_one_line(error)
            return None

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place, "run"))
        shutil.copytree(written.path, folder.path)
        mutate(data, folder.path)
        config = loaded(folder.load_config)  # meant to be edited, so that any options that are valid may stand there
        assert config is None or isinstance(config, RunConfig)
        tokenizers = loaded(folder.load_tokenizers)
        assert tokenizers is None or [tokenizer.model for tokenizer in tokenizers] == [written.model] * 2
        weights = loaded(folder.load_weights)
        assert weights is None or any(alike(weights, other) for other in written.weights)
        longest = TrainingStatistics.from_report(folder.load_report()).longest_source
        assert longest is None or isinstance(longest, int)
        outcome = loaded(lambda: outcome_of(folder.load_outcome()))
        assert outcome is None or isinstance(outcome, Outcome)
        for update in folder.checkpoints.resumable():
            found = loaded(lambda update=update: folder.checkpoints.load(update))
            if found is not None:
                assert any(alike(found[0], other) for other in written.weights)
                assert any(alike(found[1], other) for other in written.weights)
                assert found[2] in written.states
                assert isinstance(state_of(found[2], folder.path, "bleu"), TrainingState)
        loaded(lambda: folder.checkpoints.average([10, 20]))
        translations = loaded(lambda: Translator(folder.path)(["She sees two trees."], written.config.search))
        assert translations is None or len(translations) == 1


@share(100)
@given(values=changed(dataclasses.asdict(TRAINING_STATE)) | VALUE)
def test_any_values_are_a_state_of_training_or_a_users_mistake(values, tmp_path_factory):
    try:
        state = state_of(values, Path("checkpoints"), "bleu")
    except UserError as error:
        assert_one_line(error)
        return
    assert all(isinstance(n, int) and n >= 0 for n in (state.update, state.epoch, state.batch, state.tokens))
    assert state.seconds >= 0
    assert all(isinstance(v["update"], int) and isinstance(v["loss"], float | int) for v in state.validations)
    assert all(size >= 0 for size in state.recorded.values())


@share(100)
@given(values=changed(dataclasses.asdict(OUTCOME)) | VALUE)
def test_any_values_are_an_outcome_or_none(values):
    outcome = outcome_of(values)
    if outcome is not None:
        f"{outcome.update:,} {outcome.kept} {outcome.reason}".encode(errors="backslashreplace")  # as stderr does
        assert all(isinstance(value, float | int) for value in outcome.metrics.values())


def test_the_profile_is_the_one_asked_for(request):
    """--hypothesis-profile=fuzz counts, though conftest.py loads another first."""
    asked = request.config.getoption("--hypothesis-profile") or "unhurried"
    assert settings().max_examples == settings.get_profile(asked).max_examples


def test_as_json_is_one_line_of_utf8():
    for text in AWKWARD:
        assert as_json({"source": text}).count(b"\n") == 1
