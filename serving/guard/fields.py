"""The fields of a request that ask for work: each of its type, and within bounds."""

import json
from collections.abc import Mapping
from typing import Any

from serving.guard.refusal import invalid
from serving.guard.settings import EngineFacts, RequestLimits

_INT64 = 2**63
_LONGEST_NAME = 256
# field: (lowest, highest, whether the lowest itself is excluded)
_NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, 100.0, True),
    "length_penalty": (-100.0, 100.0, False),
}
_FLAGS = ("stream", "echo", "use_beam_search", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
_GRAMMARS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "tools")
_TEXTS = ("model", "user", "suffix", "request_id", "session_id", "cache_salt")


def check_fields(document: Mapping[str, Any], limits: RequestLimits, facts: EngineFacts, *, chat: bool) -> None:
    """Refuse what is of a wrong type or out of bounds, naming the field. Lengths of prompts come later."""
    for name in _FLAGS:
        if not isinstance(document.get(name), bool | None):
            raise invalid(f"{name} must be true or false", name, "invalid_type")
    for name, (low, high, open_end) in _NUMBERS.items():
        _check_number(document, name, low, high, open_end=open_end)
    integer(document, "n", 1, limits.n)
    best_of = integer(document, "best_of", 1, limits.n)
    if best_of is not None and best_of < (document.get("n") or 1):
        raise invalid("best_of must be at least n", "best_of")
    integer(document, "seed", -_INT64, _INT64 - 1)
    integer(document, "top_k", -1, _INT64 - 1)
    integer(document, "priority", -_INT64, _INT64 - 1)
    integer(document, "prompt_logprobs", 0, limits.logprobs)
    integer(document, "top_logprobs", 0, limits.logprobs)
    integer(document, "truncate_prompt_tokens", -1, facts.max_model_len)
    if chat:
        if not isinstance(document.get("logprobs"), bool | None):
            raise invalid("logprobs must be true or false; top_logprobs says how many", "logprobs", "invalid_type")
    else:
        integer(document, "logprobs", 0, limits.logprobs)
    _check_stop(document, limits)
    _check_lists(document, limits, facts)
    _check_stream_options(document)
    for name in _TEXTS:
        if name != "suffix" and not isinstance(value := document.get(name), str | None):
            raise invalid(f"{name} must be a string, not {kind_of(value)}", name, "invalid_type")
        if len(document.get(name) or "") > _LONGEST_NAME:
            raise invalid(f"{name} is longer than {_LONGEST_NAME} characters", name)
    for name in _GRAMMARS:
        if len(json.dumps(document.get(name))) > limits.grammar_characters:
            raise invalid(f"{name} is longer than {limits.grammar_characters} characters", name)


def integer(document: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """The whole number called `name`, or None where it is absent or null. Raises Refused out of `low` to `high`."""
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise invalid(f"{name} must be a whole number, not {kind_of(value)}", name, "invalid_type")
    if not low <= value <= high:
        raise invalid(f"{name} must be {low} to {high}, not {value}", name)
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {str: "a string", bool: "a boolean", int: "a number", float: "a fraction", list: "an array"}
    return "null" if value is None else kinds.get(type(value), "an object")


def _check_number(document: Mapping[str, Any], name: str, low: float, high: float, *, open_end: bool) -> None:
    value = document.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{name} must be a number, not {kind_of(value)}", name, "invalid_type")
    if not low <= value <= high or (open_end and value == low):
        bound = "above" if open_end else "from"
        raise invalid(f"{name} must be {bound} {low:g} to {high:g}, not {value}", name)


def _check_stop(document: Mapping[str, Any], limits: RequestLimits) -> None:
    stop = document.get("stop")
    if stop is None:
        return
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
        raise invalid("stop must be a string or a list of strings", "stop", "invalid_type")
    if len(strings) > limits.stop_strings:
        raise invalid(f"{len(strings)} stop strings; at most {limits.stop_strings} are taken", "stop")
    if any(not 0 < len(string) <= limits.stop_characters for string in strings):
        raise invalid(f"a stop string must have 1 to {limits.stop_characters} characters", "stop")


def _check_lists(document: Mapping[str, Any], limits: RequestLimits, facts: EngineFacts) -> None:
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        values = document.get(name)
        if values is None:
            continue
        if not isinstance(values, list):
            raise invalid(f"{name} must be a list of token ids", name, "invalid_type")
        _check_entries(name, len(values), limits)
        check_token_ids(values, name, facts)
    words = document.get("bad_words")
    if words is not None:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise invalid("bad_words must be a list of strings", "bad_words", "invalid_type")
        _check_entries("bad_words", len(words), limits)
        if any(not 0 < len(word) <= limits.stop_characters for word in words):
            raise invalid(f"a bad word must have 1 to {limits.stop_characters} characters", "bad_words")
    bias = document.get("logit_bias")
    if bias is not None:
        if not isinstance(bias, dict):
            raise invalid("logit_bias must be an object of token ids and numbers", "logit_bias", "invalid_type")
        _check_entries("logit_bias", len(bias), limits)
        if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in bias):
            raise invalid("the keys of logit_bias must be token ids", "logit_bias")
        check_token_ids([int(token) for token in bias], "logit_bias", facts)
        for token in bias:
            _check_number(bias, token, -100.0, 100.0, open_end=False)


def _check_entries(name: str, count: int, limits: RequestLimits) -> None:
    if count > limits.list_entries:
        raise invalid(f"{name} has {count} entries; at most {limits.list_entries} are taken", name)


def check_token_ids(tokens: list[Any], name: str, facts: EngineFacts) -> None:
    """Refuse what is no token of the model's vocabulary."""
    bound = facts.vocab_size or _INT64
    if not all(type(token) is int for token in tokens):
        raise invalid(f"{name} must be token ids, which are whole numbers", name, "invalid_type")
    if tokens and not (min(tokens) >= 0 and max(tokens) < bound):
        raise invalid(f"a token id in {name} is not in the vocabulary of {bound} tokens", name)


def _check_stream_options(document: Mapping[str, Any]) -> None:
    options = document.get("stream_options")
    if options is None:
        return
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options", "invalid_type")
    if not document.get("stream"):
        raise invalid("stream_options is for streams: set stream to true", "stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name), bool | None):
            raise invalid(f"stream_options.{name} must be true or false", "stream_options", "invalid_type")
