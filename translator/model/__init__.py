"""The Transformer: attention, layers, positions, and its cache for decoding.

Begin with `attention`, then `layers` and `transformer`.
"""
