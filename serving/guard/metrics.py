"""Prometheus metrics of the guard, by key and route, in a registry of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from serving.guard.record import Record

_MOST_KEYS = 200  # later names are counted together, so that keys that come and go cannot fill the memory
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
_LABELS = ("key", "route")


@dataclass(frozen=True)
class _CountedElsewhere(Collector):
    name: str
    help_text: str
    value: Callable[[], float]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.help_text, self.value())


class GuardMetrics:
    """Counters, gauges and histograms called mtnlg_..."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._names: set[str] = set()
        registry = self.registry
        self._requests = Counter("mtnlg_requests", "Requests answered.", (*_LABELS, "status"), registry=registry)
        self._refusals = Counter(
            "mtnlg_refusals", "Requests refused or broken off.", (*_LABELS, "reason"), registry=registry
        )
        self._gone = Counter("mtnlg_cancelled", "Requests whose client went away.", _LABELS, registry=registry)
        self._deadline = Counter("mtnlg_deadline_exceeded", "Requests that took too long.", _LABELS, registry=registry)
        self._prompt = Counter("mtnlg_prompt_tokens", "Tokens of prompts that ran.", _LABELS, registry=registry)
        self._completion = Counter("mtnlg_completion_tokens", "Tokens generated.", _LABELS, registry=registry)
        self._in_flight = Gauge("mtnlg_in_flight_requests", "Requests being handled.", _LABELS, registry=registry)
        self._wait = Histogram(
            "mtnlg_admission_wait_seconds", "Time in the queue.", _LABELS, buckets=_SECONDS, registry=registry
        )
        self._first = Histogram(
            "mtnlg_time_to_first_token_seconds",
            "From arrival to the answer's first byte, which in a stream is the first token.",
            _LABELS,
            buckets=_SECONDS,
            registry=registry,
        )
        self._token = Histogram(
            "mtnlg_time_per_token_seconds",
            "Mean time between the tokens of a stream.",
            _LABELS,
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "mtnlg_request_seconds", "From arrival to the end.", _LABELS, buckets=_SECONDS, registry=registry
        )

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show `value` whenever metrics are read."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def counter(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show `value`, which is counted elsewhere, as `name`_total whenever metrics are read."""
        self.registry.register(_CountedElsewhere(name, help_text, value))

    def facts(self, name: str, help_text: str, labels: Mapping[str, str]) -> None:
        """Show what stays the same as labels of `name`_info, whose value is 1."""
        Info(name, help_text, registry=self.registry).info(dict(labels))

    def begin(self, record: Record) -> None:
        """A request is being handled, and its key is known; `end` follows."""
        self._in_flight.labels(*self._labels(record)).inc()

    def end(self, record: Record, *, began: bool) -> None:
        """Count a finished request; `began` when `begin` was called."""
        labels = self._labels(record)
        self._requests.labels(*labels, str(record.status)).inc()
        if began:
            self._in_flight.labels(*labels).dec()
        if record.reason is not None:
            self._refusals.labels(*labels, record.reason).inc()
        if record.reason == "deadline_exceeded":
            self._deadline.labels(*labels).inc()
        if record.client_gone:
            self._gone.labels(*labels).inc()
        if record.queue_seconds is not None:
            self._wait.labels(*labels).observe(record.queue_seconds)
            self._prompt.labels(*labels).inc(record.prompt_tokens or 0)
            self._completion.labels(*labels).inc(record.completion_tokens or 0)
            if record.first_seconds is not None:
                self._first.labels(*labels).observe(record.first_seconds)
                self._observe_token_time(record, labels)
        self._whole.labels(*labels).observe(record.seconds)

    def render(self) -> bytes:
        """The metrics as text, to stand behind those of the engine."""
        return generate_latest(self.registry)

    def _observe_token_time(self, record: Record, labels: tuple[str, str]) -> None:
        tokens = (record.completion_tokens or 0) // (record.choices or 1)
        if record.stream and tokens > 1 and record.first_seconds is not None and record.last_seconds is not None:
            self._token.labels(*labels).observe((record.last_seconds - record.first_seconds) / (tokens - 1))

    def _labels(self, record: Record) -> tuple[str, str]:
        if record.key not in self._names:
            if len(self._names) >= _MOST_KEYS:
                return "other", record.route
            self._names.add(record.key)
        return record.key, record.route
