"""Small source files of every format."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.corpus.config import DatasetConfig
from training.corpus.readers.files import list_files
from training.corpus.readers.records import Problem, Record
from training.corpus.sources import read_records


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """JSON Lines, compressed as the suffix says."""
    content = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content)
        content = sink.getvalue().to_pybytes()
    path.write_bytes(content)
    return path


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Parquet."""
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def warc_response(
    url: str, body: bytes, *, status: str = "200 OK", headers: Sequence[str] = ("Content-Type: text/html",)
) -> bytes:
    """One record of a web archive, as Common Crawl writes it but for what readers do not look at."""
    http = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]).encode() + body
    return _warc_record("response", "application/http; msgtype=response", http, url)


def warc_text(url: str, text: str) -> bytes:
    """One record of a WET file."""
    return _warc_record("conversion", "text/plain", text.encode(), url)


def warc_request(url: str) -> bytes:
    """What was asked for; no page."""
    return _warc_record("request", "application/http; msgtype=request", b"GET / HTTP/1.1\r\n\r\n", url)


def _warc_record(kind: str, content_type: str, block: bytes, url: str) -> bytes:
    head = "\r\n".join(
        [
            "WARC/1.0",
            f"WARC-Type: {kind}",
            "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>",
            "WARC-Date: 2021-01-15T12:00:00Z",
            f"WARC-Target-URI: {url}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(block)}",
            "",
            "",
        ]
    )
    return head.encode() + block + b"\r\n\r\n"


def read_all(*paths: Path, **settings: Any) -> list[Record | Problem]:
    """What the readers make of the files of a dataset."""
    dataset = DatasetConfig.model_validate({"name": "set", "paths": [str(path) for path in paths], **settings})
    return [record for file in list_files(dataset) for record in read_records(file, dataset)]
