"""Text in, text out: plan, search, rank, align, by one process or several.

Begin with `translator`, then `planning` and `ranking`; `files` translates files. `decoding` says what others express.
"""
