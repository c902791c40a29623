"""Models from elsewhere become runs that translate as they did there: our own runs, and what `transformers` writes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from tests.conftest import PAIRS, Script, assert_user_error, search_config, write_pairs
from translator.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from translator.translate import Translator

transformers = pytest.importorskip("transformers")

# Of every kind: known words, characters that the other language's model alone knows, and some that none does.
TEXTS = [source for source, _ in PAIRS] + [
    "My", "two two two", "Äpfel and Bäume", "She sees ß.", "a 漢字 b", "tab\there", "  many   spaces ", "Ǆ", "houses." * 5]
LONGEST = 80  # tokens of an output


def sentencepiece_model(texts: Sequence[str], **options: object) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, hard_vocab_limit=False,
        **{"vocab_size": 110, "model_type": "unigram"} | options)
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(len(processor)) if not processor.is_control(i) and not processor.is_unknown(i)]


def made_random(model: Any, *, seed: int = 0) -> Any:
    """Large enough weights to say many things, and no bias of zero."""
    torch.manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in name and "weight" in name:
            tensor.data.normal_(1, 0.2)
        elif "embed_positions" not in name:
            tensor.data.normal_(0, 0.3)
    return model.eval()


def taught(model: Any, tokenizer: Any, updates: int = 60) -> Any:
    """Half trained on PAIRS: what it says differs from text to text, ends by itself, and is not at all certain."""
    batch = tokenizer([s for s, _ in PAIRS], text_target=[t for _, t in PAIRS], return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(updates):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model


def marian_folder(path: Path, *, model_type: str = "unigram", codes: Sequence[str] = (), **options: Any) -> Path:
    path.mkdir(parents=True)
    sides = {"source": sentencepiece_model([s for s, _ in PAIRS], model_type=model_type),
             "target": sentencepiece_model([t for _, t in PAIRS], model_type=model_type)}
    for side, model in sides.items():
        (path / f"{side}.spm").write_bytes(model)
    names = sorted({piece for model in sides.values() for piece in pieces_of(model)}, key=lambda piece: hash_of(piece))
    names = ["</s>", "<unk>", *codes, *(n for n in names if n not in ("ees", "▁paints", "d")), "<pad>"]  # some have no row
    (path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    tokenizer = transformers.MarianTokenizer(str(path / "source.spm"), str(path / "target.spm"), str(path / "vocab.json"))
    pad = len(names) - 1
    shape = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "activation_function": "swish",
             "scale_embedding": True, "static_position_embeddings": True}
    model = transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=len(names), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, bos_token_id=None,
        forced_eos_token_id=0, **shape | options))
    taught(made_random(model), tokenizer)
    model.final_logits_bias[0, 1] = -100  # no <unk>, which we never produce
    model.generation_config = transformers.GenerationConfig(  # as the OPUS-MT models have it
        bad_words_ids=[[pad]], renormalize_logits=True, decoder_start_token_id=pad, pad_token_id=pad, eos_token_id=0,
        forced_eos_token_id=0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def hash_of(piece: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(piece)) % 997


def theirs(folder: Path, texts: Sequence[str], beam: int, **options: Any) -> list[str]:
    """What `transformers` makes of texts, a search at a time as exact as ours."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for i in range(0, len(texts), 50):
        inputs = tokenizer(list(texts[i : i + 50]), return_tensors="pt", padding=True)
        outputs = model.generate(
            **inputs, num_beams=beam, max_new_tokens=LONGEST + 1, length_penalty=1.0, early_stopping="never", **options)
        found += tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return found


def ours(run: Path, texts: Sequence[str], beam: int) -> list[str]:
    options = search_config(
        beam_size=beam, keep_places=True, length_penalty_form="power", max_length_ratio=0.0, max_length_extra=LONGEST)
    return Translator(run, device="cpu")(texts, options)
