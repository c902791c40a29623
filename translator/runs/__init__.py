"""What a run folder holds: configuration, checkpoints, weights, curves. Begin with `run_folder`."""
