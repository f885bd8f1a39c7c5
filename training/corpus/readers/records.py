"""What readers give: a record, or why there is none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.corpus.config import DatasetConfig

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Record:
    """One document as read: `place` is where in its file ("" for a file that is one document)."""

    place: str
    html: bytes | None = None
    text: str | None = None
    url: str | None = None
    date: str | None = None


@dataclass(frozen=True)
class Problem:
    """No document: which rule says so; `detail` names the place for people, and is None for what is only counted."""

    place: str
    rule: str
    detail: str | None = None


def record_of(values: Mapping[str, Any], place: str, dataset: DatasetConfig) -> Record | Problem:
    """The record that a JSON object or a row of a table holds, by the dataset's fields."""
    text, html = _field(values, dataset.text_field), _field(values, dataset.html_field)
    if dataset.id_field is not None:
        named = _field(values, dataset.id_field)
        if named is None:
            return Problem(place, "bad record", f"{place}: no {dataset.id_field}")
        place = str(named)
    about: dict[str, Any] = {
        "url": _text(_field(values, dataset.url_field)),
        "date": _text(_field(values, dataset.date_field)),
    }
    if isinstance(text, str):
        return Record(place, text=clean_text(text), **about)
    if isinstance(html, str):
        return Record(place, html=clean_text(html).encode(), **about)
    if isinstance(html, bytes):
        return Record(place, html=html, **about)
    fields = f"{dataset.text_field} nor {dataset.html_field}"
    return Problem(place, "bad record", f"{place}: neither {fields} among its fields: {', '.join(map(str, values))}")


def clean_text(text: str) -> str:
    """Text that can be written as UTF-8: JSON may hold halves of surrogate pairs."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def _field(values: Mapping[str, Any], path: str) -> Any:
    """`meta.url` is url within meta, unless a field is called just so."""
    if path in values:
        return values[path]
    value: Any = values
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else clean_text(value)
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat else str(value)
