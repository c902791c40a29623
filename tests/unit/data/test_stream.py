"""A stream gives every pair once a pass, in windows that follow from their number alone; a run on it resumes exactly."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tests.support.configurations import run_config, tokenizer_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.processes import processes
from translator.config.augmentation import AugmentConfig
from translator.config.options import RunConfig
from translator.data import cleaning, sources
from translator.data import preparation as data
from translator.data.preparation import Corpus, prepare
from translator.data.stream import WindowSource
from translator.runtime.distributed import rank, world_size
from translator.runtime.errors import UserError

TRAIN, VALIDATION, TEST = PAIRS[40:], PAIRS[:20], PAIRS[20:40]
WINDOW = 60


def as_tsv(folder: Path) -> str:
    return str(write_pairs(folder / "train.tsv", TRAIN))


def as_packed_json_lines(folder: Path) -> str:
    rows = "".join(json.dumps({"translation": {"en": s, "de": t}}) + "\n" for s, t in TRAIN)
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return str(folder / "train.jsonl.gz")


def as_parquet(folder: Path) -> str:
    columns = dict(zip(("en", "de"), map(list, zip(*TRAIN, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "train.parquet")
    return str(folder / "train.parquet")


def as_two_files(folder: Path) -> str:
    for name, texts in zip(("en", "de"), zip(*TRAIN, strict=True), strict=True):
        (folder / f"train.{name}").write_text("\n".join(texts) + "\n")
    return f"[{folder}/train.en,{folder}/train.de]"


def config_of(folder: Path, train: str, **options: object) -> RunConfig:
    extra = [f"{name}={value}" for name, value in options.items()]
    return run_config(
        "data=files", f"data.train={train}", f"data.validation={write_pairs(folder / 'validation.tsv', VALIDATION)}",
        f"data.test={write_pairs(folder / 'test.tsv', TEST)}", f"data.cache={folder / 'cache'}", f"data.window={WINDOW}",
        "train.max_epochs=null", *extra)


def corpus_of(config: RunConfig) -> Corpus:
    return prepare(config.data, tokenizer_config(vocab_size=300), max_tokens=150)


def source_of(config: RunConfig, corpus: Corpus, *, sampling: float = 0.0) -> WindowSource:
    """Change pairs where segmentations are sampled too."""
    augment = AugmentConfig(lower=0.3, no_stop=0.3, typos=0.3) if sampling else AugmentConfig()
    return WindowSource(
        config.data, corpus, max_tokens=150, longest=150, seed=1, sampling=sampling, augment=augment, timeout_minutes=1)


def targets(source: WindowSource, window: int) -> list[list[list[int]]]:
    return [source.batch(window, number).target_out.tolist() for number in range(len(source.plan(window)))]


@pytest.mark.parametrize("write", [as_tsv, as_packed_json_lines, as_parquet, as_two_files])
def test_every_pair_once_a_pass_in_windows(tmp_path, write):
    config = config_of(tmp_path, write(tmp_path))
    corpus = corpus_of(config)
    assert len(corpus.train) == WINDOW  # the first window, of which the vocabulary is made
    source = source_of(config, corpus)
    windows = len(TRAIN) // WINDOW

    def texts(first: int) -> Counter[str]:
        return Counter(
            corpus.target_tokenizer.decode([[i for i in row if i]])[0]
            for window in range(first, first + windows) for batch in targets(source, window) for row in batch)

    assert texts(0) == texts(windows) == Counter(target for _, target in TRAIN)
    assert targets(source, 0) != targets(source, windows)  # the same pairs, in another order


def test_a_saved_dataset_streams_and_so_does_a_folder(tmp_path):
    splits = {name: Dataset.from_list([{"en": s, "de": t} for s, t in pairs])
              for name, pairs in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    for name, rows in splits.items():
        rows.to_json(tmp_path / "folder" / f"{name}.jsonl")
    found = []
    for folder in ("saved", "folder"):
        config = run_config(
            f"data.path={tmp_path / folder}", "data.validation=validation", "data.test=test", f"data.window={WINDOW}",
            f"data.cache={tmp_path / 'cache'}", "train.max_epochs=null")
        corpus = corpus_of(config)
        found.append(targets(source_of(config, corpus), 1))
    assert found[0] == found[1]


def test_any_window_is_the_same_whether_walked_to_or_jumped_to(tmp_path):
    config = config_of(tmp_path, as_tsv(tmp_path))
    corpus = corpus_of(config)
    walked = source_of(config, corpus, sampling=0.2)
    whole = [targets(walked, window) for window in range(5)]
    for window in (4, 2, 0):
        assert targets(source_of(config, corpus, sampling=0.2), window) == whole[window]
    assert targets(walked, 1) == whole[1]  # and back again


def test_pairs_are_cleaned_as_they_come_and_counted(tmp_path, capsys):
    bad = [("", "x"), VALIDATION[3], TRAIN[70], ("a" * 2000, "b" * 2000)]
    rows = TRAIN[:90] + bad + TRAIN[90:]
    write_pairs(tmp_path / "train.tsv", rows)
    config = config_of(tmp_path, str(tmp_path / "train.tsv"))
    source = source_of(config, corpus_of(config))
    assert sum(len(batch) for batch in targets(source, 1)) == len(rows) - WINDOW - len(bad)
    source.plan(2)
    said = capsys.readouterr().err
    assert (f"window 2: {len(TRAIN) - WINDOW} of {len(rows) - WINDOW} pairs; dropped: 1 empty, 1 overlap with validation or "
            "test, 1 too long, 1 duplicate" in said)


@pytest.mark.parametrize(("option", "words"), [
    ({"data.validation": "null"}, "data.validation"), ({"data.limit": 3}, "data.limit"),
    ({"train.max_epochs": 3}, "max_epochs"), ({"data.window": 0}, "data.window")])
def test_options_that_a_stream_cannot_keep_are_refused(tmp_path, option, words):
    with pytest.raises(UserError, match=words):
        config_of(tmp_path, as_tsv(tmp_path), **option)


def walk(folder: Path, config: RunConfig, corpus: Corpus) -> None:
    """Write down the windows that this process makes of batches of seven rows, and how many rows it judged for them."""
    time.sleep(rank())  # a process may ask late
    looked_at = 0
    judge = cleaning.RowFilter.__call__

    def counting(self: cleaning.RowFilter, numbered: tuple[int, cleaning.Rows]) -> cleaning.FilteredRows:
        nonlocal looked_at
        looked_at += len(numbered[1]["source"])
        return judge(self, numbered)

    with pytest.MonkeyPatch.context() as patch:
        for module in (cleaning, data):
            patch.setattr(module, "READ_ROWS", 7)
        patch.setattr(cleaning.RowFilter, "__call__", counting)
        source = source_of(config, corpus, sampling=0.2)
        made = [targets(source, window) for window in (0, 1, 3)]
        source.close()
    (folder / f"{world_size()}-{rank()}.json").write_text(json.dumps([made, looked_at]))


def test_windows_are_the_same_for_any_process_count(tmp_path):
    """Batches of rows are no multiple of the processes."""
    config = config_of(tmp_path, as_tsv(tmp_path))
    corpus = corpus_of(config)
    walk(tmp_path, config, corpus)
    (expected, all_rows), shares = json.loads((tmp_path / "1-0.json").read_text()), []
    for count in (2, 3):
        assert processes(count, walk, tmp_path, config, corpus) == [0] * count
        made = [json.loads((tmp_path / f"{count}-{process}.json").read_text()) for process in range(count)]
        assert [windows for windows, _ in made] == [expected] * count
        shares.append([rows for _, rows in made])
    for rows in shares:
        assert max(rows) < 0.7 * all_rows


def test_reading_ends_with_the_training(tmp_path, monkeypatch):
    """In the midst of a window."""
    config = config_of(tmp_path, as_tsv(tmp_path))
    source = source_of(config, corpus_of(config))
    monkeypatch.setattr(cleaning, "READ_ROWS", 1)
    judge, begun, let = cleaning.RowFilter.__call__, threading.Event(), threading.Event()

    def slow(self: cleaning.RowFilter, rows: cleaning.Rows) -> cleaning.FilteredRows:
        begun.set()
        assert let.wait(10)
        looked_at.append(rows)
        return judge(self, rows)

    looked_at: list[cleaning.Rows] = []
    monkeypatch.setattr(cleaning.RowFilter, "__call__", slow)

    def ask() -> None:
        with pytest.raises(CancelledError):
            source.plan(0)
        refused.set()

    refused = threading.Event()
    asked = threading.Thread(target=ask)
    asked.start()
    assert begun.wait(10)
    threading.Timer(0.2, let.set).start()
    source.close()
    assert refused.wait(10)
    assert len(looked_at) == 1


def test_a_window_of_which_no_pair_is_left_is_told(tmp_path):
    write_pairs(tmp_path / "train.tsv", TRAIN[:WINDOW] + [("", "x")] * WINDOW)
    config = config_of(tmp_path, str(tmp_path / "train.tsv"))
    source = source_of(config, corpus_of(config))
    with pytest.raises(UserError, match=r"cleaning left no pair of window 2: 0 of 60 pairs; dropped: 60 empty"):
        source.plan(1)


def test_the_rest_of_a_pass_belongs_to_its_last_window(tmp_path):
    """A blank line at the end of a corpus, a window by itself, would leave nothing to train on."""
    write_pairs(tmp_path / "train.tsv", [*TRAIN[:2 * WINDOW], ("", "")])
    config = config_of(tmp_path, str(tmp_path / "train.tsv"))
    windows = sources.windows(config.data)
    assert [len(next(windows)) for _ in range(4)] == [WINDOW, WINDOW + 1] * 2
    source = source_of(config, corpus_of(config))
    assert [sum(map(len, targets(source, window))) for window in range(3)] == [WINDOW] * 3


def test_a_window_counts_rows_of_all_directions(tmp_path):
    rows = [{language: f"{language} {n}" for language in ("en", "de", "fr")} for n in range(5)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = config_of(
        tmp_path, str(tmp_path / "train.jsonl"), **{"data.source": "en+de", "data.target": "de+fr", "data.window": 2}).data
    assert config.directions == (("en", "de"), ("en", "fr"), ("de", "fr"))
    windows = sources.windows(config)
    assert [len(next(windows)) for _ in range(3)] == [6, 9, 6]
    assert next(windows)["source"][:3] == [">>de<< en 2", ">>fr<< en 2", ">>fr<< de 2"]


def test_a_row_of_null_in_a_stream_is_refused(tmp_path):
    as_packed_json_lines(tmp_path)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(b'{"en": "a", "de": "b"}\nnull\n'))
    with pytest.raises(UserError, match="row 2 is null"):
        next(sources.windows(config_of(tmp_path, str(tmp_path / "train.jsonl.gz")).data))


def test_a_stream_that_breaks_off_is_told_where_it_breaks(tmp_path):
    rows = "".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in TRAIN[:90]) + '{"en": "a", "de":\n'
    (tmp_path / "train.jsonl").write_text(rows)
    config = config_of(tmp_path, str(tmp_path / "train.jsonl"))
    with pytest.raises(UserError, match=r"train\.jsonl:91: not JSON"):
        source_of(config, corpus_of(config)).plan(1)


def test_what_is_not_utf_8_is_told_where_it_comes(tmp_path):
    rows = [json.dumps({"en": s, "de": t}).encode() + b"\n" for s, t in TRAIN]
    rows[WINDOW + 3] = b'{"en": "a caf\xe9", "de": "b"}\n'
    (tmp_path / "train.jsonl").write_bytes(b"".join(rows))
    config = config_of(tmp_path, str(tmp_path / "train.jsonl"))
    with pytest.raises(UserError, match=r"train\.jsonl"):
        source_of(config, corpus_of(config)).plan(1)


def test_passes_before_the_one_that_is_gone_back_to_are_not_read(tmp_path, monkeypatch):
    passes = []
    monkeypatch.setattr(sources, "_tables", lambda *args, tables=sources._tables: passes.append(1) or tables(*args))
    config = config_of(tmp_path, as_tsv(tmp_path)).data
    a_pass = len(TRAIN) // WINDOW
    far = next(sources.windows(config, 1000 * a_pass + 1))
    assert far.to_dict() == next(sources.windows(config, 1)).to_dict()
    assert len(passes) == 3


def test_unequal_files_are_refused_before_use(tmp_path):
    train = as_two_files(tmp_path)
    (tmp_path / "train.de").write_text("\n".join(target for number, (_, target) in enumerate(TRAIN) if number != 70) + "\n")
    with pytest.raises(UserError, match=rf"{len(TRAIN)} lines, .* {len(TRAIN) - 1}\. They must be pairs"):
        next(sources.windows(config_of(tmp_path, train).data))
