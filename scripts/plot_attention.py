"""Draw every attention for a sentence: `python scripts/plot_attention.py text="A dog."`. Options: conf/plot_attention.yaml."""

from translator.cli import run_script

from translator.config.commands import PlotAttentionConfig
from translator.inference.attention_pictures import draw_attentions

if __name__ == "__main__":
    run_script(draw_attentions, PlotAttentionConfig, "plot_attention")
