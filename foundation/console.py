"""The terminal that people watch: standard error, so that standard output stays for results."""

from rich.console import Console


def error_console() -> Console:
    """A console on standard error; plain lines, without colour, when it is not a terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
