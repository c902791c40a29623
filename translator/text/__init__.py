"""Text as tokens and sentences, in any script: begin with `tokenizer`."""
