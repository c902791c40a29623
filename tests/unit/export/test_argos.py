"""The package for Argos Translate: what it holds, and which models have none. tests/torture installs it in Argos Translate."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

import ctranslate2
import pytest
from sentencepiece import SentencePieceProcessor

from tests.support.configurations import composed, model_config, search_config, tokenizer_config
from tests.support.corpora import PAIRS
from tests.support.models import random_model
from translator.config.building import from_hydra
from translator.config.commands import ExportConfig
from translator.export import argos
from translator.export.command import export_run
from translator.inference.decoding import Decoding
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.text.tokenizer import train_tokenizer

SEARCH = search_config()
SOURCE = PAIRS[0][0]


def packed(run: Path, folder: Path, **changes: object) -> Path:
    """Write the package of a run, with these parts of its model replaced, and unpack it as Argos Translate does."""
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text("read me")
    translator = Translator(dataclasses.replace(TrainedModel.load(run, "cpu"), **changes))
    argos.write(translator, Decoding.nearest(SEARCH, translator.models[0].config, None), folder)
    argos.pack(folder)
    [package] = folder.glob("*.argosmodel")
    zipfile.ZipFile(package).extractall(folder / "installed")
    return folder / "installed"


def test_a_package_holds_what_argos_translate_reads(run_folder, tmp_path):
    [package] = packed(run_folder, tmp_path / "argos").iterdir()
    metadata = json.loads((package / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["from_name"]) == ("en", "English")
    assert (metadata["to_code"], metadata["to_name"]) == ("de", "German")
    assert (package / "README.md").read_text() == "read me"
    tokenizer = SentencePieceProcessor(str(package / "sentencepiece.model"))
    model = ctranslate2.Translator(str(package / "model"), intra_threads=1)
    [found] = model.translate_batch([tokenizer.encode(SOURCE, out_type=str)], max_decoding_length=9)
    assert tokenizer.decode_pieces(found.hypotheses[0])
    assert "int8" in model.compute_type
    pieces = {tokenizer.id_to_piece(i) for i in range(len(tokenizer))}
    assert set(json.loads((package / "model" / "shared_vocabulary.json").read_text())) == pieces



def test_two_vocabularies_are_refused(run_folder, tmp_path):
    target = train_tokenizer([text for _, text in PAIRS], tokenizer_config(vocab_size=300))
    with pytest.raises(UserError, match=r"tokenizer\.joint=false"):
        packed(run_folder, tmp_path / "argos", target_tokenizer=target)


def test_few_learned_positions_are_refused(run_folder, tmp_path, tokenizer):
    model = random_model(model_config(positions="learned", max_positions=70), vocab=len(tokenizer))
    with pytest.raises(UserError, match=r"model\.max_positions=70"):
        packed(run_folder, tmp_path / "argos", model=model)


def test_several_languages_are_refused(run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    folder = RunFolder(run)
    config = folder.load_config()
    folder.write_config(dataclasses.replace(config, data=dataclasses.replace(config.data, target="de+fr")))
    with pytest.raises(UserError, match="translates en to de, en to fr"):
        packed(run, tmp_path / "argos")


def test_the_command_writes_a_package(run_folder, tmp_path, capsys):
    options = f"run={run_folder}", "format=argos", f"output={tmp_path / 'argos'}"
    export_run(from_hydra(ExportConfig, composed("export", *options)))
    assert "argostranslate.package.install_from_path" in capsys.readouterr().out
    names = sorted(file.name for file in (tmp_path / "argos").iterdir())
    assert names == ["README.md", "translate-en_de.argosmodel", "translator.json"]
    with pytest.raises(UserError, match="push: needs"):
        from_hydra(ExportConfig, composed("export", *options, "push=a/b"))
