"""Translate over HTTP, for LibreTranslate's clients and for a page in the browser.

Begin with `app` (the routes); `api` answers requests, `service` holds the models, `batcher` joins requests into batches.
"""
