"""`mtnlg cache`: what is kept between runs, and room again on the disk."""

from typing import Annotated

import typer

from foundation.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    help="Look at the cache and make room: converted checkpoints, data from registry packages. Nothing in it is the "
    "only copy; what is removed is made or fetched again when it is next needed.",
)


@app.command("list")
def list_command() -> None:
    """List what the cache keeps: sizes, and days since each was last used.

    Example: mtnlg cache list
    """
    from rich.table import Table

    from foundation.cache import cache_folder, list_cache
    from foundation.console import table_console

    table = Table("name", "size", "unused")
    kept = list_cache()
    for one in kept:
        table.add_row(one.name, f"{one.size / 1e6:,.1f} MB", f"{one.days_unused:.0f} days")
    console = table_console()
    console.print(table)
    console.print(f"{sum(one.size for one in kept) / 1e6:,.1f} MB in {cache_folder()}", soft_wrap=True)


@app.command("remove")
def remove_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="As `list` names them; or a kind, such as converted, for all of it.")
    ] = None,
    unused_days: Annotated[float | None, typer.Option(min=0.0, help="Only what was not used for so many days.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove what is named, or what was not used for some days. A server needs its model there as long as it runs.

    Example: mtnlg cache remove converted --unused-days 30
    """
    from foundation.cache import remove_from_cache

    if not names and unused_days is None:
        raise UserError("say what to remove: names as mtnlg cache list shows them, or --unused-days DAYS")
    gone = remove_from_cache(names or (), days_unused=unused_days, dry_run=dry_run)
    for one in gone:
        typer.echo(one.name)
    verb = "would free" if dry_run else "freed"
    typer.echo(f"mtnlg: {verb} {sum(one.size for one in gone) / 1e6:,.1f} MB", err=True)
