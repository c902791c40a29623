"""One stepping engine for greedy search, beam search and sampling, with rules, constraints, scoring, ensembles, shortlists.

Begin with `engine`, then `choice` and `scoring`.
"""

from translator.search.engine import search
from translator.search.hypothesis import Demands, Hypothesis

__all__ = ["Demands", "Hypothesis", "search"]
