"""Write trained models for other programs: one module for each program.

Begin with `command`; `argos`, `ctranslate2` and `huggingface` write.
"""
