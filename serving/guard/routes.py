"""Which routes there are, as far as the guard treats them differently."""

from dataclasses import dataclass
from enum import Enum

_PROBES = frozenset({"/live", "/ready"})
_CALM = frozenset({"/metrics", "/version", "/docs", "/redoc", "/openapi.json", "/health", "/ping", "/load"})
_PAGE_METHODS = ("GET", "HEAD")
_WORK_PREFIXES = ("/v1/", "/v2/", "/inference/", "/cohere/")


class Kind(Enum):
    """How a route's cost is found."""

    completion = "completion"
    chat = "chat"
    texts = "texts"  # a pass over texts, nothing generated
    generic = "generic"  # generates, in another form: cost by size
    light = "light"  # JSON, but no work for the engine
    free = "free"
    withheld = "withheld"  # vLLM's, but not for those who may only ask the model


@dataclass(frozen=True)
class Route:
    """A route as the guard sees it. `label` is bounded in number, so that metrics may carry it."""

    label: str
    kind: Kind
    is_open: bool = False


_POSTS = {
    "/v1/completions": Kind.completion,
    "/v1/chat/completions": Kind.chat,
    "/v1/chat/completions/batch": Kind.generic,
    "/v1/responses": Kind.generic,
    "/v1/messages": Kind.generic,
    "/inference/v1/generate": Kind.generic,
    "/generative_scoring": Kind.generic,
    "/invocations": Kind.generic,
    "/v1/embeddings": Kind.texts,
    "/v1/score": Kind.texts,
    "/v1/rerank": Kind.texts,
    "/v2/embed": Kind.texts,
    "/v2/rerank": Kind.texts,
    "/score": Kind.texts,
    "/rerank": Kind.texts,
    "/pooling": Kind.texts,
    "/classify": Kind.texts,
    "/tokenize": Kind.light,
    "/detokenize": Kind.light,
    "/v1/messages/count_tokens": Kind.light,
    "/v1/completions/render": Kind.light,
    "/v1/chat/completions/render": Kind.light,
}
# They change the engine under the supervisor's feet, or say what is none of a client's business.
_WITHHELD = frozenset(
    {
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        "/kv_event_sources",
        "/abort_requests",
        "/inference/v1/abort_requests",
    }
)
_GETS = frozenset({"/v1/models", *_PROBES, *_CALM})


def find_route(method: str, path: str) -> Route:
    """The route of a request. A path that could be read in two ways is never an open one."""
    plain = "//" not in path and ".." not in path and "\\" not in path and "\0" not in path
    if path in _PROBES and method in _PAGE_METHODS:
        return Route(path, Kind.free, is_open=True)
    if method in _PAGE_METHODS and plain and (path == "/" or path.startswith("/static/")):
        return Route("page", Kind.free, is_open=True)
    if path in _WITHHELD:
        return Route("other", Kind.withheld)
    if path in _POSTS:
        return Route(path, _POSTS[path])
    if path in _GETS:
        return Route(path, Kind.free)
    if method not in _PAGE_METHODS and path.startswith(_WORK_PREFIXES):
        return Route("other", Kind.generic)
    return Route("other", Kind.free)


def is_post(path: str) -> bool:
    """Whether the path is one that is only ever posted to."""
    return path in _POSTS
