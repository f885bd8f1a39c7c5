"""A page may hang, crash or print: the next one is extracted all the same."""

from collections.abc import Iterator

import pytest

from foundation.errors import UserError
from training.corpus import page_process
from training.corpus.page_process import PageProcess, PageResult

FUNCTIONS = "tests.training.corpus.bad_pages"


def make(function: str = "obedient", *, seconds: float = 30.0, **options: str) -> PageProcess:
    return PageProcess(f"{FUNCTIONS}:{function}", options, seconds=seconds, memory_gigabytes=4)


@pytest.fixture(scope="module")
def pages() -> Iterator[PageProcess]:
    process = make(greeting="hello", seconds=0.4)
    yield process
    process.close()


@pytest.mark.parametrize(
    ("order", "rule", "detail"),
    [
        ("compute", "time limit", "more than 0.4 s of processor time"),
        ("sleep", "time limit", "no answer within 2 s"),
        ("crash", "crash", "SIGSEGV"),
        ("exit", "crash", "exit status 3"),
        ("remember", "error", "MemoryError"),
        ("raise", "error", "ValueError: not a page at all"),
    ],
)
def test_a_bad_page_is_named_and_the_next_extracted(pages: PageProcess, order: str, rule: str, detail: str) -> None:
    result = pages.extract(order.encode())
    assert (result.text, result.rule) == ("", rule)
    assert detail in result.detail
    assert pages.extract(b"page") == PageResult("hello, page")


def test_what_a_library_prints_is_no_reply(pages: PageProcess) -> None:
    assert pages.extract(b"print") == PageResult("hello, print")
    assert pages.extract("größer".encode()) == PageResult("hello, größer")


def test_large_pages_pass_both_ways_and_half_characters_are_replaced(pages: PageProcess) -> None:
    page = b"x" * 3_000_000
    assert pages.extract(page).text == f"hello, {page.decode()}"
    assert pages.extract(b"surrogate").text == "half a ? pair"


def test_one_process_for_all_pages_until_it_is_renewed(pages: PageProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pages.extract(b"process").text
    assert pages.extract(b"process").text == first
    monkeypatch.setattr(page_process, "_START_AGAIN_AFTER", 1)
    assert pages.extract(b"process").text != first


def test_an_extractor_that_cannot_be_had_is_said_so() -> None:
    with pytest.raises(UserError, match="no stop words for Klingon"):
        make("wrong_options").extract(b"page")
    with pytest.raises(UserError, match="no_such_module"):
        PageProcess("tests.no_such_module:f", {}, seconds=1, memory_gigabytes=4).extract(b"page")
