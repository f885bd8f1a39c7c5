"""What the pipeline stands on, looked for before it is imported."""

import importlib.util

from foundation.errors import UserError

_NEEDED = ("pyarrow", "daft", "tiktoken", "jinja2")


def need_libraries() -> None:
    """Raise UserError when the extra was not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"a corpus needs {', '.join(missing)}: pip install 'mtnlg[corpus]'")
