"""An export's README.md: a model card, as the Hugging Face hub reads them."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import DatasetCard, EvalResult, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from translator.config.options import DataConfig
from translator.data.loading import hub_id
from translator.export.decoding import Decoding
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

CARD = """\
---
{metadata}
---
# {name}

A Transformer that translates {languages}: {model.encoder_layers} encoder and {model.decoder_layers} decoder
layers of width {model.d_model}, {model.norm}-norm, {model.activation}, {model.positions} positions. {origin}
{scores}
## Use

```python
{usage}```

A source, or an output, may have {positions:,} tokens at most.{tags}{penalty}
"""
SCORES = """
On the test split, in the program that trained it, with {beam_size} hypotheses kept:

{lines}
"""
TAGS = """

Begin each source with the tag of the language wanted, and a space: {tags}.
"""
PENALTY = """

The scores of outputs were divided by ((5 + length) / 6) ^ {gnmt:g} where this model was trained, a penalty that other programs
lack. Above they are divided by length ^ {power:g}, the nearest one. The two programs search alike where the former is told
`search.length_penalty_form=power search.length_penalty={power:g}`.
"""


def model_card(folder: RunFolder, decoding: Decoding, usage: str, library: str) -> str:
    """For a run's folder, with the lines of Python that use what was exported, by this library."""
    config = folder.load_config()
    name, data, search = folder.path.resolve().name, config.data, decoding.search
    of_hub = hub_id(config.init) if config.init and not config.init.startswith(f"{config.runs}/") else None
    began_as = of_hub or Path(config.init or "").name  # where a folder lay is nobody's business
    trained = "splits" in folder.load_report()  # an imported model has seen none of these data
    licence, dataset = _data_card(data) if trained else (None, None)
    corpus = dataset or (Path(data.path).name if data.path else "files")
    scores, results = _evaluation(folder, corpus)
    codes = [code for code in dict.fromkeys(itertools.chain(*data.directions)) if re.fullmatch("[a-z]{2,3}", code)]
    metadata = ModelCardData(
        model_name=name, language=codes or None, license=licence, library_name=library, pipeline_tag="translation",
        base_model=of_hub,
        datasets=[dataset] if dataset else None, metrics=[result.metric_type for result in results] or None,
        eval_results=results or None)
    origin = f"Its weights began as those of `{began_as}`, whose licence holds. " if began_as else ""
    if trained:
        origin += f"It was trained on `{corpus}`" + (f" (licence: {licence})." if licence else ".")
    is_gnmt = search.length_penalty_form == "gnmt" and search.beam_size > 1
    return CARD.format(
        metadata=metadata.to_yaml(), name=name, model=config.model, origin=origin.strip(),
        languages=", ".join(" to ".join(direction) for direction in data.directions),
        tags=TAGS.format(tags=", ".join(data.tags)) if data.tags else "",
        scores=scores, usage=usage, positions=decoding.positions,
        penalty=PENALTY.format(gnmt=search.length_penalty, power=decoding.length_penalty) if is_gnmt else "")


def _evaluation(folder: RunFolder, corpus: str) -> tuple[str, list[EvalResult]]:
    """What `make evaluate` found on the test split, for readers and for the hub; nothing where it has not been asked."""
    file = folder.path / "evaluation-test" / "scores.json"
    try:
        evaluation = json.loads(file.read_text(encoding="utf-8"))
        return _scores(evaluation), _results(corpus, evaluation)
    except FileNotFoundError:
        return "", []
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: damaged: {error}; `make evaluate` writes it anew") from error


def _scores(evaluation: dict[str, Any]) -> str:
    lines = [f"- {score['name']} {score['value']:.2f}, `{score['signature']}`" for score in evaluation["scores"].values()]
    return SCORES.format(beam_size=evaluation["search"]["beam_size"], lines="\n".join(lines))


def _results(corpus: str, evaluation: dict[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation", dataset_type=corpus, dataset_name=corpus, dataset_split="test", metric_type=metric,
            metric_name=score["name"], metric_value=round(score["value"], 2), metric_args={"signature": score["signature"]})
        for metric, score in evaluation["scores"].items()]


def _data_card(data: DataConfig) -> tuple[str | None, str | None]:
    """The licence on the data's card, and their id if they are the hub's; None where the hub would have to be asked."""
    if data.path is None:
        return None, None
    dataset = hub_id(data.path)
    file: Any = Path(data.path) / "README.md"
    with suppress(HFValidationError, OSError, ValueError, yaml.YAMLError):
        if dataset is not None:
            file = try_to_load_from_cache(dataset, "README.md", repo_type="dataset")
        if isinstance(file, str | Path):
            return DatasetCard(Path(file).read_text(encoding="utf-8")).data.get("license"), dataset
    return None, None
