"""From any translation dataset to cleaned, tokenised, cached batches: begin with `preparation`, then `batching`."""
