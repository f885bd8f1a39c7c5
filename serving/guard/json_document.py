"""JSON as strictly as its standard has it, and within bounds: what two parsers could read differently is refused."""

import json
import math
import re
from typing import Any

from serving.guard.refusal import Refused, invalid

_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONGEST_INTEGER = 19  # digits of 2**63
_LONGEST_FLOAT = 64


def parse_document(body: bytes, depth: int) -> dict[str, Any]:
    """The object in `body`. Raises Refused naming what is wrong, never quoting more than a name."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not valid UTF-8: byte {error.start}", code="invalid_utf8") from None
    if text.startswith("\ufeff"):
        raise invalid("the body begins with a byte order mark, which JSON does not allow", code="invalid_json")
    _check_depth(body, depth)
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise invalid(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}", code="invalid_json"
        ) from None
    except RecursionError:
        raise _too_deep(depth) from None
    if not isinstance(document, dict):
        raise invalid(f"the body must be a JSON object, not {_name(document)}", code="invalid_json")
    if _SURROGATE.search(body):
        _check_surrogates(document)
    return document


def _check_depth(body: bytes, limit: int) -> None:
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    depth = 0
    for match in _BRACKETS.finditer(body):
        symbol = match.group()
        if symbol in b"[{":
            depth += 1
            if depth > limit:
                raise _too_deep(limit)
        elif symbol in b"]}":
            depth -= 1


def _too_deep(limit: int) -> Refused:
    return invalid(f"the body is nested deeper than {limit} levels", code="json_too_deep")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise invalid(f"the key {name[:64]!r} is given twice", name[:64], "duplicate_key")
            seen.add(name)
    return found


def _constant(name: str) -> Any:
    raise invalid(f"{name} is not a JSON number", code="invalid_number")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER + 1:
        raise invalid(f"a number of {len(text)} digits is too large", code="invalid_number")
    return int(text)


def _float(text: str) -> float:
    if len(text) > _LONGEST_FLOAT:
        raise invalid(f"a number of {len(text)} characters is too long", code="invalid_number")
    number = float(text)
    if math.isinf(number):
        raise invalid(f"the number {text} is too large", code="invalid_number")
    return number


def _check_surrogates(value: Any) -> None:
    """Refuse half of a surrogate pair, which is no character and cannot be encoded. Depth is bounded by now."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid("a string has half of a surrogate pair (\\ud800 ... \\udfff)", code="invalid_utf8") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_surrogates(key)
            _check_surrogates(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_surrogates(inner)


def _name(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_integer, parse_float=_float)
