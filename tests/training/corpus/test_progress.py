"""What a build shows: a bar on a terminal, lines elsewhere."""

import io

import pytest
from rich.console import Console

from training.corpus.progress import BuildDisplay, duration


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    display = BuildDisplay(Console(file=out, force_terminal=terminal, width=120))
    with display.stage("sources") as report:
        report("bytes", 0, 3_000_000)
        report("bytes", 1_500_000, 3_000_000)
        report("documents", 1_000, 2_000)
        report("documents", 1_500, 2_000)
    display.note("sources: finished")
    return out.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.progress._LINE_SECONDS", 0.0)
    lines = shown(terminal=False).splitlines()
    assert lines[1].startswith("sources: 1.5 MB of 3.0 MB, ")
    assert "/s, " in lines[1] and lines[1].endswith(" left")
    assert lines[3].startswith("sources: 1,500 of 2,000 documents, ")
    assert lines[-1] == "sources: finished"


def test_few_lines_where_there_is_no_terminal() -> None:
    assert shown(terminal=False) == "sources: finished\n"


def test_a_bar_on_a_terminal() -> None:
    bar = shown(terminal=True)
    assert "sources: documents" in bar
    assert "1,500 of 2,000" in bar
    assert "sources: finished" in bar


@pytest.mark.parametrize(("seconds", "words"), [(4.21, "4.2 s"), (200, "3 min 20 s"), (18_730, "5 h 12 min")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
