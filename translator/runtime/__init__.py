"""What every program needs of the machine: processes, devices, memory, files, signals, errors.

Begin with `errors`, then `atomic_files`.
"""
