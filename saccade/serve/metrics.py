"""The server's metrics in Prometheus format; they hold no text and no key."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from saccade.serve.engine import Engine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    def __init__(self, engine: Engine):
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "saccade_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "saccade_request_seconds", "From a request to the end of its answer.", ["route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.batch = Histogram(
            "saccade_batch_requests", "Requests in a batch.", buckets=SIZES, registry=registry
        )
        self.busy = Counter(
            "saccade_worker_seconds", "Time that the model worker was busy.", registry=registry
        )
        waiting = Gauge("saccade_waiting_requests", "Requests that wait.", registry=registry)
        waiting.set_function(lambda: len(engine.waiting))
        tokens = Gauge("saccade_waiting_tokens", "Tokens that wait.", registry=registry)
        tokens.set_function(lambda: engine.waiting_tokens)
        streams = Gauge("saccade_streams", "Texts that come piece by piece.", registry=registry)
        streams.set_function(lambda: len(engine.stream_batches))
        engine.on_batch = self._on_batch

    def _on_batch(self, size: int, seconds: float) -> None:
        self.batch.observe(size)
        self.busy.inc(seconds)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
