"""Whether a request is let in at all: its key, and what the server itself can do now."""

from serving.guard.asgi import Headers
from serving.guard.head import bearer
from serving.guard.refusal import RESTART_SECONDS, Refused, not_ready
from serving.guard.settings import EngineFacts, EngineView
from serving.keys import Key, KeyFile


def authenticate(keys: KeyFile, headers: Headers) -> Key:
    """The key that a request shows. Raises Refused (401); the secret is in no message."""
    secret = bearer(headers)
    if secret is None:
        message = "an API key is needed: send it as Authorization: Bearer mtnlg-..."
        raise _unauthorized(message, "missing_api_key", 'Bearer realm="mtnlg"')
    key = keys.current().find(secret)
    challenge = 'Bearer realm="mtnlg", error="invalid_token"'
    if key is None:
        raise _unauthorized("this API key is not known here", "invalid_api_key", challenge)
    if key.revoked is not None:
        raise _unauthorized("this API key has been revoked", "revoked_api_key", challenge)
    return key


def ready_facts(view: EngineView) -> EngineFacts:
    """The engine's facts. Raises Refused (503) while it cannot answer."""
    if view.draining:
        raise Refused(503, "shutting down: try another server", "draining", retry_seconds=RESTART_SECONDS, close=True)
    reason, facts = view.unready(), view.facts
    if reason is not None or facts is None:
        raise not_ready(reason or "loading the model")
    return facts


def _unauthorized(message: str, code: str, challenge: str) -> Refused:
    return Refused(401, message, code, headers={"www-authenticate": challenge})
