"""`mtnlg load`: ask a server as many clients would, and say how it bears it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import UserError

if TYPE_CHECKING:
    from serving.load.calls import Call, Shape

_CONCURRENCY = 8  # the default way


def add_load_command(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    app.command("load")(_load)


def _load(
    url: Annotated[str, typer.Argument(help="Any OpenAI-compatible server, such as http://localhost:8000.")],
    model: Annotated[str | None, typer.Option(help="Its name there. Default: the only one.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="So many at a time, each sent when another ends. Default: 8.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="So many a second, at random times, however the server fares.")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="All of them at once.")] = False,
    replay: Annotated[Path | None, typer.Option(help="Access log of mtnlg serve: send the same again.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Replay so many times as fast.")] = 1.0,
    requests: Annotated[int, typer.Option(min=1, help="How many. A replay sends what is in the log.")] = 100,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the made-up prompts.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 32,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Always generate the most (vLLM knows how; others may refuse).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of prompts and times. A new one, and no prefix cache knows them.")] = 0,
    retry: Annotated[
        int, typer.Option(min=0, help="Send a refused one again after its Retry-After, so many times at most.")
    ] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a whole answer may take.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures and every request.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="MTNLG_API_KEY", help="The server's key.")] = None,
) -> None:
    """Put load on a server, and say who was answered, how fast, and who was turned away.

    Prompts are made up, of token ids; a replay too makes up what the access log does not hold (it holds texts with
    log_prompts alone), chats included. Exits with 1 when any request got neither a full answer nor a clear refusal.

    Example: mtnlg load http://localhost:8000 --concurrency 32 --requests 200 --out load.json
    """
    from serving.load.answer import Outcome
    from serving.load.calls import Shape
    from serving.load.load import Load, load

    ways = {"--concurrency": concurrency, "--rate": rate, "--burst": burst or None, "--replay": replay}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} are different ways to load a server: choose one")
    settings: dict[str, Any] = {"ignore_eos": ignore_eos, "retry": retry, "timeout": timeout}
    if replay is not None:
        calls = _replayed(replay, speed)
        settings |= {"replay": str(replay), "speed": speed}
    else:
        concurrency = concurrency or (None if chosen else _CONCURRENCY)
        calls = _made_up(Shape(prompt_tokens, max_tokens), requests, concurrency, rate, seed)
        settings |= {"concurrency": concurrency, "rate": rate, "burst": burst, "requests": requests}
        settings |= {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    run = load(Load(url, calls, concurrency, model, api_key, seed, ignore_eos, retry, timeout, out, settings))
    if run.interrupted:
        raise typer.Exit(130)
    if run.outcomes[Outcome.failed]:
        raise typer.Exit(1)


def _replayed(path: Path, speed: float) -> "list[Call]":
    from serving.load.replay import read_access_log

    log = read_access_log(path, speed)
    line = f"mtnlg: {len(log.calls)} requests of {path}"
    line += f", {log.made_up} of them with made-up prompts of the same length" if log.made_up else ""
    line += f"; {log.left_out} lines are left out: other routes, or refused unread" if log.left_out else ""
    typer.echo(line, err=True)
    return log.calls


def _made_up(shape: "Shape", requests: int, concurrency: int | None, rate: float | None, seed: int) -> "list[Call]":
    from serving.load.calls import at_once, at_random, one_after_another

    if rate is not None:
        return at_random(shape, requests, rate, seed)
    return at_once(shape, requests) if concurrency is None else one_after_another(shape, requests)
