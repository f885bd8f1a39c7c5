"""Stage 8: the datasets' shares of a training run, and how often each is read in it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field
from rich.console import Console
from rich.table import Table

from foundation.config import StrictModel
from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import write_json, write_text
from foundation.manifest import read_manifest
from training.corpus.stage import Stage, Work

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig, DatasetConfig

BLEND = "blend.yaml"
PLAN = "plan.json"
_HEADER = """\
# The data section of a training configuration, for: mtnlg train CONFIG.yaml data={name}
# A path that begins with ./ or ../ is relative to this file.
"""


class BlendConfig(StrictModel):
    """How long the run is whose epochs are counted."""

    train_tokens: int | None = Field(
        default=None, ge=1, description="tokens of the run; none: as many as the datasets have"
    )


@dataclass(frozen=True)
class PlannedDataset:
    """A dataset's part of a run: its training tokens, its share of what the run reads, and that in epochs."""

    name: str
    tokens: int
    share: float
    drawn_tokens: int
    epochs: float


@dataclass(frozen=True)
class Plan:
    """A blend: the run's tokens, and what they are made of, in the configuration's order."""

    train_tokens: int
    datasets: tuple[PlannedDataset, ...]


class Blend(Stage):
    """Writes `blend.yaml`, which training reads, and `plan.json`: the same in words that a person asks for."""

    name = "blend"

    def __init__(self, config: "CorpusConfig") -> None:
        self._datasets: tuple[DatasetConfig, ...] = config.datasets
        self._train_tokens: int | None = config.blend.train_tokens
        self._seed: int = config.seed

    def identity(self) -> dict[str, Any]:
        """Weights, in the datasets' order, and the run's length."""
        weights = [[dataset.name, dataset.weight] for dataset in self._datasets]
        return {"weights": weights, "train_tokens": self._train_tokens, "seed": self._seed}

    def run(self, work: Work) -> None:
        """Plan from what the tokenise stage wrote, print and write. Raises UserError when no dataset has tokens."""
        tokenised = work.folder.parent / "tokenise"
        tokens = _tokenised(tokenised, self._datasets)
        planned = [dataset for dataset in self._datasets if tokens.get(dataset.name)]
        if not planned:
            raise UserError(f"no document is left in {tokenised}; the stages' summary.json say which rules took them")
        plan = make_plan(planned, tokens, self._train_tokens)
        blend = [{"path": f"../tokenise/{d.name}", "weight": d.share} for d in plan.datasets]
        data = yaml.safe_dump({"blend": blend, "seed": self._seed}, sort_keys=False)
        write_text(work.folder / BLEND, _HEADER.format(name=BLEND) + data)
        left_out = [dataset.name for dataset in self._datasets if dataset not in planned]
        write_json(work.folder / PLAN, {**asdict(plan), "seed": self._seed, "left_out": left_out})
        work.report("datasets", len(planned), len(planned))
        _print(plan, left_out, error_console())


def make_plan(datasets: Sequence["DatasetConfig"], tokens: dict[str, int], train_tokens: int | None) -> Plan:
    """Shares by weight, or by tokens where no dataset has a weight; an epoch is once through a dataset's tokens.

    Epochs = share x the run's tokens / the dataset's. Raises UserError when only some datasets have a weight.
    """
    unweighted = [dataset.name for dataset in datasets if dataset.weight is None]
    if unweighted and len(unweighted) < len(datasets):
        raise UserError(f"datasets {', '.join(unweighted)}: no weight, while others have one; give all of them or none")
    weights = [float(tokens[dataset.name]) if dataset.weight is None else dataset.weight for dataset in datasets]
    total, run = sum(weights), train_tokens or sum(tokens[dataset.name] for dataset in datasets)
    planned = []
    for dataset, weight in zip(datasets, weights, strict=True):
        drawn = weight / total * run
        epochs = drawn / tokens[dataset.name]
        planned.append(PlannedDataset(dataset.name, tokens[dataset.name], weight / total, round(drawn), epochs))
    return Plan(run, tuple(planned))


def print_plan(config: "CorpusConfig") -> None:
    """Print the plan of a configuration, from the tokenised datasets if they are all there, else from their `tokens`.

    Raises UserError when neither says how large a dataset is.
    """
    tokenised = config.out / "tokenise"
    tokens = _tokenised(tokenised, config.datasets)
    if len(tokens) < len(config.datasets):
        unknown = [dataset.name for dataset in config.datasets if dataset.tokens is None]
        if unknown:
            raise UserError(
                f"how many tokens {', '.join(unknown)} {'has' if len(unknown) == 1 else 'have'} is not known: "
                f"state the dataset's tokens, in billions, or build the corpus in {config.out} first"
            )
        tokens = {dataset.name: round(dataset.tokens * 1e9) for dataset in config.datasets if dataset.tokens}
    planned = [dataset for dataset in config.datasets if tokens[dataset.name]]
    left_out = [dataset.name for dataset in config.datasets if not tokens[dataset.name]]
    if not planned:
        raise UserError(f"no document is left in {tokenised}")
    _print(make_plan(planned, tokens, config.blend.train_tokens), left_out, Console())


def _tokenised(folder: Path, datasets: Sequence["DatasetConfig"]) -> dict[str, int]:
    """The training tokens of the datasets that are tokenised."""
    manifests = {dataset.name: read_manifest(folder / dataset.name) for dataset in datasets}
    return {name: int(found.about["splits"]["train"]["tokens"]) for name, found in manifests.items() if found}


def _print(plan: Plan, left_out: Sequence[str], console: Console) -> None:
    """The table of the paper: dataset, tokens, weight, epochs."""
    unit, name = _unit(max(dataset.tokens for dataset in plan.datasets))
    table = Table()
    table.add_column("Dataset")
    for title in (f"Tokens ({name})", "Weight (%)", "Epochs"):
        table.add_column(title, justify="right")
    for dataset in plan.datasets:
        size = f"{dataset.tokens / unit:,.1f}" if unit > 1 else f"{dataset.tokens:,}"
        table.add_row(dataset.name, size, f"{100 * dataset.share:.1f}", f"{dataset.epochs:.1f}")
    console.print(table)
    console.print(f"in a run of {plan.train_tokens:,} tokens", highlight=False)
    if left_out:
        console.print(f"left out, for they have no training tokens: {', '.join(left_out)}", highlight=False)


def _unit(most: int) -> tuple[int, str]:
    units = [(10**9, "billion"), (10**6, "million"), (10**3, "thousand")]
    return next(((size, name) for size, name in units if most >= size), (1, "number"))
