"""The training loop and what it is made of: updates, loss, optimizers, validation.

Begin with `trainer`, then `updater` and `loss`.
"""
