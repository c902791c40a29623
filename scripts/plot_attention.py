"""Draw every attention for a sentence: `python scripts/plot_attention.py text="A dog."`. Options: conf/plot_attention.yaml."""

from translator.cli import run

if __name__ == "__main__":
    run("plot-attention")
