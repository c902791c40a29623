"""The unmodified argostranslate installs an exported package and translates with it, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.configurations import composed
from tests.support.corpora import PAIRS
from translator.config.building import from_hydra
from translator.config.commands import ExportConfig
from translator.export.command import export_run
from translator.inference.translator import Translator

# What argostranslate needs beside this environment's PyTorch, SentencePiece and CTranslate2.
PACKAGES = ("argostranslate", "minisbd", "stanza==1.10.1", "emoji", "onnxruntime", "flatbuffers", "sacremoses", "joblib",
            "requests", "charset_normalizer")
# It downloads its sentence splitter at the first text, and here gets one that leaves a text as it is.
PROGRAM = """\
import sys
import argostranslate.package, argostranslate.translate

class Whole:
    def split_sentences(self, text):
        return [text]

argostranslate.package.install_from_path(sys.argv[1])
english, german = sorted(argostranslate.translate.get_installed_languages(), key=str)
assert (str(english), str(german)) == ("English", "German")
translation = english.get_translation(german)
translation.underlying.sentencizer = Whole()
for text in sys.stdin.read().splitlines():
    print(translation.translate(text))
"""


def test_argos_translate_installs_and_translates(trained_folder, tmp_path):
    libraries, output = tmp_path / "libraries", tmp_path / "argos"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", libraries, *PACKAGES], check=True, timeout=600)
    export_run(from_hydra(ExportConfig, composed("export", f"run={trained_folder}", "format=argos", f"output={output}")))
    sources = [source for source, _ in PAIRS[:20]]
    environment = os.environ | {"PYTHONPATH": str(libraries), "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"),
                                "ARGOS_PACKAGES_DIR": str(tmp_path / "packages"), "ARGOS_INTRA_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, output / "translate-en_de.argosmodel"], input="\n".join(sources), env=environment,
        capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    found = result.stdout.splitlines()
    expected = Translator(trained_folder, device="cpu")(sources)
    assert len(found) == len(expected)
    assert sum(theirs == ours for theirs, ours in zip(found, expected, strict=True)) >= 10  # int8, and another length penalty
