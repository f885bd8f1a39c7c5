"""The terminal that people watch is standard error; standard output is for results."""

import sys

from rich.console import Console

_PIPE_WIDTH = 200


def error_console() -> Console:
    """A console on standard error; plain lines, without colour, when it is not a terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def table_console() -> Console:
    """A console on standard output for tables, whose text is shown as it is. A pipe gets names and numbers whole."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
