"""Who is told of every request as it comes and as it ends, such as a maker of traces."""

from typing import Protocol

from serving.guard.asgi import Headers
from serving.guard.record import Record


class Observation(Protocol):
    """One request that is being observed."""

    @property
    def headers(self) -> Headers:
        """The request's headers as the application is to see them."""
        ...

    def end(self, record: Record) -> None:
        """The request has ended, and its record is complete."""
        ...


class Observer(Protocol):
    """Observes requests; must neither raise nor block."""

    def begin(self, record: Record, headers: Headers) -> Observation | None:
        """A request with these headers has arrived; None when it is not observed."""
        ...
