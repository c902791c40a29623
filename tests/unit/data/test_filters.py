"""Each filter drops the noise it is for and keeps what looks like it, however the rows are read; off, it changes nothing."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice

import pytest
from datasets import Dataset

from tests.support.configurations import composed, run_config
from tests.support.corpora import PAIRS, cleaned, data_config, pairs_of, write_pairs
from tests.support.paths import SHARED_DATASETS
from translator.config.building import from_hydra
from translator.config.commands import DataReportConfig
from translator.config.corpora import as_corpus
from translator.config.data import DataConfig
from translator.config.named_corpus import NamedCorpusOptions
from translator.config.synthetic import SyntheticOptions
from translator.data import cleaning, preparation
from translator.data.cleaning import Counts, HeldOut
from translator.data.filters import RULES, noise
from translator.data.preparation import load_split
from translator.data.report import describe_data
from translator.data.sources import windows
from translator.runtime.errors import UserError
from translator.runtime.process_pool import alone

ENGLISH = "The committee will discuss the new proposal tomorrow morning."
GERMAN = "Der Ausschuss wird den neuen Vorschlag morgen früh besprechen."
NOISE = {
    "target equals source": ("We are going home.", "We are going home."),
    "numbers differ": ("It costs 25 euros.", "Es kostet 35 Euro."),
    "addresses differ": ("Write to ann@mill.test today.", "Schreib noch heute an bob@mill.test."),
    "markup": ("Press <b>Start</b> now.", "Jetzt Start drücken."),
    "repetition": ("We wait for the others at the mill.", "Wir warten warten warten warten warten warten."),
    "few letters": ("The prices are below.", "---- | ---- | ----"),
    "wrong language": (ENGLISH, "Le comité va discuter de la nouvelle proposition demain matin.")}
LOOK_ALIKES = [
    ("Anna Maria Schmidt", "Anna Maria Schmidt"), ("BMW 320", "BMW 320"), ("Bank of America", "Bank of America"), ("ok", "OK"),
    ("It costs 1,000.5 dollars.", "Es kostet 1.000,5 Dollar."), ("They sold 12 000 pens.", "Sie verkauften 12.000 Stifte."),
    ("I have 3 cats.", "Ich habe drei Katzen."), ("She has two dogs and 25 birds.", "Sie hat 2 Hunde und 25 Vögel."),
    ("We meet at 3 p.m.", "Wir treffen uns um 15 Uhr."), ("a 19th century house", "ett hus från 1800-talet"),
    ("Music of the 1990s", "Musik der 90er"), ("120 million people", "1億2000万人"), ("1.2 million rupees", "12 lakh rupees"),
    ("It is the year 1995.", "यह वर्ष १९९५ है।"), ("Go to www.mill.test/en now.", "Jetzt auf https://www.mill.test/de gehen."),
    ("Mail ann@mill.test.", "Mail an Ann@mill.test."), ("Tom & Jerry; a < b > c", "Tom und Jerry; a < b > c"),
    ("<b>Stop!</b>", "<b>Halt!</b>"), ("Ha ha ha ha ha ha ha!", "¡Ja ja ja ja ja ja ja!"),
    ("10000000 stars", "zehn Millionen Sterne"),
    ("Please wait ........", "Bitte warten …"), ("7:45 - 9:30", "7:45 - 9:30"), ("नमस्ते, आप कैसे हैं?", "Hello, how are you?"),
    ("你好！你好吗？（很好）", "Hello! How are you? (Fine.)"), ("Hello there.", "Bonjour."), (ENGLISH, GERMAN)]


@cache
def options(target: str = "de") -> DataConfig:
    """The defaults of conf/."""
    return run_config("data=files", "data.train=x", f"data.target={target}").data


def all_on(**changes: object) -> DataConfig:
    """The defaults of conf/, with every rule on."""
    return dataclasses.replace(options(), foreign_odds=10.0, **changes)


def test_each_rule_drops_its_noise_and_is_off_by_default():
    assert list(NOISE) == [rule.cause for rule in RULES]
    assert noise(list(NOISE.values()), all_on()) == list(NOISE)
    assert not any(noise(list(NOISE.values()), data_config()))
    for rule in RULES:
        value = getattr(all_on(), rule.option)
        assert noise([NOISE[rule.cause]], data_config(**{rule.option: value})) == [rule.cause]


def test_look_alikes_are_kept_in_both_directions():
    pairs = [pair for look_alike in LOOK_ALIKES for pair in (look_alike, look_alike[::-1])]
    assert [(pair, cause) for pair, cause in zip(pairs, noise(pairs, options()), strict=True) if cause] == []


def test_strict_drops_what_a_side_lacks():
    pairs = [("I have 3 cats.", "Ich habe drei Katzen."), ("<b>Stop!</b>", "<b>Halt!</b>"), ("A &amp; B", "A &amp; B")]
    assert noise(pairs, data_config(match_numbers="strict", match_markup="strict")) == ["numbers differ", "markup", "markup"]


def test_a_tag_is_no_text_and_names_the_language():
    config = all_on(source="en+de+fr", target="en+de+fr", match_numbers="strict")
    texts = {"de": GERMAN, "fr": NOISE["wrong language"][1]}
    assert noise([(f">>{tag}<< {ENGLISH}", text) for tag in texts for text in texts.values()], config) == [
        "", "wrong language", "wrong language", ""]
    copied = "We are going home."
    assert noise([(f">>de<< {copied}", copied)], config) == ["target equals source"]
    assert noise([(">>l2<< Go home.", "Geh heim.")], all_on(target="l2+l3", match_numbers="strict")) == [""]


def test_names_that_are_no_codes_have_no_wrong_language():
    assert noise([NOISE["wrong language"]], all_on(source="document", target="summary")) == [""]


@pytest.mark.parametrize(("file", "target"), [
    ("tatoeba-2018/en-de.train", "de"), ("tatoeba-2018/en-fr.train", "fr"), ("tatoeba-2018/en-es.train", "es"),
    ("multi30k/train", "de"), ("multi30k/train", "cs")])
def test_clean_corpora_lose_under_half_a_percent(file, target):
    path = SHARED_DATASETS / f"{file}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"../shared/datasets/{file}.jsonl.gz is not here")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 0, None, 10)]
    causes = noise([(row["en"], row[target]) for row in rows], options(target))
    for rule in RULES:
        assert causes.count(rule.cause) < 0.005 * len(causes), rule.cause


def each_elsewhere(make: Callable[[], Callable[[object], object]], questions: Iterable[object]) -> Iterator[object]:
    """Answer each question by a filter that crossed a pipe, as one of many workers would."""
    for question in questions:
        yield pickle.loads(pickle.dumps(make))()(question)


def test_workers_and_windows_drop_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "READ_ROWS", 40)
    pairs = [*PAIRS, *NOISE.values()]
    config = all_on(train=str(write_pairs(tmp_path / "train.tsv", pairs * 2)), validation="x", test="x")
    rows = Dataset.from_list([{"source": source, "target": target} for source, target in pairs])
    counts = [Counts(), Counts()]
    for count, how in zip(counts, (alone, each_elsewhere), strict=True):
        section = cleaning.Section(rows, as_corpus(config), count)
        assert sum(map(len, cleaning.clean([section], HeldOut(config), in_order=how))) == len(PAIRS)
    assert vars(counts[0]) == vars(counts[1])
    assert counts[0].dropped == dict.fromkeys(NOISE, 1)
    stream, window = windows(dataclasses.replace(config, window=len(rows)), 0), Counts()
    for _ in range(2):
        assert len(cleaned(next(stream), config, HeldOut(config), window)) == len(PAIRS)
    assert window.dropped == dict.fromkeys(NOISE, 2)


def test_cut_splits_hold_no_noise(tmp_path):
    noisy = [(f"{n} {source}", f"{n} {target}") for n in range(60) for source, target in [NOISE["markup"]]]
    file = write_pairs(tmp_path / "x.tsv", [*PAIRS, *noisy])
    config = data_config(tmp_path / "cache", train=str(file), match_markup="lenient")
    for split in ("validation", "test"):
        assert len(load_split(config, split)) == 5
        assert set(pairs_of(load_split(config, split))) <= set(PAIRS)


def test_rules_that_are_off_leave_the_cache_key_as_it_was(tmp_path):
    config = data_config(tmp_path / "cache", train=str(write_pairs(tmp_path / "x.tsv", PAIRS)))
    younger = {"corpora", "temperature", "score", "min_score", "context", *vars(SyntheticOptions()),
               *vars(NamedCorpusOptions()), *(rule.option for rule in RULES)}
    before = {name: value for name, value in dataclasses.asdict(config).items()
              if name not in {"cache", "workers", "augment", *younger}}
    folder = preparation.clean_splits(config)
    assert folder.name == f"__text-{preparation.cache_key(before, preparation.identity(config))}"
    for option, value in ((rule.option, getattr(all_on(), rule.option)) for rule in RULES):
        assert preparation.clean_splits(dataclasses.replace(config, **{option: value})) != folder


def test_the_report_shows_counts_and_examples_by_cause(tmp_path):
    file = write_pairs(tmp_path / "x.tsv", [*PAIRS, PAIRS[0], *NOISE.values()])
    config = all_on(train=str(file), holdout=5, cache=str(tmp_path / "cache"))
    text = describe_data(config)
    for rule in RULES:
        value = str(getattr(config, rule.option)).lower()
        assert f"\n  1 dropped: {rule.cause} (data.{rule.option}={value})\n    {NOISE[rule.cause][0]}\n" in text
    assert "\n  1 dropped: duplicate\n" in text
    assert all(f"1 {cause}" in text.splitlines()[0] for cause in NOISE)


def test_the_report_takes_the_options_of_a_training():
    config = from_hydra(DataReportConfig, composed("data_report", "data=files", "data.train=pairs.tsv"))
    assert config.data == dataclasses.replace(options(), train="pairs.tsv")
    with pytest.raises(UserError, match=r"data.match_numbers: must be 'lenient' or 'strict'"):
        from_hydra(DataReportConfig, composed("data_report", "data.match_numbers=much"))


def test_no_text_is_too_odd_to_judge():
    odd = [("", "a"), ("a" * 3000, "1" * 9000), ("<" * 500, "&" * 500), ("@@@ www. http://", "&;<>"), ("٣" * 40, "⁵½" * 30)]
    assert len(noise(odd, all_on())) == len(odd)
