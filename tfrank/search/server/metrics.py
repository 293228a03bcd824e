"""What the server counts, for Prometheus."""

import time

import prometheus_client as prometheus

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counters of one application.

    Attributes:
        requests: requests by endpoint and status.
        seconds: how long requests took, by endpoint.
        waiting: searches, embeddings and changes that are being answered.
        batches: numbers of images that the model embedded at a time.
        version, images: number of the version of the index, and of its images.
        look: seconds since the last look for a new version that succeeded.
    """

    def __init__(self):
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "tfrank_requests", "Requests.", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = prometheus.Histogram(
            "tfrank_request_seconds",
            "Seconds a request.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.waiting = prometheus.Gauge(
            "tfrank_waiting", "Searches, embeddings and changes under way.", registry=self.registry
        )
        self.batches = prometheus.Histogram(
            "tfrank_batch_images",
            "Images embedded at a time.",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=self.registry,
        )
        self.version = prometheus.Gauge("tfrank_index_version", "Version served.", registry=self.registry)
        self.images = prometheus.Gauge("tfrank_index_images", "Images in the index.", registry=self.registry)
        self.look = prometheus.Gauge(
            "tfrank_index_look_seconds", "Seconds since the last look at the index.", registry=self.registry
        )

    def answered(self, endpoint: str, status: int, start: float) -> None:
        """Counts a request that began at `start` of the monotonic clock."""
        self.requests.labels(endpoint, str(status)).inc()
        self.seconds.labels(endpoint).observe(time.monotonic() - start)

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return prometheus.generate_latest(self.registry)
