"""The options of a run as frozen, checked dataclasses.

What each option means and its default stand once, in `conf/`; here are its type and its bounds. An option with a default here
is younger than the first run folders, which did what the default says.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from translator.config.building import STRICT, Count, Options, Share, UpTo1000, Whole
from translator.config.data import DataConfig
from translator.config.heads import HeadOptions, Width
from translator.config.loss import LossConfig
from translator.config.stages import StageConfig, require_schedule
from translator.runtime.errors import UserError
from translator.runtime.typed import typed

MOST_CANDIDATES = 100  # target pieces that are kept for each source piece
# Tokens of an output; characters of a phrase that it must or must not hold, and such phrases: each token takes a step.
MOST_TOKENS, MOST_DEMANDED, MOST_PHRASES = 1_000_000, 1000, 50
MOST_PIECES = 1_000_000  # of a vocabulary: with two billion, SentencePiece did not finish 400 pairs within minutes

Device = Literal["auto", "cpu", "cuda", "mps"]
EngineName = Literal["auto", "torch", "ctranslate2"]
# Bounds beyond any use, and well within what float32 and int64 hold.
Minutes = Annotated[float, Field(ge=1e-30, le=1e6)]
BatchTokens = Annotated[int, Field(ge=1, le=2**30)] | Literal["auto"]
Windows = Count | tuple[Count | None, ...] | None
Beam = Annotated[int, Field(ge=1, le=5000)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
TokenCount = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Pieces = Annotated[int, Field(ge=0, le=MOST_PIECES)]
Ratio = Annotated[float, Field(ge=0, le=MOST_TOKENS)]
# The metrics, each a module of translator/metrics. To add one: its file there, and its name here.
MetricName = Literal["bleu", "exact", "chrf", "ter", "chrf++", "spbleu", "comet"]


def _metric_of_corpus(value: str) -> str:
    metric, _, corpus = value.partition(".")
    if metric not in get_args(MetricName) or not corpus:
        raise PydanticCustomError("metric", "a metric of one corpus, such as bleu.captions")
    return value


ValidationMetric = Literal[MetricName, "loss"] | Annotated[str, AfterValidator(_metric_of_corpus)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TokenizerConfig(Options):
    """How text becomes subwords: conf/tokenizer."""
    GROUP = "tokenizer."

    model_type: Literal["unigram", "bpe"]
    vocab_size: Annotated[int, Field(ge=8, le=MOST_PIECES)]
    joint: bool
    byte_fallback: bool
    character_coverage: Annotated[float, Field(ge=0.9, le=1)]
    sampling: Annotated[float, Field(ge=0, le=1)]
    source_tag: str | None = None
    target_tag: str | None = None
    narrow_target: bool = False
    placeholders: Annotated[int, Field(ge=0, le=9)] = 0
    split_digits: bool = False

    def __post_init__(self) -> None:
        bpe = self.model_type == "bpe"
        self.require(not (bpe and self.sampling), "sampling", "needs tokenizer.model_type=unigram. Set it to 0 for bpe.")
        self.require(not (bpe and self.narrow_target), "narrow_target",
                     "needs tokenizer.model_type=unigram, whose pieces are not merged from others. Set it to false for bpe.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig(HeadOptions):
    """The Transformer's shape: conf/model."""

    d_ff: Width
    norm: Literal["pre", "post"]
    activation: Literal["relu", "gelu", "silu", "swiglu"]
    decoder: Literal["attention", "ssru"] = "attention"
    attention: Literal["dot", "additive"] = "dot"
    attention_gate: bool = False
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "alibi"]
    max_positions: Count
    encoder_window: Windows
    decoder_window: Windows
    adaptive_span: Count | None = None
    tied: Literal["none", "target", "all"]
    output_bias: bool = False
    embeddings: Literal["random", "cooccurrence"] = "random"
    dropout: Share
    attention_dropout: Share
    activation_dropout: Share

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("encoder", "decoder"):
            windows, layers = getattr(self, f"{side}_window"), getattr(self, f"{side}_layers")
            self.require(not isinstance(windows, tuple) or len(windows) == layers, f"{side}_window",
                         f"does not have one window for each of model.{side}_layers={layers}")
        of_attention = {"decoder_window": any(self.windows("decoder")), "decoder_heads": self.decoder_heads is not None}
        for option, given in of_attention.items():
            self.require(self.decoder == "attention" or not given, option,
                         "needs model.decoder=attention. Set it to null for ssru.")

    def windows(self, side: Literal["encoder", "decoder"]) -> tuple[int | None, ...]:
        """Return the self-attention window of every layer on one side; None for a global layer."""
        windows, layers = getattr(self, f"{side}_window"), getattr(self, f"{side}_layers")
        return windows if isinstance(windows, tuple) else (windows,) * layers


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimConfig(Options):
    """How weights are updated: conf/optim."""
    GROUP = "optim."

    optimizer: Literal["adamw", "muon"]
    lr: Annotated[float, Field(ge=1e-30, le=1000)]
    betas: Annotated[tuple[Share, ...], Field(min_length=2, max_length=2)]
    eps: Annotated[float, Field(ge=1e-30, le=1)]
    weight_decay: UpTo1000
    schedule: Literal["inverse_sqrt", "cosine", "linear", "wsd", "constant"]
    warmup_updates: Whole
    clip_norm: Annotated[float, Field(ge=1e-30, le=1e30)] | None
    ema_decay: Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainConfig(LossConfig):
    """Batches, loss, limits, validation: conf/train."""

    batch_tokens: BatchTokens
    accumulation: Annotated[int, Field(ge=1, le=10_000)] | None
    max_epochs: Count | None
    max_updates: Count | None
    max_minutes: Minutes | None
    validate_every: Count | None
    validation_beam: Annotated[int, Field(ge=1, le=100)]
    metric: ValidationMetric | Literal["auto"]
    keep: tuple[ValidationMetric, ...] = ()
    patience: Count | None
    average: Literal["none", "last", "best"]
    average_count: Count
    log_every: Count
    compile: bool
    cuda_graphs: bool = True
    parallel: Literal["ddp", "fsdp"] = "ddp"
    timeout_minutes: Minutes = 10.0
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1)] | None = None

    def __post_init__(self) -> None:
        require_schedule(self.stages or (StageConfig(),))
        self.require((self.max_epochs, self.max_updates, self.max_minutes) != (None, None, None), "max_epochs",
                     "is null, as are train.max_updates and train.max_minutes: training would never end. Set one.")

    @property
    def batches_of_update(self) -> int:
        """`accumulation` once null is resolved: 1 for one process."""
        return self.accumulation or 1

    @property
    def interval(self) -> int:
        """`validate_every` once null is resolved."""
        if self.validate_every is None:
            raise UserError("train.validate_every=null: only train() plans validations. Give a number.")
        return self.validate_every

    @property
    def max_tokens(self) -> int:
        """`batch_tokens` once auto is resolved."""
        if self.batch_tokens == "auto":
            raise UserError("train.batch_tokens=auto: only train() finds out what fits. Give a number.")
        return self.batch_tokens


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlanningOptions(Options):
    """How a text becomes sentences to search."""

    max_source_tokens: TokenCount
    split_sentences: Literal["auto", "always", "never"] = "auto"
    language: str | None = None
    prefix: str = ""
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    terminology: str | None = None
    robust: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SearchOptions(Options):
    """How the outputs of a sentence are searched."""

    beam_size: Beam
    keep_places: bool = False
    patience: Annotated[float, Field(gt=0, le=100)] | None = None
    length_penalty: Annotated[float, Field(ge=0, le=10)]
    length_penalty_form: Literal["gnmt", "power"] = "gnmt"
    coverage_penalty: UpTo1000 = 0.0
    n_best: Beam
    min_length: Tokens
    min_length_ratio: Ratio = 0.0
    max_length: TokenCount | None
    max_length_ratio: Ratio
    max_length_extra: TokenCount
    groups: Beam = 1
    diversity: Annotated[float, Field(ge=0, le=1e9)] = 0.5
    sampling: bool = False
    temperature: Annotated[float, Field(ge=1e-6, le=1000)] = 1.0
    top_k: Pieces = 0
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = 1.0
    seed: Whole = 1
    no_repeat_ngram: Tokens = 0
    repetition_penalty: Annotated[float, Field(ge=1, le=1000)] = 1.0
    copy_unknown: bool = False
    batch_tokens: BatchTokens
    shortlist: Annotated[int, Field(ge=0, le=MOST_CANDIDATES)] = 0

    @property
    def places_stay(self) -> bool:
        """`keep_places`, where it has a meaning: greedy search ends with its one hypothesis."""
        return self.keep_places and self.beam_size > 1

    @property
    def awaited(self) -> float:
        """The number of finished hypotheses that ends a sentence by `patience`."""
        return math.inf if self.patience is None else max(1, math.floor(self.patience * self.beam_size + 0.5))

    @property
    def most_outputs(self) -> int:
        """The most outputs that a search is sure to find, where the rules let it."""
        return int(min(self.beam_size, self.awaited))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SearchConfig(PlanningOptions, SearchOptions):
    """How a text is translated: conf/search. Planning and search take their own part only."""
    GROUP = "search."

    mbr: Literal["chrf", "bleu"] | None = None  # how outputs are ranked

    def __post_init__(self) -> None:
        self.require(self.sampling or self.beam_size <= 1000, "beam_size", "must be at most 1,000, except in sampling")
        for option, texts in (("prefix", [self.prefix]), ("required", self.required), ("banned", self.banned)):
            self.require(all(len(text) <= MOST_DEMANDED for text in texts), option,
                         f"must be at most {MOST_DEMANDED:,} characters long")
            self.require(option == "prefix" or all(text.strip() for text in texts), option, "holds an empty phrase. Remove it.")
        self.require(self.n_best <= self.most_outputs, "n_best",
                     f"{self.n_best} is more than search.beam_size={self.beam_size}, or search.patience times it. Raise them.")
        self.require(self.beam_size % self.groups == 0, "groups",
                     f"{self.groups} does not divide search.beam_size={self.beam_size}")
        for option, off in (("top_k", 0), ("top_p", 1), ("temperature", 1)):
            self.require(self.sampling or getattr(self, option) == off, option, "needs search.sampling=true")
        self.require(self.mbr is None or self.most_outputs > 1, "mbr",
                     "needs candidates. Raise search.beam_size, or search.patience.")
        self.require(self.max_length is None or self.min_length <= self.max_length, "min_length",
                     f"{self.min_length} is more than search.max_length={self.max_length}")
        plain = not self.sampling and self.groups == 1
        self.require(not self.sampling or self.groups == 1, "groups", "are for beam search. Set search.sampling=false.")
        self.require(plain or not self.keep_places, "keep_places",
                     "is for plain beam search. Set search.sampling=false and search.groups=1.")
        self.require(self.patience is None or self.keep_places, "patience", "needs search.keep_places=true")
        self.require((plain and not self.keep_places) or not (self.required or self.terminology is not None), "required",
                     "and search.terminology need beam search without search.sampling, search.groups and search.keep_places")

    def plain(self, beam_size: int) -> SearchConfig:
        """Return beam search for the best output only, with the same penalties, limits and treatment of unknown words."""
        return dataclasses.replace(
            self, beam_size=beam_size, n_best=1, groups=1, sampling=False, temperature=1.0, top_k=0, top_p=1.0, prefix="",
            required=(), banned=(), terminology=None, mbr=None, shortlist=0)

    def require_like(self, other: SearchConfig, why: str) -> None:
        """Raise UserError, with why, for the first option that differs from the other's."""
        for option, value in vars(self).items():
            if value != getattr(other, option):
                raise UserError(f"search.{option}={value}: {why}. Leave this option out.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunConfig(Options):
    """Everything that shapes a run: what `scripts/train.py` composes and `runs/<name>/config.yaml` keeps."""

    name: str
    runs: str
    init: str | None = None
    seed: Whole
    device: Device
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    tracker: Literal["tensorboard", "wandb", "mlflow", "trackio"] = "tensorboard"
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    search: SearchConfig

    def __post_init__(self) -> None:
        self.require(self.name not in ("", ".", "..") and "/" not in self.name and self.name.isprintable(), "name",
                     "must be a folder's name, without / and line breaks")
        self.require(self.data.window is None or self.train.max_epochs is None, "train.max_epochs",
                     "has no meaning with data.window. Set it to null, and train.max_updates or train.max_minutes.")
        self.require(self.data.window is None or self.train.stages is None, "train.stages",
                     "need prepared data. Set data.window=null.")
        for stage in self.train.stages or ():
            stage.augmented(self.data.augment)  # UserError for a wrong option
        self.require(self.search.shortlist == 0, "search.shortlist",
                     f"is for a trained model: `{typed('shortlist')}` learns one. Leave it 0 in training.")
        self.require(not self.own_vocabulary or self.tokenizer.source_tag is self.tokenizer.target_tag is None,
                     "tokenizer.source_tag", "and tokenizer.target_tag are for a model that init names")
        self.require(not self.tokenizer.placeholders or self.data.augment.placeholders > 0, "tokenizer.placeholders",
                     "need training. Set data.augment.placeholders above 0, or tokenizer.placeholders=0.")
        self.require(self.model.adaptive_span is not None or not self.train.span_penalty, "train.span_penalty",
                     "needs spans to shorten. Set model.adaptive_span, or leave it 0.")
        self.require(self.train.parallel == "ddp" or not self.train.span_penalty, "train.span_penalty",
                     "cannot see spans that are in shards. Set train.parallel=ddp, or leave it 0.")
        self.require(self.tokenizer.joint or self.model.tied != "all", "model.tied",
                     "all needs one vocabulary for both sides. Set tokenizer.joint=true, or model.tied=target.")

    @property
    def own_vocabulary(self) -> bool:
        """Whether the vocabulary is made from the training data, not taken from another model."""
        return self.init is None and self.train.teacher is None

    def longest_pair(self, batch_tokens: int | None = None) -> int:
        """Return the most tokens on a side of a training pair that fit into a batch and have positions."""
        positions = [self.model.max_positions] if self.model.positions == "learned" else []
        return min([self.train.max_tokens if batch_tokens is None else batch_tokens, *positions])
