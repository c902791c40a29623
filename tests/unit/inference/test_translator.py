"""What a user can ask of translations, as text: phrases, terms, prefixes, MBR, details, jsonl, workers."""

from __future__ import annotations

import dataclasses
import fcntl
import gzip
import json
import os
import pty
import random
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

from tests.support.commands import assert_user_error
from tests.support.configurations import model_config, search_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from tests.support.paths import ROOT
from translator.data.batching import collate
from translator.inference import translator as translate
from translator.inference.alignment import align_words
from translator.inference.files import Job, ready
from translator.inference.ranking import by_expected_score
from translator.inference.terminology import Terminology
from translator.inference.trained_model import TrainedModel
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.runtime.errors import UserError
from translator.search.phrases import holds
from translator.search.scoring import rate
from translator.text.tokenizer import EOS_ID, PAD_ID, UNK_ID, WORD_START, train_tokenizer
from translator.text.writing_systems import goes_on, normal, whole_words

SOURCES = [source for source, _ in PAIRS[:12]]
QUICK = search_config(beam_size=4, max_length_ratio=0.5, max_length_extra=6)
SHORT = ("search.max_length=8", "search.beam_size=2")


@pytest.fixture(scope="module")
def translator(trained_folder: Path) -> Translator:
    return Translator(trained_folder, device="cpu")


def options(**changes: object):
    return dataclasses.replace(QUICK, **changes)


# Phrases, prefixes, terms


def test_a_prefix_and_phrases_hold_together(translator):
    requests = [Request(source, prefix="Der Hund", required=("drei",)) for source in SOURCES]
    for translation in translator.translate(requests, QUICK):
        assert translation.text.startswith("Der Hund")
        assert "drei" in translation.text


def test_what_cannot_be_demanded_is_refused_by_line(translator, tokenizer):
    phrase = Request(SOURCES[0], required=("Haus",))
    for changed in ({"groups": 2}, {"sampling": True}, {"keep_places": True}):
        refused, fine = translator.translate([phrase, SOURCES[0]], options(**changed))
        assert refused.refused.startswith("phrases can be required of plain beam search only")
        assert fine.hypotheses
    half = translator.translate([Request(SOURCES[0], prefix="\ud800"), Request(SOURCES[0], required=("\ud800",))], QUICK)
    assert all("unpaired surrogate" in t.refused for t in half)
    endless = translator.translate([Request("A dog.", prefix="a " * 20_000), Request("A dog.", required=("a" * 9999,))], QUICK)
    assert all("more than 1,000 characters" in t.refused for t in endless)
    model = random_model(model_config(positions="learned", max_positions=24), vocab=len(tokenizer))
    learned = Translator(TrainedModel(model, tokenizer, tokenizer, search=QUICK))
    fine, fits, refused = learned.translate(
        [SOURCES[0], Request(SOURCES[0], prefix="Der Hund"), Request(SOURCES[0], prefix="Der Hund sieht " * 5)], QUICK)
    assert fine.hypotheses
    assert fits.text.startswith("Der Hund")
    assert "model.max_positions=24" in refused.refused
    assert learned.details([SOURCES[0] * 9, SOURCES[0]], ["Der Hund"] * 2)[0] is None


def test_rules_that_leave_nothing_refuse_the_line(translator):
    [nothing] = translator.translate([SOURCES[0]], options(no_repeat_ngram=1, min_length=400, max_length_extra=400))
    assert nothing.refused == "no translation keeps to all that was asked for; not translated"


def test_words_of_scripts_without_spaces_need_no_boundary():
    assert whole_words("東京").search("私は東京に住む")
    assert whole_words("\U00020b9f").search("\U00020b9f\U00020b9f")  # a character of everyday Japanese beyond 16 bits
    assert whole_words("Tokyo").search("私はTokyoに住む")
    assert not whole_words("zwei").search("zweite")
    assert whole_words("zwei", "zwei Häuser").search("die zwei Häuser")[0] == "zwei Häuser"


def test_required_phrases_stand_in_every_translation(translator):
    wanted = ("rote Äpfel", "Mein Bruder", "drei")
    for translation in translator.translate(SOURCES, options(required=wanted, n_best=3)):
        assert len(translation.texts) == 3
        assert all(whole_words(phrase).search(text) for text in translation.texts for phrase in wanted)


def test_a_piece_goes_on_with_a_word_where_no_word_ends(translator):
    tokenizer, seen = translator.target_tokenizer, set()
    for text in (normal(target) for _, target in PAIRS):
        *ids, _ = tokenizer.encode([text])[0]
        for end in range(1, len(ids)):
            inside = re.compile(r"(?<=\w)(?=\w)").match(text, len(tokenizer.decode([ids[:end]])[0])) is not None
            assert tokenizer.goes_on(*ids[end - 1 : end + 1]) == inside
            seen.add(inside)
        assert not tokenizer.goes_on(ids[-1], EOS_ID)
    assert seen == {True, False}
    assert not goes_on("東京", "に")
    assert goes_on("क", "\u093e")  # a vowel sign


def test_a_request_s_own_phrases_and_prefix_bind_it_alone(translator):
    requests = [Request(SOURCES[0], required=("Häuser",)), Request(SOURCES[0]), Request(SOURCES[0], prefix="Der Hund")]
    with_phrase, plain, with_prefix = translator.translate(requests, QUICK)
    assert "Häuser" in with_phrase.text
    assert plain.text == translator([SOURCES[0]], QUICK)[0]
    assert with_prefix.text.startswith("Der Hund")


def test_every_translation_begins_with_the_prefix(translator):
    assert all(text.startswith("Sie will") for text in translator(SOURCES, options(prefix="Sie will")))


def test_banned_phrases_never_appear_however_spelled(translator):
    plain = translator.translate(SOURCES, options(n_best=4))
    assert any("zwei" in text for t in plain for text in t.texts)
    for translation in translator.translate(SOURCES, options(n_best=4, banned=("zwei", "Sie sieht"))):
        assert len(translation.texts) == len(translation.hypotheses) > 0
        for text in translation.texts:
            assert text
            assert "zwei" not in re.findall(r"\w+", text)
            assert "Sie sieht" not in text


def test_the_last_search_for_one_without_banned_phrases_counts(translator, monkeypatch):
    searches, bound = [], options(banned=("zwei", "Sie"))
    search = translator._find.search
    monkeypatch.setattr(translator._find, "search", lambda *args: searches.append(args) or search(*args))
    expected = translator(SOURCES[:1], bound)
    tries = len(searches) - 1
    assert tries > 0
    monkeypatch.setattr(translate, "BANNED_TRIES", tries)
    assert translator(SOURCES[:1], bound) == expected
    monkeypatch.setattr(translate, "BANNED_TRIES", tries - 1)
    assert "banned" in str(translator.translate(SOURCES[:1], bound)[0].refused)


def test_n_best_does_not_change_the_best_without_banned_ones(translator):
    for banned in (("zwei", "Sie sieht"), ("rote",)):
        one, two, four = (translator.translate(SOURCES, options(n_best=n, banned=banned)) for n in (1, 2, 4))
        assert [translation.texts for translation in one] == [translation.texts[:1] for translation in four]
        assert [translation.texts for translation in two] == [translation.texts[:2] for translation in four]


def test_other_hypotheses_replace_banned_outputs(translator):
    tried = 0
    for source, free in zip(SOURCES, translator.translate(SOURCES, options(n_best=4)), strict=True):
        first, second = (set(re.findall(r"\w+", text)) for text in free.texts[:2])
        for word in sorted(second - first)[:1]:
            [bound] = translator.translate([source], options(n_best=2, banned=(word,)))
            others = [text for text in free.texts if not whole_words(word).search(text)]
            assert list(bound.texts) == others[:2]
            tried += len(others) > 1
    assert tried


def test_a_phrase_may_be_required_and_banned_behind_another_word(translator):
    tried = 0
    for free in translator.translate(SOURCES, options(required=("Häuser",))):
        found = re.search(r"(\w+) Häuser\b", free.text)
        if found:
            bound = translator.translate(SOURCES[:1], options(required=("Häuser",), banned=(found[0],)))[0]
            assert "Häuser" in bound.text
            assert not whole_words(found[0]).search(bound.text)
            tried += 1
    assert tried


@pytest.mark.parametrize("spelled", ["zwei\u00a0Häuser", "zwei  Häuser", "zwei Ha\u0308user", "ｚwei Häuser"])
def test_banned_phrases_and_terms_are_what_they_look_like(translator, spelled):
    texts = translator(["She sees two houses."], options(banned=(spelled,)))
    assert texts == translator(["She sees two houses."], options(banned=("zwei Häuser",)))
    assert Terminology({spelled: "x"}).required("die zwei Häuser") == ["x"]
    assert Terminology({"zwei Häuser": "x"}).required(f"die {spelled}") == ["x"]


def test_a_line_s_own_prefix_takes_the_place_of_the_option_s(translator):
    asked = [Request(SOURCES[0]), Request(SOURCES[0], prefix="Der Hund")]
    ours, its_own = translator.translate(asked, options(prefix="Sie will"))
    assert ours.text.startswith("Sie will")
    assert its_own.text.startswith("Der Hund")


def test_a_required_phrase_of_nothing_asks_for_nothing(translator):
    free, asked = Request(SOURCES[0]), Request(SOURCES[0], required=("", " "))
    for search in (QUICK, options(sampling=True)):  # which takes no phrases
        assert translator.translate([asked], search) == translator.translate([free], search)


def test_phrase_in_unspaced_script_needs_no_space_before_it():
    tokenizer = train_tokenizer(["私は東京に住む。", "東京は大きい。", "猫が好き。"] * 5, tokenizer_config(vocab_size=275))
    [inside], [whole] = tokenizer.encode_phrases(["東京"]), tokenizer.encode(["私は東京に住む。"])
    assert holds(whole, inside)
    assert tokenizer.decode([[*tokenizer.encode(["私は"])[0][:-1], *inside]]) == ["私は東京"]
    [spaced] = tokenizer.encode_phrases(["cat"])
    assert [*spaced, EOS_ID] == tokenizer.encode(["cat"])[0]


def test_a_phrase_both_required_and_banned_is_refused(translator):
    [result] = translator.translate(SOURCES[:1], options(required=("drei Häuser",), banned=("Häuser",)))
    assert result.refused.startswith("must hold 'drei Häuser', which is banned")


def test_terms_bind_the_sentences_that_hold_them(translator, tmp_path):
    (tmp_path / "terms.tsv").write_text("red apples\tPaprika\n\nhouses\tHütten\n", encoding="utf-8")
    found = translator.translate(
        ["He sees two red apples.", "He sees two houses.", "He sees birdhouses."],
        options(terminology=str(tmp_path / "terms.tsv")))
    assert "Paprika" in found[0].text
    assert "Hütten" in found[1].text
    assert found[2].text == translator(["He sees birdhouses."], QUICK)[0]


def test_terms_are_whole_words_and_the_longest_wins():
    terms = Terminology({"house": "Haus", "house boat": "Hausboot", "C++": "C plus plus"})
    assert terms.required("A house boat by the house, and a house.") == ["Hausboot", "Haus"]
    assert terms.required("warehouse houses") == []
    assert terms.required("I know C++.") == ["C plus plus"]
    vowels = Terminology({"कर": "Steuer", "पानी": "Wasser"})  # signs upon letters belong to words
    assert vowels.required("वह काम करो, पानीपत") == []
    assert vowels.required("कर और पानी।") == ["Steuer", "Wasser"]
    assert Terminology({}).required("house") == []


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_a_terminology_without_terms_is_refused(tmp_path, text):
    (tmp_path / "terms.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"terms\.tsv: holds no terms"):
        Terminology.load(tmp_path / "terms.tsv")


def test_a_broken_terminology_is_named_by_line(tmp_path):
    (tmp_path / "terms.tsv").write_text("a\tb\nno tab here\n")
    with pytest.raises(UserError, match=r"terms\.tsv, line 2: expected a source term"):
        Terminology.load(tmp_path / "terms.tsv")
    (tmp_path / "terms.tsv").write_text("bank\tBank\nbank\tBank\nriver\tFluss\nbank\tUfer\n")
    with pytest.raises(UserError, match=r"terms\.tsv, line 4: bank: duplicate term .first defined as Bank"):
        Terminology.load(tmp_path / "terms.tsv")
    (tmp_path / "terms.tsv").write_text("file\tDatei\n\ufb01le\tAkte\n")  # with a ligature
    with pytest.raises(UserError, match=r"terms\.tsv, line 2: file: duplicate term .first defined as Datei"):
        Terminology.load(tmp_path / "terms.tsv")
    with pytest.raises(UserError, match=r"^search\.terminology=nowhere\.tsv: no such file, or not a regular one\. Name"):
        Terminology.load(Path("nowhere.tsv"))
    (tmp_path / "terms.tsv").write_bytes(b"caf\xe9\tKaffee\n")
    with pytest.raises(UserError, match=r"terms\.tsv: not UTF-8 at byte 4\. Convert it"):
        Terminology.load(tmp_path / "terms.tsv")


@pytest.mark.parametrize("texts", ["She buys the old house.", b"A house.", [None], ["A house.", 7]])
def test_one_text_or_another_thing_is_no_list_of_texts(translator, texts):
    with pytest.raises(TypeError, match="expected a list of texts"):
        translator(texts)


# Minimum Bayes risk


def test_mbr_chooses_the_candidate_most_like_the_others(translator):
    candidates = ["der Hund bellt laut", "der Hund bellt", "", "eine Katze", "der Hund bellt sehr laut"]
    for metric, own in (("chrf", CHRF()), ("bleu", BLEU(effective_order=True))):
        mean = {c: sum(own.sentence_score(c, [other]).score for other in candidates) for c in candidates}
        assert by_expected_score(candidates, metric) == sorted(candidates, key=lambda c: -mean[c])
    assert by_expected_score(["a b c", "x y z", "x y z"], "chrf")[0] == "x y z"  # drawn twice, it counts twice
    texts = translator.translate(SOURCES[:2], options(beam_size=4, n_best=4))
    chosen = translator.translate(SOURCES[:2], options(beam_size=4, n_best=2, mbr="chrf"))
    for all_four, best in zip(texts, chosen, strict=True):
        assert list(best.texts) == by_expected_score(all_four.texts, "chrf")[:2]
        assert [all_four.hypotheses[all_four.texts.index(text)] for text in best.texts] == list(best.hypotheses)
    drawn = translator.translate(SOURCES[:2], options(beam_size=4, n_best=4, sampling=True))
    chosen = translator.translate(SOURCES[:2], options(beam_size=4, n_best=1, sampling=True, mbr="bleu"))
    for all_four, best in zip(drawn, chosen, strict=True):
        assert best.text == by_expected_score(all_four.texts, "bleu")[0]


# Details


@pytest.mark.parametrize("penalties", [{}, {"coverage_penalty": 0.5, "length_penalty": 0.3}])
def test_details_agree_with_the_search(translator, penalties):
    search = options(max_length_extra=9, **penalties)
    found = translator.translate(SOURCES, search)
    details = translator.details_of(found, search)
    given = translator.details(SOURCES, [t.text for t in found], search)
    spelled_alike = 0
    for source, translation, told, of_text in zip(SOURCES, found, details, given, strict=True):
        assert len(told.pieces) == len(told.log_probabilities)
        assert told.pieces[-1] == "</s>"
        assert sum(told.log_probabilities) == pytest.approx(translation.hypotheses[0].log_probability, abs=1e-3)
        assert told.score == pytest.approx(translation.hypotheses[0].score, abs=1e-3)
        if told.pieces == of_text.pieces:  # a text has other spellings than the one found
            spelled_alike += 1
            assert told.log_probabilities == pytest.approx(of_text.log_probabilities, abs=1e-3)
            assert told.alignment == of_text.alignment
        assert {target for _, target in told.alignment} == set(range(len(translation.text.split())))
        assert all(word < len(source.split()) for word, _ in told.alignment)
    assert spelled_alike


def test_words_are_aligned_by_the_attention_of_all_their_pieces():
    attention = torch.tensor([[0.4, 0.3, 0.3, 0.0], [0.4, 0.0, 0.1, 0.5], [0.1, 0.4, 0.4, 0.1], [0.0, 0.0, 0.0, 1.0]])
    assert align_words(attention, ["▁a", "▁b", "b"], ["▁x", "x", "▁y"]) == [(0, 0), (1, 1)]
    assert align_words(attention, [], ["▁x"]) == []


def test_punctuation_is_no_words_origin():
    """Attention that looks for nothing rests on the full stop; a mark of its own may link to one."""
    attention = torch.tensor([[0.2, 0.1, 0.7], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]])
    assert align_words(attention, ["▁I", "▁go", "."], ["▁Ich", "▁gehe", "."]) == [(0, 0), (1, 1)]
    assert align_words(attention, ["▁I", "▁go", "▁."], ["▁Ich", "▁gehe", "▁."]) == [(0, 0), (1, 1), (2, 2)]
    assert align_words(attention[:1, 2:], ["▁..."], ["▁Ich"]) == []


@pytest.mark.parametrize(("decoder_layers", "floor"), [(1, 0.9), (2, 0.75)])
def test_attention_finds_the_source_words_of_copies(decoder_layers, floor):
    """Random words, each rendered by another, in reverse: nothing else tells a model which comes next."""
    model = random_model(model_config(encoder_layers=1, decoder_layers=decoder_layers)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    chance = random.Random(0)

    def pairs(count: int) -> tuple[list[list[int]], list[list[int]]]:
        words = [chance.sample(range(4, 39), chance.randint(3, 7)) for _ in range(count)]
        return [[*ids, EOS_ID] for ids in words], [[*((i + 2) % 35 + 4 for i in reversed(ids)), EOS_ID] for ids in words]

    for _ in range(450):
        batch = collate(*pairs(64))
        optimizer.zero_grad()
        logits = model(batch.source, batch.target_in)
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target_out, ignore_index=PAD_ID).backward()
        optimizer.step()
    sources, outputs = pairs(100)
    right = total = 0
    for source, rating in zip(sources, rate([model.eval()], sources, outputs, torch.device("cpu")), strict=True):
        words = [f"{WORD_START}{i}" for i in source[:-1]]
        right += sum(i + j == len(words) - 1 for i, j in align_words(rating.attention, words, words))
        total += len(words)
    assert right / total > floor


def test_unknown_characters_are_copied_by_attention(tmp_path):
    texts = [text for pair in PAIRS for text in pair]
    tokenizer = train_tokenizer(texts, tokenizer_config(byte_fallback=False, vocab_size=60))
    model = random_model(model_config(), vocab=len(tokenizer))
    with torch.no_grad():
        model.output.weight[UNK_ID] = 9 * model.decoder_norm.bias  # an unknown piece is likely
    translator = Translator(TrainedModel(model, tokenizer, tokenizer, search=QUICK))
    [plain] = translator(["She sees 東."], options(beam_size=1))
    [copied] = translator(["She sees 東."], options(beam_size=1, copy_unknown=True))
    assert "東" not in plain
    assert "東" in copied
    assert "⁇" not in copied


# Several runs, other precisions


def test_runs_translate_together_if_they_share_a_vocabulary(trained_folder, translator, tmp_path, tokenizer):
    twice = Translator(trained_folder, trained_folder, device="cpu")
    assert twice(SOURCES[:4], QUICK) == translator(SOURCES[:4], QUICK)
    other = RunFolder(tmp_path / "other")
    words = train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config(vocab_size=300))
    other.create(RunFolder(trained_folder).load_config(), (words, words), {"splits": {}})
    save_tensors(other.model_file, weights_of(random_model(vocab=len(words))))
    with pytest.raises(UserError, match=r"other: its vocabulary is not that of"):
        Translator(trained_folder, other.path, device="cpu")


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_stay_close(trained_folder, translator, precision):
    fast = Translator(trained_folder, device="cpu", precision=precision)
    exact = translator.details(SOURCES, SOURCES)
    for ours, theirs in zip(fast.details(SOURCES, SOURCES), exact, strict=True):
        assert sum(ours.log_probabilities) == pytest.approx(sum(theirs.log_probabilities), rel=0.05)
    assert all(t.hypotheses for t in fast.translate(SOURCES, QUICK))


# The command line


def run(script, trained_folder, *arguments, stdin=b"", **environment):
    return script("translate", f"run={trained_folder}", "device=cpu", *SHORT, *arguments, stdin=stdin, **environment)


def test_objects_come_and_go_by_line(script, trained_folder, translator, tmp_path):
    lines = [
        {"source": SOURCES[0], "id": 7, "prefix": "Der"}, {"source": SOURCES[1], "prefix": None, "required": ["Häuser"]},
        {"source": "", "required": None},
        {"text": "x", "id": 8}, {"source": SOURCES[2], "required": "Häuser", "refused": "before", "tokens": []}]
    written = [*map(json.dumps, lines), "{broken", "[" * 99_999, '{"source": "x", "n": 1e999}']
    (tmp_path / "in.jsonl").write_text("\n".join(written) + "\n", encoding="utf-8")
    result = run(
        script, trained_folder, f"input={tmp_path / 'in.jsonl'}", f"output={tmp_path / 'out.jsonl.gz'}", "details=true",
        "search.n_best=2")
    assert result.returncode == 2
    warned = [line for line in result.stderr.decode().splitlines() if "longest length" not in line]
    assert [line.split(":")[0] for line in warned] == [f"line {n}" for n in range(4, 9)]
    with gzip.open(tmp_path / "out.jsonl.gz", "rt", encoding="utf-8") as file:
        out = [json.loads(line) for line in file]
    assert len(out) == 8
    assert [out[3]["id"], out[0]["id"]] == [8, 7]
    written = {"translation", "score", "n_best", "tokens", "alignment", "refused", "warnings"}
    assert all(answer.keys() - {"source", "id", "prefix", "required", "text", "n"} == written for answer in out)
    for answer in out[2:]:
        assert [answer["translation"], answer["score"], answer["n_best"], answer["tokens"]] == ["", None, [], []]
    assert out[0]["translation"].startswith("Der")
    assert "Häuser" in out[1]["translation"]
    for answer in out[:2]:
        assert [len(answer["n_best"]), answer["n_best"][0]["translation"]] == [2, answer["translation"]]
        assert answer["score"] == answer["n_best"][0]["score"] >= answer["n_best"][1]["score"]
        assert answer["tokens"][-1]["piece"] == "</s>"
        assert all("-" in link for link in answer["alignment"].split())
    assert not any(answer["refused"] for answer in out[:3])
    assert all(answer["refused"].endswith("not translated") for answer in out[3:])


def test_workers_answer_as_one_process_does(script, trained_folder, tmp_path):
    lines = [SOURCES[i % 12] if i % 5 else "" for i in range(700)]  # more than one share
    (tmp_path / "in.txt").write_text("\n".join([*lines, "caf"]) + "\n", encoding="utf-8")
    alone, together = (
        run(script, trained_folder, f"input={tmp_path / 'in.txt'}", f"workers={workers}", "search.max_length=3")
        for workers in (1, 2))
    assert together.returncode == 0, together.stderr
    assert together.stdout == alone.stdout
    assert together.stdout.count(b"\n") == 701


def test_more_workers_than_cores_are_not_started(monkeypatch, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    monkeypatch.setattr("translator.inference.files.answering", lambda make, *, workers, remedy: nullcontext(workers))
    job = Job((), "cpu", "fp32", search_config(), details=False)
    for workers, told in ((1000, "workers=1000: only 3 are started, one for each core\n"), (3, "")):
        with ready(job, workers=workers) as started:
            assert started == 3
        assert capsys.readouterr().err == told


def test_given_translations_are_scored_instead(script, trained_folder, translator, tmp_path):
    (tmp_path / "en.txt").write_text("\n".join(SOURCES[:3]) + "\n", encoding="utf-8")
    targets = [target for _, target in PAIRS[:3]]
    (tmp_path / "de.txt").write_text("\n".join(targets) + "\n", encoding="utf-8")
    files = (f"input={tmp_path / 'en.txt'}", f"translations={tmp_path / 'de.txt'}")
    result = run(script, trained_folder, *files)
    expected = [details.score for details in translator.details(SOURCES[:3], targets)]
    assert [float(line) for line in result.stdout.split()] == pytest.approx(expected, abs=1e-4)
    objects = [json.loads(line) for line in run(script, trained_folder, *files, "output_format=jsonl").stdout.splitlines()]
    assert [o["translation"] for o in objects] == targets
    plain = run(script, trained_folder, *files, "search.length_penalty=0")
    assert [float(line) for line in plain.stdout.split()] == pytest.approx(
        [sum(details.log_probabilities) for details in translator.details(SOURCES[:3], targets)], abs=1e-4)
    (tmp_path / "de.jsonl").write_bytes(run(script, trained_folder, *files, "output_format=jsonl").stdout)
    again = run(script, trained_folder, files[0], f"translations={tmp_path / 'de.jsonl'}")
    assert again.stdout == result.stdout
    (tmp_path / "bad.jsonl").write_text('{"translation": 1}\n[]\n{"translation": "", "translation": ""}\n')
    unread = run(script, trained_folder, files[0], f"translations={tmp_path / 'bad.jsonl'}")
    assert [line.partition(":")[2].partition(";")[0] for line in unread.stderr.decode().splitlines()] == [
        ' translation: no text in "translation"', " translation: not a JSON object",
        " translation: not JSON: a name is given twice"]
    assert_user_error(run(script, trained_folder, *files, "search.prefix=Das"), "search.prefix=Das", "given")
    assert_user_error(run(script, trained_folder, *files, "search.repetition_penalty=2"), "search.repetition_penalty", "given")
    assert_user_error(run(script, trained_folder, *files, "details=true"), "details", "jsonl")
    (tmp_path / "de.txt").write_bytes(targets[0].encode() + b"\n\xff\n")
    short = run(script, trained_folder, *files)
    assert short.returncode == 2
    assert b"line 2: translation: not UTF-8 at byte 1; not scored" in short.stderr
    assert b"de.txt: ends before line 3" in short.stderr
    assert [bool(line) for line in short.stdout.split(b"\n")] == [True, False, False]
    partial = tmp_path / "scores.txt.partial"
    run(script, trained_folder, *files, f"output={tmp_path / 'scores.txt'}")
    assert partial.read_bytes() == short.stdout
    partial.write_bytes(short.stdout[:-4])
    resumed = run(script, trained_folder, *files, f"output={tmp_path / 'scores.txt'}")
    assert partial.read_bytes() == short.stdout
    assert b"ends before line 3" in resumed.stderr


def test_own_answers_are_scored_by_their_tokens(script, trained_folder, translator, tmp_path):
    """A text has other spellings than the one that was found, and a line of two sentences was found as two."""
    sampled = ("search.sampling=true", "search.temperature=3", "search.beam_size=1", "search.max_length=9", "details=true")
    lines = [*SOURCES[:6], " ".join(SOURCES[:2]), ""]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = (f"input={tmp_path / 'in.txt'}", f"output={tmp_path / 'out.jsonl'}")
    assert script("translate", f"run={trained_folder}", "device=cpu", *files, *sampled).returncode == 0
    found = list(map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()))
    tokenizer = translator.target_tokenizer
    assert any(tokenizer.pieces(tokenizer.encode([a["translation"]])[0]) != [t["piece"] for t in a["tokens"]] for a in found)
    assert [token["piece"] for token in found[6]["tokens"]].count("</s>") == 2
    scores = run(script, trained_folder, files[0], f"translations={tmp_path / 'out.jsonl'}").stdout.decode().splitlines()
    assert list(map(float, scores[:7])) == pytest.approx([answer["score"] for answer in found[:7]], abs=1e-4)
    for answer in found:  # an edited text is scored as it now stands
        answer["translation"] = "Sie sieht drei Bäume."
    (tmp_path / "edited.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n", encoding="utf-8")
    scores = run(script, trained_folder, files[0], f"translations={tmp_path / 'edited.jsonl'}").stdout.decode().splitlines()
    expected = [details.score for details in translator.details(lines, ["Sie sieht drei Bäume."] * 8)]
    assert list(map(float, scores)) == pytest.approx(expected, abs=1e-4)


def test_several_runs_on_the_command_line(script, trained_folder, translator):
    result = script("translate", f"run=[{trained_folder},{trained_folder}]", "device=cpu", *SHORT, stdin=SOURCES[0].encode())
    short = search_config(max_length=8, beam_size=2, max_source_tokens=1024)
    assert result.stdout.decode().strip() == translator([SOURCES[0]], short)[0]


@pytest.mark.parametrize(("option", "words"), [
    ("search.groups=3", ["search.groups", "divide"]), ("search.top_p=0", ["search.top_p"]), ("workers=0", ["workers"]),
    ("search.temperature=0", ["search.temperature"]), ("search.repetition_penalty=0.5", ["search.repetition_penalty"]),
    ("search.terminology=/nowhere", ["search.terminology=/nowhere"]), ("translations=/nowhere", ["/nowhere"]),
    ("precision=int4", ["precision", "int8"]), ("workers=2", ["workers", "input=FILE"]),
    ("search.top_k=5", ["search.top_k", "search.sampling=true"]), ("search.temperature=0.5", ["search.sampling=true"]),
    ("search.mbr=chrf search.beam_size=1", ["search.mbr", "search.beam_size"]), ("details=true", ["details", "jsonl"]),
    ("search.min_length=9", ["search.min_length", "search.max_length"]),
    ("search.terminology=/dev/null", ["search.terminology=/dev/null", "regular"]),
    ("search.required=['']", ["search.required", "empty phrase"])])
def test_mistakes_are_one_line(script, trained_folder, option, words):
    assert_user_error(run(script, trained_folder, *option.split(), stdin=b"x\n"), *words)


def test_a_terminal_gets_a_prompt_with_history(trained_folder, translator):
    short = search_config(max_length=8, beam_size=2, max_source_tokens=1024)
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/translate.py", f"run={trained_folder}", "device=cpu", *SHORT], cwd=ROOT, stdin=child,
        stdout=child, stderr=subprocess.DEVNULL, env=os.environ | {"TERM": "dumb"})
    os.close(child)

    unread = ""

    def until(text: str) -> str:
        nonlocal unread
        end = time.monotonic() + 60
        while text not in unread and time.monotonic() < end:
            if select.select([parent], [], [], 0.2)[0]:
                unread += os.read(parent, 4096).decode(errors="replace")
        before, found, unread = unread.partition(text)
        assert found, before
        return before

    expected = translator([SOURCES[0]], short)[0]
    until("> ")
    os.write(parent, SOURCES[0].encode() + b"\n")
    until(expected)
    until("> ")
    os.write(parent, b"\x1b[A\n")  # the arrow up brings the line again
    assert SOURCES[0] in until(expected)
    until("> ")
    os.write(parent, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(parent)


@pytest.mark.parametrize("terminal", ["stderr", "both", "neither"])
def test_progress_bar_shows_only_on_a_terminal(trained_folder, translator, tmp_path, terminal):
    (tmp_path / "in.txt").write_text("\n".join(SOURCES[:4]) + "\n", encoding="utf-8")
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/translate.py", f"run={trained_folder}", "device=cpu", f"input={tmp_path / 'in.txt'}",
         *SHORT], cwd=ROOT,
        stdout=child if terminal == "both" else subprocess.PIPE, stderr=subprocess.PIPE if terminal == "neither" else child)
    os.close(child)
    piped, errors = process.communicate(timeout=120)
    shown = ""
    with suppress(OSError):  # how a pseudo-terminal ends
        while data := os.read(parent, 4096):
            shown += data.decode(errors="replace")
    os.close(parent)
    assert process.returncode == 0
    short = search_config(max_length=8, beam_size=2, max_source_tokens=1024)
    expected = translator(SOURCES[:4], short)
    if terminal == "both":
        assert [line for line in shown.splitlines() if "longest length" not in line] == expected
        return
    assert piped.decode().splitlines() == expected
    if terminal == "stderr":
        assert re.search(r"translating: 100%.*\[\d\d:\d\d<\d\d:\d\d", shown)
    else:
        assert b"translating" not in errors
