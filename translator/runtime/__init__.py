"""What every program needs of its machine: processes, devices, memory, files, signals, errors.

Begin with `errors`, then `atomic_files`.
"""
