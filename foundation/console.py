"""The terminal that people watch is standard error; standard output is for results."""

from rich.console import Console

_PIPE_WIDTH = 200


def error_console() -> Console:
    """A console on standard error; plain lines, without colour, when it is not a terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def table_console() -> Console:
    """A console on standard output for tables. A pipe has no width, and gets names and numbers whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
