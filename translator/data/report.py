"""A report of the rows that cleaning drops, as text: what `make data-report` prints before a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from translator.config.commands import DataReportConfig
from translator.config.data import DataConfig
from translator.data.cleaning import OVERLAP
from translator.data.filters import RULES
from translator.data.preparation import describe_counts, load_counts
from translator.runtime.console import require_stdout

# The option that decides on each cause.
OPTIONS = {
    "too long": "max_characters", "length ratio": "max_ratio", OVERLAP: "overlap", "low score": "min_score",
    "beyond data.limit": "limit"} | {
    rule.cause: rule.option for rule in RULES}


def report_data(config: DataReportConfig) -> None:
    """Print what `describe_data` returns."""
    require_stdout("the report", "Open it, or redirect it to a file.")
    print(describe_data(config.data))


def describe_data(config: DataConfig) -> str:
    """Return the counts of each split by corpus, and examples of the dropped rows by cause, each source above its target."""
    named = {f"{split}, {name}".removesuffix(", "): vars(counts)
             for split, corpora in load_counts(config).items() for name, counts in corpora.items()}
    return "\n\n".join("\n".join(_lines(name, counts, config)) for name, counts in named.items())


def _lines(name: str, counts: dict[str, Any], config: DataConfig) -> Iterator[str]:
    yield f"{name}: {describe_counts(counts)}"
    for cause, examples in counts["examples"].items():
        option = OPTIONS.get(cause)
        reason = f" (data.{option}={str(getattr(config, option)).lower()})" if option else ""
        yield f"\n  {counts['dropped'][cause]:,} dropped: {cause}{reason}"
        yield from _pairs(examples)
    if copied := counts["copied"]["count"]:
        yield f"\n  {copied:,} copied from the source, dropped or not"
        yield from _pairs(counts["copied"]["examples"])


def _pairs(examples: list[list[str | None]]) -> Iterator[str]:
    for source, target in examples:
        yield f"    {'(missing)' if source is None else source}"
        yield f"      {'(missing)' if target is None else target}"
