"""`mtnlg keys`: who may use a server that was started with `--keys`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Add, list and revoke the API keys of `mtnlg serve --keys FILE`. A running server follows within a second.",
)
_File = Annotated[Path, typer.Argument(help="Key file; `add` makes it. It holds hashes, no keys.")]


@app.command("add")
def add_command(
    file: _File,
    name: Annotated[str, typer.Option(help="Who uses it; shown in metrics and logs.")],
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Default: no limit.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Prompt and generated tokens together. Default: no limit.")
    ] = None,
    concurrent_requests: Annotated[
        int | None, typer.Option(min=1, help="Running and waiting. Default: no limit.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model that it may use; may be repeated. Default: every one.")
    ] = None,
) -> None:
    """Add a key and print it. It is shown this once only.

    Example: mtnlg keys add keys.json --name alice --requests-per-minute 60
    """
    from serving.keys import add_key

    secret = add_key(
        file,
        name,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        models=tuple(model) if model else None,
    )
    typer.echo(f"mtnlg: added {name} to {file}; the key, shown this once:", err=True)
    typer.echo(secret)


@app.command("list")
def list_command(file: _File) -> None:
    """List keys and their limits, without secrets.

    Example: mtnlg keys list keys.json
    """
    from rich.table import Table

    from foundation.console import table_console
    from serving.keys import read_keys

    table = Table("id", "name", "created", "requests/min", "tokens/min", "concurrent", "models", "revoked")
    for key in read_keys(file).keys:
        limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests)
        table.add_row(
            key.id,
            key.name,
            key.created,
            *("-" if limit is None else str(limit) for limit in limits),
            ", ".join(key.models) if key.models is not None else "all",
            key.revoked or "-",
        )
    table_console().print(table)


@app.command("revoke")
def revoke_command(file: _File, name: Annotated[str, typer.Argument(help="Name or id.")]) -> None:
    """Revoke a key. Requests that it has running are finished.

    Example: mtnlg keys revoke keys.json alice
    """
    from serving.keys import revoke_key

    key = revoke_key(file, name)
    typer.echo(f"mtnlg: revoked {key.name} ({key.id}) in {file}", err=True)
