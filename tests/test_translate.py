"""One line in, one line out, in order, whatever the line: in Python and through the real script."""

from __future__ import annotations

import gzip
import itertools
import shutil
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import PAIRS, assert_user_error, model_config, random_model, search_config
from translator.errors import UserError
from translator.translate import Translator

SOURCES = [source for source, _ in PAIRS[:30]]
NASTY = [
    "She sees two trees.", "", "   \t ", "a\u2028b\u2029c", "x\x0by\x0cz\x85w", "emoji 🙂👩‍👩‍👧 flags 🇩🇪", "nul \x00 inside", "tab\there",
    "Ünïcödé ſtraße ﬁ", "日本語の文です。", "\u202eright to left", "She sees two trees."]


@pytest.fixture(scope="module")
def translator(run_folder) -> Translator:
    return Translator(run_folder, device="cpu")


def test_batching_and_order_change_nothing(translator):
    one_by_one = [translator([text])[0] for text in SOURCES]
    assert translator(SOURCES) == one_by_one
    assert translator(SOURCES, search_config(max_length_ratio=1.0, max_length_extra=5, beam_size=5, batch_tokens=1)) == one_by_one
    assert translator(SOURCES[::-1]) == one_by_one[::-1]
    assert [t.text for t in translator.stream(SOURCES)] == one_by_one


def test_empty_lines_stay_empty_and_long_ones_are_refused(translator):
    options = search_config(max_source_tokens=20, max_length_ratio=1.0)
    results = translator.translate(["", "  ", "word " * 50, SOURCES[0], b"\xff\xfe"], options)
    assert [bool(r.text) for r in results] == [False, False, False, True, False]
    assert "search.max_source_tokens=20" in results[2].refused
    assert "UTF-8" in results[4].refused
    assert not any(results[i].refused for i in (0, 1, 3))


def test_n_best_are_sorted_and_start_with_the_best(translator):
    best = translator.translate(SOURCES[:4], search_config(max_length_ratio=1.0))
    several = translator.translate(SOURCES[:4], search_config(n_best=3, max_length_ratio=1.0))
    for one, three in zip(best, several, strict=True):
        assert len(three.texts) == len(three.hypotheses) == 3
        assert three.text == one.text


def test_learned_positions_bound_both_sides(tokenizer):
    model = random_model(model_config(positions="learned", max_positions=12), vocab=len(tokenizer))
    translator = Translator.of(model, tokenizer, tokenizer, search=search_config(max_length_extra=90))
    short, long = translator.translate(["She sees two trees.", "My brother finds three red apples. " * 3])
    assert short.text
    assert "max_source_tokens=12" in long.refused


def test_a_stream_answers_before_it_ends(translator):
    """Who types a line gets its translation before typing the next."""
    answered = threading.Event()

    def typed() -> Iterator[str]:
        yield SOURCES[0]
        assert answered.wait(timeout=60)
        yield SOURCES[1]

    stream = translator.stream(typed())
    first = next(stream)
    answered.set()
    assert [first.text, next(stream).text] == translator(SOURCES[:2])


def test_a_stream_reads_no_further_than_it_must(translator):
    taken = itertools.count()
    stream = translator.stream(str(next(taken)) for _ in range(10**9))
    next(stream)
    assert next(taken) < 10_000


def test_trouble_in_the_source_of_lines_is_raised(translator):
    def lines() -> Iterator[str]:
        yield SOURCES[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(translator.stream(lines()))


def test_a_moved_run_folder_still_translates(run_folder, translator, tmp_path):
    shutil.copytree(run_folder, tmp_path / "elsewhere")
    assert Translator(tmp_path / "elsewhere", device="cpu")(SOURCES[:3]) == translator(SOURCES[:3])


@pytest.mark.parametrize("damage", ["config.yaml", "tokenizer.model", "model.safetensors"])
def test_a_damaged_run_folder_is_named(run_folder, tmp_path, damage):
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / damage).write_bytes(b"\x00\xffjunk")
    with pytest.raises(UserError, match=damage):
        Translator(tmp_path / "run", device="cpu")


def test_script_keeps_lines_whatever_they_hold(script, run_folder, translator):
    stdin = b"".join(line.encode() + b"\n" for line in NASTY) + b"caf\xe9\r\n" + b"word " * 20_000 + b"\nlast line"
    result = script("translate", f"run={run_folder}", "device=cpu", stdin=stdin)
    output = result.stdout.split(b"\n")
    assert output.pop() == b""
    assert len(output) == len(NASTY) + 3
    expected = [text.replace("\t", " ").encode() for text in translator([*NASTY, "", "", "last line"])]
    assert output == expected
    stderr = result.stderr.decode().splitlines()
    assert result.returncode == 2
    assert any(line.startswith(f"line {len(NASTY) + 1}: not UTF-8") for line in stderr)
    assert any(line.startswith(f"line {len(NASTY) + 2}: ") and "max_source_tokens" in line for line in stderr)


def test_script_reads_and_writes_files(script, run_folder, translator, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress("\n".join(SOURCES[:4]).encode()))
    result = script(
        "translate", f"run={run_folder}", f"input={tmp_path / 'in.gz'}", f"output={tmp_path / 'out.txt'}", "search.n_best=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == b""
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == translator(SOURCES[:4])
    assert all(len(line.split("\t")) == 2 for line in lines)


def test_script_with_nothing_to_translate(script, run_folder):
    result = script("translate", f"run={run_folder}", stdin=b"")
    assert (result.returncode, result.stdout) == (0, b"")


def test_script_names_the_newest_run_by_itself(script, run_folder):
    result = script("translate", f"runs={run_folder.parent}", stdin=b"She sees two trees.\n")
    assert result.returncode == 0
    assert result.stdout.count(b"\n") == 1


def test_a_missing_input_is_one_line(script, run_folder):
    assert_user_error(script("translate", f"run={run_folder}", "input=/nowhere/x.txt"), "/nowhere/x.txt")
