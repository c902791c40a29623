"""What several test files need: small configurations, a tiny trained-looking run folder, and the command line."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import settings

from tests.support.forked import forks, run_script
from translator.config.building import build, from_hydra, to_yaml
from translator.config.options import DataConfig, ModelConfig, RunConfig, SearchConfig, TokenizerConfig
from translator.data.batching import Batch, collate
from translator.data.cleaning import Counts, HeldOut, clean
from translator.model.transformer import Transformer
from translator.model.weights import weights_of
from translator.runs.run_folder import RunFolder
from translator.runtime.atomic_files import save_tensors
from translator.text.tokenizer import PAD_ID, Tokenizer, train_tokenizer
from translator.training import thread_parallel as threads
from translator.training.updater import Updater

ROOT = Path(__file__).parent.parent
SHARED_DATASETS = ROOT.parent / "shared" / "datasets"

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.register_profile("fuzz", deadline=None, max_examples=7000)  # 70 times the usual, for `make fuzz`
settings.load_profile("unhurried")  # --hypothesis-profile is heeded after this

# Options of the smallest model that trains, for the scripts.
TINY = [
    "model=tiny", "model.d_model=32", "model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
    "device=cpu", "precision=fp32", "tokenizer.vocab_size=320"]

PAIRS = [
    (f"{subject} {verb} {count} {thing}.", f"{wer} {tut} {zahl} {ding}.")
    for subject, wer in (("She", "Sie"), ("He", "Er"), ("My brother", "Mein Bruder"), ("The dog", "Der Hund"))
    for verb, tut in (("sees", "sieht"), ("wants", "will"), ("finds", "findet"), ("paints", "malt"))
    for count, zahl in (("two", "zwei"), ("three", "drei"), ("many", "viele"))
    for thing, ding in (("houses", "Häuser"), ("trees", "Bäume"), ("red apples", "rote Äpfel"), ("books", "Bücher"))
]


@pytest.fixture(scope="session", autouse=True)
def _as_if_alone() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
    for name in ("MAKEFLAGS", "ARGS"):  # which `make test ARGS=...` hands on; the recipes that tests run take their own
        os.environ.pop(name, None)


@pytest.fixture
def several_threads(monkeypatch) -> Iterator[Callable[[int], None]]:
    """To be called with how many a test is to have; each then works on a part of the smallest batch."""
    monkeypatch.setattr(threads, "LEAST_POSITIONS", 1)
    yield torch.set_num_threads
    torch.set_num_threads(1)


def model_config(**changes: object) -> ModelConfig:
    tiny = {
        "d_model": 32, "num_heads": 4, "d_ff": 48, "encoder_layers": 2, "decoder_layers": 2, "norm": "pre",
        "activation": "relu", "positions": "sinusoidal", "max_positions": 64, "encoder_window": None,
        "decoder_window": None, "tied": "all", "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return build(ModelConfig, tiny | changes)


def search_config(**changes: object) -> SearchConfig:
    plain = {
        "beam_size": 4, "length_penalty": 1.0, "n_best": 1, "min_length": 1, "max_length": None, "max_length_ratio": 2.0,
        "max_length_extra": 5, "max_source_tokens": 200, "batch_tokens": 4000}
    return build(SearchConfig, plain | changes)


def tokenizer_config(**changes: object) -> TokenizerConfig:
    small = {
        "model_type": "unigram", "vocab_size": 320, "joint": True, "byte_fallback": True, "character_coverage": 1.0,
        "sampling": 0.0}
    return build(TokenizerConfig, small | changes)


def composed(name: str, *overrides: str) -> object:
    """A composed Hydra configuration, as the scripts get it."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides=list(overrides))


def run_config(*overrides: str) -> RunConfig:
    return from_hydra(RunConfig, composed("train", "name=test", *overrides))


def batch_of(*lengths: tuple[int, int], seed: int = 1) -> Batch:
    """Pairs of random ids of a vocabulary of 40, of these lengths."""
    torch.manual_seed(seed)
    sources, targets = ([torch.randint(4, 40, (n,)).tolist() for n in side] for side in zip(*lengths, strict=True))
    return collate(sources, targets)


def random_model(
    config: ModelConfig | None = None, *, vocab: int | tuple[int, int] = 40, seed: int = 0
) -> Transformer:
    """A random model in eval mode, with every zero-initialised bias made random: a test must see it.

    `vocab`: that of both sides, or the source's and the target's.
    """
    torch.manual_seed(seed)
    sizes = vocab if isinstance(vocab, tuple) else (vocab, vocab)
    model = Transformer(config or model_config(), *sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return model


def updater_of(
    *options: str, precision: torch.dtype = torch.float32, device: torch.device | str = "cpu", **model: object
) -> Updater:
    """One of a random model of this configuration, with these options of training."""
    config = run_config("optim.lr=1e-3", *options)
    return Updater(random_model(model_config(**model)).to(device), config.optim, config.train, precision=precision)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer([text for pair in PAIRS for text in pair], tokenizer_config())


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A run folder with random weights: it translates, if badly."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    overrides = [f"model.{k}={'null' if v is None else v}" for k, v in vars(model_config()).items()]
    folder = RunFolder(path)
    config = run_config(*overrides, "search.max_length_ratio=1", "search.max_length_extra=5", "search.max_source_tokens=100")
    folder.create(config, (tokenizer, tokenizer), {"splits": {}})
    save_tensors(folder.model_file, weights_of(random_model(vocab=len(tokenizer), seed=6)))
    return path


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, run_folder: Path) -> Path:
    """A run folder that has learned PAIRS: it says words."""
    model = random_model(vocab=len(tokenizer), seed=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sources, targets = (tokenizer.encode(side) for side in zip(*PAIRS, strict=True))
    batches = [collate(sources[part::4], targets[part::4]) for part in range(4)]
    for batch in batches * 40:
        optimizer.zero_grad()
        logits = model(batch.source, batch.target_in)
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target_out, ignore_index=PAD_ID).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("trained") / "tiny"
    shutil.copytree(run_folder, path)
    save_tensors(RunFolder(path).model_file, weights_of(model))
    return path


@pytest.fixture(scope="session")
def reverse_folder(trained_folder, tmp_path_factory) -> Path:
    """A run that says it translates from German to English."""
    path = tmp_path_factory.mktemp("reverse") / "tiny"
    shutil.copytree(trained_folder, path)
    folder = RunFolder(path)
    config = folder.load_config()
    data = dataclasses.replace(config.data, source="de", target="en")
    folder.config_file.write_text(to_yaml(dataclasses.replace(config, data=data)))
    return path


@pytest.fixture(scope="session", autouse=True)
def _heeding_ctrl_c() -> None:
    """Shells start background jobs with SIGINT ignored; the scripts under test would inherit that and not stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


Script = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def script() -> Script:
    """Run a script of ours as a user would: script("translate", "run=...", stdin=b"...")."""
    before = dict(os.environ)
    forks()

    def run(
        name: str, *options: str, stdin: bytes = b"", timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        wanted = os.environ | environment
        changed = {name for name in before | wanted if before.get(name) != wanted.get(name)}
        if all(name.startswith(("PYTEST_", "TRANSLATE_")) for name in changed):
            return run_script(name, options, stdin, timeout, {name: wanted.get(name, "") for name in changed})
        return subprocess.run(  # libraries read their variables as they are imported
            [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *options], input=stdin, capture_output=True,
            timeout=timeout, cwd=ROOT, env=wanted)

    return run


def cleaned(rows: Any, config: DataConfig, held_out: HeldOut, counts: Counts) -> list[tuple[str, str]]:
    """The pairs that `clean` leaves."""
    return [(row["source"], row["target"]) for table in clean(rows, config, held_out, counts) for row in table.to_pylist()]


def recipes_with(folder: Path, python: str) -> None:
    """A copy of the Makefile, for which all is set up, with a shell script in the place of Python."""
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (folder / ".venv" / "ready").touch()
    (bin_folder / "python").write_text(f"#!/bin/sh\n{python}\n")
    (bin_folder / "python").chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
        os.utime(folder / name, (0, 0))


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """A TSV file of pairs with the columns en and de."""
    path.write_text("en\tde\n" + "".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    return path


def assert_user_error(result: subprocess.CompletedProcess[bytes], *words: str) -> None:
    """Exit code 2, nothing on stdout, one last line on stderr that says `words`, and neither traceback nor Hydra's words."""
    stderr = result.stderr.decode()
    assert result.returncode == 2, stderr
    assert not result.stdout
    assert "Traceback" not in stderr
    assert "Error executing job" not in stderr
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("error: "), stderr
    for word in words:
        assert word in last, last
