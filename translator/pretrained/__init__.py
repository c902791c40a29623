"""Start from a trained model: a run of this project, or weights of Marian or M2M-100.

Begin with `loading`; `huggingface` converts models of `transformers`.
"""

from translator.pretrained.huggingface import Pretrained
from translator.pretrained.loading import adopt, load_pretrained, without_weights

__all__ = ["Pretrained", "adopt", "load_pretrained", "without_weights"]
