"""`mtnlg runs compare`: what runs reached, how fast, and where their configurations differ."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foundation.config import read_yaml
from foundation.errors import UserError
from training.metrics import METRICS_FILE, draw_losses, perplexity, read_metrics

_FORMATS = (".png", ".svg", ".pdf")
_ABSENT = "-"


def compare(runs: Sequence[Path], out: Path) -> None:
    """Print the comparison of these run folders and draw their losses by tokens as `out`.

    Raises UserError when there are fewer than two, one has no metrics, or `out` is not a picture's name.
    """
    if len(runs) < 2:
        raise UserError("give two or more run folders to compare")
    if out.suffix not in _FORMATS:
        raise UserError(f"--out {out}: expected a name that ends in one of {', '.join(_FORMATS)}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.absolute().parent}")
    named = _named(runs)
    console = Console(highlight=False)
    console.print(_results_table(named))
    console.print()
    console.print(_differences_table(named))
    draw_losses(named, out)
    console.print(f"\nlosses by tokens: {out}")


def final_values(metrics: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of metrics.jsonl's lines: the last step, tokens, loss and validation loss, and the median tokens/s."""
    values = {
        key: line[key] for line in metrics for key in ("step", "tokens", "loss", "validation_loss") if key in line
    }
    speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
    return values | ({"tokens_per_second": statistics.median(speeds)} if speeds else {})


def differing_keys(configurations: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The keys, such as layout.tensor_parallel_size, that are not alike in all, with each one's value."""
    flat = [dict(_flatten(configuration)) for configuration in configurations]
    keys = sorted({key for values in flat for key in values})
    rows = {key: [values.get(key, _ABSENT) for values in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _named(runs: Sequence[Path]) -> dict[str, Path]:
    for run in runs:
        if not read_metrics(run):
            raise UserError(f"{run} is not a run folder with results: there is nothing in {run / METRICS_FILE}")
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    if len(set(names)) < len(names):
        raise UserError(f"the same run folder is named twice: {', '.join(names)}")
    return dict(zip(names, runs, strict=True))


def _results_table(named: dict[str, Path]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    for title in ("steps", "tokens", "loss", "validation loss", "perplexity", "tokens/s"):
        table.add_column(title, justify="right")
    for name, run in named.items():
        final = final_values(read_metrics(run))
        validation = final.get("validation_loss")
        table.add_row(
            name,
            _number(final.get("step"), ",.0f"),
            _number(final.get("tokens"), ",.0f"),
            _number(final.get("loss"), ".4f"),
            _number(validation, ".4f"),
            _number(None if validation is None else perplexity(validation), ",.2f"),
            _number(final.get("tokens_per_second"), ",.0f"),
        )
    return table


def _differences_table(named: dict[str, Path]) -> Table | str:
    differences = differing_keys([read_yaml(run / "config.yaml") for run in named.values()])
    if not differences:
        return "The configurations are the same."
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("key", *named):
        table.add_column(title, overflow="fold")
    for key, values in differences.items():
        table.add_row(key, *values)
    return table


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _number(value: float | None, format: str) -> str:
    return _ABSENT if value is None else f"{value:{format}}"
