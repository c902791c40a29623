"""Make a run folder of a trained model: `python scripts/import.py init=x/opus-mt-en-de name=opus`. Options: conf/train.yaml."""

from translator.cli import options_given, run_script

from translator.config.options import RunConfig
from translator.pretrained.loading import import_run

if __name__ == "__main__":
    run_script(lambda config: import_run(config, options_given()), RunConfig, "train")
