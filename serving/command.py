"""`mtnlg serve` and `mtnlg generate`. The engine is imported when a verb runs."""

from pathlib import Path
from typing import Annotated

import typer

from foundation.errors import UserError
from serving.keys_command import app as keys_app
from serving.load.command import add_load_command

_REST_TO_ENGINE = {"allow_extra_args": True, "ignore_unknown_options": True}
_Slices = Annotated[
    int | None, typer.Option(min=1, help="GPUs that share every layer. Default: the slices in MODEL, or 1.")
]
_Stages = Annotated[int, typer.Option(min=1, help="GPUs, or groups of them, that have the layers in turn.")]
_Replicas = Annotated[int, typer.Option(min=1, help="Copies of the model that share the requests.")]
_MODEL_HELP = "Training run or checkpoint (converted once), Hugging Face's folder, or one resharded for vLLM."


def add_commands(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    app.command("serve", context_settings=_REST_TO_ENGINE)(_serve)
    app.add_typer(keys_app, name="keys")
    app.command("generate", context_settings=_REST_TO_ENGINE)(_generate)
    add_load_command(app)


def _serve(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help=_MODEL_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8000,
    tensor_parallel_size: _Slices = None,
    pipeline_parallel_size: _Stages = 1,
    data_parallel_size: _Replicas = 1,
    engine_restarts: Annotated[
        int, typer.Option(min=0, help="How often in ten minutes an engine that died or hung is started again.")
    ] = 3,
    keys: Annotated[Path | None, typer.Option(help="Key file of `mtnlg keys`; then every request needs one.")] = None,
    limits: Annotated[Path | None, typer.Option(help="Bounds, as in configs/serving/limits.yaml.")] = None,
    access_log: Annotated[Path | None, typer.Option(help="JSON, a line a request. Default: standard output.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Listen beyond this machine without keys: anyone may use the model.")
    ] = False,
    check: Annotated[
        str | None, typer.Option(help="Start, stream the answer to this prompt through HTTP, and stop.")
    ] = None,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API, with vLLM as the engine and a web page at /.

    Any other option is vLLM's own, such as --max-model-len 512. With --headless it runs this node's workers of a
    model over several nodes, for the server on the first.

    Example: mtnlg serve runs/demo --port 8000
    """
    from foundation.config import load_config
    from serving.check import checking
    from serving.guard.settings import GuardSettings
    from serving.model_folder import ParallelSizes
    from serving.server import check_address, run_node, serve

    sizes = ParallelSizes(tensor_parallel_size, pipeline_parallel_size, data_parallel_size)
    if "--headless" in context.args:
        if check is not None or keys is not None:
            raise UserError("--headless runs workers, which answer no HTTP: leave out --check and --keys")
        run_node(model, sizes=sizes, engine_options=context.args)
        return
    guard = load_config(GuardSettings, limits) if limits else GuardSettings()
    chosen = {"keys": keys, "access_log": access_log, "log_requests": guard.log_requests and check is None}
    guard = guard.model_copy(update={name: value for name, value in chosen.items() if value is not None})
    if guard.keys is not None and (check is not None or "--api-key" in context.args):
        raise UserError("--keys goes with neither --check nor vLLM's --api-key: leave out one of them")
    check_address(host, has_keys=guard.keys is not None or "--api-key" in context.args, anonymous=anonymous)
    serve(
        model,
        host=host,
        port=port,
        sizes=sizes,
        engine_options=context.args,
        engine_restarts=engine_restarts,
        guard=guard,
        anonymous=anonymous,
        client=None if check is None else checking(check),
    )


def _generate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model folder, or with --url the model's name there.")],
    prompt: Annotated[str | None, typer.Argument(help="Default, and with -: standard input.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token every time.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Among the likeliest tokens of this share.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. May be repeated.")] = None,
    url: Annotated[str | None, typer.Option(help="Ask a running server instead of starting an engine.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="MTNLG_API_KEY", help="Key for --url.")] = None,
    tensor_parallel_size: _Slices = None,
    pipeline_parallel_size: _Stages = 1,
    data_parallel_size: _Replicas = 1,
) -> None:
    """Print what a model makes of a prompt, as it comes.

    Any other option is vLLM's own, such as --max-model-len 512.

    Example: mtnlg generate runs/demo "The history of the world"
    """
    from serving.generate import generate
    from serving.model_folder import ParallelSizes

    generate(
        model,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop or (),
        url=url,
        api_key=api_key,
        sizes=ParallelSizes(tensor_parallel_size, pipeline_parallel_size, data_parallel_size),
        engine_options=context.args,
    )
