"""Write a model for CTranslate2: https://opennmt.net/CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from translator.inference.ctranslate2 import save_model
from translator.inference.decoding import Decoding, require_patience
from translator.inference.translator import Translator
from translator.text.tokenizer import BOS_ID, PAD_ID, UNK_ID

LIBRARY = "ctranslate2"
USAGE = """\
import ctranslate2
from sentencepiece import SentencePieceProcessor

folder = {folder!r}
model = ctranslate2.Translator(folder)
source, target = SentencePieceProcessor(folder + {source!r}), SentencePieceProcessor(folder + {target!r})

sentences = source.encode(["Where is the train station?", "I like tea."], out_type=str)
longest = max(len(sentence) + 1 for sentence in sentences)
results = model.translate_batch(
    sentences, {options},
    max_decoding_length={limit})
print(target.decode([result.hypotheses[0] for result in results]))
"""


def write(translator: Translator, decoding: Decoding, folder: Path, quantization: str) -> None:
    """Write the model, its vocabularies and its tokenizers. Raises UserError for a model or a search it cannot express."""
    require_patience(decoding.search)
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    save_model(translator.models[0], tokenizers, decoding.positions, folder, quantization)
    source_file, target_file = _tokenizer_files(translator)
    translator.source_tokenizer.save(folder / source_file)
    translator.target_tokenizer.save(folder / target_file)


def usage(translator: Translator, decoding: Decoding, folder: str) -> str:
    """Return Python code that translates with the export in `folder`."""
    source, target = _tokenizer_files(translator)
    options = ", ".join(f"{name}={value!r}" for name, value in decoding_options(translator, decoding).items())
    return USAGE.format(
        folder=f"{folder}/", source=source, target=target, limit=decoding.limit("longest"), options=options)


def decoding_options(translator: Translator, decoding: Decoding) -> dict[str, Any]:
    """Return the options of `ctranslate2.Translator.translate_batch`, except the limit of length."""
    options: dict[str, Any] = {"beam_size": decoding.search.beam_size}
    if decoding.search.beam_size > 1:
        # Finished hypotheses give up their places in its beam, but not in this project's: patience finds the same. The end
        # token is returned so that it counts in the length.
        options |= {"length_penalty": decoding.length_penalty, "patience": decoding.search.patience or 2.0,
                    "return_end_token": True}
    never = translator.target_tokenizer.pieces([PAD_ID, UNK_ID, BOS_ID])
    return options | {"suppress_sequences": [[piece] for piece in never], "max_input_length": 0}


def _tokenizer_files(translator: Translator) -> tuple[str, str]:
    joint = translator.source_tokenizer is translator.target_tokenizer
    return ("tokenizer.model",) * 2 if joint else ("tokenizer.source.model", "tokenizer.target.model")
