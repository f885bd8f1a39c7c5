"""How HTML pages are filled in: every text escaped, a missing name an error."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_templates(folder: Path, functions: Iterable[Callable[..., Any]]) -> Environment:
    """The templates in `folder`, which may call `functions` by their names."""
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {function.__name__: function for function in functions}
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return templates
