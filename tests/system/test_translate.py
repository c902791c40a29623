"""One line in, one line out, in order, whatever the line: in Python and through the real script."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.commands import Script, assert_user_error
from tests.support.configurations import model_config, search_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from tests.support.paths import ROOT
from translator.data import text_files
from translator.inference.line_formats import LONGEST, READ_BYTES, arriving_lines, open_input, parse
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import CHUNK, Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.runtime.errors import UserError

SOURCES = [source for source, _ in PAIRS[:30]]
NASTY = [
    "She sees two trees.", "", "   \t ", "a\u2028b\u2029c", "x\x0by\x0cz\x85w", "emoji 🙂👩‍👩‍👧 flags 🇩🇪", "nul \x00 inside",
    "tab\there", "Ünïcödé ſtraße ﬁ", "日本語の文です。", "\u202eright to left", "\u200b", "\ufeff", "She sees two trees."]
# Random weights seldom end a sentence: a low limit saves the time.
SHORT = ("search.max_length=8", "search.beam_size=2")
SHORT_SEARCH = search_config(max_length=8, beam_size=2, max_source_tokens=1024, robust=True)


@pytest.fixture(scope="module")
def translator(run_folder) -> Translator:
    return Translator(run_folder, device="cpu")


def test_batching_and_order_change_nothing(translator):
    one_by_one = [translator([text])[0] for text in SOURCES]
    assert translator(SOURCES) == one_by_one
    own = translator.search
    assert translator(SOURCES, dataclasses.replace(own, batch_tokens=1)) == one_by_one
    assert translator(SOURCES, dataclasses.replace(own, batch_tokens=300)) == one_by_one
    assert translator(SOURCES[::-1]) == one_by_one[::-1]
    assert [t.text for t in translator.stream(SOURCES)] == one_by_one


def test_empty_lines_stay_empty_and_hopeless_ones_are_refused(translator):
    options = search_config(max_source_tokens=20, max_length=5, split_sentences="never")
    results = translator.translate(
        ["", " \t\u3000", "\u200b", "word " * 50, SOURCES[0], b"ok \xff\xfe", "half a pair: \ud83d"], options)
    assert [bool(r.hypotheses) for r in results] == [False, False, False, False, True, False, False]
    assert [r.text for r in results if not r.hypotheses] == [""] * 6
    assert not any(results[i].refused for i in (0, 1, 2, 4))
    assert results[3].refused.endswith("tokens, more than search.max_source_tokens=20; not translated")
    assert results[5].refused == "not UTF-8 at byte 4; not translated"
    assert results[6].refused == "not UTF-8 at character 14; not translated"


def test_a_line_as_long_as_allowed_is_translated(translator):
    ids = translator.source_tokenizer.encode(["word word word"])[0]
    assert translator.translate(["word word word"], search_config(max_source_tokens=len(ids), max_length=3))[0].hypotheses
    short = search_config(max_source_tokens=len(ids) - 1, split_sentences="never")
    assert translator.translate(["word word word"], short)[0].refused


def test_batches_keep_to_their_budget_with_beams_and_padding(translator, monkeypatch):
    shapes = []
    [model] = translator.models
    whole = model.encode
    monkeypatch.setattr(model, "encode", lambda source: shapes.append(source.shape) or whole(source))
    lines = [*SOURCES, SOURCES[0] * 5]
    translator(lines, search_config(beam_size=2, max_length=2, batch_tokens=150, split_sentences="never"))
    assert sum(count for count, _ in shapes) == len(lines)
    assert all(count * length * 2 <= 150 or count == 1 for count, length in shapes)
    assert len(shapes) < len(lines) / 2


def test_weights_that_are_not_numbers_are_named(tokenizer):
    model = random_model(vocab=len(tokenizer))
    with torch.no_grad():
        model.output.weight.fill_(torch.nan)
    translator = Translator(TrainedModel(model, tokenizer, tokenizer, search=search_config()))
    with pytest.raises(UserError, match="NaN"):
        translator(["She sees two trees."])


def test_model_loads_without_random_numbers_or_compiler(run_folder):
    """Neither is for what is there already, and PyTorch's compiler takes seconds to import."""
    torch.manual_seed(7)
    before = torch.get_rng_state()
    Translator(run_folder, device="cpu")
    assert torch.get_rng_state().equal(before)
    program = (
        "import sys; from translator.inference.translator import Translator\n"
        f"Translator({str(run_folder)!r}, device='cpu')(['She sees it.'])\n"
        "assert 'torch._dynamo' not in sys.modules")
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_model_that_moves_is_followed(tokenizer):
    model = random_model(vocab=len(tokenizer))
    translator = Translator(TrainedModel(model, tokenizer, tokenizer, search=search_config()))
    model.to("meta")  # as training moves it to a GPU
    assert translator.device.type == "meta"


def test_memory_that_does_not_suffice_is_told(translator, monkeypatch):
    def refuse(source: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    [model] = translator.models
    monkeypatch.setattr(model, "encode", refuse)
    with pytest.raises(UserError, match=r"lower search\.beam_size=3, or search\.max_source_tokens"):
        translator(SOURCES, search_config(batch_tokens=70, beam_size=3))


def test_batches_for_which_memory_does_not_suffice_are_halved(run_folder, monkeypatch, capsys):
    """Every text is translated as ever, and the next ones no longer try as many at once."""
    translator = Translator(run_folder, device="cpu")
    expected = translator(SOURCES)
    [model] = translator.models
    encode, asked = model.encode, []

    def of_few(source: torch.Tensor) -> torch.Tensor:
        asked.append(len(source))
        if len(source) > 3:
            raise torch.OutOfMemoryError
        return encode(source)

    monkeypatch.setattr(model, "encode", of_few)
    assert translator(SOURCES) == expected
    assert max(asked) > 3
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("warning: no memory for a batch of ") for line in said)
    asked.clear()
    assert translator(SOURCES) == expected
    assert max(asked) <= 3
    assert not capsys.readouterr().err


def test_a_gpu_is_given_larger_batches(translator, monkeypatch):
    options = search_config(batch_tokens="auto")
    assert translator.tokens_at_once(search_config(batch_tokens=70)) == 70
    on_cpu = translator.tokens_at_once(options)
    monkeypatch.setattr(Translator, "device", torch.device("cuda"))
    assert translator.tokens_at_once(options) > on_cpu


def test_n_best_are_sorted_and_start_with_the_best(translator):
    best = translator.translate(SOURCES[:4], search_config(max_length_ratio=1.0))
    several = translator.translate(SOURCES[:4], search_config(n_best=3, max_length_ratio=1.0))
    for one, three in zip(best, several, strict=True):
        assert len(three.texts) == len(three.hypotheses) == 3
        assert three.text == one.text


def test_learned_positions_bound_both_sides(tokenizer):
    model = random_model(model_config(positions="learned", max_positions=12), vocab=len(tokenizer))
    translator = Translator(TrainedModel(model, tokenizer, tokenizer, search=search_config(max_length_extra=90)))
    ended = set()
    for beam_size in (1, 4):
        options = search_config(max_length_extra=90, beam_size=beam_size, split_sentences="never")
        short, long = translator.translate(["She sees.", "My brother finds three red apples. " * 3], options)
        ended.add(len(short.hypotheses[0].ids))
        assert "model.max_positions=12" in long.refused
    assert max(ended) <= 11  # and BOS


def test_a_stream_is_translated_piece_by_piece(translator):
    taken = itertools.count()
    stream = translator.stream((SOURCES[next(taken) % 3] for _ in range(10**9)), SHORT_SEARCH)
    first = next(stream)
    assert next(taken) == CHUNK
    assert first.text == translator(SOURCES[:1], SHORT_SEARCH)[0]


def test_a_stream_keeps_order_across_pieces(translator):
    lines = [SOURCES[i % 30] if i % 7 else "" for i in range(CHUNK + 20)]
    options = search_config(max_length=2, beam_size=1)
    assert [t.text for t in translator.stream(lines, options)] == translator(lines, options)


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


def translate_script(script: Script, *options: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return script("translate", "device=cpu", *options, stdin=stdin)


def test_script_keeps_lines_whatever_they_hold(script, run_folder, translator):
    stdin = b"".join(line.encode() + b"\n" for line in NASTY) + b"caf\xe9\r\n" + b"word" * 20_000 + b"\r\nShe sees.\r\nlast"
    result = script(  # under a locale that cannot spell them
        "translate", f"run={run_folder}", "device=cpu", *SHORT, stdin=stdin, LC_ALL="C", PYTHONUTF8="0")
    output = result.stdout.split(b"\n")
    assert output.pop() == b""
    expected = [text.replace("\t", " ").encode() for text in translator([*NASTY, "", "", "She sees.", "last"], SHORT_SEARCH)]
    assert output == expected
    stderr = [line for line in result.stderr.decode().splitlines() if "longest length" not in line and "looks like" not in line]
    assert result.returncode == 2
    assert len(stderr) == 2
    assert stderr[0] == f"line {len(NASTY) + 1}: not UTF-8 at byte 4; not translated"
    assert stderr[1].startswith(f"line {len(NASTY) + 2}: ")
    assert stderr[1].endswith("tokens, more than search.max_source_tokens=1024; not translated")


def test_script_reads_and_writes_files(script, run_folder, translator, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress("\n".join(SOURCES[:4]).encode()))
    result = translate_script(
        script, f"run={run_folder}", f"input={tmp_path / 'in.gz'}", f"output={tmp_path / 'out.txt'}", "search.n_best=2", *SHORT)
    assert result.returncode == 0, result.stderr
    assert result.stdout == b""
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert [line.split("\t")[0] for line in lines] == [*translator(SOURCES[:4], SHORT_SEARCH), ""]
    assert all(len(line.split("\t")) == 2 for line in lines[:-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gz", "out.txt"]


def test_the_mark_that_windows_puts_first_is_no_text(tmp_path):
    for text in (b"\xef\xbb\xbfone\r\ntwo", b"\xef\xbb\xbfone", b"one\n\xef\xbb\xbftwo\n"):
        (tmp_path / "in.txt").write_bytes(text)
        with open_input(str(tmp_path / "in.txt")) as file:
            lines = [line for part in arriving_lines(file, "in.txt") for line in part]
        assert lines[0] == b"one"
        assert [line.decode() for line in lines] == list(text_files.read_lines(tmp_path / "in.txt"))


@pytest.mark.parametrize(("encoding", "named"), [
    ("utf-16", "UTF-16 "), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")])
def test_other_encodings_are_refused_whole(tmp_path, encoding, named):
    content = "".join(f"{line}\n" for line in SOURCES).encode(encoding)
    (tmp_path / "in.txt").write_bytes(content)
    (tmp_path / "in.gz").write_bytes(gzip.compress(content))
    for name in ("in.txt", "in.gz", None):
        file = tmp_path / (name or "in.txt")
        with (
            pytest.raises(UserError, match=rf"{name or 'stdin'}: is UTF-.*iconv -f {named}"),
            open_input(str(file)) if name else file.open("rb") as opened,
        ):
            next(arriving_lines(opened, str(file) if name else None))
    with pytest.raises(UserError, match=r"in.txt: is UTF-"):
        next(text_files.read_lines(tmp_path / "in.txt"))


def test_script_without_a_run_uses_and_names_the_newest(script, run_folder):
    result = translate_script(script, f"runs={run_folder.parent}", stdin=b"")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_script_answers_line_by_line_and_stops_at_ctrl_c(run_folder, translator):
    """Who types a line gets its translation before typing the next."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/translate.py", f"run={run_folder}", "device=cpu", *SHORT], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for line in SOURCES[:2]:
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().decode().rstrip("\n") == translator([line], SHORT_SEARCH)[0]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, b"")
    assert all("longest length" in line for line in errors.decode().splitlines())


def test_a_full_disk_is_one_line(run_folder):
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, ROOT / "scripts/translate.py", f"run={run_folder}", "device=cpu", *SHORT], cwd=ROOT, input=b"x\n",
            stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert b"No space left" in result.stderr
    assert b"Traceback" not in result.stderr


class Endless(io.RawIOBase):
    """200 MB of one letter, and then short lines."""

    def __init__(self) -> None:
        self.pieces = itertools.chain(itertools.repeat(b"x" * READ_BYTES, 3200), [b"x\nnext\n", b""])

    def read1(self, size: int) -> bytes:
        return next(self.pieces)


def test_a_line_without_end_is_refused_by_number_and_not_held():
    tracemalloc.start()
    lines = [parse(line, "text") for part in arriving_lines(Endless(), None) for line in part]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [bool(line.problem) for line in lines] == [True, False]
    assert lines[0].problem == "longer than 16,777,216 bytes; not translated"
    assert lines[1].request.text == b"next"
    assert peak < 3 * LONGEST


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_script_refuses_a_line_too_long_and_goes_on(script, run_folder, tmp_path, form):
    long = b"x" * (LONGEST + 1)
    lines = [long, SOURCES[0].encode()] if form == "text" else [
        b'{"source": "%s"}' % long, json.dumps({"source": SOURCES[0]}).encode()]
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"\n".join(lines), 1))
    result = script("translate", f"input={tmp_path}/in.gz", f"input_format={form}", f"run={run_folder}", "device=cpu", *SHORT)
    assert result.returncode == 2
    assert result.stderr.decode().startswith("line 1: longer than 16,777,216 bytes; not translated\n")
    assert len(result.stdout.splitlines()) == 2
    assert not result.stdout.startswith(b"x")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams_are_empty_ones_but_for_the_output(run_folder, tmp_path, closed):
    (tmp_path / "in.txt").write_text(SOURCES[0] + "\n")
    options = [*(() if closed == "<&-" else [f"input={tmp_path / 'in.txt'}"]), f"run={run_folder}", "device=cpu", *SHORT]
    command = f'exec "$@" {closed}'
    result = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, str(ROOT / "scripts/translate.py"), *options], cwd=ROOT,
        capture_output=True, stdin=subprocess.DEVNULL)
    if closed == ">&-":
        assert_user_error(result, "stdout: is closed", "output=FILE")
        return
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.count(b"\n") == (closed == "2>&-")


def test_a_damaged_gz_file_keeps_what_came_before(script, run_folder, tmp_path):
    whole = gzip.compress(os.urandom(200).hex().encode() + b"\n" * 200_000)
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    output = tmp_path / "out.txt"
    result = translate_script(script, f"run={run_folder}", f"input={tmp_path / 'cut.gz'}", f"output={output}", *SHORT)
    assert_user_error(result, "cut.gz", "damaged")
    assert not output.exists()
    assert (tmp_path / "out.txt.partial").read_bytes().count(b"\n") > 1000


@pytest.mark.parametrize(("options", "words"), [
    (["input=/nowhere/x.txt"], ["input=/nowhere/x.txt: No such file"]),
    (["output=/"], ["output=/", "folder"]),
    (["run=/nowhere"], ["/nowhere", "no such folder"]),
    (["search.beam=3"], ["search.beam"]),
    (["search.n_best=9"], ["search.n_best", "beam"]),
    (["input=README.md", "output=terms.tsv", "search.terminology=terms.tsv"], ["output=terms.tsv", "is what is read"]),
])
def test_mistakes_are_one_line(script, run_folder, options, words):
    assert_user_error(translate_script(script, f"run={run_folder}", *options), *words)


def test_weights_of_another_model_are_named(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    save_tensors(RunFolder(tmp_path / "run").model_file, {"x": torch.zeros(2)})
    with pytest.raises(UserError, match="do not match the model"):
        Translator(tmp_path / "run", device="cpu")
