from __future__ import annotations

import os
from typing import get_args

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from translator.config.options import MetricName
from translator.metrics import scores as module
from translator.metrics.metric import METRICS
from translator.metrics.scores import (
    LENGTH_BOUNDS,
    Comparison,
    LengthScore,
    Score,
    better,
    metrics_for,
    paired_bootstrap,
    scores_by_length,
    validation_metrics,
)
from translator.metrics.sentences import SentenceMetric, pairwise_scores, sentence_scores
from translator.runtime.errors import UserError

REFERENCES = [f"Der {adjective} Hund läuft {n} Mal um das Haus." for adjective in ("große", "kleine") for n in range(20)]
CLOSE = [text.replace("läuft", "rennt") for text in REFERENCES]
FAR = [" ".join(reversed(text.split())) for text in REFERENCES]


def score(hypotheses: list[str], references: list[str], language: str) -> dict[str, Score]:
    return module.score(metrics_for(references, language), references, hypotheses, references)


def bootstrap(systems: list[tuple[str, list[str]]], references: list[str], language: str) -> list[Comparison]:
    return paired_bootstrap(metrics_for(references, language).values(), systems, references, references)


def by_length(sources: list[str], hypotheses: list[str], references: list[str], language: str = "de") -> list[LengthScore]:
    return scores_by_length(METRICS["bleu"](language), sources, hypotheses, references)


def test_every_metric_name_has_a_class() -> None:
    assert tuple(METRICS) == get_args(MetricName)


def test_scores_are_sacrebleu_s_own() -> None:
    scores = score(CLOSE, REFERENCES, "de")
    assert list(scores) == ["bleu", "chrf", "ter"]
    assert scores["bleu"].value == sacrebleu.corpus_bleu(CLOSE, [REFERENCES]).score
    assert scores["chrf"].value == sacrebleu.corpus_chrf(CLOSE, [REFERENCES]).score
    assert scores["ter"].value == sacrebleu.corpus_ter(CLOSE, [REFERENCES]).score


def test_the_closest_of_several_references_counts() -> None:
    several, outputs = (REFERENCES, FAR), CLOSE[:20] + FAR[20:]
    scores = module.score(metrics_for(REFERENCES, "de", ["bleu", "chrf", "ter", "exact"]), REFERENCES, outputs, *several)
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        assert scores[name].value == metric.corpus_score(outputs, several).score
        assert scores[name].signature == str(metric.get_signature())
    assert scores["exact"].value == 50


def test_of_long_texts_ter_is_had_only_for_the_asking() -> None:
    long = [" ".join(REFERENCES[i : i + 6]) for i in range(3)]
    assert list(score(long, long, "de")) == ["bleu", "chrf"]
    assert {row.metric for row in bootstrap([("a", long), ("b", long)], long, "de")} == {"BLEU", "chrF2"}
    assert list(validation_metrics(long, "de", ["bleu"])) == ["bleu", "chrf"]
    assert list(validation_metrics(long, "de", ["ter"])) == ["bleu", "chrf", "ter"]


def test_classes_are_scored_by_the_share_of_exact_outputs() -> None:
    classes, outputs = ["yes", "no", "not sure", "no"], ["yes", "yes", "not  sure", "no"]
    scores = score(outputs, classes, "en")
    assert list(scores) == ["exact", "chrf", "ter"]
    assert scores["exact"].value == 75
    assert list(validation_metrics(classes, "en", ["exact"])) == ["exact", "chrf"]
    exact = metrics_for(classes, "en", ["exact"]).values()
    [_, row] = paired_bootstrap(exact, [("a", classes), ("b", outputs)], classes, classes)
    assert (row.metric, row.value) == ("exact", 75)


def test_named_metrics_are_the_only_ones_of_an_evaluation() -> None:
    metrics = metrics_for(REFERENCES, "de", ["ter", "chrf++"])
    scores = module.score(metrics, REFERENCES, CLOSE, REFERENCES)
    assert list(scores) == ["ter", "chrf++"]
    assert scores["chrf++"].value == sacrebleu.corpus_chrf(CLOSE, [REFERENCES], word_order=2).score
    assert "nw:2" in scores["chrf++"].signature


def test_spbleu_counts_the_pieces_of_its_tokenizer(tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"spbleu: its tokenizer could not be loaded.*Check the network, or copy"):
        metrics_for(REFERENCES, "de", ["spbleu"])
    model = tmp_path / "models" / "flores200sacrebleuspm"
    model.parent.mkdir(exist_ok=True)
    tokenizer.save(model)  # stands for the one that is downloaded
    pieces = [[" ".join(tokenizer.spell(text)) for text in texts] for texts in (CLOSE, REFERENCES)]
    expected = sacrebleu.corpus_bleu(pieces[0], [pieces[1]], tokenize="none").score
    scores = module.score(metrics_for(REFERENCES, "de", ["spbleu"]), REFERENCES, CLOSE, REFERENCES)
    assert scores["spbleu"].value == pytest.approx(expected)
    assert "tok:flores200" in scores["spbleu"].signature


COMET = """#!/usr/bin/env python3
import json, sys
source, hypothesis, reference = (open(sys.argv[sys.argv.index(name) + 1]).read().splitlines() for name in ("-s", "-t", "-r"))
if source[0] == "fail":
    sys.exit("no such model")
rows = [{"COMET": (h == r) - len(s) / 1000} for s, h, r in zip(source, hypothesis, reference)]
json.dump({"hypothesis": rows}, open(sys.argv[sys.argv.index("--to_json") + 1], "w"))
"""


def test_comet_takes_the_scores_of_its_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match="comet-score was not found"):  # before anything is translated
        metrics_for(REFERENCES, "de", ["comet"])
    command = tmp_path / "comet-score"
    command.write_text(COMET)  # stands for the one of unbabel-comet
    command.chmod(0o755)
    [comet] = metrics_for(REFERENCES, "de", ["comet"]).values()
    total = comet.statistics(["aa", "bbbb"], ["x", "y\nz"], ["x", "y"]).sum(0)
    assert comet.value(total) == pytest.approx(100 * (1 - 0.006) / 2)
    with pytest.raises(UserError, match="comet-score failed: no such model"):
        comet.statistics(["fail"], ["b"], ["c"])
    command.unlink()
    assert comet.statistics(["aa", "bbbb"], ["x", "y\nz"], ["x", "y"]).sum(0).tolist() == total.tolist()  # not computed again


@pytest.mark.parametrize(("language", "tokenizer"), [
    ("zh", "zh"), ("zh_CN", "zh"), ("zho-Hans", "zh"), ("th", "char"), ("de", "13a"), ("", "13a"), ("target", "13a"),
    ("my_answer", "13a"), ("lo_text", "13a")])
def test_words_are_those_of_the_language(language: str, tokenizer: str) -> None:
    close, references = [f"我们在{n}点见。" for n in range(20)], [f"我们在{n}点走。" for n in range(20)]
    bleu = score(close, references, language)["bleu"]
    assert f"tok:{tokenizer}|" in bleu.signature
    theirs = sacrebleu.corpus_bleu(close, [references], tokenize=tokenizer).score
    assert bleu.value == theirs
    assert (theirs > 40) is (tokenizer != "13a")  # to 13a a sentence is one word, and a wrong one
    assert bootstrap([("a", references), ("b", close)], references, language)[1].value == theirs
    parts = by_length(close, close, references, language)
    assert [part.value for part in parts] == [theirs]


def test_japanese_is_scored_by_words_or_else_by_characters() -> None:
    try:
        tokenizer = sacrebleu.BLEU(tokenize="ja-mecab").tokenizer_signature
    except RuntimeError:
        tokenizer = "char"
    scores = score(["私は学生です。"], ["私は先生です。"], "ja")
    assert f"tok:{tokenizer}|" in scores["bleu"].signature
    assert scores["ter"].value < 100  # as a single word, it would be 100


def test_signatures_say_how_a_score_was_made() -> None:
    for value in score(CLOSE, REFERENCES, "de").values():
        assert "nrefs:1" in value.signature
        assert f"version:{sacrebleu.__version__}" in value.signature


def test_a_perfect_output_has_perfect_scores() -> None:
    assert [round(value.value, 6) for value in score(REFERENCES, REFERENCES, "de").values()] == [100, 100, 0]


def test_no_sentences_have_no_score() -> None:
    with pytest.raises(ValueError, match="no sentences"):
        score([], [], "de")


@pytest.mark.parametrize(("metric", "high_wins"), [("bleu", True), ("chrf", True), ("ter", False), ("loss", False)])
def test_which_way_is_better(metric: str, high_wins: bool) -> None:
    assert better(metric, 2.0, 1.0) is high_wins
    assert better(metric, 1.0, 2.0) is not high_wins
    assert not better(metric, 1.0, 1.0)


def test_each_sentence_falls_into_the_group_of_its_length() -> None:
    lengths = [0, 1, *(bound + i for bound in LENGTH_BOUNDS for i in (0, 1)), 300]
    texts = [" ".join(["x"] * length) for length in lengths]
    parts = by_length(texts, texts, texts)
    assert sum(part.count for part in parts) == len(texts)
    assert (parts[0].lengths, parts[0].count) == ("1 to 5", 3)
    assert (parts[1].lengths, parts[1].count) == ("6 to 10", 2)
    assert (parts[-1].lengths, parts[-1].count) == ("over 50", 2)


def test_groups_are_scored_by_themselves_and_empty_ones_left_out() -> None:
    short, long = "one two three four", " ".join(["word"] * 25)
    parts = by_length([short, long], [short, "wrong"], [short, long])
    assert [(part.lengths, part.count) for part in parts] == [("1 to 5", 1), ("21 to 30", 1)]
    assert parts[0].value == pytest.approx(100)
    assert parts[1].value < 1


def test_without_spaces_between_words_letters_count() -> None:
    sources = ["私は昨日図書館で本を読みました。", "ผมอ่านหนังสือ", "Tokyo 東京", " "]
    parts = by_length(sources, sources, sources)
    assert [(part.lengths, part.count) for part in parts] == [("1 to 5", 2), ("11 to 15", 1), ("16 to 20", 1)]


def test_sentence_chrf_ranks_bad_below_good() -> None:
    bad, worse, good = sentence_scores("chrf", ["Hauz", "", "Haus"], "Haus")
    assert worse < bad < good == 100


@pytest.mark.parametrize("texts", [
    [""], ["a b c d"], ["", "a", "ab", "a a a a a", "a a a", "Der Hund, der bellt.", "der Hund bellt", " ", *CLOSE, *FAR]])
@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_scores_of_all_pairs_at_once_are_those_of_each(metric: SentenceMetric, texts: list[str]) -> None:
    of_each = [sentence_scores(metric, texts, reference) for reference in texts]
    assert pairwise_scores(metric, texts).T.tolist() == of_each


def test_bootstrap_tells_a_real_difference_from_none() -> None:
    rows = {(row.metric, row.system): row for row in bootstrap(
        [("base", CLOSE), ("same", list(CLOSE)), ("worse", FAR)], REFERENCES, "de")}
    assert len(rows) == 9
    for value in score(CLOSE, REFERENCES, "de").values():
        base, same, worse = (rows[value.name, system] for system in ("base", "same", "worse"))
        assert base.value == same.value == value.value
        assert (base.p_value, same.p_value) == (None, 1)
        assert worse.p_value is not None
        assert worse.p_value < 0.01


def test_bootstrap_repeats_itself() -> None:
    systems = [("a", CLOSE), ("b", FAR)]
    assert bootstrap(systems, REFERENCES, "de") == bootstrap(systems, REFERENCES, "de")


def test_bootstrap_figures_are_sacrebleu_s_own() -> None:
    mixed = [*FAR[:10], *CLOSE[10:]]
    systems = [("base", CLOSE), ("mixed", mixed), ("worse", FAR)]
    metrics = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}
    theirs = PairedTest(systems, metrics, [REFERENCES], test_type="bs", n_samples=1000)()[1]
    for row in bootstrap(systems, REFERENCES, "de"):
        result = theirs[row.metric][theirs["System"].index(row.system)]
        assert (row.value, row.mean, row.interval, row.p_value) == (result.score, result.mean, result.ci, result.p_value)
