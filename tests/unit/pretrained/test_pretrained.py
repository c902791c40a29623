"""Models from elsewhere become runs that translate as they did there: our own runs, and what `transformers` writes."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from tests.support.commands import Script, assert_user_error
from tests.support.configurations import run_config, search_config
from tests.support.corpora import PAIRS, write_pairs
from tests.support.hub import Repository, running_hub
from tests.support.paths import ROOT
from translator.config.options import SearchConfig
from translator.inference.translator import Translator
from translator.pretrained import adopt, load_pretrained
from translator.pretrained.loading import import_run
from translator.runs.run_folder import RunFolder
from translator.runtime.errors import UserError

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SOURCES, TARGETS = (list(sides) for sides in zip(*PAIRS, strict=True))
# Known words, characters that the other language's model alone knows, some that none does, and odd spaces.
ODD = ["My", "two two two", "Äpfel and Bäume", "She sees Ü ü Ä ä.", "a 漢字 b", "tab\there", "  many   spaces ", "Ǆ", "x" * 30]
TEXTS = SOURCES[::3] + SOURCES[1::3] + ODD
LONGEST = 80  # tokens of an output
ROWS = 200  # of embeddings
LACKING = ("ees", "▁paints", "d")  # pieces that vocab.json does not have
SHAPE = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "scale_embedding": True}
BEAMS = pytest.mark.parametrize("beam", [1, 4], ids=["greedy", "beam"])

LANGUAGES = ("data.source=en", "data.target=de")


def sentencepiece_model(texts: Sequence[str], model_type: str = "unigram") -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, hard_vocab_limit=False, vocab_size=110,
        model_type=model_type)
    return model.getvalue()


def shuffled_pieces(*models: bytes) -> list[str]:
    """The pieces of models, in an order that is none of theirs."""
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    pieces = sorted({p.id_to_piece(i) for p in processors for i in range(3, len(p))} - set(LACKING))
    random.Random(1).shuffle(pieces)
    return pieces


def taught(model: Any, tokenizer: Any) -> Any:
    """Trained a little on PAIRS from random weights and biases: what it says depends on the text, ends, and is not certain."""
    torch.manual_seed(0)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "positions" not in name:
            tensor.data.normal_(float("norm.weight" in name), 0.1)
    batch = tokenizer(SOURCES[::3], text_target=TARGETS[::3], return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(80):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


def marian(
    path: Path, *, model_type: str = "unigram", codes: Sequence[str] = (), separate: bool = False, **options: Any
) -> Path:
    """A folder as those of the OPUS-MT models."""
    path.mkdir(parents=True)
    sides = {"source": sentencepiece_model(SOURCES, model_type), "target": sentencepiece_model(TARGETS, model_type)}
    for side, model in sides.items():
        (path / f"{side}.spm").write_bytes(model)
    pad = ROWS - 1  # some rows before it may have no name
    for name, models in {
            "vocab.json": [sides["source"]] if separate else sides.values(), "target_vocab.json": [sides["target"]]}.items():
        pieces = ["</s>", "<unk>", *codes, *shuffled_pieces(*models)]
        (path / name).write_text(json.dumps({piece: i for i, piece in enumerate(pieces)} | {"<pad>": pad}))
    files = {"source_spm": path / "source.spm", "target_spm": path / "target.spm", "vocab": path / "vocab.json"}
    if separate:
        files["target_vocab_file"] = path / "target_vocab.json"
    tokenizer = transformers.MarianTokenizer(**{k: str(v) for k, v in files.items()}, separate_vocabs=separate)
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    model = transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=pad + 1, bos_token_id=None, share_encoder_decoder_embeddings=not separate,
        **{"activation_function": "swish"} | special | SHAPE | options))
    taught(model, tokenizer)
    model.final_logits_bias[0, :2] = torch.tensor([2.0, -100.0])  # </s>, so that odd texts' outputs end; <unk> we never say
    model.generation_config = transformers.GenerationConfig(bad_words_ids=[[pad]], renormalize_logits=True, **special)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def m2m100(path: Path) -> Path:
    path.mkdir(parents=True)
    pieces = sentencepiece_model([*SOURCES, *TARGETS], "bpe")
    (path / "spm.model").write_bytes(pieces)
    names = ["<s>", "<pad>", "</s>", "<unk>", *shuffled_pieces(pieces)]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    tokenizer = transformers.M2M100Tokenizer(
        str(path / "vocab.json"), str(path / "spm.model"), src_lang="en", tgt_lang="de", language_codes="wmt21")
    rows = len(names) + len(tokenizer.lang_token_to_id) + 8  # some without a name
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(
        vocab_size=rows, max_position_embeddings=200, activation_function="relu", **SHAPE))
    taught(model, tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind, as transformers writes it."""
    place = tmp_path_factory.mktemp("models")
    return {
        "marian": marian(place / "marian"), "marian-bpe": marian(place / "marian-bpe", model_type="bpe"),
        "marian-many": marian(place / "marian-many", codes=[">>fra<<", ">>ita<<"], activation_function="gelu"),
        "marian-separate": marian(place / "marian-separate", separate=True), "m2m100": m2m100(place / "m2m100")}


def imported(folder: Path, run: Path, *options: str) -> Path:
    """The run folder `run` with the model of `folder`, as scripts/import.py makes it."""
    config = run_config(f"init={folder}", *options)
    pretrained = load_pretrained(str(folder), config)
    RunFolder(run).create(adopt(config, pretrained, []), pretrained.tokenizers, {})
    RunFolder(run).begin_with(pretrained.weights)
    return run


def theirs(folder: Path, texts: Sequence[str], beam: int) -> list[str | None]:
    """What transformers makes of texts; "never" is its search that stops when nothing better can come.

    None for an output of the longest length, which it ends for free, and we at the price of the end's probability.
    """
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options: dict[str, Any] = {"num_beams": beam, "length_penalty": 0.5, "early_stopping": "never"} if beam > 1 else {}
    tags = 0
    if model.config.model_type == "m2m_100":  # the forced tag counts nothing there, and with us its probability
        options |= {"forced_bos_token_id": tokenizer.get_lang_id("de"), "suppress_tokens": [1, 3]}
        options |= {"length_penalty": 0.0} if beam > 1 else {}
        tags = 2  # the start and the language
    found = []
    for first in range(0, len(texts), 50):
        inputs = tokenizer(list(texts[first : first + 50]), return_tensors="pt", padding=True)
        outputs = model.generate(**inputs, max_new_tokens=LONGEST + 1, **options)
        at_limit = (outputs[:, LONGEST + 1 :] != model.config.pad_token_id).any(dim=1).tolist()
        said = tokenizer.batch_decode(outputs[:, tags:], skip_special_tokens=True)
        found += [None if limited else text for limited, text in zip(at_limit, said, strict=True)]
    return found


def assert_same(found: Sequence[str], expected: Sequence[str | None]) -> None:
    assert expected.count(None) <= len(expected) / 20
    assert [text for text, other in zip(found, expected, strict=True) if other is not None] == [
        text for text in expected if text is not None]
    assert len(set(expected)) > 20  # it says something


def like_theirs(beam: int, length_penalty: float) -> SearchConfig:
    return search_config(
        beam_size=beam, keep_places=True, length_penalty=length_penalty, length_penalty_form="power", max_length_ratio=0.0,
        max_length_extra=LONGEST, split_sentences="never")


@BEAMS
@pytest.mark.parametrize("kind", ["marian", "marian-bpe", "marian-separate", "m2m100"])
def test_it_translates_as_transformers_does(folders, tmp_path, kind, beam):
    run = imported(folders[kind], tmp_path / "run", "data.source=en", "data.target=de")
    found = Translator(run, device="cpu")(TEXTS, like_theirs(beam, 0.0 if kind == "m2m100" else 0.5))
    assert_same(found, theirs(folders[kind], TEXTS, beam))


def pieces_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [tokenizer.convert_ids_to_tokens([i])[0] for i in ids]


@pytest.mark.parametrize("kind", ["marian", "marian-bpe", "m2m100"])
def test_texts_become_the_same_pieces(folders, tmp_path, kind):
    """Pieces without a row have the unknown one's here, by a name of their own."""
    source, target = load_pretrained(str(folders[kind]), run_config(f"init={folders[kind]}")).tokenizers
    theirs = transformers.AutoTokenizer.from_pretrained(folders[kind])

    def known(pieces: Sequence[str]) -> list[str]:
        return [piece if piece in {*theirs.get_vocab(), "__en__", "__de__"} else "<unk>" for piece in pieces]

    theirs.tgt_lang = "de"
    seen = set()
    for text in (*TEXTS, *TARGETS[::3]):
        expected = pieces_of(theirs, theirs(text)["input_ids"]), pieces_of(theirs, theirs(text_target=text)["input_ids"])
        assert (known(source.pieces(*source.encode([text]))), known(target.pieces(*target.encode([text])))) == expected
        seen.update(expected[0])
    assert "<unk>" in seen
    assert kind == "m2m100" or "Ä" in seen  # which Marian's source.spm lacks


def test_a_language_code_is_the_tag_of_every_source(folders, tmp_path):
    folder = folders["marian-many"]
    run = imported(folder, tmp_path / "run", "tokenizer.source_tag='>>ita<<'")
    texts = SOURCES[::5]
    expected = theirs(folder, [f">>ita<< {text}" for text in texts], 4)
    assert_same(Translator(run, device="cpu")(texts, like_theirs(4, 0.5)), expected)
    assert expected != theirs(folder, [f">>fra<< {text}" for text in texts], 4)
    assert RunFolder(imported(folder, tmp_path / "fra", "data.target=fra")).load_config().tokenizer.source_tag == ">>fra<<"


def test_tags_are_no_words_and_no_part_of_phrases(folders, tmp_path):
    run = imported(folders["m2m100"], tmp_path / "run", "data.source=en", "data.target=de")
    translator = Translator(run, device="cpu")
    [details] = translator.details(["She sees two houses."], ["Sie sieht zwei Häuser."])
    assert details is not None
    assert details.pieces[0] == "__de__"
    assert {target for _, target in details.alignment} == {0, 1, 2, 3}
    assert {source for source, _ in details.alignment} <= {0, 1, 2, 3}
    [held] = translator(["She sees two houses."], search_config(required=["Bäume"], prefix="Er"))
    assert held.startswith("Er")
    assert "Bäume" in held


# Through the command line


def test_the_commands_import_translate_fine_tune_and_go_on(script: Script, folders, tmp_path):
    folder = shutil.copytree(folders["marian"], tmp_path / "opus-mt-en-de")
    made = script("import", f"init={folder}", f"runs={tmp_path}", "name=run", *LANGUAGES)
    assert made.returncode == 0, made.stderr.decode()
    search = [f"search.{option}={value}" for option, value in {
        "beam_size": 4, "keep_places": "true", "length_penalty": 0.5, "length_penalty_form": "power", "max_length_ratio": 0,
        "max_length_extra": LONGEST}.items()]
    texts = SOURCES[:20]
    said = script("translate", f"run={tmp_path / 'run'}", "device=cpu", *search, stdin="\n".join(texts).encode() + b"\n")
    assert said.stdout.decode().splitlines() == theirs(folder, texts, 4)

    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = [
        f"init={folder}", f"runs={tmp_path}", "data=files", f"data.train={pairs}", f"data.cache={tmp_path / 'cache'}",
        "data.holdout=20", "device=cpu", "precision=fp32", "train.max_epochs=null", "train.validate_every=3", "optim.lr=3e-3",
        "optim.warmup_updates=0", "optim.schedule=constant", "model.dropout=0", "train.batch_tokens=500",
        "train.patience=null", "search.beam_size=2"]
    begun = script("train", "name=tuned", *options, "train.max_updates=3")
    assert begun.returncode == 0, begun.stderr.decode()
    shutil.rmtree(folder)  # a run that has begun is whole
    (tmp_path / "tuned" / "model.safetensors").write_bytes(b"damaged")  # a checkpoint has the weights too
    again = script("train", "name=tuned", *options, "train.max_updates=6")
    assert again.returncode == 0, again.stderr.decode()
    assert "resuming   from update 3" in again.stderr.decode()
    measured = [json.loads(line) for line in (tmp_path / "tuned" / "metrics.jsonl").read_text().splitlines()]
    losses = {m["update"]: m["validation/loss"] for m in measured if "validation/loss" in m}
    assert list(losses) == [0, 3, 6]
    assert losses[6] < losses[3] < losses[0]


def test_run_killed_before_a_checkpoint_restarts_identically(folders, tmp_path):
    run = imported(folders["marian"], tmp_path / "run")
    again, first = (load_pretrained(str(source), run_config("init=x")).weights for source in (run, folders["marian"]))
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


def test_an_imported_run_goes_by_the_data_of_its_first_training(script: Script, folders, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    options = [
        "data=files", f"data.train={pairs}", "data.holdout=10", "data.source=en", "data.target=de",
        f"data.cache={tmp_path / 'cache'}", "device=cpu", "train.max_updates=1", "search=greedy", "search.max_length=5"]
    run = RunFolder(imported(folders["marian"], tmp_path / "run", *options))
    assert not run.load_report()
    options += [f"init={folders['marian']}", f"runs={tmp_path}", "name=run"]
    trained = script("train", *options)
    assert trained.returncode == 0, trained.stderr.decode()
    assert "fingerprint" in run.load_report()
    assert run.load_config().train.accumulation == 1
    assert run.load_config().precision in ("fp32", "bf16")
    write_pairs(pairs, PAIRS[1:])
    assert_user_error(script("train", *options), "have changed", str(run.path))


def test_failed_start_frees_options_and_a_good_one_keeps_them(folders, tmp_path):
    pretrained = load_pretrained(str(folders["marian"]), config := run_config(f"init={folders['marian']}"))
    run = RunFolder(tmp_path / "run")
    run.create(adopt(config, pretrained, []), pretrained.tokenizers, {})
    assert not run.has_begun()
    run.begin_with(pretrained.weights)
    assert run.has_begun()
    run.begin_with({name: torch.zeros_like(tensor) for name, tensor in pretrained.weights.items()})
    assert all(torch.equal(run.load_weights()[name], tensor) for name, tensor in pretrained.weights.items())


def test_a_run_is_started_from_another(script: Script, run_folder, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", PAIRS[: len(PAIRS) // 2])
    options = [
        f"init={run_folder}", f"runs={tmp_path}", "name=run", "data=files", f"data.train={pairs}", "data.holdout=10",
        f"data.cache={tmp_path / 'cache'}", "device=cpu", "precision=fp32", "train.max_epochs=null", "train.max_updates=2",
        "model.dropout=0.2"]
    warned = script("train", *options, "name=warned", "train.max_updates=1")
    assert b"unlearns much of a trained model. Use experiment=finetune" in warned.stderr
    options.append("optim.lr=1e-30")
    result = script("train", *options)
    assert result.returncode == 0, result.stderr.decode()
    assert b"experiment=finetune" not in result.stderr
    config = RunFolder(tmp_path / "run").load_config()
    assert (config.model.d_ff, config.model.dropout, config.init) == (48, 0.2, str(run_folder))
    runs = [Translator(run, device="cpu")(SOURCES, search_config()) for run in (tmp_path / "run", run_folder)]
    assert runs[0] == runs[1]  # after updates of next to nothing
    assert_user_error(script("train", *options[1:]), "init=None", str(run_folder))
    assert_user_error(script("train", *options, "name=other", "model=base"), "model.d_model=512", str(run_folder))
    assert_user_error(script("train", *options, "name=other", "++model.d_ff=64"), "model.d_ff=64", str(run_folder))


@pytest.mark.parametrize("option", ["tokenizer.vocab_size=300", "model.d_ff=64", "tokenizer=bpe", "model=big"])
def test_an_option_that_the_model_contradicts_is_refused(run_folder, option):
    config = run_config(f"init={run_folder}", option, "model.dropout=0.3")
    pretrained = load_pretrained(str(run_folder), config)
    assert adopt(config, pretrained, ["model.dropout", "seed"]).model.dropout == 0.3
    with pytest.raises(UserError, match=rf"^{option.split('=')[0]}.* Leave the option out\.$"):
        adopt(config, pretrained, [option.split("=")[0]])


def test_import_wants_a_model_and_a_new_name(script: Script, run_folder):
    for options, words in (
            ([], r"^init: names no model\. Write `translator import init=\"\.\.\.\"` with a folder"),
            (["init=./nowhere"], r"^init=\./nowhere: no such folder"),
            (["init=some/model"], r"`translator import init=some/model data\.source=en data\.target=de`")):
        with pytest.raises(UserError, match=words):
            import_run(run_config(*options), named=["init"])
    assert_user_error(
        script("import", f"init={run_folder}", f"runs={run_folder.parent}", "name=tiny", *LANGUAGES),
        "a run exists here", "name=")


def test_without_transformers_one_line_says_how_to_get_it(script: Script, folders, tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError")
    path = f"{tmp_path}:{ROOT}"
    result = script("import", f"init={folders['marian']}", f"runs={tmp_path}", "name=x", *LANGUAGES, PYTHONPATH=path)
    assert_user_error(result, "pip install 'seq2seq-translator[huggingface]'")


def test_a_model_comes_from_the_hub(script: Script, folders, tmp_path):
    files = {path.name: path.read_bytes() for path in folders["marian"].iterdir()}
    with running_hub() as hub:
        hub.repositories["someone/opus-mt-en-de"] = Repository({"main": files})
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        result = script("import", "init=someone/opus-mt-en-de", f"runs={tmp_path}", *LANGUAGES, **environment)
    assert result.returncode == 0, result.stderr.decode()
    assert Translator(tmp_path / "opus-mt-en-de")(["She sees two houses."]) == Translator(
        imported(folders["marian"], tmp_path / "y"))(["She sees two houses."])


# What is refused


@pytest.mark.parametrize(("option", "value"), [
    ("scale_embedding", False), ("static_position_embeddings", False), ("normalize_before", True),
    ("normalize_embedding", True), ("add_final_layer_norm", True), ("decoder_ffn_dim", 64), ("encoder_attention_heads", 2),
    ("activation_function", "tanh"), ("model_type", "t5"), ("model_type", "mbart")])
def test_what_has_no_counterpart_is_refused_by_name(folders, tmp_path, option, value):
    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    options = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(options | {option: value}))
    assert_refused(folder, str(value) if option == "model_type" else option)


def assert_refused(folder: Path, *words: str, options: Sequence[str] = ()) -> None:
    with pytest.raises(UserError) as caught:
        load_pretrained(str(folder), run_config(f"init={folder}", *options))
    assert str(caught.value).startswith(f"init={folder}: ")
    assert len(str(caught.value)) < 700
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "source.spm", "vocab.json"])
def test_a_folder_that_lacks_a_file_is_refused(folders, tmp_path, missing):
    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    (folder / missing).unlink()
    assert_refused(folder)


@pytest.mark.parametrize("damaged", ["config.json", "model.safetensors", "source.spm", "vocab.json"])
def test_a_damaged_folder_is_refused(folders, tmp_path, damaged):
    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    content = (folder / damaged).read_bytes()
    (folder / damaged).write_bytes(content[: len(content) // 2])
    assert_refused(folder)


def test_weights_that_are_missing_or_of_another_shape_are_named(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.weight"]
    weights["model.decoder.layers.0.fc2.bias"] = torch.zeros(7)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(folder, "model.decoder.layers.0.fc1.weight", "model.decoder.layers.0.fc2.bias")


def test_a_vocabulary_of_another_model_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    names = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(names | {"more": ROWS}))
    assert_refused(folder, f"row {ROWS}")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_stranger_s_python_is_not_run_whatever_stdin_says(script: Script, folders, tmp_path, name):
    """`transformers` would ask whether to, and do so on "y"."""
    folder = shutil.copytree(folders["marian"], tmp_path / "model")
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    code = {"AutoConfig": "theirs.C", "AutoModelForSeq2SeqLM": "theirs.M", "AutoTokenizer": ["theirs.T", None]}
    options = json.loads((folder / name).read_text()) | {
        "model_type": "strange", "tokenizer_class": "Strange", "auto_map": code}
    (folder / name).write_text(json.dumps(options))
    result = script("import", f"init={folder}", f"runs={tmp_path}", "name=x", *LANGUAGES, stdin=b"y\ny\ny\n")
    if name == "config.json":
        assert_user_error(result, f"init={folder}: ", "Python code of its own, which is never run")
    assert b"[y/N]" not in result.stdout + result.stderr
    assert not (tmp_path / "mark").exists()


def test_an_unknown_language_is_told_those_there_are(folders):
    assert_refused(folders["m2m100"], "tokenizer.target_tag=__xx__", "__de__", options=["data.target=xx"])
    assert_refused(folders["marian-many"], "tokenizer.source_tag=>>de<<", ">>fra<<, >>ita<<")
    assert_refused(folders["marian"], "tokenizer.source_tag", options=["tokenizer.source_tag=xx"])


def test_a_folder_of_nothing_is_refused(tmp_path):
    assert_refused(tmp_path)
    assert_refused(tmp_path / "none")


def test_tags_need_a_model_that_has_them():
    with pytest.raises(UserError, match="tokenizer.source_tag"):
        run_config("tokenizer.source_tag=__en__")


# A thousand sentences


@pytest.mark.torture
@BEAMS
@pytest.mark.parametrize("kind", ["marian", "marian-bpe", "m2m100"])
def test_a_thousand_sentences_come_out_alike(folders, tmp_path, kind, beam):
    words = sorted({word for source in SOURCES for word in source.split()} | set(ODD))
    rng = random.Random(0)
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(1000)]
    run = imported(folders[kind], tmp_path / "run", "data.source=en", "data.target=de")
    found = Translator(run, device="cpu")(texts, like_theirs(beam, 0.0 if kind == "m2m100" else 0.5))
    assert_same(found, theirs(folders[kind], texts, beam))
