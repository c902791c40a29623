"""The training loop: updates, loss, optimizers, validation. Begin with `trainer`, then `updater` and `loss`."""
