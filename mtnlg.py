"""The one command. A subcommand a verb; a room is imported only when its verb runs."""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from evaluation.command import app as evaluate_app
from foundation.cache_command import app as cache_app
from foundation.dtypes import Dtype
from foundation.errors import UserError
from serving.command import add_commands as add_serving_commands
from training.corpus.command import app as corpus_app
from training.planner.command import app as plan_app

app = typer.Typer(
    name="mtnlg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Pretrain a GPT in three dimensions of parallelism, reshard it, evaluate it and serve it.\n\n"
    "The usual order: data prepare, train, convert, evaluate, serve. Each verb's --help shows an example.",
)
data_app = typer.Typer(no_args_is_help=True, help="Turn text into token indexes that training reads.")
app.add_typer(corpus_app, name="corpus")
app.add_typer(data_app, name="data")
runs_app = typer.Typer(no_args_is_help=True, help="Look at run folders.")
app.add_typer(runs_app, name="runs")
checkpoint_app = typer.Typer(no_args_is_help=True, help="Look at checkpoints of any format, check and compare them.")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(plan_app, name="plan")
app.add_typer(cache_app, name="cache")
add_serving_commands(app)


class Target(str, Enum):
    """Formats that `convert` writes."""

    hf = "hf"
    vllm = "vllm"
    training = "training"
    megatron = "megatron"


@data_app.command("prepare")
def data_prepare(
    out: Annotated[Path, typer.Argument(help="Folder to write: train and validation .bin/.idx, tokenizer, manifest.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="Text to read: a .txt, .md, .py, .jsonl or .jsonl.gz file, a folder of them, a dataset's "
            "name on the Hub, or 'demo' for real text from a registry package. May be repeated."
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with GPT-2's vocab.json and merges.txt. Default: the Hub's, else a package's."),
    ] = None,
    validation_percent: Annotated[float, typer.Option(min=0.0, max=50.0, help="Documents held out.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Chooses the documents that are held out.")] = 1234,
    max_documents: Annotated[int | None, typer.Option(min=1, help="Stop after this many documents.")] = None,
) -> None:
    """Tokenise text with GPT-2's BPE into Megatron .bin/.idx indexes, with a validation split.

    Example: mtnlg data prepare runs/data --data my_corpus/ --data more.jsonl.gz
    """
    from training.data.prepare import prepare

    prepare(
        out,
        data,
        tokenizer=tokenizer,
        validation_percent=validation_percent,
        seed=seed,
        max_documents=max_documents,
    )


@app.command("train")
def train_command(
    config: Annotated[Path, typer.Argument(help="Training configuration, YAML.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to it, such as training.micro_batch_size=2.", metavar="KEY=VALUE"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan (schedule, parameters and memory by stage, ranks and nodes) and the resolved "
            "configuration (to standard output), and stop. Takes seconds, for 530 B parameters on 2240 GPUs too.",
        ),
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the run folder's checkpoints first.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="For --dry-run: a name in configs/cluster/, such as dgx-a100, or a file.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="For --dry-run. Default: the cluster's, or 8.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="For --dry-run. Default: as many as it takes.")] = None,
) -> None:
    """Pretrain with tensor, pipeline and data parallelism; resumes the run folder's newest checkpoint.

    On one machine it starts its own workers, one a rank of the layout. Under torchrun, deepspeed or
    Slurm it is one worker of theirs.

    Example: mtnlg train configs/train/demo.yaml layout.tensor_parallel_size=1
    """
    if dry_run:
        from training.planner.cluster import load_cluster
        from training.planner.plan import dry_run as plan

        plan(config, overrides or [], load_cluster(cluster, gpus_per_node, nodes))
        return
    if (cluster, gpus_per_node, nodes) != (None, None, None):
        raise UserError(
            "--cluster, --gpus-per-node and --nodes belong to --dry-run: a run is where its launcher put it"
        )
    from training.launch import train

    train(config, overrides or [], restart=restart)


@runs_app.command("compare")
def runs_compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.")],
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")] = Path("compare.png"),
) -> None:
    """Overlay runs' losses by tokens; print what they reached, how fast, and where their configurations differ.

    Example: mtnlg runs compare runs/a runs/b --out compare.png
    """
    from training.report.compare import compare

    compare(runs, out)


_To = Annotated[
    Target,
    typer.Option(
        help="hf: GPT-2 safetensors. vllm: sharded_state, files for each slice. training: this project's own, "
        "at another layout, optimizer included. megatron: Megatron-LM's mp_rank_* files."
    ),
]
_VocabSize = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of a Megatron SOURCE, without padding rows. Default: its arguments', or all."),
]


@app.command("convert")
def convert_command(
    source: Annotated[Path, typer.Argument(help="Run folder, checkpoint, or (with --dry-run) a configuration.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; for --to training a run folder.")],
    to: _To,
    tensor_parallel_size: Annotated[
        int | None, typer.Option("--tensor-parallel-size", "-t", min=1, help="Slices. Default: 1, or the source's.")
    ] = None,
    pipeline_parallel_size: Annotated[
        int | None, typer.Option("--pipeline-parallel-size", "-p", min=1, help="Stages, for training, megatron.")
    ] = None,
    data_parallel_size: Annotated[
        int | None, typer.Option("--data-parallel-size", "-d", min=1, help="Replicas, for --to training.")
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Default: as stored. float32: the optimizer's masters where there are any.")
    ] = None,
    vocab_size: _VocabSize = None,
    num_attention_heads: Annotated[
        int | None, typer.Option(min=1, help="Of a Megatron SOURCE saved without its arguments.")
    ] = None,
    max_file_size: Annotated[str, typer.Option(help="Of a file of weights: 5GB, 500MB, ...")] = "5GB",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan: files, sizes, bytes to read and write, peak memory.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Then run both sides on the same prompts; needs memory for the whole model."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a different output.")] = False,
) -> None:
    """Reshard a checkpoint of any format and layout for inference or for training, tensor by tensor.

    SOURCE may be a run or checkpoint of this project, a Hugging Face GPT-2, a Megatron-LM classic checkpoint or a vLLM
    folder. Interrupted, the same command finishes the work.

    Example: mtnlg convert runs/demo runs/demo-vllm --to vllm --tensor-parallel-size 2
    """
    from conversion.convert import Options, convert
    from conversion.target import parse_size

    try:
        file_bytes = parse_size(max_file_size)
    except ValueError as error:
        raise UserError(f"--max-file-size: {error}") from None
    options = Options(
        to=to.value,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        dtype=dtype.value if dtype else None,
        file_bytes=file_bytes,
        vocab_size=vocab_size,
        num_attention_heads=num_attention_heads,
    )
    convert(source, out, options, overwrite=overwrite, dry_run=dry_run, verify=verify)


@checkpoint_app.command("inspect")
def checkpoint_inspect(
    path: Annotated[Path, typer.Argument(help="Run folder, one checkpoint, or a folder that convert wrote or reads.")],
    all_tensors: Annotated[bool, typer.Option("--all", help="A line a tensor, blocks not taken together.")] = False,
    optimizer: Annotated[bool, typer.Option("--optimizer", help="List the optimizer's tensors too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Say what a checkpoint is (format, step, layout, model, origin) and list its tensors. Reads headers only.

    Example: mtnlg checkpoint inspect runs/demo
    """
    from conversion.inspect import inspect

    inspect(path, all_tensors=all_tensors, optimizer=optimizer, as_json=as_json)


@checkpoint_app.command("verify")
def checkpoint_verify(
    path: Annotated[Path, typer.Argument(help="Run folder, one checkpoint, or a folder that convert wrote or reads.")],
) -> None:
    """Compare a checkpoint with its manifest, its replicas with each other, and look for NaN; name what is damaged.

    Example: mtnlg checkpoint verify runs/demo-vllm
    """
    from conversion.verify import verify

    verify(path)


@checkpoint_app.command("diff")
def checkpoint_diff(
    first: Annotated[Path, typer.Argument(help="A checkpoint of any format and layout.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    all_tensors: Annotated[bool, typer.Option("--all", help="List every differing tensor, not the worst 20.")] = False,
    optimizer: Annotated[bool, typer.Option("--optimizer", help="Compare the optimizer's states too.")] = False,
) -> None:
    """Compare two checkpoints tensor by tensor, across formats and layouts. Exits with 1 when they differ.

    Example: mtnlg checkpoint diff runs/demo runs/demo-hf
    """
    from conversion.diff import diff

    if not diff(first, second, all_tensors=all_tensors, optimizer=optimizer):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a UserError becomes one line on stderr and exit status 2."""
    try:
        app()
    except UserError as error:
        print(f"mtnlg: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("mtnlg: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
