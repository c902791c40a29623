"""The command `make export`: write a run for another program."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from translator import __version__
from translator.config.commands import ExportConfig
from translator.export.card import model_card
from translator.export.decoding import Decoding
from translator.inference.translator import Translator
from translator.runs.run_folder import RunFolder, chosen_runs, require_not_of_a_run
from translator.runtime.atomic_files import read_plain, require_no_link, require_writable, write_text, writing
from translator.runtime.errors import UserError

MARK = "translator.json"  # the file that marks a folder as an export, which may be replaced


def export_run(config: ExportConfig) -> None:
    """Write a run for another program, with a README.md of the lines to use it; `push`: upload it to the hub."""
    exporter = module_of(config.format)
    [run] = chosen_runs(config.run, config.runs)
    translator = exportable(run)
    decoding = Decoding.nearest(config.search, translator.models[0].config, RunFolder(run).mean_target())
    quantized = config.format == "ctranslate2"
    name = f"ctranslate2-{config.quantization}" if quantized else config.format
    output = Path(config.output) if config.output else require_no_link(run / name)
    with replaced(output, run, config.format) as folder:
        exporter.write(translator, decoding, folder, **({"quantization": config.quantization} if quantized else {}))
        usage = exporter.usage(translator, decoding, config.push or str(output))
        write_text(folder / "README.md", model_card(RunFolder(run), decoding, usage, exporter.LIBRARY))
    print(f"written to {output}; its README.md has these lines:\n\n{usage}")
    if config.push:
        print(f"uploaded to {exporter.push(output, config.push)}")


def module_of(form: str) -> ModuleType:
    """Return the module that writes this format. Raises UserError if its library is not installed."""
    try:
        return importlib.import_module(f"translator.export.{form}")
    except ModuleNotFoundError as error:
        raise UserError(f"format={form}: {error.name} is not installed. "
                        f"Install it with `make export FORMAT={form}`, or pip install '.[{form}]'.") from error


def exportable(run: Path) -> Translator:
    """Load a run for export. Raises UserError if no format can express it."""
    translator = Translator(run, device="cpu")
    if translator.source_tokenizer.tag_ids or translator.target_tokenizer.tag_ids:
        raise UserError(f"{run}: tokenizer.source_tag and tokenizer.target_tag, as of M2M-100, cannot be exported")
    return translator


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
