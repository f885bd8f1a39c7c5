"""`mtnlg plan`: what a run would take. Modules are imported when a verb runs."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.command_line import RunByDefault
from foundation.errors import UserError

if TYPE_CHECKING:
    from training.planner.planned import Planned
    from training.planner.request import Request

_FORMATS = (".png", ".svg", ".pdf")


class Recompute(str, Enum):
    """What backward computes again."""

    none = "none"
    selective = "selective"
    full = "full"


class EngineChoice(str, Enum):
    """Whose software."""

    mtnlg = "mtnlg"
    deepspeed = "deepspeed"
    megatron_2021 = "megatron-2021"
    megatron_2022 = "megatron-2022"


app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Plan a run on paper: memory, time and cost of a layout, or the best layout. No GPU, no torch.\n\n"
    "`mtnlg plan MODEL ...` is short for `mtnlg plan run MODEL ...`; the options are in `mtnlg plan run --help`.\n\n"
    "Example: mtnlg plan mt-nlg-530b --cluster selene --nodes 280 --layout 8,35,8 --batch 1920 --tokens 270B",
)


_Layout = Annotated[
    str | None,
    typer.Option(help="tensor,pipeline,data; without data as many replicas as fill the nodes.", metavar="T,P[,D]"),
]
_Engine = Annotated[
    EngineChoice | None,
    typer.Option(
        help="Whose software: mtnlg (this project), deepspeed (MT-NLG's), megatron-2021 (Narayanan et al.), "
        "megatron-2022 (Korthikanti et al.). Default: the cluster's, or of a training configuration mtnlg."
    ),
]
_Tokens = Annotated[
    str | None,
    typer.Option(help="Token budget, such as 270B, for days and GPU-hours. Default: the configuration's."),
]
_VirtualStages = Annotated[
    int, typer.Option(min=1, help="Parts of the model a rank: interleaved 1F1B. Needs a megatron engine.")
]


@app.command("run")
def run_command(
    model: Annotated[str, typer.Argument(help="A name in configs/model/ or configs/train/, or such a file.")],
    cluster: Annotated[str, typer.Option(help="A name in configs/cluster/, such as selene, or a file.")] = "selene",
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to use. Default: what the layout takes.")] = None,
    layout: _Layout = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples an iteration. Default: the configuration's.")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Samples at once. Default: the same, or 1.")] = None,
    recompute: Annotated[Recompute | None, typer.Option(help="Default: the configuration's, or full.")] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", help="Default: the configuration's.")
    ] = None,
    virtual_stages: _VirtualStages = 1,
    engine: _Engine = None,
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO's stage. Default: the engine's.")] = None,
    tokens: _Tokens = None,
    search: Annotated[bool, typer.Option("--search", help="Every layout that fits the nodes, and the best.")] = False,
    what_if: Annotated[
        list[str] | None, typer.Option(help="Beside the plan one with this changed, such as tp=4. May be repeated.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="A plan for each value, such as nodes=280,350,420.")] = None,
    out: Annotated[Path | None, typer.Option(help="Picture: of --sweep, or of the pipeline's timeline.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Timeline for Perfetto (JSON), and beside it as .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Plan one layout: memory by stage, time of an iteration and where it goes, days and GPU-hours.

    Example: mtnlg plan mt-nlg-530b --nodes 420 --batch 1920 --search
    """
    from training.planner.cluster import load_cluster
    from training.planner.request import is_model_alone, load_model, parse_tokens, request_of

    for path in (out, trace.with_suffix(".png") if trace else None):
        _check_picture(path)
    base = load_model(model)
    request = request_of(
        base,
        load_cluster(cluster, None, None),
        layout,
        search=search,
        batch=batch,
        micro_batch=micro_batch,
        recompute=recompute.value if recompute else None,
        sequence_parallel=sequence_parallel,
        virtual_stages=virtual_stages,
        engine=engine.value if engine else None,
        zero=zero,
        nodes=nodes,
    )
    budget = parse_tokens(tokens) if tokens else (None if is_model_alone(base) else base.training.train_tokens)
    if search:
        _search(request, budget, as_json=as_json)
    elif sweep:
        _sweep(request, sweep, out, as_json=as_json)
    else:
        _plan(request, what_if or [], budget, out, trace, as_json=as_json)


@app.command("calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Argument(help="Cluster file to write, YAML.")],
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long to measure.")] = 60.0,
    ranks: Annotated[int, typer.Option(min=1, help="Most ranks that the file allows on this machine.")] = 8,
) -> None:
    """Measure this machine (matmuls by size, memory, collectives between processes) and write its cluster file.

    Example: mtnlg plan calibrate my-machine.yaml
    """
    from training.planner.calibrate import calibrate

    calibrate(out, seconds=seconds, ranks=ranks)


def _plan(
    request: "Request", changes: list[str], tokens: int | None, out: Path | None, trace: Path | None, *, as_json: bool
) -> None:
    from training.planner.report import print_comparison, print_planned

    planned = request.planned()
    named = {"plan": planned, **{change: request.changed(change).planned() for change in changes}}
    if as_json:
        _print_json(named if changes else planned, tokens)
    else:
        print_planned(planned, tokens, _console())
        if changes:
            print()
            print_comparison(named, _console())
    title = f"{planned.config.layout}: {planned.iteration.seconds:.1f} s, {planned.iteration.bubble:.1%} bubble"
    if trace is not None:
        from training.planner.draw import draw_timeline
        from training.planner.trace import write_trace

        write_trace(planned.iteration, trace)
        draw_timeline(planned.iteration, trace.with_suffix(".png"), title)
        typer.echo(f"timeline: {trace} (open it in ui.perfetto.dev) and {trace.with_suffix('.png')}", err=True)
    if out is not None:
        from training.planner.draw import draw_timeline

        draw_timeline(planned.iteration, out, title)
        typer.echo(f"timeline: {out}", err=True)


def _sweep(request: "Request", sweep: str, out: Path | None, *, as_json: bool) -> None:
    from training.planner.report import print_comparison

    key, separator, values = sweep.partition("=")
    if not separator or not values:
        raise UserError(f"--sweep {sweep}: expected key=value,value,..., such as nodes=280,350,420")
    plans = {f"{key}={value}": request.changed(f"{key}={value}").planned() for value in values.split(",")}
    if as_json:
        _print_json(plans, None)
    else:
        print_comparison(plans, _console())
    if out is not None:
        from training.planner.draw import draw_sweep

        draw_sweep(key, [(name.partition("=")[2], plan) for name, plan in plans.items()], out)
        typer.echo(f"sweep: {out}", err=True)


def _search(request: "Request", tokens: int | None, *, as_json: bool) -> None:
    from training.planner.report import print_planned
    from training.planner.search import reasons, search
    from training.planner.search_report import found_json, print_found

    found = search(request)
    if as_json:
        import json

        print(json.dumps(found_json(found), indent=2))
        return
    console = _console()
    print_found(found, console)
    console.print("\nWhy the first:")
    for reason in reasons(found):
        console.print(f"  {reason}")
    console.print()
    print_planned(found.best.planned, tokens, console)


def _print_json(plans: "Planned | dict[str, Planned]", tokens: int | None) -> None:
    import json

    from training.planner.report import as_json

    if isinstance(plans, dict):
        print(json.dumps({name: as_json(plan, tokens) for name, plan in plans.items()}, indent=2))
    else:
        print(json.dumps(as_json(plans, tokens), indent=2))


def _check_picture(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix not in _FORMATS:
        raise UserError(f"--out {path}: expected a name that ends in one of {', '.join(_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}")


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
