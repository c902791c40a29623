"""Small configurations, from dataclasses and from conf/."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from tests.support.paths import ROOT
from translator.config.building import build, from_hydra
from translator.config.options import ModelConfig, RunConfig, SearchConfig, TokenizerConfig

# Options of the smallest model that trains, for the scripts.
TINY = [
    "model=tiny", "model.d_model=32", "model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
    "device=cpu", "precision=fp32", "tokenizer.vocab_size=320",
    # A model that has learned little loses them, and each that is lost is searched for once more.
    "tokenizer.placeholders=0", "data.augment.placeholders=0"]


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
