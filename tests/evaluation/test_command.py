"""The command line of `mtnlg evaluate`."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtnlg import app


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What `evaluate` is called with."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr("evaluation.run.evaluate", lambda *positional, **named: calls.append((positional, named)))
    return calls


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", *arguments])


@pytest.mark.parametrize("verb", [[], ["run"]])
def test_run_is_the_verb_that_may_be_left_out(asked: list[Any], verb: list[str]) -> None:
    result = call(*verb, "runs/demo", "--tasks", "piqa, boolq", "--shots", "0,4", "--out", "here")
    assert result.exit_code == 0, result.output
    ((model, table, settings, choice), named) = asked[0]
    assert model == "runs/demo"
    assert table.cells == [("piqa", 0), ("piqa", 4), ("boolq", 0), ("boolq", 4)]
    assert not settings.fit_examples
    assert choice.name == "vllm"
    assert named == {"out": Path("here")}


def test_suite_fits_examples_unless_told_otherwise(asked: list[Any]) -> None:
    call("runs/demo", "--suite", "mt-nlg", "--shots", "0,few")
    call("runs/demo", "--suite", "mt-nlg", "--cut-prompts", "--seeds", "1,2", "--per-document")
    first, second = (positional for positional, _ in asked)
    assert first[1].columns == ("0-shot", "few-shot")
    assert (first[2].suite, first[2].fit_examples, first[2].fixed_examples) == ("mt-nlg", True, True)
    assert (second[2].fit_examples, second[2].fixed_examples, second[2].seeds) == (False, False, (1, 2))


def test_key_comes_from_the_environment(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    options = ["--backend", "http", "--served-model", "m", "--api-key-variable", "MY_KEY"]
    call("http://127.0.0.1:1", "--tasks", "piqa", *options)
    assert asked[0][0][3].server["api_key"] == "secret"
    assert asked[0][0][3].server["model"] == "m"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m"], "either --suite mt-nlg or --tasks"),
        (["m", "--suite", "mt-nlg", "--tasks", "piqa"], "either --suite mt-nlg or --tasks"),
        (["m", "--tasks", "piqa", "--shots", "0,x"], "expected numbers separated by commas"),
        (["m", "--tasks", "piqa", "--shots", "-1"], "cannot be negative"),
        (["m", "--suite", "mt-nlg", "--shots", "4"], "no column '4'"),
        (["m", "--suite", "mt-nlgg"], "did you mean mt-nlg"),
    ],
)
def test_what_cannot_be_meant_is_said(asked: list[Any], arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert asked == []


def test_gate_exits_with_1_when_it_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    for passed, status in ((True, 0), (False, 1)):
        monkeypatch.setattr("evaluation.comparison.gate.gate", lambda *_, passed=passed, **__: passed)
        assert call("gate", "a", "--baseline", "b").exit_code == status
