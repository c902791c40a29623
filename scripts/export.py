"""Write a run for other programs: `python scripts/export.py format=ctranslate2 run=runs/x`. Options: conf/export.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

from pathlib import Path

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import ExportConfig
from translator.export import exportable, module_of
from translator.export.card import model_card
from translator.export.decoding import Decoding
from translator.export.folder import replaced
from translator.runs.run_folder import RunFolder, chosen_runs
from translator.runtime.atomic_files import require_no_link, write_text


@hydra.main(version_base="1.3", config_path="../conf", config_name="export")
@one_line_errors()
def main(composed: DictConfig) -> None:
    config = from_hydra(ExportConfig, composed)
    exporter = module_of(config.format)
    [run] = chosen_runs(config.run, config.runs)
    translator = exportable(run)
    decoding = Decoding.nearest(config.search, translator.models[0].config, RunFolder(run).mean_target())
    output = Path(config.output) if config.output else require_no_link(run / default_name(config))
    with replaced(output, run, config.format) as folder:
        options = {"quantization": config.quantization} if config.format == "ctranslate2" else {}
        exporter.write(translator, decoding, folder, **options)
        usage = exporter.usage(translator, decoding, config.push or str(output))
        write_text(folder / "README.md", model_card(RunFolder(run), decoding, usage, exporter.LIBRARY))
    print(f"written to {output}; its README.md has these lines:\n\n{usage}")
    if config.push:
        print(f"uploaded to {exporter.push(output, config.push)}")


def default_name(config: ExportConfig) -> str:
    return f"ctranslate2-{config.quantization}" if config.format == "ctranslate2" else config.format


if __name__ == "__main__":
    with one_line_errors():
        main()
