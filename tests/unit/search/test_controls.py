"""What a search can be told: rules, demands, groups, sampling, ensembles, each against every possible output."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import model_config, run_config, search_config
from tests.support.models import random_model
from tests.support.table_models import (
    EXHAUSTIVE,
    LIMIT,
    VOCAB,
    WORDS,
    Prefix,
    Toy,
    best_of,
    constant_toy,
    every_output,
    ids_of,
    random_toy,
    search,
    sources,
    toy_config,
)
from translator.data.batching import pad
from translator.search import Demands, Hypothesis
from translator.search.choice import CHUNK, Sampling, top_k
from translator.search.engine import Ensemble
from translator.search.phrases import holds
from translator.search.scoring import coverage_penalty, rate
from translator.text.tokenizer import BOS_ID, EOS_ID, PAD_ID

SENTENCES = [[7, 9, 11, 5, EOS_ID], [8, EOS_ID], [30, 31, 32, 33, 34, 35, 36, 37, EOS_ID], [5, 6, EOS_ID]]
ALL = {"beam_size": EXHAUSTIVE, "n_best": EXHAUSTIVE, "length_penalty": 0.0}


def assert_same(found: list[Hypothesis], expected: list[tuple[float, Prefix]]) -> None:
    assert [h.ids for h in found] == [ids for _, ids in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-4)


# Rules


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_comes_twice_and_nothing_else_is_lost(n: int) -> None:
    def fresh(ids: Prefix) -> bool:
        grams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
        return len(set(grams)) == len(grams)

    for seed in range(4):
        [found] = search(random_toy(seed), sources(4), toy_config(**ALL, no_repeat_ngram=n))
        assert_same(found, best_of(random_toy(seed), 4, fresh))


def test_repetition_penalty_scales_repeated_log_probabilities() -> None:
    for seed in range(4):
        [found] = search(random_toy(seed), sources(4), toy_config(**ALL, repetition_penalty=1.7))
        assert_same(found, best_of(random_toy(seed), 4, lambda ids: True, penalty=1.7))


@pytest.mark.parametrize("banned", [[(4,)], [(4, 5)], [(4, 4, 5), (6,)]])
def test_banned_phrases_never_come_and_nothing_else_is_lost(banned: list[Prefix]) -> None:
    [found] = search(random_toy(1), sources(4), toy_config(**ALL), Demands(banned=banned))
    assert_same(found, best_of(random_toy(1), 4, lambda ids: not any(holds(ids, phrase) for phrase in banned)))


# Demands


@pytest.mark.parametrize("prefix", [(4,), (5, 5), (6, 4, 5)])
def test_every_output_begins_with_its_prefix(prefix: Prefix) -> None:
    demands = Demands(prefixes=[prefix, (), (4,)])
    found = search(random_toy(2), sources(4, 5, 6), toy_config(**ALL, no_repeat_ngram=1, max_length_extra=1), demands)
    limit = 1 + len(prefix)  # a prefix takes no room

    def fits(ids: Prefix) -> bool:
        rest = ids[len(prefix) :]
        return ids[: len(prefix)] == prefix and len(set(rest)) == len(rest) and not set(rest) & set(prefix)

    assert_same(found[0], best_of(random_toy(2), 4, fits, limit=limit))
    assert {h.ids for h in found[1]} == {(), (4,), (5,), (6,)}
    assert all(h.ids[0] == 4 for h in found[2])


@pytest.mark.parametrize("phrases", [
    [(4,)], [(4, 5)], [(4, 5), (6,)], [(4, 4), (4, 5)], [(4, 5), (5, 6)], [(5, 4), (5, 6), (5,)],
    [(4, 5, 6), (5,), (4, 5)]])
def test_required_phrases_give_the_best_output_with_them(phrases: list[Prefix]) -> None:
    """Of phrases that overlap, each is met by tokens of its own; one inside another, with that."""
    room = 2
    for seed in range(5):
        demands = Demands(phrases=[phrases])
        config = toy_config(**{**ALL, "n_best": 1}, max_length_extra=room)
        [[best]] = search(random_toy(seed), sources(4), config, demands)
        outer = [p for p in phrases if not any(p != other and holds(other, p) for other in phrases)]
        limit = room + sum(map(len, outer))
        value, ids = best_of(
            random_toy(seed), 4, lambda ids: all(holds(ids, phrase) for phrase in phrases), limit=limit)[0]
        assert all(holds(best.ids, phrase) for phrase in phrases)
        assert best.score <= value + 1e-4
        if len(set().union(*outer)) == sum(map(len, outer)):  # no token serves two phrases
            assert (best.ids, best.score) == (ids, pytest.approx(value, abs=1e-4))


words = st.sampled_from(list(WORDS))
phrase_lists = st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=4)


@given(phrases=phrase_lists, banned=phrase_lists, beam_size=st.integers(1, 6), seed=st.integers(0, 99))
def test_banned_tokens_appear_only_in_required_phrases(
    phrases: list[Prefix], banned: list[Prefix], beam_size: int, seed: int
) -> None:
    config = toy_config(beam_size=beam_size, n_best=beam_size)
    [found] = search(random_toy(seed), sources(4), config, Demands(phrases=[phrases], banned=banned))
    free = [ban for ban in banned if not any(holds(phrase, ban) for phrase in phrases)]
    for h in found:
        assert all(holds(h.ids, phrase) for phrase in phrases)
        assert not any(holds(h.ids, ban) for ban in free)


@given(phrases=st.lists(phrase_lists, min_size=1, max_size=3), beam_size=st.integers(1, 6), seed=st.integers(0, 99),
       no_repeat_ngram=st.integers(0, 2))
def test_required_phrases_are_in_every_output_of_any_beam(
    phrases: list[list[Prefix]], beam_size: int, seed: int, no_repeat_ngram: int
) -> None:
    config = toy_config(beam_size=beam_size, n_best=beam_size, no_repeat_ngram=no_repeat_ngram)
    found = search(random_toy(seed), sources(*range(4, 4 + len(phrases))), config, Demands(phrases=phrases))
    for wanted, hypotheses in zip(phrases, found, strict=True):
        assert hypotheses
        for h in hypotheses:
            assert all(holds(h.ids, phrase) for phrase in wanted)


def joined(last: int, token: int) -> bool:
    """Whether two tokens of the toys make one word."""
    return (last, token) in {(4, 5), (6, 5), (6, 6)}


def holds_all_words(ids: Prefix, phrases: list[Prefix]) -> bool:
    def ends(phrase: Prefix) -> list[int]:
        return [start + len(phrase) for start in range(len(ids)) if ids[start : start + len(phrase)] == phrase]

    return all(any(end == len(ids) or not joined(phrase[-1], ids[end]) for end in ends(phrase)) for phrase in phrases)


def test_a_required_phrase_is_not_met_by_a_part_of_a_longer_word() -> None:
    other = 0
    for phrases in ([(4,)], [(6,)], [(5, 4)], [(4,), (6,)], [(5, 6), (4,)]):
        fits = partial(holds_all_words, phrases=phrases)
        for seed in range(6):
            config = toy_config(**{**ALL, "n_best": 1}, max_length_extra=2)
            parts, words = (
                search(random_toy(seed), sources(4), config, demands)[0][0]
                for demands in (Demands(phrases=[phrases]), Demands(phrases=[phrases], goes_on=joined)))
            value, ids = best_of(random_toy(seed), 4, fits, limit=2 + sum(map(len, phrases)))[0]
            assert (words.ids, words.score) == (ids, pytest.approx(value, abs=1e-4))
            other += parts.ids != words.ids
    assert other


@given(phrases=phrase_lists, beam_size=st.integers(1, 6), seed=st.integers(0, 99))
def test_required_phrases_are_whole_words_for_any_beam(
    phrases: list[Prefix], beam_size: int, seed: int
) -> None:
    config = toy_config(beam_size=beam_size, n_best=beam_size)
    demands = Demands(phrases=[phrases], goes_on=lambda last, token: (last, token) == (4, 5))
    [found] = search(random_toy(seed), sources(4), config, demands)
    begin_inside = any(phrase[0] == 5 for phrase in phrases)  # after one that ends in 4 it can stand only behind something else
    assert found or begin_inside
    for h in found:
        for phrase in phrases:
            ends = [i + len(phrase) for i in range(len(h.ids)) if h.ids[i : i + len(phrase)] == phrase]
            outer = any(p != phrase and holds(p, phrase) for p in phrases)
            assert outer or any(h.ids[end : end + 1] != (5,) or phrase[-1] != 4 for end in ends)


def test_banned_tokens_may_only_continue_required_phrases() -> None:
    phrase, banned = (4, 5), (4,)
    for seed in range(8):
        config = toy_config(**{**ALL, "n_best": 1}, max_length_extra=2)
        [[best]] = search(random_toy(seed), sources(4), config, Demands(phrases=[[phrase]], banned=[banned]))
        value, ids = best_of(
            random_toy(seed), 4,
            lambda ids: ids.count(4) == sum(ids[i : i + 2] == phrase for i in range(len(ids))) == 1, limit=4)[0]
        assert (best.ids, best.score) == (ids, pytest.approx(value, abs=1e-4))


def test_phrases_of_a_neighbour_change_nothing() -> None:
    alone = search(random_toy(3), sources(5), toy_config(n_best=3))
    together = search(random_toy(3), sources(4, 5), toy_config(n_best=3), Demands(phrases=[[(6, 6)], []]))
    assert together[1:] == alone


# Groups


def test_first_group_equals_plain_beam_and_diversity_separates() -> None:
    for seed in range(10):
        toy = random_toy(seed)
        [alone] = search(toy, sources(4), toy_config(beam_size=2, n_best=2))
        [groups] = search(toy, sources(4), toy_config(beam_size=6, n_best=6, groups=3, diversity=0.7))
        assert {h.ids for h in alone} <= {h.ids for h in groups}
        assert len({h.ids for h in groups}) == len(groups)
        scores = [h.score for h in groups]
        assert scores == sorted(scores, reverse=True)
        [apart] = search(toy, sources(4), toy_config(beam_size=4, n_best=4, groups=4, diversity=1e6))
        assert len({h.ids[:1] for h in apart}) == 4  # three words and the end


def test_groups_without_diversity_find_one_and_the_same() -> None:
    [found] = search(random_toy(0), sources(4), toy_config(beam_size=3, n_best=3, groups=3, diversity=0.0))
    [greedy] = search(random_toy(0), sources(4), toy_config(beam_size=1))
    assert ids_of([found]) == ids_of([greedy])


# Sampling


def samples(toy: Toy, count: int, **options: object) -> list[Hypothesis]:
    [found] = search(toy, sources(4), toy_config(sampling=True, beam_size=count, n_best=count, **options))
    assert len(found) == count
    return found


def test_samples_are_as_frequent_as_the_model_says() -> None:
    toy, count = random_toy(7), 4000
    drawn = Counter(h.ids for h in samples(toy, count, max_length_extra=2))
    allowed = dict(every_output(toy, 4, limit=2))
    for ids in allowed:
        # Special tokens are left out, and at the limit all but the end: share what is left.
        probability = renormalised(toy, ids, limit=2)
        expected = count * probability
        assert drawn[ids] == pytest.approx(expected, abs=4 * math.sqrt(expected) + 2), ids


def renormalised(toy: Toy, ids: Prefix, limit: int) -> float:
    probability, prefix = 1.0, (BOS_ID,)
    for token in (*ids, EOS_ID):
        at_limit = len(prefix) - 1 >= limit
        allowed = toy.table(4, prefix)[[EOS_ID] if at_limit else [EOS_ID, *WORDS]].softmax(-1)
        probability *= float(allowed[0 if at_limit else [EOS_ID, *WORDS].index(token)])
        prefix += (token,)
    return probability


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}])
def test_without_chance_sampling_is_greedy(options: dict[str, object]) -> None:
    for seed in range(5):
        [[greedy]] = search(random_toy(seed), sources(4), toy_config(beam_size=1))
        for h in samples(random_toy(seed), 4, **options):
            assert h.ids == greedy.ids
            assert h.log_probability == pytest.approx(greedy.log_probability, abs=1e-4)


def test_the_preset_never_draws_from_smoothed_mass() -> None:
    """A model trained with label smoothing leaves a tenth of the probability to all pieces."""
    pieces, likely = 8000, {7: 0.5, 8: 0.25, 9: 0.15}
    smoothed = torch.full((pieces,), 0.1 / pieces)
    for token, probability in likely.items():
        smoothed[token] += probability
    preset = dataclasses.replace(run_config("search=sample").search, beam_size=2000)
    sampling = Sampling(torch.tensor([[4, EOS_ID]] * 2000), 3, preset)
    drawn = sampling.draw(smoothed.log().expand(2000, -1), torch.arange(2000), 0).tokens
    assert set(drawn.flatten().tolist()) == set(likely)


def test_the_least_top_p_leaves_the_likeliest_token() -> None:
    """Also where float32 has no such number."""
    config = search_config(sampling=True, beam_size=2, top_p=1e-6)
    object.__setattr__(config, "top_p", 1e-46)  # as none that is checked can be
    sampling = Sampling(torch.tensor([[4, EOS_ID]] * 2), 3, config)
    assert sampling.draw(torch.arange(-9.0, 0).expand(2, -1), torch.arange(2), 0).tokens.tolist() == [[8], [8]]


def test_top_k_and_top_p_leave_out_the_unlikely() -> None:
    toy = constant_toy(t3=math.log(40), t4=math.log(30), t5=math.log(20), t6=math.log(10))  # of 103 with the special ones
    assert {t for h in samples(toy, 300, top_k=2) for t in h.ids} == {4}
    assert {t for h in samples(toy, 300, top_p=0.8) for t in h.ids} == {4, 5}
    assert {t for h in samples(toy, 300, top_p=0.65) for t in h.ids} == {4}
    assert {t for h in samples(toy, 300) for t in h.ids} == {4, 5, 6}


def test_a_longer_neighbour_changes_no_sample() -> None:
    model, config = random_model(), search_config(sampling=True, beam_size=4, n_best=4)
    together = search(model, pad(SENTENCES), config)
    assert ids_of(together) == ids_of([search(model, pad([sentence]), config)[0] for sentence in SENTENCES])


def test_samples_follow_from_seed_and_sentence_alone() -> None:
    toy, config = random_toy(5), toy_config(sampling=True, beam_size=5, n_best=5)
    together = search(toy, sources(4, 5, 6), config)
    assert [search(toy, sources(source), config)[0] for source in (4, 5, 6)] == together
    assert search(toy, sources(6, 4, 5), config) == [together[2], *together[:2]]
    assert search(toy, sources(4, 5, 6), dataclasses.replace(config, seed=2)) != together


# Several models


def test_an_ensemble_searches_by_the_mean_of_probabilities() -> None:
    toys = [random_toy(seed) for seed in range(3)]
    mean = Toy(lambda source, prefix: torch.stack([t.table(source, prefix).softmax(-1) for t in toys]).mean(0).log())
    for config in (toy_config(n_best=4), toy_config(beam_size=EXHAUSTIVE, n_best=9)):
        expected = search(mean, sources(4, 5), config)
        for ours, theirs in zip(search(Ensemble(toys), sources(4, 5), config), expected, strict=True):
            assert [h.ids for h in ours] == [h.ids for h in theirs]
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"coverage_penalty": 0.5}])
def test_an_ensemble_of_one_model_twice_is_that_model(options: dict[str, object]) -> None:
    model, config = random_model(), search_config(n_best=3, **options)
    one, two = search(model, pad(SENTENCES), config), search(Ensemble([model, model]), pad(SENTENCES), config)
    assert ids_of(one) == ids_of(two)


# Forced decoding and coverage


@pytest.mark.parametrize("count", [1, 2])
def test_rating_an_output_gives_what_the_search_gave_it(count: int) -> None:
    models = [random_model(seed=seed) for seed in range(count)]
    found = search(Ensemble(models) if count > 1 else models[0], pad(SENTENCES), search_config(n_best=2))
    for rank in range(2):
        outputs = [[*hypotheses[rank].ids, EOS_ID] for hypotheses in found]
        ratings = rate(models, SENTENCES, outputs, torch.device("cpu"))
        for rating, output, sentence, hypotheses in zip(ratings, outputs, SENTENCES, found, strict=True):
            assert rating.log_probability == pytest.approx(hypotheses[rank].log_probability, abs=1e-3)
            assert len(rating.log_probabilities) == len(output)
            assert rating.attention.shape == (len(output), len(sentence))
            torch.testing.assert_close(rating.attention.sum(1), torch.ones(len(output)))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_coverage_penalty_uses_the_attention_of_all_steps(layers: int, beam_size: int) -> None:
    model, beta = random_model(model_config(decoder_layers=layers)), 0.8
    config = search_config(beam_size=beam_size, n_best=beam_size, coverage_penalty=beta, length_penalty=0.0)
    for sentence, found in zip(SENTENCES, search(model, pad(SENTENCES), config), strict=True):
        for h in found:
            [rating] = rate([model], [sentence], [[*h.ids, EOS_ID]], torch.device("cpu"))
            expected = beta * rating.attention.sum(0).clamp(max=1).log().sum()
            assert h.score - h.log_probability == pytest.approx(expected.item(), abs=1e-3)


def test_coverage_ignores_padding_and_rewards_no_excess() -> None:
    coverage = torch.tensor([[[0.5, 3.0, 0.0], [1.0, 1.0, 0.0]]])
    source = torch.tensor([[5, EOS_ID, PAD_ID]])
    torch.testing.assert_close(coverage_penalty(coverage, source, 2.0), torch.tensor([[2 * math.log(0.5), 0.0]]))


# The largest of many


@pytest.mark.parametrize("size", [VOCAB, CHUNK, 10 * CHUNK, 20 * CHUNK + 7, 32 * CHUNK])
@pytest.mark.parametrize("k", [1, 5])
def test_the_largest_by_way_of_chunks_are_the_largest(size: int, k: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(120, size)
    values[0, -3:] = 9 + torch.arange(3)
    values[1, 2:] = -torch.inf
    best, index = top_k(values, k)
    expected = values.topk(k)
    assert torch.equal(best, expected.values)
    assert torch.equal(values.gather(1, index), expected.values)
    finite = expected.values.isfinite()
    assert torch.equal(index[finite], expected.indices[finite])


def test_a_limit_is_never_passed() -> None:
    found = search(random_toy(1), sources(4, 5), toy_config(sampling=True, beam_size=50, n_best=50))
    assert max(len(h.ids) for hypotheses in found for h in hypotheses) == LIMIT
