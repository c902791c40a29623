"""From a model to its outputs: one stepping engine under greedy search, beam search and sampling.

`engine` steps and knows when to stop; `choice` says which continuations live on; `rules` what must not come next; `phrases`
what must; `hypothesis` how outputs are scored; `ensemble` makes one model of several; `restricted` searches
among some pieces; `forced` rates outputs that are given.
"""

from translator.search.engine import search
from translator.search.hypothesis import Demands, Hypothesis

__all__ = ["Demands", "Hypothesis", "search"]
