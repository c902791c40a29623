"""Score a trained model: `python scripts/evaluate.py run=runs/x against=runs/y`. Options: conf/evaluate.yaml."""

from translator.cli import run_script

from translator.config.commands import EvaluateConfig
from translator.evaluation.evaluate import evaluate_runs

if __name__ == "__main__":
    run_script(evaluate_runs, EvaluateConfig, "evaluate")
