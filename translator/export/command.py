"""The command `make export`: write a run for another program, with a model card for the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml
from huggingface_hub import DatasetCard, EvalResult, HfApi, ModelCard, ModelCardData, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from translator import __version__
from translator.config.commands import ExportConfig
from translator.config.corpora import CorpusConfig, corpora_of
from translator.config.data import DataConfig
from translator.config.languages import SEPARATOR
from translator.config.options import SearchConfig
from translator.data.named_corpus import corpus_folder
from translator.data.sources import hub_id
from translator.inference.decoding import Decoding
from translator.inference.trained_model import TrainedModel
from translator.inference.translator import Translator
from translator.runs.finding import chosen_runs
from translator.runs.run_folder import RunFolder, require_not_of_a_run
from translator.runtime.atomic_files import read_plain, require_no_link, require_writable, write_text, writing
from translator.runtime.console import log
from translator.runtime.errors import UserError
from translator.runtime.typed import installation, typed

MARK = "translator.json"  # the file that marks a folder as an export, which may be replaced
EXTRAS = {"argos": "ctranslate2"}  # of pyproject.toml, by format, where the names differ
CARD = """\
---
{{ card_data }}
---
# {{ name }}

A Transformer that translates {{ languages }}: {{ model.encoder_layers }} encoder and {{ model.decoder_layers }} decoder
layers of width {{ model.d_model }}, {{ model.norm }}-norm, {{ model.activation }}, {{ model.positions }} positions.
{%- if start %} It was trained from `{{ start }}`, whose licence holds.{% endif %}
{%- if corpora %} It was trained on {{ corpora }}.{% endif %}
{% if scores %}
On the test split, in the program that trained it, with {{ scores_beam }} hypotheses kept:
{% for score in scores %}
- {{ score.metric_name }} {{ "%.2f"|format(score.metric_value) }}, `{{ score.metric_args.signature }}`
{%- endfor %}
{% endif %}
## Use

```python
{{ usage }}```

{% if positions %}A source, or an output, may have {{ positions }} tokens at most.{% endif %}
{%- if tags %}

Begin each source with the tag of the language wanted, and a space: {{ tags }}.
{%- endif %}
{%- if context %}

It reads the sentences before a source with it, {{ context }} at most, each with {{ separator }} behind it:
A dog! {{ separator }} It barks.
{%- endif %}
{%- if gnmt is not none %}

Where this model was trained, scores of outputs were divided by ((5 + length) / 6) ^ {{ gnmt }}, a penalty that other programs
lack. Above they are divided by length ^ {{ power }}, the nearest one. For the same search in the trainer, set
`search.length_penalty_form=power search.length_penalty={{ power }}`.
{%- endif %}

"""


def export_run(config: ExportConfig) -> None:
    """Write a run for another program, with a README.md of the lines to use it; `push`: upload it to the hub."""
    try:
        exporter = importlib.import_module(f"translator.export.{config.format}")
    except ModuleNotFoundError as error:
        raise UserError(f"format={config.format}: {error.name} is not installed. Install it with "
                        f"`{installation(EXTRAS.get(config.format, config.format))}`.") from error
    [run] = chosen_runs(config.run, config.runs)
    name = f"ctranslate2-{config.quantization}" if config.format == "ctranslate2" else config.format
    output = Path(config.output) if config.output else require_no_link(run / name)
    published, decoding = config.push or str(output), None
    with replaced(output, run, config.format) as folder:
        if config.format == "translator":
            exporter.write(RunFolder(run), config.search, folder)
            usage = exporter.usage(published)
        else:
            translator, decoding = _expressible(run, config.search)
            exporter.write(
                translator, decoding, folder,
                **({"quantization": config.quantization} if config.format == "ctranslate2" else {}))
            usage = exporter.usage(translator, decoding, published)
        described = None if config.format == "argos" else decoding  # it searches by settings of its own
        write_text(folder / "README.md", model_card(RunFolder(run), described, usage, exporter.LIBRARY))
        if config.format == "argos":
            exporter.pack(folder)
    print(f"written to {output}; its README.md has these lines:\n\n{usage}")
    if config.push:
        print(f"uploaded to {_push(output, config.push)}")


def _expressible(run: Path, search: SearchConfig) -> tuple[Translator, Decoding]:
    """Load a run for another program; UserError where no other program translates as it does."""
    if RunFolder(run).has_int8_weights():
        log(f"{run}: has int8 weights, exported as float32. The run they were made of is more exact.")
    translator = Translator(TrainedModel.load(run, "cpu", dequantised=True))
    if translator.source_tokenizer.tag_ids or translator.target_tokenizer.tag_ids:
        raise UserError(f"{run}: tokenizer.source_tag and tokenizer.target_tag, as of M2M-100, cannot be exported")
    return translator, Decoding.nearest(search, translator.models[0].config, RunFolder(run).mean_target())


def _push(folder: Path, repository: str) -> str:
    """Upload an export to the repository USER/NAME, created if missing, and return its address."""
    api = HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by translator")
    except Exception as error:  # of many types: no token, not allowed, no network, a bad name
        raise UserError(f"push={repository}: upload failed: {error}") from error
    return str(url)


@contextmanager
def replaced(path: Path, run: Path, form: str) -> Iterator[Path]:
    """Yield a folder to write to. If nothing is raised, it is renamed to `path`, in place of an earlier export."""
    require_not_of_a_run(path)
    path = path.resolve()  # so that a link stays a link
    _require_export(path)
    require_writable(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = "What was exported there before is kept." if path.exists() else ""
    with writing(path, kept), TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
        partial = Path(aside) / path.name
        partial.mkdir()
        yield partial
        mark = {"format": form, "run": run.resolve().name, "version": __version__, "files": _files(partial)}
        (partial / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
        if path.exists():
            path.rename(Path(aside) / "old")
        partial.rename(path)


def _require_export(path: Path) -> None:
    """Raise UserError if `path` holds anything that no export has written."""
    if not path.exists():
        return
    if not (path / MARK).is_file():
        raise UserError(f"output={path}: exists, and is not an export. Name another folder, or remove it.")
    try:
        written = json.loads(read_plain(path / MARK))["files"]
    except (OSError, ValueError, LookupError, TypeError):
        written = []
    if others := sorted({*_files(path)} - {*written, MARK}):
        raise UserError(f"output={path}: {others[0]} is not part of the export, and would be deleted. Move it first.")


def _files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())


def model_card(folder: RunFolder, decoding: Decoding | None, usage: str, library: str) -> str:
    """Return the card of an exported run. `usage`: Python code that uses the export, by this library.

    decoding: what another program searches by; None for this one.
    """
    config = folder.load_config()
    data = config.data
    base = hub_id(config.init) if config.init and not config.init.startswith(f"{config.runs}/") else None
    trained = "splits" in folder.load_report()  # an imported model has seen none of these data
    corpora = _trained_on(data) if trained else []
    licence = corpora[0].licence if corpora and all(one.licence == corpora[0].licence for one in corpora) else None
    datasets = list(dict.fromkeys(one.dataset for one in corpora if one.dataset))
    scores, beam_size = _scores(folder, _tested_on(data))
    codes = [code for code in dict.fromkeys(itertools.chain(*data.directions)) if re.fullmatch("[a-z]{2,3}", code)]
    name = folder.path.resolve().name
    metadata = ModelCardData(
        model_name=name, language=codes or None, license=licence, library_name=library,
        pipeline_tag="translation", base_model=base, datasets=datasets or None,
        metrics=[score.metric_type for score in scores] or None, eval_results=scores or None)
    limits: dict[str, str | None] = {"positions": None, "gnmt": None, "power": None}
    if decoding is not None:
        is_gnmt = decoding.search.length_penalty_form == "gnmt" and decoding.search.beam_size > 1
        limits = {"positions": f"{decoding.positions:,}", "power": f"{decoding.length_penalty:g}",
                  "gnmt": f"{decoding.search.length_penalty:g}" if is_gnmt else None}
    return str(ModelCard.from_template(
        metadata, template_str=CARD, name=name, model=config.model, usage=usage, scores=scores, scores_beam=beam_size,
        languages=", ".join(" to ".join(direction) for direction in data.directions), tags=", ".join(data.tags),
        context=data.context, separator=SEPARATOR,
        start=base or Path(config.init or "").name,  # not the folder: where it was says nothing to others
        corpora=", ".join(dict.fromkeys(map(str, corpora))), **limits))


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
        raise UserError(f"{file}: damaged: {error}. Run `{typed('evaluate')}` to write it again.") from error


class _Corpus(NamedTuple):
    """A corpus that a model was trained on; None for what only a download could tell."""

    name: str
    licence: Any
    dataset: str | None  # its id on the hub
    is_target: bool = False  # a text in the target language, without translations

    def __str__(self) -> str:
        licences = ", ".join(map(str, self.licence)) if isinstance(self.licence, list) else self.licence
        licence = f" (licence: {licences})" if licences else ""
        return f"{'back-translations of ' * self.is_target}`{self.name}`{licence}"


def _trained_on(data: DataConfig) -> list[_Corpus]:
    corpora = [_described(corpus) for corpus in corpora_of(data) if corpus.has_train]
    return corpora + [_Corpus(Path(text).name, None, None, is_target=True) for text in [data.monolingual] if text]


def _tested_on(data: DataConfig) -> str:
    """Return the names of the corpora with a test split, or of all that one was cut from."""
    corpora = corpora_of(data)
    tested = [dataclasses.replace(corpus, corpus=None, version=None) for corpus in corpora if corpus.test is not None]
    tested = tested or [corpus for corpus in corpora if corpus.has_train]
    return ", ".join(dict.fromkeys(_described(corpus).name for corpus in tested))


def _described(corpus: CorpusConfig) -> _Corpus:
    licence, dataset = _dataset_card(corpus)
    place = Path(corpus.path).name if corpus.path else ""  # not the folder: where it was says nothing to others
    return _Corpus(dataset or corpus.corpus or place or corpus.name or "files", licence, dataset)


def _dataset_card(data: DataConfig) -> tuple[Any, str | None]:
    """Return the licence on the data's card, and their id on the hub; None for what only a download could tell."""
    folder = data.path if data.corpus is None else corpus_folder(data)
    if folder is None:
        return None, None
    dataset = hub_id(str(folder))
    with suppress(HFValidationError, OSError, TypeError, ValueError, yaml.YAMLError):
        cached: Any = dataset and try_to_load_from_cache(dataset, "README.md", repo_type="dataset")
        file = Path(cached) if dataset else Path(folder) / "README.md"  # TypeError where nothing is cached
        return DatasetCard(file.read_text(encoding="utf-8")).data.get("license"), dataset
    return None, None
