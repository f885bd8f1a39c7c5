"""Train the classifier: positives that the user names, as many documents of the rest, a tenth of both held out."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import building_folder
from foundation.manifest import Manifest, write_manifest
from training.corpus.quality.classifier import CURVE, FORMAT, GOOD, MODEL, OTHER, Classifier, fasttext
from training.corpus.quality.config import ClassifierConfig
from training.corpus.quality.examples import Examples, Origin, Sampler, find_origins, requests, unit_hash
from training.corpus.quality.fit import fit
from training.corpus.quality.held_out import HeldOut, draw, measure

Map = Callable[[Callable[[str], str], Sequence[str]], Iterator[str]]
Report = Callable[[str, int, int], None]

_FEWEST = 10  # of each kind, for training and for the test together


def train_from_files(
    out: Path, positives: Sequence[str], negatives: Sequence[str], config: ClassifierConfig, seed: int
) -> Manifest:
    """`mtnlg corpus train-classifier`: train on these files and folders into `out`, and print how well it does.

    Raises UserError when there is nothing to read or too little.
    """
    origins = [
        origin
        for sources, good in ((positives, True), (negatives, False))
        for source in sources
        for origin in find_origins(source, good=good)
    ]
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}.") as work:
        manifest = train(out, Path(work), origins, config, seed, map, _say_nothing)
    held_out = manifest.about["held_out"]
    error_console().print(
        f"{out}: {manifest.about['examples']:,} documents of each kind; on {held_out['documents']:,} held-out ones "
        f"accuracy {held_out['accuracy']:.3f}, average precision {held_out['average_precision']:.3f}\n"
        f"{out / CURVE}: precision and recall\n"
        f"{out / MODEL}: sha256 {manifest.files[MODEL].sha256}"
    )
    return manifest


def train(
    out: Path,
    work: Path,
    origins: Sequence[Origin],
    config: ClassifierConfig,
    seed: int,
    run: Map,
    report: Report,
) -> Manifest:
    """Write the folder `out`, which the origins' documents, `config` and `seed` decide; examples go to `work`.

    `run` is an engine's map; what was drawn before a kill is not drawn again. fastText trains on one thread: with more
    the result depends on how they meet. Raises UserError when there are too few documents.
    """
    work.mkdir(parents=True, exist_ok=True)
    asked = requests(origins, config.max_examples)
    files = []
    for done, name in enumerate(run(Sampler(work, config.max_words, seed), asked), start=1):
        files.append(work / name)
        report("drawing examples", done, len(asked))
    examples = Examples(files, config.max_examples)
    if examples.count < _FEWEST:
        raise UserError(
            f"{examples.positives} positives and {examples.negatives} other documents are too few "
            f"to train a classifier: at least {_FEWEST} of each"
        )
    with building_folder(out) as folder:
        held_out, trained = _train(folder, work, examples, config, seed, report)
        about = {
            "settings": config.model_dump(mode="json"),
            "seed": seed,
            "library": f"fasttext-numpy2-wheel {version('fasttext-numpy2-wheel')}",
            "found": {"positives": examples.positives, "negatives": examples.negatives},
            "examples": examples.count,
            "trained": {"documents": trained, "epochs": config.epochs_over(trained)},
            "held_out": held_out.as_json(),
        }
        return write_manifest(folder, FORMAT, about, [folder / MODEL, folder / CURVE])


def _train(
    folder: Path, work: Path, examples: Examples, config: ClassifierConfig, seed: int, report: Report
) -> tuple[HeldOut, int]:
    lines, trained, test = work / "train.txt", 0, []
    with lines.open("w", encoding="utf-8") as handle:
        for key, good, line in examples:
            if unit_hash(seed, "held out", key) < config.held_out_percent / 100:
                test.append((good, line))
            else:
                handle.write(f"{GOOD if good else OTHER} {line}\n")
                trained += 1
    report("training the classifier", 0, 1)
    fit(lines, folder / MODEL, config, config.epochs_over(trained), seed)
    lines.unlink()
    classifier = Classifier(fasttext().load_model(str(folder / MODEL)), config.max_words)
    scores = classifier.score_lines([line for _, line in test])
    try:
        held_out = measure([good for good, _ in test], scores)
    except ValueError:
        raise UserError(f"none of {examples.count} positives was held out for the test; name more of them") from None
    draw(held_out, folder / CURVE)
    report("training the classifier", 1, 1)
    return held_out, trained


def _say_nothing(what: str, done: int, total: int) -> None:
    """Reports to nobody."""


def settings_from(overrides: Sequence[str]) -> ClassifierConfig:
    """KEY=VALUE arguments as settings. Raises UserError naming the key."""
    from pydantic import ValidationError
    from yaml import YAMLError, safe_load

    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or key not in ClassifierConfig.model_fields:
            raise UserError(f"{override!r}: expected KEY=VALUE, KEY one of {', '.join(ClassifierConfig.model_fields)}")
        try:
            values[key] = safe_load(text)
        except YAMLError:
            raise UserError(f"{override!r}: not a valid YAML value") from None
    try:
        return ClassifierConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UserError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
