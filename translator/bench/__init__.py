"""Measure speed and memory, beside other programs too.

Begin with `benchmark`.
"""
