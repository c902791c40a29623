"""Scores of translations and their significance. Begin with `metric`."""
