"""What commands are asked besides the options of a run, as frozen dataclasses, checked when they are made.

What each option means and its default stand once, in `conf/`; here are its type and its bounds.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal
from urllib.parse import urlsplit

from translator.config.options import SearchConfig, require


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringConfig:
    """Which sentences of a run's own data it is scored on."""

    runs: str
    split: Literal["train", "validation", "test"]
    source: str | None
    target: str | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["auto", "fp32", "bf16", "int8"]
    search: SearchConfig

    def __post_init__(self) -> None:
        require((self.source is None) == (self.target is None), "source", "and target go together: give both or neither")

    @property
    def direction(self) -> tuple[str, str] | None:
        """The languages to translate from and to; None for all that the run has."""
        return None if self.source is None or self.target is None else (self.source, self.target)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ScoringConfig):
    """What `scripts/evaluate.py` composes: conf/evaluate.yaml."""

    run: str | tuple[str, ...] | None
    against: str | tuple[str, ...] | None
    source_file: str | None
    reference_file: str | None
    worst: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.source_file is None) == (self.reference_file is None), "source_file",
                "and reference_file go together: give both or neither")
        require(self.source is None or self.source_file is None, "source", "and target are for a split, not for files")
        require(self.split == "test" or self.source_file is None, "split", "means nothing for files")
        require(self.worst >= 0, "worst", "must be at least 0")
        for name in ("run", "against"):
            require(getattr(self, name) != (), name, "names no run folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslateConfig:
    """What `scripts/translate.py` composes: conf/translate.yaml."""

    run: str | tuple[str, ...] | None
    runs: str
    input: str | None
    output: str | None
    input_format: Literal["auto", "text", "jsonl"]
    output_format: Literal["auto", "text", "jsonl"]
    details: bool
    translations: str | None
    workers: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["auto", "fp32", "bf16", "int8"]
    search: SearchConfig

    def __post_init__(self) -> None:
        require(self.workers >= 1, "workers", "must be at least 1")
        require(self.workers == 1 or self.input is not None, "workers", "are for files: name one, input=FILE")
        require(self.workers == 1 or self.translations is None, "workers", "translate; scoring translations takes one process")
        require(self.run != (), "run", "names no run folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What `scripts/export.py` composes: conf/export.yaml."""

    run: str | None
    runs: str
    format: Literal["ctranslate2", "huggingface"]
    output: str | None
    quantization: Literal["float32", "float16", "int8"]
    push: str | None
    search: SearchConfig

    def __post_init__(self) -> None:
        require(self.format == "ctranslate2" or self.quantization == "float32", "quantization", "is for format=ctranslate2")
        require(self.format == "huggingface" or self.push is None, "push", "is for format=huggingface")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What `scripts/serve.py` composes: conf/serve.yaml."""

    run: str | tuple[str, ...] | None
    runs: str
    host: str
    port: int
    hosts: tuple[str, ...]
    keys: str | None
    origins: tuple[str, ...]
    max_characters: int
    max_texts: int
    max_waiting: int
    max_connections: int
    timeout: float
    device: Literal["auto", "cpu", "cuda", "mps"]
    precision: Literal["auto", "fp32", "bf16", "int8"]
    search: SearchConfig

    def __post_init__(self) -> None:
        require(self.run != (), "run", "names no run folder")
        require(0 <= self.port < 2**16, "port", "must lie between 0 (any that is free) and 65535")
        for name in ("max_characters", "max_texts", "max_waiting", "max_connections"):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        for origin in self.origins:
            require(origin in ("*", "null") or is_origin(origin), f"origins={origin}:",
                    "not an origin. Write scheme and host in lower case, without a path, as https://example.org")
        for host in self.hosts:
            require(host == "*" or (is_origin(f"http://{host.lower()}") and ":" not in host), f"hosts={host}:",
                    "not a name. Write it without scheme, port and path, as example.org")
        require(self.timeout > 0, "timeout", "must be above 0 seconds")
        require(self.search.n_best == 1, "search.n_best", "is what each request asks for, as alternatives: leave it at 1")


def is_origin(text: str) -> bool:
    """Whether a browser would send this as the origin of a page."""
    try:
        parts = urlsplit(text)
        return bool(parts.scheme and parts.hostname) and text == f"{parts.scheme}://{parts.netloc}".lower() and "@" not in text
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(ScoringConfig):
    """What `scripts/report.py` composes: conf/report.yaml."""

    run: str | None
    against: str | None
    output: str | None
    examples: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.examples >= 0, "examples", "must be at least 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortlistConfig:
    """What `scripts/shortlist.py` composes: conf/shortlist.yaml."""

    run: str | None
    runs: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotAttentionConfig:
    """What `scripts/plot_attention.py` composes: conf/plot_attention.yaml."""

    run: str | None
    runs: str
    text: str
    target: str
    output: str | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    search: SearchConfig

    def __post_init__(self) -> None:
        require(bool(self.text.strip()), "text", 'is empty; give a sentence: make plot-attention TEXT="..."')
        for name in ("text", "target"):
            require(not re.search("[\ud800-\udfff]", getattr(self, name)), name, "is not UTF-8")
