"""Make a trained run smaller: a module for each way.

`make prune` removes heads, layers and pieces, `make quantize` keeps weights in int8. Begin with `pruning`.
"""
