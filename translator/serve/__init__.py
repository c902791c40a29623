"""Translate over HTTP, for LibreTranslate's clients and for a page in the browser.

Begin with `api` (what each path answers). `application` has the routes, `service` the models, `batcher` joins requests into
batches, `documents` reads files.
"""
