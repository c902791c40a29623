"""From files to translations through the real scripts: a task that is learned only if every part does its work."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.corpora import write_pairs

OPTIONS = [
    "data=files", "data.holdout=60", "tokenizer.vocab_size=20", "tokenizer.placeholders=0", "tokenizer.byte_fallback=false",
    "model=tiny",
    "model.d_model=64", "model.d_ff=128", "model.encoder_layers=2", "model.decoder_layers=2", "model.dropout=0",
    "model.positions=relative",
    "optim.lr=1e-2", "optim.warmup_updates=100", "train.batch_tokens=512",
    "train.max_epochs=null", "train.max_minutes=null",
    "train.max_updates=450", "train.validate_every=225", "train.label_smoothing=0", "train.average=none", "seed=1"]


def reversed_words(count: int) -> list[tuple[str, str]]:
    rng = random.Random(0)
    lines = {tuple(rng.choices("abcdefgh", k=rng.randint(2, 8))) for _ in range(count)}
    return [(" ".join(line), " ".join(reversed(line))) for line in sorted(lines)]


def test_reversing_is_learned_to_99_percent(script, tmp_path: Path):
    pairs = reversed_words(6000)
    random.Random(1).shuffle(pairs)
    train = write_pairs(tmp_path / "pairs.tsv", pairs[:-200])
    result = script(
        "train", f"data.train={train}", f"runs={tmp_path}", "name=reverse", f"data.cache={tmp_path}/cache", *OPTIONS)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == b""
    log = result.stderr.decode()
    for said in ("parameters", "updates", "BLEU", "nrefs:1", "scripts/translate.py", "scripts/evaluate.py", "scripts/board.py"):
        assert said in log
    assert log.count("  translation  ") == 5

    sources, targets = zip(*pairs[-200:], strict=True)
    lines = [*sources[:100], "", *sources[100:]]
    translated = script("translate", f"run={tmp_path / 'reverse'}", stdin="\n".join(lines).encode())
    assert translated.returncode == 0, translated.stderr.decode()
    outputs = translated.stdout.decode().split("\n")
    assert outputs.pop() == ""
    assert outputs.pop(100) == ""
    exact = sum(a == b for a, b in zip(outputs, targets, strict=True))
    assert exact >= 0.99 * len(targets), f"{exact} of {len(targets)}"

    again = script("train", f"data.train={train}", f"runs={tmp_path}", "name=reverse", f"data.cache={tmp_path}/cache", *OPTIONS)
    assert again.returncode == 0, again.stderr.decode()
    assert b"update 225" not in again.stderr  # a finished run is not trained again
