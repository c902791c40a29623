"""The options of every command except training, as frozen, checked dataclasses. `conf/` explains them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from translator.config.building import STRICT, Count, Options, UpTo1000, Whole
from translator.config.data import DataConfig
from translator.config.options import Device, EngineName, MetricName, SearchConfig
from translator.runtime.typed import typed

Port = Annotated[int, Field(ge=0, lt=2**16)]
HOST = r"[^\s/?#@:\[\]]+"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunCommand(Options):
    """Options of every command: which run it is for."""

    run: str | Annotated[tuple[str, ...], Field(min_length=1)] | None
    runs: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DecodingCommand(RunCommand):
    """Options of every command that translates: where, in which precision and by which search."""

    device: Device
    precision: Literal["auto", "fp32", "bf16", "int8"]
    search: SearchConfig


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScoringConfig(DecodingCommand):
    """Which sentences of a run's own data it is scored on."""

    split: Literal["train", "validation", "test"]
    source: str | None
    target: str | None

    def __post_init__(self) -> None:
        self.require((self.source is None) == (self.target is None), "source", "and target go together. Give both or neither.")

    @property
    def direction(self) -> tuple[str, str] | None:
        """The languages to translate from and to; None for all that the run has."""
        return None if self.source is None or self.target is None else (self.source, self.target)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateConfig(ScoringConfig):
    """What `scripts/evaluate.py` composes: conf/evaluate.yaml."""

    against: str | Annotated[tuple[str, ...], Field(min_length=1)] | None
    sets: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    source_file: str | None
    reference_file: str | None
    metrics: Annotated[tuple[MetricName, ...], Field(min_length=1)] | None = None
    worst: Whole | None
    robustness: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require((self.source_file is None) == (self.reference_file is None), "source_file",
                     "and reference_file go together. Give both or neither.")
        self.require(self.source is None or self.source_file is None, "source", "and target are for a split, not for files")
        self.require(self.split == "test" or self.source_file is None, "split", "has no meaning for files")
        self.require(self.sets is None or self.source_file is None, "sets", "and source_file are two inputs. Give one of them.")
        self.require(self.split == "test" or self.sets is None, "split", "has no meaning for sets")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ReportConfig(ScoringConfig):
    """What `scripts/report.py` composes: conf/report.yaml."""

    run: str | None
    against: str | None
    output: str | None
    examples: Whole
    seed: Whole


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TranslateConfig(DecodingCommand):
    """What `scripts/translate.py` composes: conf/translate.yaml."""

    text: str | None = None
    input: str | None
    output: str | None
    input_format: Literal["auto", "text", "jsonl", "html"]
    output_format: Literal["auto", "text", "jsonl", "html"]
    details: bool
    translations: str | None
    workers: Count
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        self.require(self.text is None or self.input is None, "text", "is another input. Leave out text= or input=.")
        self.require(self.workers == 1 or self.input is not None, "workers", "are for files. Name one: input=FILE.")
        self.require(self.workers == 1 or self.translations is None, "workers", "do not score translations. Set workers=1.")
        self.require(self.translations is None or self.engine != "ctranslate2", "engine",
                     "searches nothing where translations are given. Leave it at auto.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ServeConfig(DecodingCommand):
    """What `scripts/serve.py` composes: conf/serve.yaml."""

    host: str
    port: Port
    hosts: tuple[str, ...]
    keys: str | None
    origins: tuple[str, ...]
    max_characters: Count
    max_texts: Count
    max_file_bytes: Annotated[int, Field(ge=0, le=2**30)]
    max_file_characters: Count
    file_timeout: Annotated[float, Field(gt=0)]
    keep_files: Annotated[float, Field(gt=0, le=86_400)]
    max_waiting: Count
    max_connections: Count
    timeout: Annotated[float, Field(gt=0)]
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        for origin in self.origins:
            known = origin in ("*", "null") or re.fullmatch(rf"[a-z][a-z\d+.-]*://(?:\[[\da-f:.]+\]|{HOST})(?::\d+)?", origin)
            self.require(bool(known) and origin == origin.lower(), f"origins={origin}",
                         "not an origin. Write scheme and host in lower case, without a path, as https://example.org")
        for host in self.hosts:
            self.require(re.fullmatch(HOST, host) is not None, f"hosts={host}",
                         "not a name. Write it without scheme, port and path, as example.org")
        self.require(self.search.n_best == 1, "search.n_best", "is what each request asks for, as alternatives. Leave it at 1.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BoardConfig(RunCommand):
    """What `scripts/board.py` composes: conf/board.yaml."""

    host: str
    port: Port


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExportConfig(RunCommand):
    """What `scripts/export.py` composes: conf/export.yaml."""

    run: str | None
    format: Literal["argos", "ctranslate2", "huggingface", "translator"]
    output: str | None
    quantization: Literal["float32", "float16", "int8"]
    push: str | None
    search: SearchConfig

    def __post_init__(self) -> None:
        self.require(self.format == "ctranslate2" or self.quantization == "float32", "quantization", "needs format=ctranslate2")
        self.require(self.format in ("huggingface", "translator") or self.push is None, "push",
                     "needs format=huggingface or format=translator")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataReportConfig(Options):
    """What `scripts/data_report.py` composes: conf/data_report.yaml."""

    data: DataConfig


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CorporaConfig(Options):
    """What `scripts/corpora.py` composes: conf/corpora.yaml."""

    source: str
    target: str
    downloads: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShortlistConfig(RunCommand):
    """What `scripts/shortlist.py` composes: conf/shortlist.yaml."""

    run: str | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PruneConfig(RunCommand):
    """What `scripts/prune.py` composes: conf/prune.yaml."""

    run: str | None
    heads: UpTo1000
    encoder_layers: Annotated[tuple[Whole, ...], Field(min_length=1)] | None
    decoder_layers: Annotated[tuple[Whole, ...], Field(min_length=1)] | None
    vocabulary: Literal["all", "used"]
    output: str | None
    device: Device

    def __post_init__(self) -> None:
        self.require(self.heads < 1, "heads", f"is a share, such as 0.25 for a quarter, and not {self.heads:g}. Stay below 1.")
        for option in ("encoder_layers", "decoder_layers"):
            layers = getattr(self, option)
            self.require(layers is None or list(layers) == sorted(set(layers)), option,
                         f"must list each layer that stays once, in order, as [0,2,3]; got {list(layers or ())}")
        asked = self.heads or self.encoder_layers or self.decoder_layers or self.vocabulary != "all"
        self.require(bool(asked), "heads", "nothing to remove. Set heads, encoder_layers, decoder_layers or vocabulary=used.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuantizeConfig(RunCommand):
    """What `scripts/quantize.py` composes: conf/quantize.yaml."""

    run: str | None
    output: str | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlotAttentionConfig(RunCommand):
    """What `scripts/plot_attention.py` composes: conf/plot_attention.yaml."""

    run: str | None
    text: str
    target: str
    output: str | None
    device: Device
    search: SearchConfig

    def __post_init__(self) -> None:
        self.require(bool(self.text.strip()), "text", f'is empty. Give a sentence: {typed("plot-attention", text=...)}')
        for option in ("text", "target"):
            self.require(not re.search("[\ud800-\udfff]", getattr(self, option)), option, "is not UTF-8")
