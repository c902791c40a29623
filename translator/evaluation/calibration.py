"""How far a model's probabilities can be believed: expected calibration error, and what counts as a low certainty."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from translator.config.options import SearchConfig
from translator.inference.confidence import mean_log_probability
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder

BINS = 20
# The quantile of validation sentences below which a translation counts as unsure; least and most sentences to estimate it from.
LOW, LEAST, MOST = 0.01, 100, 500


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How the probabilities of predicted tokens compare with the share of them that are right."""

    error: float  # expected calibration error, from 0 to 1
    confidence: float  # mean probability of the predictions
    accuracy: float  # share of predictions that are the reference's token
    tokens: int

    def __str__(self) -> str:
        return (f"calibration error {100 * self.error:.1f} %: predicted tokens have a mean probability of "
                f"{100 * self.confidence:.1f} %, and {100 * self.accuracy:.1f} % of them are right")


def calibration_of(
    translator: Translator, sources: Sequence[str], references: Sequence[str], search: SearchConfig
) -> Calibration | None:
    """Compare each token that the models predict, given the reference's tokens before it, with the reference's.

    That is teacher forcing; in inference, errors add up (Wang et al. 2020, https://aclanthology.org/2020.acl-main.278).
    None if no pair can be rated.
    """
    found = translator.predictions(sources, references, search)
    if not found:
        return None
    right = torch.cat([tokens == torch.tensor(ids) for ids, tokens, _ in found])
    confidence = torch.cat([probabilities for *_, probabilities in found])
    error = expected_calibration_error(confidence, right)
    return Calibration(error, float(confidence.double().mean()), float(right.double().mean()), len(right))


def expected_calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return the mean over predictions of the |accuracy - mean confidence| of their bin (Guo et al. 2017, equation 3).

    confidence (N,): the probability of each prediction, in 20 bins of equal width. right (N,): whether it is right.
    https://arxiv.org/abs/1706.04599
    """
    bins = (confidence.double() * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right.double() - confidence.double())
    return float(gaps.abs().sum() / len(confidence))


def save_calibration(
    folder: RunFolder, translator: Translator, sources: Sequence[str], references: Sequence[str], search: SearchConfig
) -> None:
    """Keep in the run folder what is a low certainty on validation, by beam size, and the calibration there."""
    sources, references = sources[:MOST], references[:MOST]
    searches = {1: search.plain(1), search.beam_size: search} if not search.sampling else {1: search.plain(1)}
    low = {beam: low_log_probability(translator, sources, options) for beam, options in searches.items()}
    calibration = calibration_of(translator, sources, references, search)
    folder.save_calibration({
        "low_log_probability": {beam: value for beam, value in low.items() if value is not None},
        "calibration": calibration and dataclasses.asdict(calibration), "sentences": len(sources)})


def low_log_probability(translator: Translator, sources: Sequence[str], search: SearchConfig) -> float | None:
    """Return the 1 % quantile of the mean log-probabilities of the sources' translations; None for too few."""
    translations = translator.translate(sources, search)
    means = [
        mean_log_probability(translation.hypotheses[0], translation.sentences)
        for translation in translations if translation.hypotheses]
    return statistics.quantiles(means, n=round(1 / LOW), method="inclusive")[0] if len(means) >= LEAST else None
