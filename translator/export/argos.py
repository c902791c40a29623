"""Write the package that Argos Translate and LibreTranslate install: https://github.com/argosopentech/argos-translate."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

from translator.inference.ctranslate2 import save_model
from translator.inference.decoding import Decoding
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError
from translator.text.language import name_of
from translator.text.tokenizer import is_narrow

LIBRARY = "argostranslate"
VERSION, LEAST_ARGOS = "1.0", "1.9"  # of the package, and of Argos Translate
LONGEST = 1024  # tokens of a sentence that Argos Translate gives CTranslate2
USAGE = """\
import argostranslate.package
import argostranslate.translate

argostranslate.package.install_from_path({file!r})
print(argostranslate.translate.translate("Where is the train station?", {source!r}, {target!r}))
# It searches by settings of its own, and cuts sources after 1,024 tokens and outputs after 256.
"""


def write(translator: Translator, decoding: Decoding, folder: Path) -> None:
    """Write the content of the package. UserError for a model that Argos Translate cannot express."""
    source, target = direction(translator)
    if not is_narrow(translator.source_tokenizer, translator.target_tokenizer):
        raise UserError("tokenizer.joint=false: Argos Translate has one SentencePiece model for both languages. Train with "
                        "tokenizer.joint=true.")
    decoding = _long_enough(decoding, translator)
    content = folder / package_name(source, target)
    content.mkdir()
    (content / "model").mkdir()
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    save_model(translator.models[0], tokenizers, decoding.positions, content / "model", "int8")
    translator.source_tokenizer.save(content / "sentencepiece.model")
    metadata = {
        "package_version": VERSION, "argos_version": LEAST_ARGOS, "from_code": source, "from_name": name_of(source),
        "to_code": target, "to_name": name_of(target)}
    (content / "metadata.json").write_text(json.dumps(metadata, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def usage(translator: Translator, decoding: Decoding, folder: str) -> str:
    """Return Python code that installs the package in `folder` and translates with it."""
    source, target = direction(translator)
    return USAGE.format(file=f"{folder}/{package_name(source, target)}.argosmodel", source=source, target=target)


def direction(translator: Translator) -> tuple[str, str]:
    """Return the languages of a run; UserError if it has several targets or sources."""
    assert isinstance(translator.folder, RunFolder)
    directions = translator.folder.load_config().data.directions
    if len(directions) > 1 or translator.source_tokenizer.tags:
        pairs = ", ".join(f"{source} to {target}" for source, target in directions)
        raise UserError(f"{translator.folder.path}: translates {pairs}; a package of Argos Translate has one pair. Export a "
                        "run of one pair.")
    return directions[0]


def package_name(source: str, target: str) -> str:
    return f"translate-{source}_{target}"


def _long_enough(decoding: Decoding, translator: Translator) -> Decoding:
    """Return the decoding with positions for the longest sentence that Argos Translate gives to a model."""
    learned = translator.models[0].config.positions == "learned"
    if learned and decoding.positions < LONGEST:
        raise UserError(f"model.max_positions={decoding.positions}: Argos Translate gives a model sentences of up to "
                        f"{LONGEST:,} tokens. Train with more, or without model.positions=learned.")
    return decoding if learned else dataclasses.replace(decoding, positions=max(decoding.positions, LONGEST))


def pack(folder: Path) -> None:
    """Zip what `write` has written, and the README.md of the folder, beside it."""
    [content] = (path for path in folder.iterdir() if path.is_dir())
    shutil.copy(folder / "README.md", content)
    with zipfile.ZipFile(folder / f"{content.name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(content.rglob("*")):
            archive.write(file, file.relative_to(folder))
    shutil.rmtree(content)
