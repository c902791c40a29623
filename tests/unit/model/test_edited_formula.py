"""An edit of the attention formula, or of the table of scores, reaches every way to run a model."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import translator
from tests.support.configurations import model_config, search_config
from tests.support.models import batch_of, random_model, updater_of
from translator.inference.decoding import require_supported
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.model import attention, scores
from translator.model.attention import MultiHeadAttention, scaled_dot_product
from translator.model.attention_paths import CPU_FUSED_FROM
from translator.model.inference_layers import convert, strip_hooks
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.text.tokenizer import Tokenizer


@pytest.fixture
def uses(monkeypatch) -> list[int]:
    """Swap the score in its table. Returns the keys of each use; another path is an error."""
    uses: list[int] = []

    def counted(queries: Tensor, keys: Tensor) -> Tensor:
        uses.append(keys.size(2))
        return scaled_dot_product(queries, keys).tanh()

    monkeypatch.setitem(scores.SCORES, "dot", lambda config: counted)
    for path in ("fused_attention", "windowed_attention"):
        monkeypatch.setattr(attention, path, lambda *_, **__: pytest.fail("a fast path was used"))
    return uses


@pytest.mark.parametrize("threads", [1, 2])
def test_training_uses_the_score_of_the_table(threads, uses, several_threads):
    several_threads(threads)
    batch = batch_of((7, 5), (3, 4))
    updater_of(encoder_window=2).step([batch], 1e-3)
    assert len(uses) == 6 * threads
    uses.clear()
    updater_of("train.r_drop=1", "train.guided_alignment=0.1").loss(batch)
    assert uses


@pytest.mark.parametrize(("beam", "precision", "changes"), [
    (1, "fp32", {}), (3, "fp32", {}), (1, "bf16", {}), (1, "int8", {}), (3, "int8", {"positions": "relative"}),
    (1, "fp32", {"encoder_window": 2, "decoder_window": 2}), (3, "fp32", {"positions": "alibi", "decoder_window": 2})])
def test_decoding_uses_the_score_of_the_table(beam, precision, changes, uses, tokenizer: Tokenizer):
    model = random_model(model_config(**changes), vocab=len(tokenizer)).for_decoding()
    model = strip_hooks(convert(model, Precision(precision)))
    translate = Translator(TrainedModel(model, tokenizer, tokenizer, search_config(beam_size=beam, max_length=6, min_length=6)))
    for texts in (["She sees a dog."], ["She sees a dog.", "A cat."]):
        uses.clear()
        translate(texts)
        assert len(uses) >= 2 + 4 * 6  # encoder layers, and both attentions of decoder layers at each of six steps
    assert max(uses) < CPU_FUSED_FROM  # where PyTorch's kernel would serve one sentence only


@contextmanager
def edited_model(edits: dict[str, str], folder: Path) -> Iterator[ModuleType]:
    """Import a copy of translator.model whose attention.py has these edits, instead of the usual one."""
    usual = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[:2] == ["translator", "model"]}
    path, [source] = list(translator.__path__), translator.__path__
    shutil.copytree(Path(source) / "model", folder / "model")
    file = folder / "model" / "attention.py"
    text = file.read_text()
    for before, after in edits.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    file.write_text(text)
    try:
        translator.__path__[:] = [str(folder), *path]
        importlib.invalidate_caches()
        yield importlib.import_module("translator.model.transformer")
    finally:
        translator.__path__[:] = path
        for name in list(sys.modules):
            if name.split(".")[:2] == ["translator", "model"]:
                del sys.modules[name]
        sys.modules.update(usual)
        translator.model = usual["translator.model"]


def weaker(model: torch.nn.Module) -> None:
    """Do by weights what an edit does: scores times 0.9."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.W_q.weight.mul_(0.9)
            module.W_q.bias.mul_(0.9)


TIMES = {"div_(math.sqrt(queries.size(-1)))": "div_(math.sqrt(queries.size(-1))).mul_(0.9)"}
SOFTMAX = {"weights = softmax(scores)": "weights = softmax(scores).square()"}
BIAS = {"scores.add_(bias) if": "scores.sub_(bias) if"}
WINDOWS = {"positions": "relative", "encoder_window": 3, "decoder_window": 3}


@pytest.mark.parametrize(("edits", "same_as", "changes"), [
    (TIMES, weaker, {}), (TIMES, weaker, WINDOWS), (SOFTMAX, None, {}), (SOFTMAX, None, WINDOWS), (BIAS, None, WINDOWS)])
@torch.no_grad()
def test_an_edit_trains_and_decodes_one_model(edits, same_as, changes, tmp_path):
    usual = random_model(model_config(encoder_layers=1, decoder_layers=1, **changes))
    source, target = torch.randint(4, 40, (1, CPU_FUSED_FROM)), torch.randint(4, 40, (1, 6))
    before = usual(source, target)
    with edited_model(edits, tmp_path) as transformer:
        model = transformer.Transformer(usual.config, 40, 40).eval()
        model.load_state_dict(usual.state_dict())
        full = model(source, target)
        state = model.for_decoding().start(model.encode(source), source != 0)
        steps = [model.output(model.decode_step(target[:, t : t + 1], state))[:, :40] for t in range(6)]
    torch.testing.assert_close(torch.stack(steps, dim=1), full, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(full, before, atol=1e-3)
    if same_as is not None:
        same_as(usual)
        torch.testing.assert_close(usual(source, target), full, atol=2e-5, rtol=1e-4)


def change_the_table(monkeypatch) -> None:
    monkeypatch.setitem(scores.SCORES, "dot", lambda config: lambda queries, keys: scaled_dot_product(queries, keys).tanh())


def edit_the_formula(monkeypatch) -> None:
    monkeypatch.setattr(attention, "FORMULA_AS_PUBLISHED", False)


@pytest.mark.parametrize("edit", [change_the_table, edit_the_formula])
def test_exports_refuse_an_edited_formula(edit: Callable[[object], None], monkeypatch):
    supported = {name: (value,) for name, value in vars(model_config()).items()}
    require_supported(model_config(), "it", supported)
    edit(monkeypatch)
    with pytest.raises(UserError, match=r"attention.py: the formula was edited, and it has the published one"):
        require_supported(model_config(), "it", supported)
