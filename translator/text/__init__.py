"""Text as tokens and sentences, in any script.

Begin with `tokenizer`.
"""
