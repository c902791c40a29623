"""Every option has its type and bounds, one place that explains it, and an error that names it."""

from __future__ import annotations

import dataclasses
import re
from functools import reduce
from operator import attrgetter
from types import SimpleNamespace
from typing import get_type_hints

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hypothesis import given
from hypothesis import strategies as st

from tests.support.configurations import composed, run_config
from tests.support.paths import ROOT
from translator.config.building import build, from_hydra, read_yaml, run_name, to_yaml
from translator.config.commands import (
    EvaluateConfig,
    ExportConfig,
    PlotAttentionConfig,
    PruneConfig,
    ReportConfig,
    ServeConfig,
    TranslateConfig,
)
from translator.config.options import ModelConfig, RunConfig
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

CONF = ROOT / "conf"
GROUPS = ("data", "tokenizer", "model", "optim", "train", "search")


@pytest.mark.parametrize("group", GROUPS)
def test_every_preset_composes(group):
    required = {
        "files": ["data.train=x.tsv"], "opus": ["data.corpus=x"], "mix": ["data.corpora=[{name:x,train:x.tsv}]"]}
    for path in (CONF / group).glob("*.yaml"):
        assert isinstance(run_config(f"{group}={path.stem}", *required.get(path.stem, [])), RunConfig)


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_composes_and_names_its_scores(path):
    assert isinstance(from_hydra(RunConfig, composed("train", f"experiment={path.stem}", "name=x")), RunConfig)
    header = path.read_text().split("\nname:")[0]
    assert f'make train ARGS="experiment={path.stem}' in header
    [page] = re.findall(r"scores: (docs/\w+\.md)", header)
    assert f"experiment={path.stem}" in (ROOT / page).read_text(encoding="utf-8")


def test_the_other_scripts_compose():
    assert from_hydra(EvaluateConfig, composed("evaluate")).split == "test"
    assert from_hydra(TranslateConfig, composed("translate", "search=greedy")).search.beam_size == 1
    assert from_hydra(ReportConfig, composed("report")).examples == 5
    assert from_hydra(PlotAttentionConfig, composed("plot_attention", "text=a")).target == ""
    with pytest.raises(UserError, match="examples: must be greater than or equal to 0"):
        from_hydra(ReportConfig, composed("report", "examples=-1"))
    assert from_hydra(ServeConfig, composed("serve")).host == "127.0.0.1"


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_is_explained_once_above_its_default(group):
    text = {path: path.read_text().splitlines() for path in (CONF / group).glob("*.yaml")}
    for option in get_type_hints(get_type_hints(RunConfig)[group]):
        explained = []
        for path, lines in text.items():
            for number, line in enumerate(lines):
                if re.match(rf"{option}:", line):
                    above = number - 1
                    while re.match(r"\w+:", lines[above]):  # options that share a comment stand together
                        above -= 1
                    if lines[above].startswith("#"):
                        explained.append(path.name)
        assert len(explained) == 1, f"{group}.{option} is explained in {explained or 'no file'}"


@pytest.mark.parametrize(("override", "named"), [
    ("data.holdout=0", "data.holdout"), ("data.max_ratio=0.5", "data.max_ratio"), ("data.target=en", "data.source"),
    ("data.limit=0", "data.limit"), ("data.train=7", "data.train"), ("data.train=null", "data.train"),
    ("data.train=[]", "data.train"), ("data.path=''", "data.path"), ("data.cache=''", "data.cache"),
    ("optim.lr=.inf", "optim.lr"), ("optim.lr=.nan", "optim.lr"),
    (f"optim.lr={10**400}", "optim.lr"),
    ("tokenizer.vocab_size=1e4", "tokenizer.vocab_size"), ("tokenizer.model_type=wordpiece", "tokenizer.model_type"),
    ("tokenizer.sampling=2", "tokenizer.sampling"), ("tokenizer.joint=maybe", "tokenizer.joint"),
    ("model.d_model=100", "model.d_model"), ("model.dropout=1", "model.dropout"), ("model.num_heads=0", "model.num_heads"),
    ("model.norm=sandwich", "model.norm"), ("model.encoder_window=[1,2,3]", "model.encoder_window"),
    ("model.decoder_window=0", "model.decoder_window"), ("model.encoder_layers=true", "model.encoder_layers"),
    ("optim.lr=0", "optim.lr"), ("optim.betas=[0.9]", "optim.betas"), ("optim.betas=0.9", "optim.betas"),
    ("optim.schedule=step", "optim.schedule"), ("optim.clip_norm=-1", "optim.clip_norm"),
    ("optim.ema_decay=1", "optim.ema_decay"), ("train.batch_tokens=0", "train.batch_tokens"),
    ("train.batch_tokens=many", "train.batch_tokens"), ("train.label_smoothing=1", "train.label_smoothing"),
    ("train.sampled_softmax=-1", "train.sampled_softmax"),
    ("train.metric=accuracy", "train.metric"), ("train.max_epochs=-2", "train.max_epochs"),
    ("search.n_best=9", "search.n_best"), ("search.shortlist=101", "equal to 100, got 101"),
    ("search.shortlist=50", "translator shortlist"),
    ("search.length_penalty=-1", "search.length_penalty"), ("search.length_penalty=11", "search.length_penalty"),
    ("search.coverage_penalty=1e9", "search.coverage_penalty"), ("search.max_length_ratio=1e30", "search.max_length_ratio"),
    ("search.min_length_ratio=1e30", "search.min_length_ratio"), (f"search.max_length={10**30}", "search.max_length"),
    ("search.temperature=1e-40", "search.temperature"), ("search.temperature=1e39", "search.temperature"),
    ("search.top_p=1e-46", "search.top_p"), ("search.top_p=1.1", "search.top_p"),
    ("train.validation_beam=100000", "train.validation_beam: must be less than"), ("search.beam_size=1001", "search.beam_size"),
    ("train.accumulation=1000000", "train.accumulation"), ("train.max_updates=0", "train.max_updates"),
    ("optim.eps=1e-300", "optim.eps"), ("optim.lr=1e-300", "optim.lr"), ("optim.weight_decay=1e30", "optim.weight_decay"),
    ("optim.clip_norm=1e-300", "optim.clip_norm"), ("train.r_drop=1e39", "train.r_drop"),
    ("train.max_minutes=-1", "train.max_minutes: must be greater than 0, got -1"),
    ("train.max_minutes=1e300", "train.max_minutes"), (f"train.batch_tokens={10**30}", "train.batch_tokens"),
    (f"search.prefix={'x' * 1001}", "search.prefix"), (f"search.required=[{'x' * 1001}]", "search.required"),
    ("device=tpu", "device"), ("precision=int4", "precision"), ("seed=-1", "seed"), ("name=a/b", "name"),
    ("data.taught=both", "data.taught: needs data.teacher"), ("data.monolingual=x", "data.monolingual: and data.reverse"),
    ("data.reverse=x", "data.monolingual: and data.reverse"), ("data.monolingual_share=1", "data.monolingual_share"),
    ("+model.depth=3", "model.depth"), ("tokenizer.joint=false", "model.tied"),
    ("tokenizer.model_type=bpe", "tokenizer.narrow_target")])
def test_a_wrong_value_is_named_in_one_line(override, named):
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        run_config(override)
    assert "\n" not in str(caught.value)


def test_a_format_or_a_share_of_heads_is_asked_for_plainly():
    with pytest.raises(UserError, match=r"^format: is missing\. Give format=\.\.\., which must be 'argos', .* or 'translator'"):
        from_hydra(ExportConfig, composed("export"))
    with pytest.raises(UserError, match=r"^heads: is a share, such as 0\.25 for a quarter, and not 2\."):
        from_hydra(PruneConfig, composed("prune", "heads=2"))


def test_no_limit_at_all_is_refused():
    with pytest.raises(UserError, match=r"train\.max_updates"):
        run_config("train.max_epochs=null", "train.max_minutes=null", "train.max_updates=null")


def test_a_span_penalty_needs_whole_spans():
    run_config("model.adaptive_span=4", "train.span_penalty=0.1")
    for missing in ("train.parallel=fsdp", "model.adaptive_span=null"):
        with pytest.raises(UserError, match=r"train\.span_penalty"):
            run_config("model.adaptive_span=4", "train.span_penalty=0.1", missing)


def test_bpe_has_no_sampling():
    with pytest.raises(UserError, match=r"tokenizer\.model_type=unigram"):
        run_config("tokenizer=bpe", "tokenizer.sampling=0.2")


def test_a_misspelt_option_is_told_the_nearest():
    values = dataclasses.asdict(run_config().model)
    values["num_head"] = values.pop("num_heads")
    with pytest.raises(UserError, match=r"did you mean model\.num_heads"):
        build(ModelConfig, values)


def test_yaml_round_trip(tmp_path):
    config = run_config("model.encoder_window=[3,null]", "data.train=[a.en,a.de]", "data.path=null", "data.limit=10")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert build(RunConfig, read_yaml(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    "text", ["", "a: [", "- 1\n- 2\n", "model: 3\n", "\x00\x01", "name: x\n", "3\n", "just words\n", "a: 1\na: 2\n"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.config_file.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml") as caught:
        folder.load_config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("written", "edited", "told"), [
    ("num_heads: 4", "num_heads: 2", "the options under model"), ("activation: relu", "activation: silu", "under model"),
    ("encoder_window: null", "encoder_window: 3", "under model"), ("num_heads: 4", "num_heads: 4\n  num_heads: 2", "num_heads"),
    ("seed: 1", "seed: 1\nseed: 1", "seed: given twice")])
def test_an_edited_model_or_a_name_twice_is_told(run_folder, tmp_path, written, edited, told):
    folder = RunFolder(tmp_path)
    text = (run_folder / "config.yaml").read_text()
    assert text.count(f"{written}\n")
    folder.config_file.write_text(text.replace(f"{written}\n", f"{edited}\n", 1))
    with pytest.raises(UserError, match=rf"config\.yaml: .*{told}"):
        folder.load_config()


def test_a_run_may_be_moved_and_its_data_too(run_folder, tmp_path):
    """What does not shape the model may be edited, and older folders have no line about it."""
    folder = RunFolder(tmp_path)
    text = (run_folder / "config.yaml").read_text()
    for edited in (text.replace("name: test", "name: other"), text[: text.index("# sha256")]):
        folder.config_file.write_text(edited)
        folder.load_config()


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        run_config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("file", "config"), [
        ("train", RunConfig), ("evaluate", EvaluateConfig), ("translate", TranslateConfig), ("serve", ServeConfig),
        ("export", ExportConfig), ("report", ReportConfig), ("plot_attention", PlotAttentionConfig)])
def test_every_option_of_a_script_stands_below_a_comment(file, config):
    lines = (CONF / f"{file}.yaml").read_text().splitlines()
    own = [name for name, hint in get_type_hints(config).items() if not dataclasses.is_dataclass(hint)]
    assert own
    for option in own:
        number = next((n for n, line in enumerate(lines) if line.startswith(f"{option}:")), None)
        assert number is not None, f"{option} is not in conf/{file}.yaml"
        while re.match(r"\w+:", lines[number]):
            number -= 1
        assert lines[number].startswith("#"), f"{option} is not explained in conf/{file}.yaml"


def nested(config: object, group: str = "") -> list[tuple[str, str, object]]:
    """Every option of every group, and of groups in it: (group, option, class of the group)."""
    found = []
    for name, hint in get_type_hints(config).items():
        if dataclasses.is_dataclass(hint):
            found += nested(hint, f"{group}.{name}".lstrip("."))
        elif group:
            found.append((group, name, config))
    return found


@pytest.mark.parametrize(("group", "option", "cls"), nested(RunConfig))
def test_no_option_takes_a_value_of_another_kind(group, option, cls):
    values = dataclasses.asdict(run_config())
    inner = reduce(lambda options, name: options[name], group.split("."), values)
    values["tokenizer"]["placeholders"] = 0  # which data.augment.placeholders must teach
    inner[option] = {"a": "mapping"}  # fits none
    with pytest.raises(UserError, match=rf"^{group}\.{option}: must be ") as caught:
        build(RunConfig, values)
    assert "\n" not in str(caught.value)
    del inner[option]
    if hasattr(cls, option):  # younger than the first run folders, which did as its default in the class says
        assert getattr(attrgetter(group)(build(RunConfig, values)), option) == getattr(cls, option)
        return
    with pytest.raises(UserError, match=rf"^{group}\.{option}: this option is missing"):
        build(RunConfig, values)


@pytest.mark.parametrize(
    "name", ["null", "true", "1e3", "01:20", "~", "${seed}", "???", "a: b", "# x", "Übung", "日本", "'", '"'])
def test_any_text_survives_yaml(tmp_path, name):
    config = dataclasses.replace(run_config(), name=name)
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert build(RunConfig, read_yaml(tmp_path / "config.yaml")) == config


def test_windows_layer_by_layer():
    model = run_config("model=tiny", "model.encoder_window=[3,null,5,null]", "model.decoder_window=7").model
    assert model.windows("encoder") == (3, None, 5, None)
    assert model.windows("decoder") == (7, 7, 7, 7)


def default_name(*overrides: str) -> str:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(composed)
        return composed.name


@pytest.mark.parametrize(("overrides", "name"), [
    ([], "tatoeba"), (["data=opus", "data.corpus=Books"], "opus-Books"), (["data=multi30k"], "multi30k"),
    (["data=multi30k", "data.train='train[:10%]'"], "multi30k"),
    (["data=files", "data.train=/x/my pairs.tsv.gz"], "files-my-pairs"),
    (["data=files", "data.train=[news/train.en,news/train.de]"], "files-news"),
    (["data=files", "data.path=me/news_v1.2", "data.train=train"], "files-news_v1.2"),
    (["data.path=me/other"], "tatoeba-other"), (["data.path=null", "data.train='größe:*?<>|.csv'"], "tatoeba-größe"),
    (["data=files", "data.train='....tsv'"], "files"), (["data=files"], "files"),
    (["data=files", f"data.train='{'é' * 400}.tsv'"], "files-" + "é" * 40)])
def test_a_run_is_named_by_its_data(overrides, name):
    assert default_name(*overrides) == f"{name}-en-de-small"


@given(st.text(min_size=1))
def test_any_file_gives_a_valid_name(train):
    data, choices = SimpleNamespace(path=None, train=train, source="en", target="de"), SimpleNamespace(data="files", model="x")
    name = run_name(data, choices, []).removesuffix("-en-de-x")
    assert re.fullmatch(r"files(-[\w.-]{1,40})?", name)
    assert name[-1] not in "-."
