"""The bias suite from the model to its report."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from evaluation.bias.adjective import association
from evaluation.bias.ask import LogLikelihoods, adjective_table, pairs, score_pairs, write_samples
from evaluation.bias.lexicon import Lexicon, load_lexicon
from evaluation.bias.occupation import occupation_bias
from evaluation.bias.probes import DEFAULT_PROBES, Probes, load_probes
from evaluation.bias.report import html_report, markdown_report
from evaluation.bias.sentiment import sentiment_by_group
from evaluation.score_store import ScoreStore
from evaluation.scoring import Backend
from foundation.console import error_console
from foundation.files import sha256_file, write_json, write_text

FORMAT = "mtnlg-bias"

LIMITS = (
    "This measures associations in the model's next-word probabilities, nothing else. It shows no harm in use, and a "
    "small number shows no absence of bias.",
    "Prompts are a few fixed templates in English. Another wording can give another number.",
    "Gender is asked by binary words (he, she, man, woman, male, female). Ethnicities and religions are a few coarse "
    "names, which many people would not choose for themselves and which leave many people out.",
    "Lists of occupations and adjectives are this project's own choice, so shares are not comparable with published "
    "ones in the last digits; two models asked by the same file are comparable.",
    "The paper had the model write text and counted adjectives in it. Here the probability of every listed adjective "
    "is computed instead: exact and the same in every run, but about listed adjectives directly after the prompt only.",
    "Intervals are not corrected for the number of groups: of twenty such intervals, about one misses by chance.",
    "Sentiment is a lexicon's rating of single words, without their context.",
)


def run_bias(
    backend_factory: Callable[[], Backend],
    folder: Path,
    *,
    identity: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
    probes_file: Path | None = None,
) -> dict[str, Any]:
    """Ask the probes and write `bias.json`, `bias.md`, `bias.html` and `samples/bias.jsonl` in `folder`.

    `identity` has the model's `path` and `files_sha256`; `settings` is all else that scores depend on (backend, dtype,
    libraries, device). What `scores/bias.jsonl` holds of them is not scored again: the backend is opened, once, only
    when something is missing, and its owner closes it. `seed` is the bootstrap's. Returns what `bias.json` holds.
    Raises UserError for what a user can mend.
    """
    probes = load_probes(probes_file)
    lexicon = load_lexicon(probes)
    asked = pairs(probes)
    determinants = {"model_sha256": identity["files_sha256"], **settings}
    with ScoreStore(folder / "scores" / "bias.jsonl", determinants) as store, _progress() as progress:
        bar = progress.add_task("bias probes", total=len(asked))
        scores, usage = score_pairs(asked, backend_factory, store, lambda count: progress.advance(bar, count))
    document = {
        "format": FORMAT,
        "model": dict(identity),
        "settings": dict(settings),
        "seed": seed,
        "probes": {
            "file": str(probes_file or DEFAULT_PROBES.name),
            "sha256": sha256_file(probes_file or DEFAULT_PROBES),
        },
        # Seconds differ between equal runs.
        "usage": {key: value for key, value in asdict(usage).items() if key != "seconds"},
        **measure(probes, lexicon, scores, seed),
        "published": [share.model_dump() for share in probes.published],
        "limits": list(LIMITS),
    }
    write_samples(folder / "samples" / "bias.jsonl", scores)
    write_json(folder / "bias.json", document)
    write_text(folder / "bias.md", markdown_report(document))
    write_text(folder / "bias.html", html_report(document))
    return document


def measure(probes: Probes, lexicon: Lexicon, scores: LogLikelihoods, seed: int) -> dict[str, Any]:
    """The sections `occupation`, `adjectives` and `sentiment` of bias.json, from the log-likelihoods alone."""
    words = probes.adjectives.all
    valences = np.array([lexicon.valences[word] for word in words])
    tables = {name: adjective_table(scores, axis, words) for name, axis in probes.axes.items()}
    return {
        "occupation": occupation_bias(probes.occupation, scores),
        "adjectives": {
            "listed": len(words),
            "axes": {name: association(axis, words, tables[name]) for name, axis in probes.axes.items()},
        },
        "sentiment": {
            "lexicon": {"source": lexicon.source, "sha256": lexicon.sha256, "listed": lexicon.listed},
            "axes": {
                name: sentiment_by_group(axis, tables[name], valences, seed) for name, axis in probes.axes.items()
            },
        },
    }


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=error_console())
