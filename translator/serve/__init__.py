"""Translate over HTTP, for LibreTranslate's clients and for a page in the browser.

Begin with `api` (requests and answers); `service` holds the models, `batcher` joins requests into batches.
"""
