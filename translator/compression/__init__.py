"""Make a trained run smaller: a module for each way. `make prune` removes heads, layers and pieces.

Begin with `pruning`.
"""
