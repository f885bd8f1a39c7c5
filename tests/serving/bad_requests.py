"""Requests that no server should work on, with the status each is to get. Used on a stub and on a real server."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bad:
    """One request; `word` is in the message it is to get."""

    name: str
    body: bytes
    word: str
    status: int = 400
    path: str = "/v1/completions"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def _field(name: str, value: Any, word: str | None = None, status: int = 400) -> Bad:
    body = json.dumps({"prompt": "hello", name: value}).encode()
    return Bad(f"{name}={str(body[19:59])[2:-1]}", body, word or name, status)


def _chat(name: str, messages: Any, word: str = "message") -> Bad:
    return Bad(name, json.dumps({"messages": messages}).encode(), word, path="/v1/chat/completions")


def _input(name: str, item: Any, word: str) -> Bad:
    return Bad(name, json.dumps({"input": [item]}).encode(), word, path="/v1/responses")


_NUMBER = b'{"prompt": "hello", "temperature": %s}'
_RAW = [
    Bad("empty body", b"", "not valid JSON"),
    Bad("not JSON", b"hello", "not valid JSON"),
    Bad("cut off", b'{"prompt": "hel', "not valid JSON"),
    Bad("trailing comma", b'{"prompt": "hello",}', "not valid JSON"),
    Bad("single quotes", b"{'prompt': 'hello'}", "not valid JSON"),
    Bad("two documents", b'{"prompt": "a"}{"prompt": "b"}', "not valid JSON"),
    Bad("comment", b'{"prompt": "a" /* b */}', "not valid JSON"),
    Bad("control character", b'{"prompt": "a\x01"}', "not valid JSON"),
    Bad("bad escape", b'{"prompt": "\\x41"}', "not valid JSON"),
    Bad("byte order mark", b'\xef\xbb\xbf{"prompt": "a"}', "byte order mark"),
    Bad("array", b"[1, 2]", "must be a JSON object"),
    Bad("null", b"null", "must be a JSON object"),
    Bad("string", b'"hello"', "must be a JSON object"),
    Bad("invalid UTF-8", b'{"prompt": "\xff\xfe"}', "not valid UTF-8"),
    Bad("overlong UTF-8", b'{"prompt": "\xc0\xaf"}', "not valid UTF-8"),
    Bad("UTF-16", '{"prompt": "a"}'.encode("utf-16"), "not valid UTF-8"),
    Bad("half a surrogate pair", b'{"prompt": "\\ud800"}', "surrogate"),
    Bad("NaN", _NUMBER % b"NaN", "NaN"),
    Bad("Infinity", _NUMBER % b"Infinity", "Infinity"),
    Bad("minus Infinity", _NUMBER % b"-Infinity", "Infinity"),
    Bad("1e999", _NUMBER % b"1e999", "too large"),
    Bad("10000 digits", _NUMBER % (b"9" * 10_000), "digits"),
    Bad("10000 decimals", _NUMBER % (b"0." + b"9" * 10_000), "too long"),
    Bad("duplicate key", b'{"prompt": "a", "max_tokens": 1, "max_tokens": 9}', "twice"),
    Bad("duplicate key inside", b'{"prompt": "a", "stream_options": {"a": 1, "a": 2}}', "twice"),
    Bad("deep arrays", b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "deeper"),
    Bad("deep objects", b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "deeper"),
    Bad("10 MB", b'{"prompt": "' + b"a" * 10_000_000 + b'"}', "too large", 413),
    Bad("text/plain", b'{"prompt": "a"}', "Content-Type", 415, headers={"content-type": "text/plain"}),
    Bad("form", b"prompt=a", "Content-Type", 415, headers={"content-type": "application/x-www-form-urlencoded"}),
    Bad("no content type", b'{"prompt": "a"}', "Content-Type", 415, headers={}),
    Bad("latin-1", b'{"prompt": "a"}', "UTF-8", 415, headers={"content-type": "application/json; charset=latin-1"}),
    Bad(
        "compressed",
        b"\x1f\x8b",
        "compressed",
        415,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    ),
    Bad("many headers", b"{}", "headers", 431, headers={f"x-{number}": "a" for number in range(200)}),
    Bad("large header", b"{}", "headers of", 431, headers={"x-large": "a" * 36_000}),
    Bad("get", b"", "takes POST", 405, method="GET"),
    Bad("delete", b"", "takes POST", 405, method="DELETE"),
]
_FIELDS = [
    Bad("no prompt", b"{}", "prompt is missing"),
    _field("prompt", None),
    _field("prompt", ""),
    _field("prompt", []),
    _field("prompt", 5),
    _field("prompt", True),
    _field("prompt", {"text": "a"}),
    _field("prompt", ["a", 5]),
    _field("prompt", [["a"]]),
    _field("prompt", ["a", ""]),
    _field("prompt", [-1]),
    _field("prompt", [1.5]),
    _field("prompt", [True, 2]),
    _field("prompt", [10**9], "vocabulary"),
    _field("prompt", ["a"] * 1000, "1000 prompts"),
    _field("prompt", "a " * 300_000, "tokens"),
    _field("model", "gpt-5", "no model", 404),
    _field("model", 7),
    _field("max_tokens", 0),
    _field("max_tokens", -1),
    _field("max_tokens", 10**9),
    _field("max_tokens", 10**18),
    _field("max_tokens", "16"),
    _field("max_tokens", 1.5),
    _field("max_tokens", True),
    _field("min_tokens", -1),
    _field("min_tokens", 100),
    _field("n", 0),
    _field("n", 1_000_000),
    _field("n", "2"),
    _field("best_of", 1_000_000),
    _field("logprobs", 100_000),
    _field("logprobs", -1),
    _field("logprobs", True),
    _field("prompt_logprobs", 100_000),
    _field("stop", ["a"] * 100),
    _field("stop", ["a" * 10_000]),
    _field("stop", [""]),
    _field("stop", 5),
    _field("stop", [5]),
    _field("temperature", -1),
    _field("temperature", "hot"),
    _field("temperature", 1e300),
    _field("top_p", 5),
    _field("top_p", 0),
    _field("min_p", -0.5),
    _field("top_k", -2),
    _field("seed", 10**18 * 9.5),
    _field("presence_penalty", 3),
    _field("repetition_penalty", 0),
    _field("stream", "yes"),
    _field("echo", 1),
    _field("stream_options", {"include_usage": True}, "stream"),
    _field("logit_bias", {"a": 1}),
    _field("logit_bias", {"5": 1000}, "100"),
    _field("logit_bias", {str(number): 1 for number in range(5000)}),
    _field("stop_token_ids", [1] * 5000),
    _field("stop_token_ids", ["a"]),
    _field("bad_words", [1]),
    _field("user", "a" * 1000),
    _field("response_format", {"type": "json_schema", "json_schema": "a" * 100_000}),
    _chat("no messages", None),
    _chat("empty messages", []),
    _chat("message is a string", ["hello"]),
    _chat("message without role", [{"content": "a"}]),
    _chat("content is a number", [{"role": "user", "content": 5}]),
    _input("answer without text", {"role": "assistant", "type": "message", "content": []}, "text"),
    _input("refusal", {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "refusal"),
    _input("output is a list", {"type": "function_call_output", "call_id": "a", "output": []}, "output"),
    _input("output of no call", {"type": "function_call_output", "call_id": None, "output": "a"}, "call_id"),
    _chat("messages too long", [{"role": "user", "content": "a " * 300_000}], "tokens"),
]
BAD_REQUESTS = [*_RAW, *_FIELDS]
