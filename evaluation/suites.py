"""Suites: tables that a name stands for, from configs/evaluation/suites."""

import difflib
from collections.abc import Sequence

from pydantic import Field

from evaluation.table import Row, Table
from foundation.config import CONFIG_ROOT, StrictModel, load_config
from foundation.errors import UserError

COLUMNS = ("0", "1", "few")
_FOLDER = CONFIG_ROOT / "evaluation" / "suites"


class SuiteRow(StrictModel):
    """A row of a suite: a task for zero, one and few shots, and how many examples few are."""

    title: str
    tasks: tuple[str, str, str]
    few: int = Field(ge=2)
    published: str | None = None


class Suite(StrictModel):
    """A file of configs/evaluation/suites."""

    rows: list[SuiteRow]


def suite_table(name: str, columns: Sequence[str] = COLUMNS) -> Table:
    """The suite's table with some of the columns "0", "1" and "few". Raises UserError for an unknown name."""
    known = sorted(path.stem for path in _FOLDER.glob("*.yaml"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join([*known, 'bias'])}"
        raise UserError(f"no suite called {name!r}; {hint}")
    if unknown := [column for column in columns if column not in COLUMNS]:
        raise UserError(f"suite {name} has no column {unknown[0]!r}; it has: {', '.join(COLUMNS)}")
    places = [COLUMNS.index(column) for column in columns]
    rows = []
    for row in load_config(Suite, _FOLDER / f"{name}.yaml").rows:
        cells = list(zip(row.tasks, (0, 1, row.few), strict=True))
        rows.append(Row(row.title, tuple(cells[place] for place in places), row.published))
    titles = ("0-shot", "1-shot", "few-shot")
    return Table(tuple(titles[place] for place in places), tuple(rows))
