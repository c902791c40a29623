"""The command `make export`."""

from __future__ import annotations

from pathlib import Path

from translator.config.commands import ExportConfig
from translator.export import exportable, module_of
from translator.export.card import model_card
from translator.export.decoding import Decoding
from translator.export.folder import replaced
from translator.runs.run_folder import RunFolder, chosen_runs
from translator.runtime.atomic_files import require_no_link, write_text


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
