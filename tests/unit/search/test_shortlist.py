"""A shortlist holds what renders each piece; search among some pieces is that by a model that gives all others nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor

from tests.support.configurations import TINY, model_config, run_config, search_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.models import random_model
from tests.support.table_models import search
from tests.support.trainings import tokenized_rows
from translator.config.options import MOST_CANDIDATES
from translator.data import ibm_model_1
from translator.data.batching import pad
from translator.data.preparation import prepare
from translator.inference.shortlist_learning import learn_shortlist
from translator.inference.translation import Request
from translator.inference.translator import Translator
from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.inference_layers import convert, select_outputs
from translator.model.transformer import Transformer
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import load_tensors, save_tensors
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.search import Demands, Hypothesis, shortlist
from translator.search.engine import as_one
from translator.search.shortlist import SPECIAL, Shortlist, search_among
from translator.text.tokenizer import EOS_ID, PAD_ID

VOCAB = 40
SENTENCES = [[7, 9, 11, 5, EOS_ID], [8, EOS_ID], [30, 31, 32, 33, 34, 35, 36, 37, EOS_ID], [5, 6, EOS_ID]]


def pairs_of(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Dataset:
    return Dataset.from_dict({
        "source_ids": sources, "target_ids": targets, "source_length": list(map(len, sources)),
        "target_length": list(map(len, targets))})


def random_sentences(seed: int, count: int, pieces: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(EOS_ID + 1, pieces, rng.integers(1, 9)).tolist(), EOS_ID] for _ in range(count)]


# What is learned


def test_words_that_go_together_are_found_whatever_their_order():
    sources = random_sentences(0, 300, 30)
    targets = [[(piece * 7) % 26 + 4 for piece in reversed(ids[:-1])] + [EOS_ID] for ids in sources]
    learned = learn_shortlist(pairs_of(sources, targets), 30, 30, joint=False)
    for piece in range(4, 30):
        assert learned.candidates[piece, 0] == (piece * 7) % 26 + 4
    joint = learn_shortlist(pairs_of(sources, targets), 30, 30, joint=True)
    for piece in range(4, 30):
        assert joint.candidates[piece, 0] == piece
        assert (piece * 7) % 26 + 4 in joint.candidates[piece, :2]
    wider = [[piece + 30 if number % 2 else piece for number, piece in enumerate(ids[:-1])] + [EOS_ID] for ids in sources]
    narrow = learn_shortlist(pairs_of(wider, targets), 60, 30, joint=True)
    for piece in range(4, 30):
        assert narrow.candidates[piece, 0] == piece
        assert (piece * 7) % 26 + 4 in narrow.candidates[piece, :2]
        assert narrow.candidates[piece + 30, 0] == (piece * 7) % 26 + 4  # no target holds the piece itself


def test_a_piece_of_both_sides_stands_first_and_but_once():
    rows = [[piece, (piece + 1) % 30, EOS_ID] for piece in range(4, 30)]
    learned = learn_shortlist(pairs_of(rows, rows), 30, 30, joint=True)
    for piece in range(4, 30):
        found = [candidate for candidate in learned.candidates[piece].tolist() if candidate != PAD_ID]
        assert found[0] == piece
        assert len(set(found)) == len(found) > 2


def test_the_order_is_that_of_model_1_written_out(monkeypatch):
    monkeypatch.setattr(ibm_model_1, "READ_ROWS", 7)
    sources, targets = random_sentences(1, 40, 12), random_sentences(2, 40, 12)
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(ibm_model_1.ITERATIONS):
        expected = Counter[tuple[int, int]]()
        for source, target in zip(sources, targets, strict=True):
            for t in target:
                whole = sum(probability[s, t] for s in source)
                for s in source:
                    expected[s, t] += probability[s, t] / whole
        of_source = Counter[int]()
        for (s, _), count in expected.items():
            of_source[s] += count
        probability = defaultdict(float, {(s, t): count / of_source[s] for (s, t), count in expected.items()})
    learned = learn_shortlist(pairs_of(sources, targets), 12, 12, joint=False)
    for piece in {piece for ids in sources for piece in ids}:
        found = [candidate for candidate in learned.candidates[piece].tolist() if candidate != PAD_ID]
        assert sorted(found) == sorted(t for s, t in probability if s == piece)
        values = [probability[piece, t] for t in found]
        assert values == pytest.approx(sorted(values, reverse=True))
    assert learned.counts.tolist() == [sum(ids.count(piece) for ids in targets) for piece in range(12)]


def test_of_very_many_pairs_some_are_taken_evenly(monkeypatch):
    sources = [[4 + number % 8, EOS_ID] for number in range(1000)]
    monkeypatch.setattr(ibm_model_1, "LINKS", 300)
    learned = learn_shortlist(pairs_of(sources, sources), 12, 12, joint=False)
    taken = int(learned.counts[EOS_ID])
    assert 4 * taken <= 300 < 4 * (taken + 20)


def test_a_sentence_is_allowed_what_its_pieces_call_for():
    candidates = torch.full((10, MOST_CANDIDATES), PAD_ID)
    candidates[3, 0], candidates[4, :3], candidates[5, :2] = 20, torch.tensor([21, 22, 23]), torch.tensor([24, 25])
    counts = torch.zeros(300, dtype=torch.long)
    frequent = torch.arange(150, 150 + shortlist.FREQUENT)
    counts[frequent] = 5
    known = Shortlist(candidates, counts)
    always = {*SPECIAL, *frequent.tolist()}
    source = pad([[4, 5, 3], [4, 3], [4, 6, 3]])
    for number, expected in ((1, [{21, 24, 20}, {21, 20}]), (2, [{21, 22, 24, 25, 20}, {21, 22, 20}])):
        allowed = known.allowed(source, number)
        assert [set(row.nonzero()[:, 0].tolist()) - always for row in allowed[:2]] == expected
        assert always <= set(allowed[0].nonzero()[:, 0].tolist())
        assert allowed[2].all()  # nothing is known of 6


# Search among some pieces


class Masked:
    """A model that gives pieces which a sentence is not allowed no probability at all."""

    def __init__(self, model: Transformer, allowed: Tensor, copies: int = 1) -> None:
        self.model = model
        self.ruled_out = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf).repeat_interleave(copies, dim=0)
        self.encode = model.encode

    def start(self, memory: Any, mask: Tensor, *, follow_coverage: bool = False) -> Any:
        state = self.model.start(memory, mask, follow_coverage=follow_coverage)
        select, state.ruled_out = state.select, self.ruled_out

        def selected(sentences: Tensor) -> None:
            select(sentences)
            state.ruled_out = state.ruled_out[sentences]

        state.select = selected
        return state

    def decode_step(self, tokens: Tensor, state: Any, rows: ActiveHypotheses) -> tuple[Any, Tensor]:
        ruled_out = state.ruled_out[:, None].expand(-1, tokens.size(1), -1)
        return self.model.decode_step(tokens, state, rows), rows.pack(ruled_out)

    def log_probabilities(self, decoded: tuple[Any, Tensor], some: slice) -> Tensor:
        return (self.model.log_probabilities(decoded[0], some) + decoded[1][some]).log_softmax(dim=-1)


def some_allowed(seed: int, demanded: Sequence[Sequence[int]] = ()) -> Tensor:
    allowed = torch.rand(len(SENTENCES), VOCAB, generator=torch.Generator().manual_seed(seed)) < 0.4
    allowed[:, SPECIAL] = True
    for row, ids in enumerate(demanded):
        allowed[row, list(ids)] = True
    return allowed


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in row] for row in found] == [[h.ids for h in row] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert [(h.score, h.log_probability) for h in row] == [
            pytest.approx((h.score, h.log_probability), abs=1e-4) for h in other]


@pytest.mark.parametrize("options", [
    {"beam_size": 1}, {"beam_size": 5, "n_best": 5}, {"beam_size": 4, "keep_places": True}, {"beam_size": 4, "groups": 2},
    {"beam_size": 3, "n_best": 3, "sampling": True, "top_k": 5}, {"beam_size": 4, "coverage_penalty": 0.5},
    {"beam_size": 4, "no_repeat_ngram": 2, "repetition_penalty": 1.5}, {"beam_size": 100, "n_best": 4}],
    ids=lambda options: " ".join(map(str, options)))
def test_shortlist_search_equals_search_over_those_pieces(options):
    model, source = random_model(vocab=VOCAB), pad(SENTENCES)
    config = search_config(**options)
    for seed in range(3):
        allowed = some_allowed(seed)
        masked = Masked(model, allowed, copies=config.beam_size if config.sampling else 1)
        found = search_among([model], allowed, source, config, Demands())
        assert_same(found, search(masked, source, config))


def test_with_all_pieces_allowed_it_is_the_usual_search():
    models, source, config = [random_model(vocab=VOCAB, seed=s) for s in (0, 1)], pad(SENTENCES), search_config(n_best=4)
    everything = torch.ones(len(SENTENCES), VOCAB, dtype=torch.bool)
    found = search_among(models, everything, source, config, Demands())
    assert_same(found, search(as_one(models), source, config))


def test_required_phrases_join_their_sentence_s_shortlist():
    model, source, config = random_model(vocab=VOCAB), pad(SENTENCES), search_config(beam_size=6, n_best=2)
    demands = Demands([[10, 20], [], [21], []], [[[12, 13]], [], [[14], [15, 16]], []], banned=[[17, 18], [19]])
    demanded = [[10, 20, 12, 13], [], [21, 14, 15, 16], []]
    for seed in range(3):
        expected = search(Masked(model, some_allowed(seed, demanded)), source, config, demands)
        assert_same(search_among([model], some_allowed(seed), source, config, demands), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("bias", [False, True])
def test_some_outputs_are_those_of_the_whole_layer(precision, bias):
    model = Transformer(model_config(output_bias=bias), VOCAB, VOCAB)
    model = convert(model, Precision(precision))
    x = torch.randn(3, 5, model_config().d_model).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    outputs = torch.tensor([0, 1, 2, 3, 7, 39])
    torch.testing.assert_close(select_outputs(model.output, outputs)(x), model.output(x)[..., outputs])


# In translations


@pytest.fixture(scope="module")
def folder(trained_folder: Path, tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """A run with a shortlist, of few candidates because its corpus is small."""
    path = tmp_path_factory.mktemp("listed") / "tiny"
    shutil.copytree(trained_folder, path)
    patch = pytest.MonkeyPatch()
    patch.setattr(shortlist, "FREQUENT", 5)
    learned = learn_shortlist(tokenized_rows(tokenizer, PAIRS), len(tokenizer), len(tokenizer), joint=True)
    RunFolder(path).save_shortlist(learned)
    patch.undo()
    return path


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_what_was_learned_suffices_and_neighbours_change_nothing(folder, precision, monkeypatch):
    monkeypatch.setattr(shortlist, "FREQUENT", 5)
    translator = Translator(folder, device="cpu", precision=precision)
    listed = dataclasses.replace(search_config(), shortlist=10)
    sources = [source for source, _ in PAIRS[::4]]
    together = translator(sources, listed)
    assert together == [translator([source], listed)[0] for source in sources]
    whole = translator(sources, search_config())
    assert sum(a == b for a, b in zip(together, whole, strict=True)) > 0.9 * len(sources)
    demanding = Request(sources[0], prefix="Qua", required=("xyz",))
    assert "Qua" in translator.translate([demanding], listed)[0].text
    assert "xyz" in translator.translate([demanding], listed)[0].text


def test_a_folder_without_one_or_with_anothers_is_refused(folder, trained_folder, tmp_path):
    listed = dataclasses.replace(search_config(), shortlist=10)
    with pytest.raises(UserError, match="has no shortlist. `translator shortlist run="):
        Translator(trained_folder, device="cpu")(["a"], listed)
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    run = RunFolder(path)
    whole = load_tensors(run.shortlist_file)
    for damaged in (
            {"candidates": whole["candidates"]}, whole | {"counts": whole["counts"][1:]},
            whole | {"candidates": whole["candidates"] + 320}, whole | {"candidates": whole["candidates"] - 1},
            whole | {"candidates": whole["candidates"][:, :5]}, whole | {"other": whole["counts"].clone()}):
        save_tensors(run.shortlist_file, damaged)
        with pytest.raises(UserError, match="does not match this run. `translator shortlist run="):
            Translator(path, device="cpu")(["a"], listed)
    run.shortlist_file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="shortlist"):
        Translator(path, device="cpu")(["a"], listed)


def test_from_the_shell(script, tmp_path):
    data = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    config = run_config("data=files", f"data.train={data}", f"data.cache={tmp_path}", *TINY)
    corpus = prepare(config.data, config.tokenizer, max_tokens=config.train.max_tokens)
    pieces = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
    run = RunFolder(tmp_path / "run")
    run.create(config, (corpus.source_tokenizer, corpus.target_tokenizer), corpus.report)
    save_tensors(run.model_file, weights_of(Transformer(config.model, *pieces)))
    learned = script("shortlist", f"runs={tmp_path}")
    assert learned.returncode == 0, learned.stderr.decode()
    assert f"written to {run.shortlist_file}" in learned.stdout.decode()
    assert torch.equal(
        run.load_shortlist(*pieces).candidates, learn_shortlist(corpus.train, *pieces, joint=True).candidates)
    translated = script(
        "translate", f"run={run.path}", "search.shortlist=20", "search.max_length=5", stdin=b"She sees two houses.\n")
    assert translated.returncode == 0, translated.stderr.decode()
