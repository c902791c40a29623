"""From any translation dataset to cleaned, tokenised, cached batches.

Begin with `preparation`, then `batching`.
"""
