"""Write trained models for other programs: one module for each program, and the folder, card and checks they share.

Begin with `exporters`; `ctranslate2` and `huggingface` write, `decoding` says how a program must search.
"""

from translator.export.exporters import exportable, module_of

__all__ = ["exportable", "module_of"]
