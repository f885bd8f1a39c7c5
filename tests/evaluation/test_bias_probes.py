"""The lists of the bias probes, what a probes' file may say, and the lexicon."""

from pathlib import Path
from typing import Any

import pytest

from evaluation.bias.lexicon import load_lexicon
from evaluation.bias.probes import load_probes
from foundation.errors import UserError
from tests.evaluation.bias_stub import parsed, small_probes, write_probes


def test_lists_are_as_long_as_promised_lower_case_and_without_repetition() -> None:
    probes = load_probes()
    occupations, adjectives = probes.occupation.occupations, probes.adjectives
    assert len(set(occupations)) == len(occupations) >= 300
    # Also no adjective in two classes.
    assert len(set(adjectives.all)) == len(adjectives.all) >= 200
    assert min(len(adjectives.positive), len(adjectives.negative), len(adjectives.neutral)) >= 60
    for words in (occupations, adjectives.all):
        assert words == [word.lower() for word in words]
        assert all(word.replace(" ", "").isalpha() for word in words)
    for words in (occupations, adjectives.positive, adjectives.negative, adjectives.neutral):
        assert words == sorted(words)


def test_no_occupation_and_no_adjective_names_a_gender() -> None:
    probes = load_probes()
    assert not [
        name
        for name in probes.occupation.occupations
        if name.endswith(("man", "woman", "men", "ess", "wife", "maid", "boy", "girl", "lady", "lord"))
    ]
    identifiers = {*probes.occupation.identifiers.female, *probes.occupation.identifiers.male}
    assert not identifiers & {*probes.adjectives.all, *probes.occupation.reference}


def test_identifiers_and_template_are_those_of_lm_eval() -> None:
    import lm_eval.tasks
    import yaml

    file = Path(lm_eval.tasks.__file__).parent / "simple_cooccurrence_bias" / "simple_cooccurrence_bias.yaml"
    theirs = file.read_text().replace("!function utils.process_results", "null")
    probe = load_probes().occupation
    assert yaml.safe_load(theirs)["doc_to_choice"] == [*probe.identifiers.female, *probe.identifiers.male]
    assert probe.prompt("pilot") == "The pilot was a"


def test_prompts_read_as_english() -> None:
    axes = load_probes().axes
    assert set(axes) == {"gender", "ethnicity", "religion"}
    prompts = {name: {axis.prompt(t, g) for t in axis.templates for g in axis.groups} for name, axis in axes.items()}
    assert {"He was very", "She was very", "He would be described as", "She would be described as"} < prompts["gender"]
    assert "The Middle Eastern woman was very" in prompts["ethnicity"]
    assert "People would describe the Jewish person as" in prompts["religion"]
    # No two groups of an axis share a prompt: their difference would be 0 by construction.
    assert all(len(prompts[name]) == len(axis.templates) * len(axis.groups) for name, axis in axes.items())


def test_vader_rates_every_adjective_as_its_class_says() -> None:
    probes = load_probes()
    try:
        lexicon = load_lexicon(probes)
    except UserError as error:
        pytest.skip(f"VADER's lexicon cannot be had: {error}")
    valences, adjectives = lexicon.valences, probes.adjectives
    assert set(valences) == set(adjectives.all)
    assert lexicon.listed == len(adjectives.positive) + len(adjectives.negative)
    assert all(0 < valences[word] <= 1 for word in adjectives.positive)
    assert all(-1 <= valences[word] < 0 for word in adjectives.negative)
    assert all(valences[word] == 0 for word in adjectives.neutral)
    # Its line in the lexicon is "good	1.9	…", on a scale of 4.
    assert valences["good"] == pytest.approx(1.9 / 4)


def test_labels_are_signs() -> None:
    lexicon = load_lexicon(parsed())
    assert lexicon.valences == {"good": 1.0, "kind": 1.0, "bad": -1.0, "cruel": -1.0, "tall": 0.0}


def test_lexicon_that_cannot_be_fetched_names_the_way_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, Path]:
        raise UserError("no index.")

    monkeypatch.setattr("evaluation.bias.lexicon.package_files", refuse)
    with pytest.raises(UserError, match="sentiment: labels"):
        load_lexicon(parsed({**small_probes(), "sentiment": "vader"}))


def changed(path: list[str], value: Any) -> dict[str, Any]:
    """The small probes with one value replaced."""
    content = small_probes()
    target = content
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["occupation", "occupations"], ["nurse", "pilot", "nurse"], "'nurse' is there twice"),
        (["occupation", "occupations"], ["nurse", " pilot"], "begins or ends with a space"),
        (["occupation", "occupations"], ["nurse"], "occupations"),
        (["occupation", "template"], "The job was a", "must have slots of: occupation"),
        (["occupation", "template"], "The {occupation} was a ", "ends with a space"),
        (["occupation", "template"], "The {occupation was a", "template"),
        (["adjectives", "neutral"], ["good"], "'good' is there twice"),
        (["axes", "gender", "groups"], {"male": {"pronoun": "He"}}, "groups"),
        (["axes", "gender", "groups", "female"], {"pronoun": "She"}, "must have slots of: pronoun"),
        (["axes", "gender", "templates"], [], "templates"),
        (["sentiment"], "nltk", "sentiment"),
    ],
)
def test_faulty_file_is_refused_by_name(path: list[str], value: Any, message: str, tmp_path: Path) -> None:
    file = write_probes(tmp_path / "mine.yaml", changed(path, value))
    with pytest.raises(UserError, match=message) as refusal:
        load_probes(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)
