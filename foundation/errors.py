"""The one exception that the command line turns into a single line and a non-zero exit."""


class UserError(Exception):
    """Something the user can mend: a wrong path, a layout that does not divide, an unreachable hub.

    The message says what was wrong, where, and what to do; it is printed without a traceback.
    """
