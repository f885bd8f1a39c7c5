"""Web archives (WARC, and Common Crawl's WET): the pages of successful responses."""

from collections.abc import Iterator
from typing import Any

from foundation.errors import UserError, one_line
from training.corpus.config import DatasetConfig
from training.corpus.readers.files import InputFile, open_file
from training.corpus.readers.records import Problem, Record, clean_text

_HTML = ("text/html", "application/xhtml+xml")
_SNIFFED_BYTES = 1024


def read_warc(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """A page a record; a record's number among all of the file's, from 1, is its place.

    Of an archive, only responses (or resources) with status 200 and HTML, by the archive's own word for the type or
    the server's, and WET's extracted texts. The rest is counted.
    """
    try:
        from fastwarc import ArchiveIterator, WarcRecordType
    except ImportError:
        raise UserError("FastWARC is not installed; pip install 'mtnlg[corpus]'") from None

    pages = WarcRecordType.response | WarcRecordType.resource
    with open_file(file, decompress=False) as handle:
        for number, record in enumerate(ArchiveIterator(handle, auto_decode="all"), start=1):
            place = str(number)
            if record.record_type == WarcRecordType.conversion:
                yield _text(record, place)
            elif record.record_type & pages:
                yield _page(record, place)


def _page(record: Any, place: str) -> Record | Problem:
    url = _plain(record.headers.get("WARC-Target-URI"))
    http = record.http_headers if record.is_http_parsed else None
    cut_short = Problem(place, "bad record", f"record {place}, {url}: it is cut short")
    if http is None and record.content_length == 0:
        return cut_short
    if http is not None and http.status_code != 200:
        return Problem(place, "not a page: status other than 200")
    kind = record.headers.get("WARC-Identified-Payload-Type") or (http is not None and record.http_content_type)
    # A parameter may follow, as in `text/html; charset=utf-8`.
    named = (kind or "").split(";")[0].strip().lower()
    if named and named not in _HTML:
        return Problem(place, "not a page: not HTML")
    length = record.content_length
    try:
        html = record.reader.read()
    except (OSError, ValueError, RuntimeError) as error:
        return Problem(place, "bad record", f"record {place}, {url}: {one_line(error)}")
    # Behind a content or transfer encoding the length says nothing.
    encoded = http is not None and any(http.get(name) for name in ("Content-Encoding", "Transfer-Encoding"))
    if len(html) < length and not encoded:
        return cut_short
    if not named and b"<html" not in html[:_SNIFFED_BYTES].lower():
        return Problem(place, "not a page: not HTML")
    charset = record.http_charset if http is not None else None
    return Record(place, html=_in_utf8(html, charset), url=url, date=record.headers.get("WARC-Date"))


def _text(record: Any, place: str) -> Record:
    text = record.reader.read().decode("utf-8", errors="replace")
    url = _plain(record.headers.get("WARC-Target-URI"))
    return Record(place, text=text, url=url, date=record.headers.get("WARC-Date"))


def _plain(url: str | None) -> str | None:
    # WARC 1.0 writes <http://...>, as its grammar had it.
    return clean_text(url.strip("<>")) if url else None


def _in_utf8(html: bytes, charset: str | None) -> bytes:
    """The page in UTF-8 where the server named another encoding, which the page itself need not repeat."""
    try:
        html.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return html
    try:
        return html.decode(charset).encode() if charset else html
    except (UnicodeError, LookupError):
        return html
