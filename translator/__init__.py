"""A seq2seq translation trainer: an encoder-decoder Transformer on its own multi-head attention."""

__version__ = "0.1.0"
