"""A report of the rows that cleaning drops, as text: what `make data-report` prints before a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from translator.config.commands import DataReportConfig
from translator.config.corpora import corpora_of
from translator.config.data import DataConfig
from translator.data.cleaning import OVERLAP
from translator.data.filters import RULES
from translator.data.preparation import load_counts
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
    configs = {corpus.name: corpus for corpus in corpora_of(config)}
    return "\n\n".join(
        "\n".join(_lines(f"{split}, {name}".removesuffix(", "), vars(counts), configs.get(name, config)))
        for split, corpora in load_counts(config).items() for name, counts in corpora.items())


def describe(report: dict[str, Any]) -> str:
    """Return what was read, kept and dropped by cause, one line a split, and one a corpus where there are several."""
    lines = []
    for split, counts in report["splits"].items():
        lines.append(f"{split:10} {describe_counts(counts)}")
        corpora = report.get("corpora", {}).get(split, {})
        lines += [f"  {name:8} {describe_counts(of_corpus)}" for name, of_corpus in corpora.items() if len(corpora) > 1]
    return "\n".join(lines)


def describe_counts(counts: dict[str, Any]) -> str:
    """Return what was read, kept and dropped by cause."""
    causes = ", ".join(f"{count:,} {cause}" for cause, count in counts["dropped"].items())
    unknown = max(counts.get("source_unknown", 0), counts.get("target_unknown", 0))
    copied = counts["copied"]["count"]
    return "; ".join(filter(None, [
        f"{counts['kept']:,} of {counts['read']:,} pairs", counts["note"], causes and f"dropped: {causes}",
        copied and f"{copied:,} copied from the source", unknown and f"{unknown:.2%} of the tokens are unknown"]))


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
