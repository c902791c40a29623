"""Metrics in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translator.serve.batcher import Batcher

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # buckets of the latency


class Metrics:
    """The metrics of one server."""

    def __init__(self, batcher: Batcher[Any]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Queue(batcher))
        self.requests = Counter(
            "translator_requests", "Requests by path and status", ["path", "status"], registry=self._registry)
        self.seconds = Histogram(
            "translator_request_seconds", "Time from request to answer", ["path"], registry=self._registry, buckets=SECONDS)

    def response(self) -> Response:
        return Response(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Queue(Collector):
    """The batcher's figures at the time of asking."""

    def __init__(self, batcher: Batcher[Any]) -> None:
        self._batcher = batcher

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield GaugeMetricFamily("translator_waiting_sentences", "Sentences in the queue", self._batcher.waiting)
        yield CounterMetricFamily("translator_sentences", "Sentences translated", self._batcher.sentences_done)
        yield CounterMetricFamily("translator_batches", "Batches translated", self._batcher.batches_done)


class Measured:
    """ASGI middleware: count each request, and measure it until the end of its answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            path = getattr(scope.get("route"), "path", "other")  # as it was registered: few, not one for each token
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
