"""Trained models over HTTP, to LibreTranslate's clients and to a page of our own.

`batcher` has sentences of many requests translated together; `service` knows the models and what a text becomes; `detection`
tells languages; `explanation` tells a translation token by token; `fields` reads requests, `api` answers them and
`app` has the routes; `page` is what a browser shows.
"""
