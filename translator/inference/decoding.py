"""What other programs can express of a model and its search."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from translator.config.options import ModelConfig, SearchConfig
from translator.inference.heads import require_no_more_heads
from translator.model import attention
from translator.model.scores import build_score
from translator.runtime.errors import UserError

# Options of a search that exports carry, or that work outside of it, on texts. Every other one must be off.
SEARCH_CARRIED = frozenset((
    "beam_size", "keep_places", "patience", "length_penalty", "length_penalty_form", "max_length", "max_length_ratio",
    "max_length_extra", "max_source_tokens", "split_sentences", "robust", "batch_tokens", "diversity", "seed"))
# Options of a model that every exporter carries. Of any other, an exporter lists the values it knows.
MODEL_CARRIED = frozenset((
    "d_model", "num_heads", "encoder_heads", "decoder_heads", "cross_heads", "d_ff", "encoder_layers", "decoder_layers",
    "max_positions", "output_bias", "embeddings", "dropout", "attention_dropout", "activation_dropout"))
TYPICAL_LENGTH = 20  # tokens of a translation, if the run does not say


@dataclass(frozen=True)
class Decoding:
    """A beam search that scores by log-probability / length ^ length_penalty, EOS counted in the length."""

    search: SearchConfig
    length_penalty: float
    positions: int  # that sources and outputs may reach

    @classmethod
    def nearest(cls, search: SearchConfig, model: ModelConfig, mean_length: float | None) -> Decoding:
        """Return the nearest decoding for outputs of this mean length; UserError for an option that other programs lack."""
        require_carried(search, frozenset(), "an export carries plain beam search only. Leave this option out.")
        positions = model.max_positions  # learned positions: all there are
        if model.positions != "learned":  # of the longest source, or of the longest output and BOS
            output = int(search.max_source_tokens * search.max_length_ratio) + search.max_length_extra
            positions = max(search.max_source_tokens, 1 + min(output, search.max_length or output))
        return cls(search, length_power(search, mean_length or TYPICAL_LENGTH), positions)

    def limit(self, source: str) -> str:
        """Return Python code for the most tokens of an output, EOS not counted. `source`: code for the source's tokens."""
        limit = f"int({self.search.max_length_ratio} * {source}) + {self.search.max_length_extra}"
        return limit if self.search.max_length is None else f"min({self.search.max_length}, {limit})"


def require_carried(search: SearchConfig, also: Collection[str], why: str) -> None:
    """Raise UserError, with `why`, for an option that other programs lack, except `also`."""
    # Options that are added later are among these.
    off = {field.name: field.default for field in dataclasses.fields(search) if field.name not in SEARCH_CARRIED}
    for option, default in (off | {"n_best": 1, "min_length": 1}).items():
        if option not in also and (value := getattr(search, option)) != default:
            raise UserError(f"search.{option}={value}: {why}")


def require_patience(search: SearchConfig) -> None:
    """Raise UserError for places or a patience that CTranslate2 cannot express."""
    if search.keep_places and search.patience is None:
        raise UserError("search.keep_places=true: CTranslate2 needs a number of search.patience with it. Set 1, say.")
    if search.patience is not None and search.patience * search.beam_size < 1:
        raise UserError(f"search.patience={search.patience:g}: times search.beam_size at least 1 for CTranslate2. Raise it.")


def length_power(search: SearchConfig, length: float = TYPICAL_LENGTH) -> float:
    """Return the exponent of the length. For gnmt, which others lack, that of the penalty that grows alike at this length."""
    # The slope of log(((5 + length) / 6) ^ alpha) is alpha / (5 + length), and that of log(length ^ beta) is beta / length.
    if search.length_penalty_form == "power":
        return search.length_penalty
    if search.length_penalty_form == "gnmt":
        return round(search.length_penalty * length / (5 + length), 2)
    raise UserError(f"search.length_penalty_form={search.length_penalty_form}: not supported by exports. Use power or gnmt.")


def require_supported(config: ModelConfig, program: str, supported: Mapping[str, Collection[object]]) -> None:
    """Raise UserError for an option that the exporter to `program` does not know, or of a value it does not know.

    `supported`: known values by option. Options that are neither there nor in MODEL_CARRIED must have their default.
    """
    require_no_more_heads(config, program)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        known = supported.get(field.name, (field.default,))
        values = value if isinstance(value, tuple) else (value,)  # windows may be given layer by layer
        if field.name not in MODEL_CARRIED and not all(each in known for each in values):
            names = ", ".join("null" if each is None else str(each) for each in known)
            raise UserError(f"model.{field.name}={value}: {program} cannot run such a model. Train one with {names}.")
    if build_score(config) is not attention.scaled_dot_product or not attention.FORMULA_AS_PUBLISHED:
        raise UserError(f"{attention.__file__}: the formula was edited, and {program} has the published one. Undo the edit, or "
                        "translate with this code.")
