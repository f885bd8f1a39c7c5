"""The extraction stage on small pages, and on real ones where they are at hand."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.corpus_extraction import PAGES, score_pages
from foundation.errors import UserError
from tests.training.corpus.stages import SHARD, corpus_config, raw, reasons, texts
from training.corpus.extract import Extract, ExtractConfig, PageExtractor
from training.corpus.stage import Outcome

PARAGRAPH = (
    "The lighthouse at the end of the pier was built in 1874 by the harbour's own masons, who had asked for it "
    "since two ships of the town had been lost in one winter, and it has been lit in every night from then on."
)
ARTICLE = f"""<!doctype html><html><head><title>Light</title><meta charset="utf-8"><script>var spam = 1;</script></head>
<body><nav><ul><li><a href="/">Home</a></li><li><a href="/shop">Shop</a></li></ul></nav>
<article><h1>The lighthouse</h1><p>{PARAGRAPH}</p><p>{PARAGRAPH.replace("1874", "1912")}</p>
<p>{PARAGRAPH.replace("pier", "café")}</p></article>
<footer>All rights reserved. <a href="/imprint">Imprint</a></footer></body></html>"""


def extract(*rows: Mapping[str, object], **settings: object) -> Outcome:
    extractor = PageExtractor(ExtractConfig.model_validate(settings))
    try:
        return extractor(SHARD, raw(*rows))
    finally:
        extractor.close()


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse", "justext"])
def test_the_article_without_what_surrounds_it(extractor: str) -> None:
    (text,) = texts(extract({"html": ARTICLE.encode()}, extractor=extractor))
    assert text.count("lit in every night") == 3
    assert "café" in text
    assert not {"spam", "Shop", "Imprint", "<p>"}.intersection(text.replace(".", " ").split())


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse", "justext"])
def test_pages_of_another_encoding(extractor: str) -> None:
    page = ARTICLE.replace('charset="utf-8"', 'charset="iso-8859-1"').encode("iso-8859-1")
    (text,) = texts(extract({"html": page}, extractor=extractor))
    assert "café" in text


def test_text_goes_on_as_it_is_and_bad_pages_are_counted_and_named() -> None:
    outcome = extract(
        {"text": "  As it came.\n"},
        {"html": b"", "url": "http://a.example/empty"},
        {"html": b"\x00\xff\xfe" * 50, "url": "http://a.example/noise"},
        {"html": ARTICLE.encode() * 4, "url": "http://a.example/large"},
        {"html": ARTICLE.encode(), "url": "http://a.example/good"},
        {"text": " \n"},
        page_megabytes=3 * len(ARTICLE) / 1e6,
    )
    assert texts(outcome)[0] == "  As it came.\n"
    assert outcome.documents["id"].to_pylist() == ["set/0", "set/4"]
    named = reasons(outcome)
    assert [reason[:2] for reason in named] == [
        ("set/1", "empty"),
        ("set/2", "empty"),
        ("set/3", "too large"),
        ("set/5", "empty"),
    ]
    assert named[0][2] == "http://a.example/empty"
    assert str(named[2][2]).startswith("http://a.example/large: 0.0 MB instead of at most")
    counts = {"kept": 2, "pages": 4, "came as text": 2, "rule: empty": 3, "rule: too large": 1}
    assert outcome.counts == dict(sorted(counts.items()))


def test_the_stage_outlives_pages_that_hang_and_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.extract._FUNCTIONS", "tests.training.corpus.bad_pages")
    orders = ("one", "compute", "two", "crash", "raise", "three")
    pages = ({"html": order.encode(), "url": f"http://a.example/{order}"} for order in orders)
    outcome = extract(*pages, extractor="resiliparse", page_seconds=0.3)
    assert texts(outcome) == ["extracted, one", "extracted, two", "extracted, three"]
    assert reasons(outcome) == [
        ("set/1", "time limit", "http://a.example/compute: more than 0.3 s of processor time"),
        ("set/3", "crash", "http://a.example/crash: SIGSEGV"),
        ("set/4", "error", "http://a.example/raise: ValueError: not a page at all"),
    ]
    assert outcome.dropped["text"].to_pylist() == ["compute", "crash", "raise"]
    assert {name: count for name, count in outcome.counts.items() if name.startswith("rule")} == {
        "rule: crash": 1,
        "rule: error": 1,
        "rule: time limit": 1,
    }


def test_a_page_gives_the_same_text_whatever_came_before() -> None:
    others = [ARTICLE.replace("lighthouse", word).encode() for word in ("tower", "church", "inn")]
    alone = texts(extract({"html": ARTICLE.encode()}))
    among = texts(extract(*({"html": page} for page in [*others, ARTICLE.encode(), *others])))
    assert among[3] == alone[0]
    assert among[:3] == among[4:]


def test_the_library_s_version_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Extract(corpus_config(extract={"extractor": "resiliparse"})).identity()
    assert identity["library"].startswith("resiliparse 2")
    monkeypatch.setattr("training.corpus.extract.version", lambda name: "9.9")
    assert Extract(corpus_config(extract={"extractor": "resiliparse"})).identity() != identity


def test_stop_words_that_there_are_none_of() -> None:
    with pytest.raises(UserError, match="Klingon"):
        extract({"html": ARTICLE.encode()}, extractor="justext", stop_words="Klingon")


@pytest.mark.skipif(not PAGES.is_file(), reason="the labelled pages are not at hand")
def test_real_pages_reach_the_benchmark_s_bar(tmp_path: Path) -> None:
    with gzip.open(PAGES, "rt", encoding="utf-8") as handle:
        pages = [json.loads(next(handle)) for _ in range(40)]
    outcome = extract(*({"id": page["id"], "html": page["html"].encode()} for page in pages))
    found = dict(zip(outcome.documents["id"].to_pylist(), texts(outcome), strict=True))
    score = score_pages([(page["article_body"], found.get(page["id"], "")) for page in pages])
    assert score.f1 > 0.93
