"""Hypotheses that are worked on go out as rows and come back to their places; those that have finished cost nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.configurations import model_config
from tests.support.models import random_model
from tests.support.table_models import ToyState, random_toy, search, sources, toy_config
from translator.model.active_hypotheses import ActiveHypotheses
from translator.model.kv_cache import move_to_front
from translator.search.engine import one_of_few, with_few_moved


@pytest.mark.parametrize("chosen", [None, [0], [1, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_what_is_packed_comes_back_to_its_place(chosen: list[int] | None) -> None:
    rows = ActiveHypotheses(2, 3, None if chosen is None else torch.tensor(chosen, dtype=torch.long))
    numbers = list(range(6)) if chosen is None else chosen
    cpu = torch.device("cpu")
    assert [3 * s + p for s, p in zip(rows.sentences(cpu).tolist(), rows.places(cpu).tolist(), strict=True)] == numbers
    assert len(rows) == len(numbers)
    x = torch.randn(2, 3, 4)
    packed = rows.pack(x)
    assert packed.shape == (len(numbers), 4)
    back = rows.unpack(packed)
    mask = torch.zeros(6, dtype=torch.bool).index_fill_(0, torch.tensor(numbers, dtype=torch.long), True).view(2, 3)
    assert torch.equal(back[mask], x[mask])
    assert all(any(torch.equal(row, other) for other in packed) for row in back[~mask])


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "learned"}, {"positions": "relative", "decoder_window": 3}, {"norm": "post"},
                {"decoder": "ssru"}])
def test_step_of_active_hypotheses_equals_step_of_all(changes: dict[str, object]) -> None:
    model = random_model(model_config(**changes))
    source = torch.randint(4, 40, (3, 6))
    states = [model.start(model.encode(source), source != 0) for _ in range(2)]
    parents = torch.zeros(3, 4, dtype=torch.long)  # one hypothesis becomes four
    for state in states:
        model.decode_step(source[:, :1], state)
    for _ in range(8):
        tokens, going_on = torch.randint(4, 40, (3, 4)), torch.rand(3, 4) < 0.6
        going_on[:, 1] = True
        rows = ActiveHypotheses(3, 4, going_on.flatten().nonzero()[:, 0])
        for state in states:
            state.reorder(parents)
        some, every = (model.decode_step(tokens, state, of) for state, of in zip(states, (rows, None), strict=True))
        torch.testing.assert_close(some, every[going_on.flatten()], atol=2e-5, rtol=1e-4)
        parents = going_on.float().multinomial(4, replacement=True)  # none goes on from one that has finished


@pytest.mark.parametrize("options", [{}, {"keep_places": True}, {"groups": 5}])
def test_few_that_have_finished_are_worked_on(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    toy = random_toy(1)
    there, worked_on = [], []
    step = toy.decode_step

    def watched(tokens: Tensor, state: ToyState, rows: ActiveHypotheses) -> Tensor:
        there.append(tokens.numel())
        worked_on.append(len(rows))
        return step(tokens, state, rows)

    monkeypatch.setattr(toy, "decode_step", watched)
    search(toy, sources(*range(4, 36)), toy_config(**{"beam_size": 5} | options))
    assert sum(worked_on) < 0.95 * sum(there)
    assert all(rows == one_of_few(rows) or rows == hypotheses for rows, hypotheses in zip(worked_on, there, strict=True))


@given(st.data())
def test_rows_that_leave_move_few_of_those_that_stay(data: st.DataObject) -> None:
    x = torch.arange(12.0).view(6, 2)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=1, unique=True)), dtype=torch.long).sort().values
    kept = with_few_moved(chosen)
    assert torch.equal(kept.sort().values, chosen)
    assert all(kept[number] == number for number in chosen.tolist() if number < len(chosen))
    any_order = torch.tensor(data.draw(st.permutations(chosen.tolist())), dtype=torch.long)
    for rows in (kept, any_order):
        held = (x.clone(), -x)
        move_to_front(held, rows)
        assert torch.equal(held[0][: len(rows)], x[rows])
        assert torch.equal(held[1][: len(rows)], -x[rows])
