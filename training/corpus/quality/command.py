"""`mtnlg corpus train-classifier`. Libraries are imported when the verb runs."""

from pathlib import Path
from typing import Annotated

import typer

from training.corpus.libraries import need_libraries


def train_classifier_command(
    out: Annotated[Path, typer.Argument(help="Folder to write: the model, its curve, a manifest with their SHA-256.")],
    positive: Annotated[
        list[str], typer.Option(help="Good text: a file or folder of Parquet, JSON Lines or text. May be repeated.")
    ],
    negative: Annotated[
        list[str], typer.Option(help="Text of the corpus, such as the clean/ folder of a build. May be repeated.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the training, such as epochs=10.", metavar="KEY=VALUE")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the examples and those that are held out.")] = 1234,
) -> None:
    """Train a fastText classifier of good text, test it on held-out documents, and draw precision against recall.

    As many documents of the corpus are drawn as there are positives. Name the folder in a corpus's configuration as
    quality.classifier.

    Example: mtnlg corpus train-classifier runs/classifier --positive wikipedia/ --negative runs/corpus/clean
    """
    need_libraries()
    from training.corpus.quality.train import settings_from, train_from_files

    train_from_files(out, positive, negative, settings_from(overrides or []), seed)
