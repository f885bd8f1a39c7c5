"""The bias suite as a whole: what it asks, what it writes, what it refuses."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evaluation.bias.ask import pairs
from evaluation.bias.report import headlines
from evaluation.bias.run import run_bias
from foundation.errors import UserError
from tests.evaluation.bias_stub import LogProb, StubBackend, parsed, small_probes, write_probes

IDENTITY = {"path": "/models/<i>tiny & small</i>", "files_sha256": "ab" * 32}
SETTINGS = {"backend": "stub", "dtype": "float32"}


def uneven(context: str, continuation: str) -> float:
    """The same for the same texts, on every machine."""
    return -1 - 8 * random.Random(context + continuation).random()


def biased(context: str, continuation: str) -> float:
    """Prefers men after every occupation but nurse, and kind women."""
    if continuation in (" male", " man"):
        return -6.0 if "nurse" in context else -2.0
    if continuation == " kind":
        return -2.0 if context in ("She was very", "The woman was very") else -4.0
    return -4.0


def run(folder: Path, logprob: LogProb = uneven, seed: int = 1, **settings: Any) -> tuple[dict[str, Any], StubBackend]:
    """The suite with the small probes."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = StubBackend(logprob)
    document = run_bias(
        lambda: backend,
        folder / "out",
        identity=IDENTITY,
        settings={**SETTINGS, **settings},
        seed=seed,
        probes_file=write_probes(folder / "probes.yaml"),
    )
    return document, backend


def test_everything_is_asked_in_one_call_and_nothing_twice(tmp_path: Path) -> None:
    document, backend = run(tmp_path)
    (asked,) = backend.calls
    # Four identifiers after six nouns; five adjectives after two prompts of two groups and two of three.
    assert len(asked) == len(set(asked)) == 4 * 6 + 5 * (2 * 2 + 2 * 3) == document["usage"]["requests"]
    decode = backend.tokenizer.decode
    texts = {(decode(request.context), decode(request.continuation)) for request in asked}
    assert texts == set(pairs(parsed()))
    assert ("The tree surgeon was a", " woman") in texts
    assert ("She was very", " kind") in texts


def test_prompts_that_two_axes_share_are_asked_once(tmp_path: Path) -> None:
    content = small_probes()
    content["axes"]["again"] = content["axes"]["gender"]
    assert len(pairs(parsed(content))) == len(pairs(parsed()))


def test_files_are_the_same_in_every_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / name)
    for file in ("bias.md", "samples/bias.jsonl"):
        assert (tmp_path / "one/out" / file).read_bytes() == (tmp_path / "two/out" / file).read_bytes()
    one, two = (json.loads((tmp_path / name / "out/bias.json").read_text()) for name in ("one", "two"))
    one["probes"].pop("file"), two["probes"].pop("file")
    assert one == two


def test_document_is_what_bias_json_holds_and_says_what_it_is_not(tmp_path: Path) -> None:
    document, _ = run(tmp_path)
    assert document == json.loads((tmp_path / "out/bias.json").read_text())
    assert document["format"] == "mtnlg-bias"
    assert document["model"] == IDENTITY
    assert document["settings"] == SETTINGS
    limits = " ".join(document["limits"])
    for word in ("no harm", "no absence", "English", "binary"):
        assert word in limits
        assert word in (tmp_path / "out/bias.md").read_text()
        assert word in (tmp_path / "out/bias.html").read_text()


def test_samples_hold_every_log_likelihood_by_its_text(tmp_path: Path) -> None:
    run(tmp_path)
    samples = [json.loads(line) for line in (tmp_path / "out/samples/bias.jsonl").read_text().splitlines()]
    assert [(sample["context"], sample["continuation"]) for sample in samples] == pairs(parsed())
    assert all(sample["logprob"] == uneven(sample["context"], sample["continuation"]) for sample in samples)


def test_planted_bias_is_reported(tmp_path: Path) -> None:
    document, _ = run(tmp_path, biased)
    assert document["occupation"]["male_preferred"]["value"] == 0.75
    assert document["occupation"]["by_occupation"][-1]["occupation"] == "nurse"
    axes = document["adjectives"]["axes"]
    assert [word["adjective"] for word in axes["gender"]["top"]["female"]] == ["kind"]
    assert axes["gender"]["top"]["female"][0]["skew"] == pytest.approx(2 * 4 / 5)
    assert axes["place"]["top"] == {"Northern": [], "Southern": [], "Western": []}
    assert document["sentiment"]["axes"]["gender"]["female"]["contrast"]["value"] > 0
    lines = headlines(document)
    assert lines[0].startswith("75.0 % (")
    assert "Sentiment by place: no group's interval is apart from 0." in lines
    markdown = (tmp_path / "out/bias.md").read_text()
    assert "| female | kind +1.60 |" in markdown


def test_finished_scores_are_not_asked_again(tmp_path: Path) -> None:
    first, _ = run(tmp_path)
    again, backend = run(tmp_path, seed=2)
    assert backend.calls == []
    assert again["occupation"] == first["occupation"]
    _, other = run(tmp_path, dtype="bfloat16")
    assert len(other.calls) == 1


def test_interrupted_run_goes_on(tmp_path: Path) -> None:
    remaining = 20

    def failing(context: str, continuation: str) -> float:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise KeyboardInterrupt
        return uneven(context, continuation)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, failing)
    assert not (tmp_path / "out/bias.json").exists()
    document, backend = run(tmp_path)
    # Whole batches of three.
    assert len(backend.calls[0]) == len(pairs(parsed())) - 18
    expected, _ = run(tmp_path / "other")
    assert document["sentiment"] == expected["sentiment"]


def test_faulty_file_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    def opened() -> StubBackend:
        raise AssertionError("opened")

    content = {**small_probes(), "sentiments": "labels"}
    del content["sentiment"]
    with pytest.raises(UserError, match="did you mean sentiment"):
        run_bias(
            opened,
            tmp_path / "out",
            identity=IDENTITY,
            settings=SETTINGS,
            seed=1,
            probes_file=write_probes(tmp_path / "probes.yaml", content),
        )


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_overflow_is_refused_with_the_text(value: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'She was very kind'.*--dtype float32"):
        run(tmp_path, lambda context, word: value if (context, word) == ("She was very", " kind") else -1.0)
    assert not (tmp_path / "out/bias.json").exists()


class Page(HTMLParser):
    """Every start tag with its attributes, that of open tags, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_well_formed_self_contained_and_escaped(tmp_path: Path) -> None:
    run(tmp_path)
    text = (tmp_path / "out/bias.html").read_text()
    page = Page(text)
    assert page.open == []
    assert text.lstrip().startswith("<!doctype html>")
    names = {name for name, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "i", "form"}
    assert not [attributes for _, attributes in page.tags if {"src", "srcset", "style"} & set(attributes)]
    ids = {attributes.get("id") for _, attributes in page.tags}
    for _, attributes in page.tags:
        target = attributes.get("href") or attributes.get("aria-labelledby") or "#limits"
        assert target.removeprefix("#") in ids
    assert not re.search(r"https?://|url\(|@import", text)
    assert IDENTITY["path"] in page.text
    assert "<b>Other & co</b>" in page.text
    assert "prefers-color-scheme: dark" in text


def test_page_draws_every_figure_inside_its_frame(tmp_path: Path) -> None:
    document, _ = run(tmp_path)
    page = Page((tmp_path / "out/bias.html").read_text())
    rows = sum(len(words) for axis in document["adjectives"]["axes"].values() for words in axis["top"].values())
    groups = sum(len(groups) for groups in document["sentiment"]["axes"].values())
    occupations = 2 * document["occupation"]["occupations"]
    assert rows > 0
    assert sum(tag == "rect" for tag, _ in page.tags) == rows + occupations + groups
    assert sum(attributes.get("class") == "range" for _, attributes in page.tags) == rows + groups + 1
    for tag, attributes in page.tags:
        if tag in ("svg", "meta"):
            continue
        places = [float(attributes.get(name) or 0) for name in ("x", "x1", "x2", "cx")]
        end = places[0] + float(attributes.get("width") or 0)
        assert 0 <= min(places) <= max(*places, end) <= 300, (tag, attributes)


def test_page_of_a_model_that_sees_no_groups_says_none(tmp_path: Path) -> None:
    run(tmp_path, lambda context, word: -3.0)
    page = Page((tmp_path / "out/bias.html").read_text())
    assert page.text.count("\nnone\n") == 2 + 3
    assert "4 of them prefer neither" in page.text


def test_suite_on_a_real_model(model_folder: Path, tmp_path: Path) -> None:
    from evaluation.backends.hf_backend import HFBackend

    backend = HFBackend(model_folder, "float32")
    identity = {"path": str(model_folder), "files_sha256": "00"}
    probes = write_probes(tmp_path / "probes.yaml")
    document = run_bias(
        lambda: backend, tmp_path / "out", identity=identity, settings=SETTINGS, seed=1, probes_file=probes
    )
    assert 0 <= document["occupation"]["male_preferred"]["value"] <= 1
    assert all(0 < axis["coverage"] < 1 for axis in document["adjectives"]["axes"].values())
    assert document["usage"]["tokens_computed"] < document["usage"]["tokens_asked"]
