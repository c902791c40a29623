"""Scores of translations and their significance.

Begin with `metric`, and with `bleu` as an example.
"""
