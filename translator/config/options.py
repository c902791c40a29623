"""The options of a run as frozen dataclasses, checked when they are made.

What each option means and its default stand once, in `conf/`; here are its type and its bounds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from translator.config.languages import is_tag, tag_of
from translator.runtime.errors import UserError

Files = str | tuple[str, ...] | None

# Target pieces that are kept of each source piece.
MOST_CANDIDATES = 100
# That an output may be told to have; characters of a phrase that it must or must not hold, whose tokens take a step each.
MOST_TOKENS, MOST_DEMANDED, MOST_PHRASES = 1_000_000, 1000, 50
# Of a vocabulary: for two thousand times as many, SentencePiece was still at work on 400 pairs after minutes.
MOST_PIECES = 1_000_000

# Beyond any use, and well within what float32 and int64 hold.
LEAST, MOST_UPDATES, MOST_BATCH, MOST_MINUTES = 1e-30, 10**9, 2**30, 10**6

# More than anybody has, and few enough to see whether weights fit a config.yaml before memory is taken for them.
MOST = {"d_model": 2**20, "d_ff": 2**20, "encoder_layers": 1000, "decoder_layers": 1000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the sentence pairs come from: conf/data."""

    path: str | None
    config: str | None
    revision: str | None
    folder: str | None
    train: str | tuple[str, ...]
    validation: Files
    test: Files
    source: str
    target: str
    holdout: int
    limit: int | None
    window: int | None = None  # younger than other options
    max_characters: int
    max_ratio: float
    overlap: Literal["any", "source"] = "any"  # younger than other options
    cache: str
    workers: int | None = None

    def __post_init__(self) -> None:
        require(self.train not in ("", ()), "data.train", "must name a split or a file")
        require(self.path != "", "data.path", "must be null, a folder or an id on the hub")
        require(self.cache != "", "data.cache", "must name a folder")
        for side in ("source", "target"):
            names = getattr(self, side).split("+")
            require(all(names) and len(set(names)) == len(names), f"data.{side}", "must be one name, or several joined by +")
        require(all(map(is_tag, self.tags)), "data.target", "must join names without spaces, < and >")
        require(bool(self.directions), "data.source", "and data.target are the same; name two languages or columns")
        require(self.holdout >= 1, "data.holdout", "must be at least 1 pair")
        require(self.limit is None or self.limit >= 1, "data.limit", "must be null or at least 1 pair")
        if self.window is not None:
            require(self.window >= 1, "data.window", "must be null or at least 1 pair")
            require(self.validation is not None and self.test is not None, "data.window",
                    "needs data.validation and data.test: they cannot be cut from a stream")
            require(self.limit is None, "data.limit", "is for data that are prepared first: set data.window=null")
        require(self.max_characters >= 1, "data.max_characters", "must be at least 1")
        require(self.max_ratio >= 1, "data.max_ratio", "must be at least 1")
        require(self.workers is None or self.workers >= 1, "data.workers", "must be null or at least 1")
        files = any(isinstance(value, tuple) for value in (self.train, self.validation, self.test))
        require(len(self.directions) == 1 or not files, "data.source",
                "and data.target name several languages, and files of lines hold one each: give a file of columns")

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The languages to translate from and to: where there are several, every two that differ."""
        return tuple((s, t) for s in self.source.split("+") for t in self.target.split("+") if s != t)

    @property
    def language(self) -> str:
        """The one to translate to; empty where there are several."""
        first, *others = {target for _, target in self.directions}
        return "" if others else first

    @property
    def tags(self) -> tuple[str, ...]:
        """Of the languages to translate to, where there is a choice."""
        reached = {target for _, target in self.directions}
        targets = [target for target in self.target.split("+") if target in reached]
        return tuple(tag_of(target).strip() for target in targets) if len(targets) > 1 else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text becomes subwords: conf/tokenizer."""

    model_type: Literal["unigram", "bpe"]
    vocab_size: int
    joint: bool
    byte_fallback: bool
    character_coverage: float
    sampling: float
    source_tag: str | None = None  # younger than other options
    target_tag: str | None = None
    narrow_target: bool = False

    def __post_init__(self) -> None:
        require(8 <= self.vocab_size <= MOST_PIECES, "tokenizer.vocab_size", f"must be 8 to {MOST_PIECES:,}")
        require(0.9 <= self.character_coverage <= 1, "tokenizer.character_coverage", "must lie between 0.9 and 1")
        require(0 <= self.sampling <= 1, "tokenizer.sampling", "must lie between 0 (off) and 1")
        require(self.sampling == 0 or self.model_type == "unigram", "tokenizer.sampling",
                "needs tokenizer.model_type=unigram, which ranks segmentations; set it to 0 for bpe")
        require(not self.narrow_target or self.model_type == "unigram", "tokenizer.narrow_target",
                "needs tokenizer.model_type=unigram, whose pieces are not merged from others; set it to false for bpe")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer's shape: conf/model."""

    d_model: int
    num_heads: int
    d_ff: int
    encoder_layers: int
    decoder_layers: int
    norm: Literal["pre", "post"]
    activation: Literal["relu", "gelu", "silu", "swiglu"]
    positions: Literal["sinusoidal", "learned", "rotary", "relative"]
    max_positions: int
    encoder_window: int | tuple[int | None, ...] | None
    decoder_window: int | tuple[int | None, ...] | None
    tied: Literal["none", "target", "all"]
    output_bias: bool = False  # younger than other options, as is `embeddings`
    embeddings: Literal["random", "cooccurrence"] = "random"
    dropout: float
    attention_dropout: float
    activation_dropout: float

    def __post_init__(self) -> None:
        for name in ("d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers", "max_positions"):
            require(getattr(self, name) >= 1, f"model.{name}", "must be at least 1")
        for name, most in MOST.items():
            require(getattr(self, name) <= most, f"model.{name}", f"must be at most {most:,}")
        require(self.d_model % (2 * self.num_heads) == 0, "model.d_model",
                f"({self.d_model}) must be a multiple of twice model.num_heads ({self.num_heads})")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            require(0 <= getattr(self, name) < 1, f"model.{name}", "must be at least 0 and below 1")
        for side in ("encoder", "decoder"):
            windows, layers = getattr(self, f"{side}_window"), getattr(self, f"{side}_layers")
            if isinstance(windows, tuple):
                require(len(windows) == layers, f"model.{side}_window",
                        f"names {len(windows)} layers, but model.{side}_layers is {layers}")
            widths = windows if isinstance(windows, tuple) else (windows,)
            require(all(w is None or w >= 1 for w in widths), f"model.{side}_window", "must be null or at least 1")

    def windows(self, side: Literal["encoder", "decoder"]) -> tuple[int | None, ...]:
        """The self-attention window of every layer on one side; None for a global layer."""
        windows = self.encoder_window if side == "encoder" else self.decoder_window
        layers = self.encoder_layers if side == "encoder" else self.decoder_layers
        return windows if isinstance(windows, tuple) else (windows,) * layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How weights are updated: conf/optim."""

    optimizer: Literal["adamw", "muon"]
    lr: float
    betas: tuple[float, ...]
    eps: float
    weight_decay: float
    schedule: Literal["inverse_sqrt", "cosine", "linear", "wsd", "constant"]
    warmup_updates: int
    clip_norm: float | None
    ema_decay: float

    def __post_init__(self) -> None:
        within(self, "optim", lr=(LEAST, 1000), eps=(LEAST, 1), weight_decay=(0, 1000), warmup_updates=(0, MOST_UPDATES),
               clip_norm=(LEAST, 1e30))
        require(len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "optim.betas",
                "must be two numbers, each at least 0 and below 1")
        require(0 <= self.ema_decay < 1, "optim.ema_decay", "must be at least 0 (off) and below 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Batches, limits, validation: conf/train."""

    batch_tokens: int | Literal["auto"]
    accumulation: int | None
    label_smoothing: float
    r_drop: float = 0.0  # younger than other options: a run folder without it has trained without
    r_drop_through: Literal["model", "decoder"] = "model"  # likewise, the whole
    sampled_softmax: int = 0  # likewise
    max_epochs: int | None
    max_updates: int | None
    max_minutes: float | None
    validate_every: int | None
    validation_beam: int
    metric: Literal["bleu", "chrf", "ter", "loss"]
    patience: int | None
    average: Literal["none", "last", "best"]
    average_count: int
    log_every: int
    compile: bool
    cuda_graphs: bool = True
    parallel: Literal["ddp", "fsdp"] = "ddp"
    timeout_minutes: float = 10.0

    def __post_init__(self) -> None:
        within(self, "train", accumulation=(1, 10_000), validate_every=(1, MOST_UPDATES), validation_beam=(1, 100),
               average_count=(1, MOST_UPDATES), log_every=(1, MOST_UPDATES), r_drop=(0, 1000), sampled_softmax=(0, MOST_PIECES),
               max_epochs=(1, MOST_UPDATES), max_updates=(1, MOST_UPDATES), patience=(1, MOST_UPDATES),
               max_minutes=(LEAST, MOST_MINUTES), timeout_minutes=(LEAST, MOST_MINUTES), batch_tokens=(1, MOST_BATCH))
        require(0 <= self.label_smoothing < 1, "train.label_smoothing", "must be at least 0 and below 1")
        require((self.max_epochs, self.max_updates, self.max_minutes) != (None, None, None), "train.max_epochs",
                "train.max_updates and train.max_minutes are all null; set one, or training never ends")

    @property
    def passes(self) -> int:
        """How often each batch's targets go through the decoder: twice for R-Drop."""
        return 2 if self.r_drop else 1

    @property
    def encodings(self) -> int:
        """How often its sources go through the encoder."""
        return self.passes if self.r_drop_through == "model" else 1

    @property
    def batches_of_update(self) -> int:
        """`accumulation`, once null is settled: one, where there is one process."""
        return self.accumulation or 1

    @property
    def interval(self) -> int:
        """`validate_every`, once null is settled."""
        if self.validate_every is None:
            raise UserError("train.validate_every=null: only scripts/train.py plans validations; give a number")
        return self.validate_every

    @property
    def max_tokens(self) -> int:
        """`batch_tokens`, once auto is settled."""
        if self.batch_tokens == "auto":
            raise UserError("train.batch_tokens=auto: only scripts/train.py finds out what fits; give a number")
        return self.batch_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How a translation is sought: conf/search. Options with a default here are younger than the first run folders."""

    beam_size: int
    keep_places: bool = False
    patience: float | None = None
    length_penalty: float
    length_penalty_form: Literal["gnmt", "power"] = "gnmt"
    coverage_penalty: float = 0.0
    n_best: int
    min_length: int
    min_length_ratio: float = 0.0
    max_length: int | None
    max_length_ratio: float
    max_length_extra: int
    groups: int = 1
    diversity: float = 0.5
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    terminology: str | None = None
    copy_unknown: bool = False
    language: str | None = None
    mbr: Literal["chrf", "bleu"] | None = None
    max_source_tokens: int
    split_sentences: Literal["auto", "always", "never"] = "auto"
    batch_tokens: int | Literal["auto"]
    shortlist: int = 0

    def __post_init__(self) -> None:
        within(self, "search", beam_size=(1, 5000), n_best=(1, 5000), groups=(1, 5000), max_source_tokens=(1, MOST_TOKENS),
               min_length=(0, MOST_TOKENS), min_length_ratio=(0, MOST_TOKENS), max_length=(1, MOST_TOKENS),
               max_length_ratio=(0, MOST_TOKENS), max_length_extra=(1, MOST_TOKENS), length_penalty=(0, 10),
               coverage_penalty=(0, 1000), diversity=(0, 10**9), no_repeat_ngram=(0, MOST_TOKENS), repetition_penalty=(1, 1000),
               temperature=(1e-6, 1000), top_k=(0, MOST_PIECES), top_p=(1e-6, 1), seed=(0, 2**63), batch_tokens=(1, MOST_BATCH))
        require(self.sampling or self.beam_size <= 1000, "search.beam_size", "must be 1 to 1,000, except in sampling")
        for name, texts in (("prefix", (self.prefix,)), ("required", self.required), ("banned", self.banned)):
            require(all(len(text) <= MOST_DEMANDED for text in texts), f"search.{name}",
                    f"must have at most {MOST_DEMANDED:,} characters")
        require(self.n_best <= self.beam_size, "search.n_best",
                f"({self.n_best}) is more than search.beam_size ({self.beam_size}); raise the beam")
        require(self.n_best <= self.most_outputs, "search.n_best",
                f"({self.n_best}) is more than search.patience x search.beam_size ({self.most_outputs}); raise either")
        require(self.beam_size % self.groups == 0, "search.groups",
                f"({self.groups}) must divide search.beam_size ({self.beam_size})")
        require(0 <= self.shortlist <= MOST_CANDIDATES, "search.shortlist", f"must be 0 (off) to {MOST_CANDIDATES}")
        for name, off in (("top_k", 0), ("top_p", 1), ("temperature", 1)):
            require(self.sampling or getattr(self, name) == off, f"search.{name}", "is for search.sampling=true")
        require(self.mbr is None or self.most_outputs > 1, "search.mbr",
                "needs candidates: raise search.beam_size, or search.patience")
        require(self.max_length is None or self.min_length <= self.max_length, "search.min_length",
                f"({self.min_length}) is more than search.max_length ({self.max_length})")
        for name in ("banned", "required"):
            require(all(phrase.strip() for phrase in getattr(self, name)), f"search.{name}", "must not hold an empty phrase")
        require(not (self.sampling and self.groups > 1), "search.groups", "are for beam search: set search.sampling=false")
        require(not (self.keep_places and (self.sampling or self.groups > 1)), "search.keep_places",
                "is for plain beam search: set search.sampling=false and search.groups=1")
        require(self.patience is None or self.keep_places, "search.patience",
                "is for search.keep_places=true: a search that narrows ends by itself")
        require(self.patience is None or 0 < self.patience <= 100, "search.patience", "must be null or above 0 and at most 100")
        wanted = bool(self.required) or self.terminology is not None
        require(not (wanted and (self.sampling or self.groups > 1 or self.keep_places)), "search.required",
                "and search.terminology need plain beam search: without search.sampling, search.groups and search.keep_places")

    @property
    def places_stay(self) -> bool:
        """`keep_places`, where it means something: greedy search ends with its one hypothesis."""
        return self.keep_places and self.beam_size > 1

    @property
    def awaited(self) -> float:
        """Hypotheses that must finish for a sentence to be done by `patience` alone."""
        return math.inf if self.patience is None else max(1, math.floor(self.patience * self.beam_size + 0.5))

    @property
    def most_outputs(self) -> int:
        """The most outputs that a search is sure to find, where the rules let it."""
        return int(min(self.beam_size, self.awaited))

    def plain(self, beam_size: int) -> SearchConfig:
        """Beam search with the same penalties, limits and treatment of unknown words, for the best output alone."""
        return dataclasses.replace(
            self, beam_size=beam_size, n_best=1, groups=1, sampling=False, temperature=1.0, top_k=0, top_p=1.0, prefix="",
            required=(), banned=(), terminology=None, mbr=None, shortlist=0)

    def require_like(self, other: SearchConfig, why: str) -> None:
        """UserError, with why, for the first option that is not as in the other."""
        for option, value in vars(self).items():
            if value != getattr(other, option):
                raise UserError(f"search.{option}={value}: {why}; leave this option out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that shapes a run: what `scripts/train.py` composes and `runs/<name>/config.yaml` keeps."""

    name: str
    runs: str
    init: str | None = None  # younger than other options
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    search: SearchConfig

    def __post_init__(self) -> None:
        require(self.name not in ("", ".", "..") and "/" not in self.name and self.name.isprintable(), "name",
                "must be a folder's name, without / and line breaks")
        require(self.data.window is None or self.train.max_epochs is None, "train.max_epochs",
                "means nothing with data.window: set it to null, and train.max_updates or train.max_minutes")
        require(self.search.shortlist == 0, "search.shortlist",
                "is for a trained model: `make shortlist` learns one; leave it 0 in training")
        tags = {self.tokenizer.source_tag, self.tokenizer.target_tag}
        require(self.init is not None or tags == {None}, "tokenizer.source_tag",
                "and tokenizer.target_tag are for a model that init names: a vocabulary trained here has no tags")
        require(0 <= self.seed < 2**31, "seed", "must lie between 0 and 2147483647")
        require(self.tokenizer.joint or self.model.tied != "all", "model.tied",
                "all needs one vocabulary for both sides: set tokenizer.joint=true, or model.tied=target")

    def longest_pair(self, batch_tokens: int | None = None) -> int:
        """The most tokens that a side of a training pair may have: those that fit into a batch, and have positions."""
        positions = [self.model.max_positions] if self.model.positions == "learned" else []
        return min([self.train.max_tokens if batch_tokens is None else batch_tokens, *positions])


def require(holds: bool, option: str, rule: str) -> None:
    """UserError where an option breaks a rule."""
    if not holds:
        raise UserError(f"{option} {rule}")


def within(config: Any, group: str, **bounds: tuple[float, float]) -> None:
    """UserError where a number among the options is outside its bounds, which it may equal."""
    for name, (least, most) in bounds.items():
        value = getattr(config, name)
        rule = f"must be above 0 and at most {most:,}" if least == LEAST else f"must be {least:,} to {most:,}"
        require(value in (None, "auto") or least <= value <= most, f"{group}.{name}", rule)
