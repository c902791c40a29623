"""Learn a run's shortlist from its training data: `python scripts/shortlist.py run=runs/x`. Options: conf/shortlist.yaml."""

from __future__ import annotations

from translator.runtime.script import one_line_errors

import hydra
from omegaconf import DictConfig

from translator.config.building import from_hydra
from translator.config.commands import ShortlistConfig
from translator.data.preparation import prepare
from translator.evaluation.held_out import data_of
from translator.inference.shortlist_learning import learn_shortlist
from translator.runs.run_folder import RunFolder, chosen_runs
from translator.runtime.atomic_files import require_writable
from translator.runtime.errors import UserError


@hydra.main(version_base="1.3", config_path="../conf", config_name="shortlist")
@one_line_errors()
def main(composed: DictConfig) -> None:
    asked = from_hydra(ShortlistConfig, composed)
    [run] = chosen_runs(asked.run, asked.runs)
    folder = RunFolder(run)
    require_writable(run)
    config, tokenizers = folder.load_config(), folder.load_tokenizers()
    if "splits" not in folder.load_report():
        raise UserError(
            f"{run}: its data_report.json has no training data, as that of an imported model; fine-tune it with init= first")
    of_its_own = config.init is None  # then the cache has what its training read
    corpus = prepare(
        data_of(folder), config.tokenizer, max_tokens=config.longest_pair(), tokenizers=None if of_its_own else tokenizers)
    folder.require_same_data((corpus.source_tokenizer, corpus.target_tokenizer), corpus.report)
    source, target = map(len, tokenizers)
    folder.save_shortlist(learn_shortlist(corpus.train, source, target, joint=config.tokenizer.joint))
    print(f"written to {folder.shortlist_file}; use it with search.shortlist=20")


if __name__ == "__main__":
    with one_line_errors():
        main()
