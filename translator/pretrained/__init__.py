"""Start from a trained model: a run of this project, or weights of Marian or M2M-100.

Begin with `loading`; `huggingface` converts models of `transformers`.
"""

from translator.pretrained.loading import adopt, load_pretrained, without_weights
from translator.pretrained.parts import Pretrained

__all__ = ["Pretrained", "adopt", "load_pretrained", "without_weights"]
