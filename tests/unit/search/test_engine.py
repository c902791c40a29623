from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest
import torch

from tests.support.configurations import model_config, search_config
from tests.support.models import random_model
from tests.support.table_models import (
    EXHAUSTIVE,
    LIMIT,
    VOCAB,
    Prefix,
    Toy,
    brute_force,
    constant_toy,
    ids_of,
    random_toy,
    search,
    sources,
    toy_config,
)
from translator.config.options import SearchConfig
from translator.data.batching import pad
from translator.search.engine import NEVER, _Beams
from translator.search.hypothesis import length_limits
from translator.search.scoring import LENGTH_PENALTIES, length_penalty
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("n_best", [1, 4])
@pytest.mark.parametrize("min_length", [0, 2])
@pytest.mark.parametrize("form", ["gnmt", "power"])
def test_a_wide_beam_finds_what_trying_every_output_finds(alpha: float, n_best: int, min_length: int, form: str) -> None:
    for seed in range(6):
        toy = random_toy(seed)
        config = toy_config(
            beam_size=EXHAUSTIVE, n_best=n_best, length_penalty=alpha, length_penalty_form=form, min_length=min_length)
        for source, found in zip((4, 5, 6), search(toy, sources(4, 5, 6), config), strict=True):
            best = brute_force(toy, source, alpha, min_length, form)[:n_best]
            assert [h.ids for h in found] == [ids for _, ids in best]
            assert [h.score for h in found] == pytest.approx([score for score, _ in best], abs=1e-4)


def test_all_outputs_come_when_all_are_asked_for() -> None:
    toy = random_toy(1)
    [found] = search(toy, sources(4), toy_config(beam_size=EXHAUSTIVE, n_best=EXHAUSTIVE))
    assert [h.ids for h in found] == [ids for _, ids in brute_force(toy, 4, 1.0)]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_stopping_early_loses_nothing(alpha: float) -> None:
    """A search for as many outputs as it has places goes on to the end: it must not find a better one."""
    early = 0
    for seed in range(20):
        impatient, patient = random_toy(seed), random_toy(seed)
        config = {"beam_size": 5, "length_penalty": alpha}
        [first] = search(impatient, sources(4), toy_config(**config, n_best=1))
        [all_five] = search(patient, sources(4), toy_config(**config, n_best=5))
        assert first[0] == all_five[0]
        early += impatient.steps < patient.steps
    assert early


def test_search_continues_while_a_longer_output_could_win() -> None:
    """A strong length penalty lets a first token of probability 0.1, then certain ones, overtake an end of probability 0.5."""
    first, later, last = torch.full((VOCAB,), 0.001), torch.full((VOCAB,), 1e-9), torch.full((VOCAB,), 1e-9)
    first[EOS_ID], first[4], later[4], last[EOS_ID] = 0.5, 0.1, 1.0, 1.0
    by_length = {1: first.log(), LIMIT + 1: last.log()}
    toy = Toy(lambda source, prefix: by_length.get(len(prefix), later.log()))
    [[best]] = search(toy, sources(4), toy_config(beam_size=2, length_penalty=5.0))
    assert best.ids == (4,) * LIMIT


def test_a_finished_output_takes_its_place_for_good() -> None:
    """Of two places the end takes one. Then 4 4 takes the other, so 4 5 is lost, though it would win the second rank."""
    first, second = torch.tensor([0, 0, 0, 0.6, 0.4, 0, 0]), torch.tensor([0, 0, 0, 0, 0.51, 0.49, 0])
    ends, goes_on = torch.eye(VOCAB)[EOS_ID] * 50, torch.zeros(VOCAB)

    def logits(source: int, prefix: Prefix) -> torch.Tensor:
        if len(prefix) < 3:
            return (first if len(prefix) == 1 else second).log()
        return ends if prefix[2] == 5 else goes_on

    config = {"length_penalty": 0.0, "n_best": 2}
    [narrow] = search(Toy(logits), sources(4), toy_config(beam_size=2, **config))
    [wide] = search(Toy(logits), sources(4), toy_config(beam_size=3, **config))
    assert narrow[0].ids == wide[0].ids == ()
    assert narrow[1].ids[:2] == (4, 4)
    assert wide[1].ids == (4, 5)


def plain_beams(
    toy: Toy, source: int, beam_size: int, *, alpha: float = 0.0, awaited: float = float("inf")
) -> list[Prefix]:
    """Every output that beams whose places stay come upon, written as plainly as can be."""
    beams, found = [((BOS_ID,), 0.0)], []
    for _ in range(LIMIT + 1):
        candidates = []
        for prefix, total in beams:
            log_p = toy.table(source, prefix).log_softmax(-1)
            tokens = [EOS_ID] if len(prefix) > LIMIT else [t for t in range(len(log_p)) if t not in NEVER]
            candidates += [((*prefix, token), total + float(log_p[token])) for token in tokens]
        candidates.sort(key=lambda c: -c[1])
        found += [(prefix[1:-1], total) for prefix, total in candidates[:beam_size] if prefix[-1] == EOS_ID]
        beams = [candidate for candidate in candidates if candidate[0][-1] != EOS_ID][:beam_size]
        if len(found) >= awaited:
            break
    return [prefix for prefix, _ in sorted(found, key=lambda c: -c[1] / length_penalty(len(c[0]) + 1, "gnmt", alpha))]


@pytest.mark.parametrize("beam_size", [2, 3])
def test_places_stay_where_that_is_asked_for(beam_size: int) -> None:
    config = {"beam_size": beam_size, "n_best": beam_size, "length_penalty": 0.0}
    differ = 0
    for seed in range(30):
        [stay] = search(random_toy(seed), sources(4), toy_config(**config, keep_places=True))
        [narrow] = search(random_toy(seed), sources(4), toy_config(**config))
        assert [h.ids for h in stay] == plain_beams(random_toy(seed), 4, beam_size)[:beam_size]
        differ += stay != narrow
    assert differ


@pytest.mark.parametrize("look_every", [1, 8])  # 8 on a GPU
@pytest.mark.parametrize(("patience", "awaited"), [(0.1, 1), (0.5, 2), (1, 3)])
def test_patience_sets_how_many_hypotheses_must_finish(
    patience: float, awaited: int, look_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, differ = _Beams.__init__, 0

    def begin_looking(beams: _Beams, *arguments: Any, **options: Any) -> None:
        begin(beams, *arguments, **options)
        beams.look_every = look_every

    monkeypatch.setattr(_Beams, "__init__", begin_looking)
    for seed in range(30):
        config = toy_config(beam_size=3, length_penalty=2.0, keep_places=True)
        [all_found] = search(random_toy(seed), sources(4), config)
        [first] = search(random_toy(seed), sources(4), dataclasses.replace(config, patience=patience))
        assert first[0].ids == plain_beams(random_toy(seed), 4, 3, alpha=2.0, awaited=awaited)[0]
        differ += first != all_found
    assert differ


@pytest.mark.parametrize("beam_size", [2, 5])
def test_a_longer_n_best_list_starts_with_the_shorter_one(beam_size: int) -> None:
    for seed in range(10):
        lists = [
            search(random_toy(seed), sources(4, 5), toy_config(beam_size=beam_size, n_best=n)) for n in range(1, beam_size + 1)]
        for shorter, longer in pairwise(lists):
            assert all(b[: len(a)] == a for a, b in zip(shorter, longer, strict=True))


def test_n_best_lists_are_sorted_and_distinct() -> None:
    for seed in range(10):
        for found in search(random_toy(seed), sources(4, 5), toy_config(beam_size=6, n_best=6)):
            scores = [h.score for h in found]
            assert scores == sorted(scores, reverse=True)
            assert len({h.ids for h in found}) == len(found) > 1


def greedy(toy: Toy, source: int) -> Prefix:
    """The most probable token again and again, written as plainly as can be."""
    prefix: Prefix = (BOS_ID,)
    while len(prefix) - 1 < LIMIT:
        logits = toy.table(source, prefix).clone()
        logits[NEVER,] = -torch.inf
        token = int(logits.argmax())
        if token == EOS_ID:
            break
        prefix += (token,)
    return prefix[1:]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_beam_one_is_greedy(alpha: float) -> None:
    for seed in range(20):
        toy = random_toy(seed)
        for stay in (False, True):
            found = search(toy, sources(4, 5, 6), toy_config(beam_size=1, length_penalty=alpha, keep_places=stay))
            assert ids_of(found) == [[greedy(toy, source)] for source in (4, 5, 6)]


def test_a_beam_may_be_larger_than_the_vocabulary() -> None:
    for vocab in (5, 6):  # one word, two words
        [found] = search(random_toy(0, vocab=vocab), sources(4), toy_config(beam_size=50, n_best=50))
        assert len({h.ids for h in found}) == sum((vocab - 4) ** length for length in range(LIMIT + 1))


def test_an_output_may_end_at_once() -> None:
    [[best]] = search(constant_toy(t3=20.0), sources(4), toy_config())
    assert best.ids == ()
    assert not best.hit_limit
    assert best.log_probability == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_an_output_that_never_ends_is_ended_and_says_so(beam_size: int) -> None:
    [[best]] = search(constant_toy(t4=20.0), sources(5), toy_config(beam_size=beam_size, length_penalty=5.0))
    assert best.ids == (4,) * LIMIT
    assert best.hit_limit


def test_special_tokens_are_never_produced() -> None:
    toy = constant_toy(t0=20.0, t1=20.0, t2=20.0)
    for found in search(toy, sources(4), toy_config(beam_size=20, n_best=20)):
        assert not {token for h in found for token in h.ids} & {*NEVER, EOS_ID}


def test_outputs_keep_to_the_least_and_the_greatest_length() -> None:
    [found] = search(random_toy(3), sources(4), toy_config(beam_size=EXHAUSTIVE, n_best=EXHAUSTIVE, min_length=2, max_length=3))
    assert {len(h.ids) for h in found} == {2, 3}
    assert all(h.hit_limit == (len(h.ids) == 3) for h in found)


def test_the_greatest_length_wins_over_the_least() -> None:
    [[best]] = search(constant_toy(t4=9.0), sources(4), toy_config(min_length=10))
    assert len(best.ids) == LIMIT


def test_the_longest_output_follows_from_a_sentence_s_own_length() -> None:
    source = torch.tensor([[5, 5, 5, EOS_ID], [5, EOS_ID, PAD_ID, PAD_ID]])
    options = {"max_length_ratio": 1.5, "max_length_extra": 3}
    assert length_limits(source, search_config(**options))[1].tolist() == [9, 6]
    assert length_limits(source, search_config(**options, max_length=7))[1].tolist() == [7, 6]
    assert length_limits(source, search_config(**options, min_length=3, min_length_ratio=1))[0].tolist() == [4, 3]
    assert length_limits(source, search_config(**options, min_length=20))[0].tolist() == [9, 6]  # the greatest length wins


def test_every_length_penalty_option_has_a_function():
    assert set(get_args(get_type_hints(SearchConfig)["length_penalty_form"])) == set(LENGTH_PENALTIES)


def test_length_counts_eos_in_the_penalty() -> None:
    assert length_penalty(1, "gnmt", 1.0) == 1
    assert length_penalty(4, "power", 2.0) == 16
    for found in search(random_toy(2), sources(4), toy_config(n_best=4, length_penalty=0.7)):
        for h in found:
            assert h.score == pytest.approx(h.log_probability / ((5 + len(h.ids) + 1) / 6) ** 0.7)


def test_a_sentence_s_outputs_do_not_depend_on_the_others() -> None:
    toy, config = random_toy(5), toy_config(n_best=3)
    alone = [search(toy, sources(source), config)[0] for source in range(4, 12)]
    assert search(toy, sources(*range(4, 12)), config) == alone
    assert search(toy, sources(*reversed(range(4, 12))), config) == alone[::-1]


def test_finished_sentences_leave_the_batch() -> None:
    at_once, never = torch.zeros(VOCAB), torch.zeros(VOCAB)
    at_once[EOS_ID] = never[4] = 20.0
    toy = Toy(lambda source, prefix: at_once if source == 5 else never)
    search(toy, sources(5, 6, 5, 5), toy_config(beam_size=2))
    assert toy.most_sentences == [4, 1, 1, 1, 1]


def test_no_sentences_give_no_outputs() -> None:
    assert search(random_toy(0), torch.zeros(0, 2, dtype=torch.long), toy_config()) == []


@pytest.mark.parametrize("options", [
    {"beam_size": 1}, {"beam_size": 4}, {"beam_size": 20}, {"beam_size": 20, "keep_places": True},
    {"beam_size": 4, "groups": 2}, {"beam_size": 30, "sampling": True}, {"beam_size": 30, "sampling": True, "top_p": 0.9}])
def test_what_a_model_adds_to_its_vocabulary_changes_nothing(options: dict[str, Any]) -> None:
    toy, config = random_toy(5), toy_config(**options)
    added = torch.full((50,), -torch.inf)
    wider = Toy(lambda source, prefix: torch.cat([toy.table(source, prefix), added]))
    expected, found = search(toy, sources(4, 5), config), search(wider, sources(4, 5), config)
    assert ids_of(found) == ids_of(expected)
    scores, expected_scores = ([h.score for hypotheses in each for h in hypotheses] for each in (found, expected))
    assert scores == pytest.approx(expected_scores, abs=1e-5)


@pytest.mark.parametrize("drawn", [0.0, 1 - 2**-24])
def test_whatever_is_drawn_a_sample_has_some_probability(drawn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.full(size, drawn))
    toy, added = random_toy(5), torch.full((50,), -torch.inf)
    wider = Toy(lambda source, prefix: torch.cat([toy.table(source, prefix), added]))
    [[sample]] = search(wider, sources(4), toy_config(sampling=True, beam_size=1))
    assert sample.log_probability > -torch.inf


# The real model

SENTENCES = [[7, 9, 11, 5, EOS_ID], [8, EOS_ID], [30, 31, 32, 33, 34, 35, 36, 37, EOS_ID], [5, 6, EOS_ID], [EOS_ID]]


@pytest.mark.parametrize(("positions", "vocab"), [
    ("sinusoidal", 40), ("learned", 40), ("rotary", 40), ("relative", 40), ("sinusoidal", 5001)])
def test_scores_are_the_full_model_s_log_probabilities(positions: str, vocab: int) -> None:
    """Decoding with caches, reordered and thinned out, adds up to what one pass over the finished output gives."""
    model = random_model(model_config(positions=positions), vocab=vocab)
    with torch.no_grad():
        for sentence, found in zip(SENTENCES, search(model, pad(SENTENCES), search_config(n_best=4)), strict=True):
            for h in found:
                logits = model(torch.tensor([sentence]), torch.tensor([[BOS_ID, *h.ids]]))[0]
                expected = logits.log_softmax(-1)[torch.arange(len(h.ids) + 1), [*h.ids, EOS_ID]].sum()
                assert h.log_probability == pytest.approx(expected.item(), abs=1e-3)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_neighbours_order_and_padding_change_no_translation(beam_size: int) -> None:
    model, config = random_model(seed=3), search_config(beam_size=beam_size, n_best=beam_size)
    together = search(model, pad(SENTENCES), config)
    backwards = search(model, pad(SENTENCES[::-1]), config)[::-1]
    wider = search(model, torch.nn.functional.pad(pad(SENTENCES), (0, 9), value=PAD_ID), config)
    alone = [search(model, pad([sentence]), config)[0] for sentence in SENTENCES]
    assert ids_of(together) == ids_of(backwards) == ids_of(wider) == ids_of(alone)
    for a, b in zip(together, alone, strict=True):
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)


def test_greedy_search_with_a_model_is_argmax_of_the_full_pass() -> None:
    model, config = random_model(seed=1), search_config(beam_size=1)
    with torch.no_grad():
        for sentence, [best] in zip(SENTENCES, search(model, pad(SENTENCES), config), strict=True):
            ids: list[int] = []
            while len(ids) < 2 * len(sentence) + 5:
                logits = model(torch.tensor([sentence]), torch.tensor([[BOS_ID, *ids]]))[0, -1]
                logits[NEVER,] = -torch.inf
                if int(logits.argmax()) == EOS_ID:
                    break
                ids.append(int(logits.argmax()))
            assert best.ids == tuple(ids)
