"""The one exception that the command line turns into a single line and a non-zero exit; any error as one line."""


class UserError(Exception):
    """Something the user can mend: a wrong path, a layout that does not divide, an unreachable hub.

    The message says what was wrong, where, and what to do; it is printed without a traceback.
    """


def one_line(error: BaseException, characters: int = 400) -> str:
    """The beginning of an error's text as one line; its kind where it has none."""
    return " ".join(str(error).split())[:characters] or type(error).__name__
