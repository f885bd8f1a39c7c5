"""JSON over HTTP to a server that may be busy: bounded retries, and errors of one line without the key."""

import random
import time
from collections.abc import Mapping
from typing import Any

import httpx

from foundation.errors import UserError
from foundation.http_answers import error_text, retry_seconds

# A proxy or a server that is full, restarting or draining.
_TRANSIENT = {429, 502, 503, 504}
_LONGEST_PAUSE = 60.0
_REMEDIES = {
    401: "pass the right API key",
    403: "this API key may not use the model",
    404: "is it an OpenAI-compatible server, and the model's name right?",
}


class JSONClient:
    """Keeps up to `connections` connections to `url` open; safe to use from several threads.

    An answer that says "later" (429, 502, 503, 504), and a connection that breaks, are tried again up to `attempts`
    times in all, after the server's Retry-After or a pause that doubles from `pause` seconds. `timeout` is the
    seconds that an answer may take.
    """

    def __init__(
        self, url: str, api_key: str | None, connections: int, *, attempts: int = 7, pause: float = 0.5, timeout: float
    ) -> None:
        try:
            base = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        except httpx.InvalidURL as error:
            raise UserError(f"{url} is no URL: {error}") from None
        # A password may stand in the URL; errors name the URL.
        self.name = str(base.copy_with(username=None, password=None))
        self._key = api_key
        self._attempts = attempts
        self._pause = pause
        self._client = httpx.Client(
            base_url=base,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=httpx.Timeout(timeout, connect=min(timeout, 20)),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, path: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a POST of `payload`, or to a GET. Raises UserError when there is none."""
        response = self.try_ask(path, payload)
        if response.is_success:
            return self.parsed(response)
        remedy = _REMEDIES.get(response.status_code)
        raise UserError(
            f"{self.name}{path} answered {response.status_code}: {self._said(response)}"
            f"{'; ' + remedy if remedy else ''}"
        )

    def try_ask(self, path: str, payload: Mapping[str, Any] | None = None) -> httpx.Response:
        """The response, with whatever status but those of a busy server. Raises UserError after the last attempt."""
        failure = ""
        for attempt in range(self._attempts):
            wait = self._pause * 2**attempt * random.uniform(0.75, 1.25)
            try:
                response = self._client.request("GET" if payload is None else "POST", path, json=payload)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
            except httpx.HTTPError as error:
                raise UserError(f"{self.name}{path}: {self._hidden(str(error))}") from None
            else:
                if response.status_code not in _TRANSIENT:
                    return response
                failure = f"{response.status_code}: {self._said(response)}"
                wait = max(wait, retry_seconds(response.headers.get("Retry-After")) or 0.0)
            if attempt + 1 < self._attempts:
                time.sleep(min(wait, _LONGEST_PAUSE))
        raise UserError(
            f"{self.name}{path} could not be had in {self._attempts} attempts ({self._hidden(failure)}): "
            "is the server up? Run the same command again to go on"
        )

    def parsed(self, response: httpx.Response) -> dict[str, Any]:
        """The answer's object. Raises UserError when it holds none."""
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(
                f"{self.name}: {response.url.path} answered no JSON object: is it an OpenAI-compatible server?"
            )
        return document

    def _said(self, response: httpx.Response) -> str:
        """The server's own words, in whichever of the usual places they stand, on one line."""
        said, _ = error_text(response.content, response.text)
        return self._hidden(said)[:300] or response.reason_phrase

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text
