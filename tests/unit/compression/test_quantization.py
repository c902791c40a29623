"""A run in int8 is a quarter of the size, loads without float32 matrices, and translates as the run does in int8."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.commands import assert_user_error
from tests.support.configurations import composed, model_config, run_config, search_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from translator.compression.quantization import quantize_run, write_quantized
from translator.config.building import from_hydra
from translator.config.commands import QuantizeConfig
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.model.inference_layers import convert, int8_of
from translator.model.transformer import Transformer
from translator.model.weights import dequantise, load_int8_into, quantise, weights_of
from translator.pretrained.loading import load_pretrained
from translator.runs.run_folder import RunFolder
from translator.runtime.device import Precision
from translator.runtime.errors import UserError
from translator.training.train import resolve_options

SOURCES = [source for source, _ in PAIRS[::20]]
QUICK = search_config(beam_size=4, n_best=2, max_length_ratio=0.5, max_length_extra=6)
VARIANTS: list[dict[str, Any]] = [
    {}, {"tied": "target", "output_bias": True, "positions": "learned"}, {"tied": "none", "activation": "swiglu"},
    {"attention": "additive", "attention_gate": True, "positions": "relative", "norm": "post"},
    {"adaptive_span": 3, "positions": "rotary"}, {"encoder_heads": (1, 3), "decoder_heads": (2, 4)}]


@pytest.fixture(scope="module")
def quantized(trained_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "tiny-int8"
    write_quantized(RunFolder(trained_folder), path)
    return path


def test_the_next_commands_name_the_copy_as_the_run_was_named(trained_folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained_folder, tmp_path / "runs" / "x")
    monkeypatch.chdir(tmp_path)
    quantize_run(from_hydra(QuantizeConfig, composed("quantize", "run=x")))
    assert (tmp_path / "runs" / "x-int8").is_dir()
    assert str(tmp_path) not in capsys.readouterr().err


def test_translations_equal_those_of_precision_int8(trained_folder, quantized):
    whole, kept = Translator(trained_folder, device="cpu", precision="int8"), Translator(quantized, device="cpu")
    found = kept.translate(SOURCES, QUICK)
    assert found == whole.translate(SOURCES, QUICK)
    assert len({translation.text for translation in found}) > len(SOURCES) // 2  # the model says different things
    assert kept.details_of(found) == whole.details_of(found)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_equal_those_of_conversion_on_loading(changes):
    config = model_config(**changes)
    model, loaded = random_model(config, vocab=(50, 40)), Transformer(config, 50, 40).eval()
    load_int8_into(loaded, quantise(weights_of(model), model), Path("file"))
    expected, found = (convert(each.for_decoding(), Precision.INT8) for each in (model, loaded))
    ids = torch.randint(4, 40, (3, 9))
    with torch.inference_mode():
        assert torch.equal(found(ids, ids), expected(ids, ids))


def test_weights_take_a_quarter_of_the_bytes():
    model = random_model(model_config(d_model=128, d_ff=512), vocab=2000)
    weights = weights_of(model)
    before, after = (sum(w.nbytes for w in each.values()) for each in (weights, quantise(weights, model)))
    assert 0.25 < after / before < 0.27


class FloatMatrices(TorchDispatchMode):
    """Collect the operations that write float32 matrices of `numbers` or more."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.found: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32 and result.numel() >= self.numbers and (
                result.device.type == "cpu"):
            self.found.add(function.overloadpacket.__name__)
        return result


def test_loading_writes_no_matrix_in_float32(trained_folder, quantized):
    smallest = model_config().d_model ** 2
    unwritten = {"empty", "detach", "uniform_", "normal_"}  # memory that nothing touches takes none
    with FloatMatrices(smallest) as whole:
        TrainedModel.load(trained_folder, "cpu", "int8")
    with FloatMatrices(smallest) as kept:
        TrainedModel.load(quantized, "cpu")
    assert "copy_" in whole.found
    assert kept.found <= unwritten


def test_the_folder_has_what_translating_and_scoring_read(trained_folder, quantized, tmp_path):
    original = tmp_path / "run"
    shutil.copytree(trained_folder, original)
    for name in ("calibration.json", "metrics.jsonl", "notes.txt", ".lock"):
        (original / name).write_text("{}")
    (original / "checkpoints" / "00000001").mkdir(parents=True)
    write_quantized(RunFolder(original), tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {path.name for path in quantized.iterdir()} | {"calibration.json", "metrics.jsonl"}
    assert {"config.yaml", "model.safetensors", "SHA256SUMS", "data_report.json", "tokenizer.model"} <= names
    assert RunFolder(tmp_path / "copy").load_config().name == "copy"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_file_is_refused(quantized, tmp_path):
    shutil.copytree(quantized, tmp_path / "run")
    file = RunFolder(tmp_path / "run").model_file
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged weights: the checksum differs"):
        Translator(tmp_path / "run", device="cpu")


@pytest.mark.parametrize(("device", "precision"), [("cpu", "bf16"), ("cuda", "fp32"), ("cuda", "int8")])
def test_other_precisions_and_devices_are_refused(device, precision):
    with pytest.raises(UserError, match=r"runs/x has int8 weights.*use the run they were made of|Use device=cpu"):
        int8_of("runs/x", torch.device(device), precision)


def test_training_starts_from_dequantised_weights(trained_folder, quantized, capsys):
    started = load_pretrained(str(quantized), run_config()).weights
    assert "has int8 weights. Training starts from them as float32" in capsys.readouterr().err
    original = RunFolder(trained_folder).load_weights()
    assert started.keys() == original.keys()
    for name, weight in original.items():
        assert started[name].dtype == torch.float32
        largest = weight.abs().amax(dim=-1, keepdim=True) if weight.dim() == 2 else torch.zeros(1)
        assert ((started[name] - weight).abs() <= largest / 127 * 0.501).all(), name


def test_resuming_is_refused(quantized):
    with pytest.raises(UserError, match=r"has int8 weights, which cannot be trained.*init="):
        resolve_options(RunFolder(quantized).load_config(), RunFolder(quantized), torch.device("cpu"))


def test_exports_get_float32(quantized):
    model = TrainedModel.load(quantized, "cpu", dequantised=True).model
    expected = dequantise(RunFolder(quantized).load_weights(stored=True))
    assert torch.equal(model.projection().weight, expected["source_embedding.tokens.weight"])


def test_the_command_writes_a_run_that_translates(trained_folder, script, tmp_path):
    run = tmp_path / "tiny"
    shutil.copytree(trained_folder, run)
    made = script("quantize", f"run={run}")
    assert made.returncode == 0, made.stderr.decode()
    assert f"{run}-int8: 0.1 MB of weights, 35% of 0.2 MB" in made.stderr.decode()
    options = ("device=cpu", "search.max_length=8", "search.beam_size=2")
    stdin = "\n".join(SOURCES).encode()
    kept, whole = (
        script("translate", *options, *of, stdin=stdin) for of in ([f"run={run}-int8"], [f"run={run}", "precision=int8"]))
    assert kept.returncode == 0, kept.stderr.decode()
    assert kept.stdout == whole.stdout
    assert_user_error(script("quantize", f"run={run}"), "tiny-int8: exists. Remove it, or choose another output=")
    assert_user_error(script("quantize", f"run={run}-int8"), "has int8 weights already")
    assert_user_error(script("translate", f"run={run}-int8", "precision=bf16", stdin=b"x"), "precision=bf16")


def test_older_releases_refuse_the_format(quantized, monkeypatch):
    monkeypatch.setattr("translator.runs.run_folder.INT8_FORMAT", 1)
    with pytest.raises(UserError, match=r"a run folder of format 2; this release reads up to 1"):
        RunFolder(quantized).load_config()
