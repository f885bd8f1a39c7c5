"""Sources of every format, whole and damaged."""

import datetime
import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import UserError
from tests.training.corpus.source_files import (
    read_all,
    warc_request,
    warc_response,
    warc_text,
    write_lines,
    write_rows,
)
from training.corpus.config import DatasetConfig
from training.corpus.readers.files import list_files
from training.corpus.readers.records import Problem, Record

SHARED = Path(__file__).resolve().parents[4] / "shared" / "corpus"
PAGE = b"<html><body><p>A page.</p></body></html>"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson"])
def test_json_lines_are_read_however_they_are_compressed(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": "one", "url": "http://a/"}, "", {"html": "<p>zwei ü</p>", "date": "2021-01-02"}]
    path = write_lines(tmp_path / f"data{suffix}", rows)
    assert read_all(path) == [
        Record("1", text="one", url="http://a/"),
        Record("3", html="<p>zwei ü</p>".encode(), date="2021-01-02"),
    ]


def test_fields_may_be_called_otherwise_and_lie_within_others(tmp_path: Path) -> None:
    rows = [{"content": "one", "meta": {"link": "http://a/", "id": 7}}]
    path = write_lines(tmp_path / "data.jsonl", rows)
    settings = {"text_field": "content", "url_field": "meta.link", "id_field": "meta.id"}
    assert read_all(path, **settings) == [Record("7", text="one", url="http://a/")]


def test_a_bad_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    rows = [{"text": "one"}, '{"text": "cut sh', "[1, 2]", {"body": "x"}, {"text": "half \ud800 a pair"}]
    one, *bad, last = read_all(write_lines(tmp_path / "data.jsonl", rows))
    assert one == Record("1", text="one")
    assert last == Record("5", text="half \ufffd a pair")
    problems = [problem for problem in bad if isinstance(problem, Problem)]
    assert [problem.rule for problem in problems] == ["bad record"] * 3
    details = [problem.detail or "" for problem in problems]
    assert details[0].startswith("line 2: not valid JSON")
    assert details[1] == "line 3: expected an object, not list"
    assert details[2] == "4: neither text nor html among its fields: body"


def test_bytes_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    (tmp_path / "data.txt").write_bytes(b"caf\xe9")
    assert [record.text for record in read_all(tmp_path) if isinstance(record, Record)] == ["caf\ufffd"] * 2


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_a_file_that_is_cut_short_gives_what_it_has_and_is_named(tmp_path: Path, suffix: str) -> None:
    # Text that hardly compresses, so that there are many blocks.
    rows = [{"text": random.Random(number).randbytes(200).hex()} for number in range(5000)]
    whole = write_lines(tmp_path / f"whole{suffix}", rows).read_bytes()
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes(whole[: len(whole) // 2])
    *records, last = read_all(cut)
    assert 0 < len(records) < 5000
    assert all(isinstance(record, Record) for record in records[:-1])
    assert isinstance(last, Problem)
    assert last.rule == "damaged file"
    assert last.detail


def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    for name in ("data.parquet", "data.jsonl.gz", "data.warc.gz"):
        (tmp_path / name).write_bytes(b"this is neither")
    problems = [record for record in read_all(tmp_path) if isinstance(record, Problem)]
    assert [problem.rule for problem in problems] == ["damaged file"] * 3


def test_parquet_rows(tmp_path: Path) -> None:
    date = datetime.datetime(2021, 1, 2, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"text": "one", "url": None, "date": date},
        {"text": None, "url": "http://b/", "date": None},
    ]
    first, second = read_all(write_rows(tmp_path / "data.parquet", rows))
    assert first == Record("1", text="one", date="2021-01-02T00:00:00+00:00")
    assert isinstance(second, Problem)


def test_pages_in_parquet(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.parquet", [{"html": PAGE, "url": "http://a/"}])
    assert read_all(path) == [Record("1", html=PAGE, url="http://a/")]


def test_files_that_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffPlain.", encoding="utf-8")
    (tmp_path / "b.html").write_bytes(PAGE)
    (tmp_path / "c.md.gz").write_bytes(gzip.compress(b"# Title"))
    (tmp_path / "notes.pdf").write_bytes(b"no text")
    (tmp_path / ".hidden.txt").write_text("no")
    assert read_all(tmp_path) == [Record("", text="Plain."), Record("", html=PAGE), Record("", text="# Title")]


@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_gives_its_pages(tmp_path: Path, compressed: bool) -> None:
    german = "<html><body>Größe</body></html>"
    records = [
        warc_request("http://a/"),
        warc_response("http://a/", PAGE),
        warc_response("http://b/", PAGE, status="404 Not Found"),
        warc_response("http://c/", b"{}", headers=["Content-Type: application/json"]),
        warc_response("http://d/", german.encode("latin-1"), headers=["Content-Type: text/html; charset=ISO-8859-1"]),
        warc_response("http://e/", gzip.compress(PAGE), headers=["Content-Type: text/html", "Content-Encoding: gzip"]),
        warc_text("http://f/", "Text of a WET file."),
    ]
    path = tmp_path / ("pages.warc.gz" if compressed else "pages.warc")
    path.write_bytes(b"".join(gzip.compress(record) if compressed else record for record in records))
    date = "2021-01-15T12:00:00Z"
    assert read_all(path) == [
        Record("2", html=PAGE, url="http://a/", date=date),
        Problem("3", "not a page: status other than 200"),
        Problem("4", "not a page: not HTML"),
        Record("5", html=german.encode(), url="http://d/", date=date),
        Record("6", html=PAGE, url="http://e/", date=date),
        Record("7", text="Text of a WET file.", url="http://f/", date=date),
    ]


def test_an_archive_that_is_cut_short_gives_what_it_has_and_is_named(tmp_path: Path) -> None:
    members = [gzip.compress(warc_response(f"http://{n}/", PAGE * 50)) for n in range(20)]
    path = tmp_path / "pages.warc.gz"
    path.write_bytes(b"".join(members)[: -len(members[0]) // 2])
    *records, last = read_all(path)
    assert len(records) == 19
    assert isinstance(last, Problem)
    assert last.detail


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpora are not on this machine")
def test_an_archive_of_the_field() -> None:
    for name in ("example.warc", "example.warc.gz"):
        pages = [record for record in read_all(SHARED / "html" / name) if isinstance(record, Record)]
        assert [page.url for page in pages] == ["http://example.com/"]
        assert b"<h1>Example Domain</h1>" in (pages[0].html or b"")


def test_names_do_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_lines(tmp_path / place / "sub" / "a.jsonl", [{"text": "one"}])
    dataset = DatasetConfig(name="set", paths=(str(tmp_path / "here"), str(tmp_path / "there")))
    assert [file.name for file in list_files(dataset)] == ["sub/a.jsonl", "sub/a.jsonl~2"]
    pattern = DatasetConfig(name="set", paths=(str(tmp_path / "*" / "sub" / "*.jsonl"),))
    assert [file.name for file in list_files(pattern)] == ["here/sub/a.jsonl", "there/sub/a.jsonl"]


def test_object_storage() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/one/a.jsonl", b'{"text": "one"}\n')
    memory.pipe("/bucket/two/b.jsonl.gz", gzip.compress(b'{"text": "two"}\n'))
    dataset = DatasetConfig(name="set", paths=("memory://bucket/",))
    assert [file.name for file in list_files(dataset)] == ["one/a.jsonl", "two/b.jsonl.gz"]
    from training.corpus.sources import read_records

    texts = [
        record.text for f in list_files(dataset) for record in read_records(f, dataset) if isinstance(record, Record)
    ]
    assert texts == ["one", "two"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("wiki.json", "no file or folder at .*; did you mean .*wiki.jsonl"),
        ("empty", "holds no file to read; expected .warc"),
        ("nothing://x", "cannot read nothing://x: .*nothing"),
    ],
)
def test_a_path_that_gives_nothing_is_refused(tmp_path: Path, path: str, said: str) -> None:
    write_lines(tmp_path / "wiki.jsonl", [{"text": "one"}])
    (tmp_path / "empty").mkdir()
    dataset = DatasetConfig(name="set", paths=(path if "://" in path else str(tmp_path / path),))
    with pytest.raises(UserError, match=said):
        list_files(dataset)
