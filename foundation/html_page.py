"""Pages for people: one file that asks nothing of a network, every text escaped, one style for all rooms."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_STYLE = Path(__file__).with_suffix(".css")


def page_templates(folder: Path, functions: Iterable[Callable[..., Any]]) -> "Environment":
    """The templates in `folder`, which may call `functions` by their names; a missing name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

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


def page_style(*files: Path) -> "Markup":
    """The style that all pages share, and after it a page's own."""
    return page_script(_STYLE, *files)


def page_script(*files: Path) -> "Markup":
    """Files of this project's own, as a page holds them: not escaped."""
    from markupsafe import Markup

    return Markup("".join(path.read_text(encoding="utf-8") for path in files))  # noqa: S704


def content_policy(style: str, script: str, *, pictures: bool = False) -> str:
    """A Content-Security-Policy that lets a page run its own style and script, by their hash, and load nothing.

    `pictures` are those inside the page, as data.
    """
    images = "img-src data:; " if pictures else ""
    return (
        f"default-src 'none'; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}; "
        f"{images}base-uri 'none'; form-action 'none'"
    )


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
