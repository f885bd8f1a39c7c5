"""Parquet files whose bytes depend on their rows alone, whole or absent."""

import hashlib
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foundation.files import write_bytes
from foundation.manifest import FileRecord

_ROW_GROUP = 8192


def write_parquet(table: pa.Table, path: Path) -> FileRecord:
    """Write `table` (zstd), and measure it. The same rows give the same bytes, however the table is chunked."""
    sink = io.BytesIO()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", row_group_size=_ROW_GROUP, write_page_index=False)
    content = sink.getvalue()
    write_bytes(path, content)
    return FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The rows of one file; no meaning is read into its folder's name."""
    with pq.ParquetFile(path) as file:
        return file.read(columns=columns)


def content_bytes(table: pa.Table) -> int:
    """UTF-8 bytes of the documents' text; of a raw page, of its HTML."""
    total = 0
    for name in ("html", "text"):
        if name in table.column_names:
            total += pc.sum(pc.binary_length(table[name])).as_py() or 0
    return total
