"""What the command line's groups of verbs share."""

from typing import Any

from typer.core import TyperGroup

_DEFAULT = "run"


class RunByDefault(TyperGroup):
    """A group where `mtnlg GROUP THING ...` means `mtnlg GROUP run THING ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default verb before anything that is no verb."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [_DEFAULT, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest
