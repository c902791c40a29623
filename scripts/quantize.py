"""Copy a run with its weights in int8: `python scripts/quantize.py run=runs/x`. Options: conf/quantize.yaml."""

from translator.cli import run_script

from translator.compression.quantization import quantize_run
from translator.config.commands import QuantizeConfig

if __name__ == "__main__":
    run_script(quantize_run, QuantizeConfig, "quantize")
