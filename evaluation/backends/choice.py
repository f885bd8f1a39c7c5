"""What computes log-likelihoods: opened when the first score is missing, closed at the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from foundation.errors import UserError

if TYPE_CHECKING:
    from evaluation.scoring import Backend

NAMES = ("vllm", "hf", "http")


@dataclass(frozen=True)
class BackendChoice:
    """A backend and its options: `engine` are vLLM's engine arguments, `server` those of HTTPBackend."""

    name: str = "vllm"
    dtype: str = "float32"
    engine: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)

    def open(self, model: str) -> "Backend":
        """Load the model, or reach the server. Raises UserError when that cannot be."""
        if self.name == "http":
            from evaluation.backends.http_backend import HTTPBackend

            return HTTPBackend(model, **self.server)
        if self.name == "hf":
            from evaluation.backends.hf_backend import HFBackend

            return HFBackend(Path(model), self.dtype)
        if self.name == "vllm":
            from evaluation.backends.vllm_backend import VLLMBackend

            return VLLMBackend(Path(model), self.dtype, self.engine)
        raise UserError(f"no backend called {self.name!r}; there are: {', '.join(NAMES)}")


class LazyBackend:
    """A backend that is opened by its first use and closed with the block: a run that is all there loads no model."""

    def __init__(self, choice: BackendChoice, model: str) -> None:
        self._choice = choice
        self._model = model
        self._backend: Backend | None = None

    def __enter__(self) -> "LazyBackend":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._backend is not None:
            self._backend.close()

    def __call__(self) -> "Backend":
        """The backend, opened."""
        if self._backend is None:
            self._backend = self._choice.open(self._model)
        return self._backend
