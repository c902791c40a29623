"""Write trained models for other programs: one module for each program; `decoding` says what they can express.

Begin with `command`; `ctranslate2` and `huggingface` write.
"""
