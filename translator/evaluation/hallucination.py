"""Signs of hallucination in the outputs for a test set, each as the excess over its references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datasets import Dataset

from translator.data.ibm_model_1 import learn_lexicon
from translator.data.lexicon import Lexicon
from translator.metrics.scores import WORD
from translator.search.hypothesis import Ids
from translator.text.tokenizer import Tokenizer
from translator.text.writing_systems import normal

# An n-gram of this size that comes twice in a sentence is a repetition, and so is a word this number of times in a row.
NGRAM, IN_A_ROW = 4, 3


@dataclass(frozen=True)
class Hallucination:
    """Shares of the outputs minus shares of the references, from -1 to 1."""

    unaligned: float  # tokens with letters or digits that no source token explains
    repeated: float  # sentences with a repetition
    copied: float  # sentences that equal their source

    def __str__(self) -> str:
        return (f"hallucination, outputs minus references: {100 * self.unaligned:+.1f} % tokens aligned to nothing, "
                f"{100 * self.repeated:+.1f} % sentences with repetitions, {100 * self.copied:+.1f} % copied sources")


def measure_hallucination(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
) -> Hallucination:
    """Compare outputs with the references for the same sources.

    What aligns is learned from sources and references. Attention is no measure of it: outputs that were swapped between sources
    differ from the right ones by 2 % of its mass, and by 40 % of the tokens here.
    """
    source_ids, reference_ids = source_tokenizer.encode(sources), target_tokenizer.encode(references)
    pairs = {"source_ids": source_ids, "target_ids": reference_ids}
    lengths = {name.replace("ids", "length"): list(map(len, ids)) for name, ids in pairs.items()}
    lexicon = learn_lexicon(Dataset.from_dict(pairs | lengths), len(target_tokenizer))
    unaligned = [
        _unaligned(lexicon, source_ids, ids, target_tokenizer) for ids in (target_tokenizer.encode(outputs), reference_ids)]
    repeated = [sum(map(repeats, texts)) / len(texts) for texts in (outputs, references)]
    copied = [
        sum(bool(text.strip()) and normal(text) == normal(source) for text, source in zip(texts, sources, strict=True))
        / len(texts) for texts in (outputs, references)]
    return Hallucination(*(own - reference for own, reference in (unaligned, repeated, copied)))


def repeats(text: str) -> bool:
    """Return whether a text repeats `NGRAM` words, or one word `IN_A_ROW` times running."""
    words = WORD.findall(normal(text).casefold())
    ngrams = list(zip(*(words[start:] for start in range(NGRAM)), strict=False))
    runs = zip(*(words[start:] for start in range(IN_A_ROW)), strict=False)
    return len(set(ngrams)) < len(ngrams) or any(len(set(run)) == 1 for run in runs)


def _unaligned(lexicon: Lexicon, sources: Sequence[Ids], outputs: Sequence[Ids], tokenizer: Tokenizer) -> float:
    """Return the share of the outputs' tokens with letters or digits that the lexicon links to no source token."""
    links = [
        link for source, output in zip(sources, outputs, strict=True)
        for link, piece in zip(lexicon.links(source, output), tokenizer.pieces(output), strict=False)
        if any(map(str.isalnum, piece))]
    return links.count(None) / max(1, len(links))
