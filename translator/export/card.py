"""The README.md of an export: a model card for the Hugging Face hub."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import DatasetCard, EvalResult, ModelCard, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from translator.config.options import DataConfig
from translator.data.loading import hub_id
from translator.export.decoding import Decoding
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

CARD = """\
---
{{ card_data }}
---
# {{ name }}

A Transformer that translates {{ languages }}: {{ model.encoder_layers }} encoder and {{ model.decoder_layers }} decoder
layers of width {{ model.d_model }}, {{ model.norm }}-norm, {{ model.activation }}, {{ model.positions }} positions.
{%- if start %} Its weights began as those of `{{ start }}`, whose licence holds.{% endif %}
{%- if corpus %} It was trained on `{{ corpus }}`{% if licence %} (licence: {{ licence }}){% endif %}.{% endif %}
{% if scores %}
On the test split, in the program that trained it, with {{ scores_beam }} hypotheses kept:
{% for score in scores %}
- {{ score.metric_name }} {{ "%.2f"|format(score.metric_value) }}, `{{ score.metric_args.signature }}`
{%- endfor %}
{% endif %}
## Use

```python
{{ usage }}```

A source, or an output, may have {{ positions }} tokens at most.
{%- if tags %}

Begin each source with the tag of the language wanted, and a space: {{ tags }}.
{%- endif %}
{%- if gnmt is not none %}

Where this model was trained, scores of outputs were divided by ((5 + length) / 6) ^ {{ gnmt }}, a penalty that other programs
lack. Above they are divided by length ^ {{ power }}, the nearest one. For the same search in the trainer, set
`search.length_penalty_form=power search.length_penalty={{ power }}`.
{%- endif %}

"""


def model_card(folder: RunFolder, decoding: Decoding, usage: str, library: str) -> str:
    """Return the card of an exported run. `usage`: Python code that uses the export, by this library."""
    config = folder.load_config()
    data = config.data
    base = hub_id(config.init) if config.init and not config.init.startswith(f"{config.runs}/") else None
    trained = "splits" in folder.load_report()  # an imported model has seen none of these data
    licence, dataset = _dataset_card(data) if trained else (None, None)
    corpus = dataset or (Path(data.path).name if data.path else "files")
    scores, beam_size = _scores(folder, corpus)
    codes = [code for code in dict.fromkeys(itertools.chain(*data.directions)) if re.fullmatch("[a-z]{2,3}", code)]
    name = folder.path.resolve().name
    metadata = ModelCardData(
        model_name=name, language=codes or None, license=licence, library_name=library,
        pipeline_tag="translation", base_model=base, datasets=[dataset] if dataset else None,
        metrics=[score.metric_type for score in scores] or None, eval_results=scores or None)
    is_gnmt = decoding.search.length_penalty_form == "gnmt" and decoding.search.beam_size > 1
    return str(ModelCard.from_template(
        metadata, template_str=CARD, name=name, model=config.model, usage=usage, scores=scores, scores_beam=beam_size,
        languages=", ".join(" to ".join(direction) for direction in data.directions), tags=", ".join(data.tags),
        start=base or Path(config.init or "").name,  # not the folder: where it was says nothing to others
        corpus=corpus if trained else None, licence=licence, positions=f"{decoding.positions:,}",
        gnmt=f"{decoding.search.length_penalty:g}" if is_gnmt else None, power=f"{decoding.length_penalty:g}"))


def _scores(folder: RunFolder, corpus: str) -> tuple[list[EvalResult], int | None]:
    """Return the scores that `make evaluate` found on the test split, and its beam size."""
    file = folder.path / "evaluation-test" / "scores.json"
    try:
        evaluation = json.loads(file.read_text(encoding="utf-8"))
        return [
            EvalResult(
                task_type="translation", dataset_type=corpus, dataset_name=corpus, dataset_split="test", metric_type=metric,
                metric_name=score["name"], metric_value=round(score["value"], 2), metric_args={"signature": score["signature"]})
            for metric, score in evaluation["scores"].items()], evaluation["search"]["beam_size"]
    except FileNotFoundError:
        return [], None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: damaged: {error}. Run `make evaluate` to write it again.") from error


def _dataset_card(data: DataConfig) -> tuple[str | None, str | None]:
    """Return the licence on the data's card, and their id on the hub; None for what only a download could tell."""
    if data.path is None:
        return None, None
    dataset = hub_id(data.path)
    with suppress(HFValidationError, OSError, TypeError, ValueError, yaml.YAMLError):
        cached: Any = dataset and try_to_load_from_cache(dataset, "README.md", repo_type="dataset")
        file = Path(cached) if dataset else Path(data.path) / "README.md"  # TypeError where nothing is cached
        return DatasetCard(file.read_text(encoding="utf-8")).data.get("license"), dataset
    return None, None
